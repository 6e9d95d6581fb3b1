"""What ends a command of ours in good order (Ctrl-C, SIGTERM), and what stops it for a while (Ctrl-Z)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from vllm_startup._cli._progress import Progress
from vllm_startup._cli._status import InterruptedEarlyError
from vllm_startup._machine.signals import signal_name

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Cancels a task at the first signal; a second one ends the program at once.

    Args:
        progress: Leaves the terminal to the shell while we are stopped; None before there is any.

    Attributes:
        number: The signal that came; None while none has.
    """

    def __init__(self, progress: Progress | None = None) -> None:
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
        if self._progress is not None:
            self._progress.pause()
        loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, self._stop)
        if self._progress is not None:
            self._progress.resume()

    def _interrupt(self, number: int, task: asyncio.Task[None]) -> None:
        self.number = number
        if number == signal.SIGINT and self._progress is not None:
            self._progress.break_line()  # the terminal has written "^C"
        for each in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(each)
        task.cancel()

    @property
    def words(self) -> str:
        """What happened, as a line of its own; empty where nothing did."""
        return "" if self.number is None else words_of(self.number)


def words_of(number: int) -> str:
    """A line that says which signal interrupted us."""
    return f"interrupted by {signal_name(number)}\n"


@contextmanager
def unwinding() -> Iterator[None]:
    """Let SIGTERM end what blocks in here as an exception, so that it leaves nothing behind.

    Raises:
        InterruptedEarlyError: It came.
    """

    def leave(number: int, _frame: object) -> None:
        raise InterruptedEarlyError(number)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not the main thread: whoever has it gets the signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
