"""What ends a command of ours in good order (Ctrl-C, SIGTERM), and what stops it for a while (Ctrl-Z)."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final

from vllm_startup._cli._progress import Progress

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Cancels a task at the first signal; a second one ends the program at once.

    Args:
        progress: Leaves the terminal to the shell while we are stopped.

    Attributes:
        number: The signal that came; None while none has.
    """

    def __init__(self, progress: Progress) -> None:
        self.number: int | None = None
        self._progress = progress

    def heed(self) -> None:
        """Cancel the task that calls this when a signal comes."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in _SIGNALS:
            try:
                loop.add_signal_handler(number, self._interrupt, number, task)
            except (ValueError, RuntimeError, NotImplementedError):
                return  # not the main thread: whoever has it gets the signals
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:  # a shell without job control
            loop.add_signal_handler(signal.SIGTSTP, self._stop)

    def _stop(self) -> None:
        """Be stopped by the kernel, as without a handler, and go on when a shell lets us."""
        loop = asyncio.get_running_loop()
        self._progress.pause()
        loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, self._stop)
        self._progress.resume()

    def _interrupt(self, number: int, task: asyncio.Task[None]) -> None:
        self.number = number
        if number == signal.SIGINT:
            self._progress.break_line()  # the terminal has written "^C"
        for each in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(each)
        task.cancel()

    @property
    def words(self) -> str:
        """What happened, as a line of its own; empty where nothing did."""
        if self.number is None:
            return ""
        return f"interrupted by {signal.Signals(self.number).name}\n"
