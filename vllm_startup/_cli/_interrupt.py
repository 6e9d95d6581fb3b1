"""What ends a command of ours in good order: Ctrl-C and SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Cancels a task at the first signal; a second one ends the program at once.

    Attributes:
        number: The signal that came; None while none has.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    def heed(self) -> None:
        """Cancel the task that calls this when a signal comes."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in _SIGNALS:
            try:
                loop.add_signal_handler(number, self._interrupt, number, task)
            except (ValueError, RuntimeError, NotImplementedError):
                return  # not the main thread: whoever has it gets the signals

    def _interrupt(self, number: int, task: asyncio.Task[None]) -> None:
        self.number = number
        for each in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(each)
        task.cancel()

    @property
    def words(self) -> str:
        """What happened, as a line of its own; empty where nothing did."""
        return "" if self.number is None else f"interrupted by {signal.Signals(self.number).name}\n"
