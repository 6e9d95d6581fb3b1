"""Exit statuses, and how a command gives up."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from vllm_startup._events import Outcome


class Exit(IntEnum):
    """What a command's exit status says."""

    READY = 0
    FAILED = 1
    USAGE = 2
    STALLED = 3
    UNFINISHED = 4
    FAULT = 70  # EX_SOFTWARE of sysexits.h
    TIMED_OUT = 124  # as timeout(1)
    NOT_EXECUTABLE = 126  # as a shell's
    NOT_FOUND = 127
    INTERRUPTED = 130
    TERMINATED = 143


OF_OUTCOME: Final[dict[Outcome, Exit]] = {
    "ready": Exit.READY,
    "failed": Exit.FAILED,
    "stalled": Exit.STALLED,
    "unfinished": Exit.UNFINISHED,
    "timed_out": Exit.TIMED_OUT,
}

TABLE: Final = """\
exit status:
  0    ready
  1    failed: a cause is given
  2    wrong usage
  3    stalled: nothing advanced for longer than the limit
  4    the log or the recording ends before any of these
  70   a fault of vllm-startup's own
  124  a limit of --timeout ran out
  130  interrupted (Ctrl-C); 143: terminated
"""


class UsageError(Exception):
    """The command cannot be run as it was given. The message names the argument and the fix."""


class InterruptedEarlyError(Exception):
    """A signal came before the watch had begun.

    Attributes:
        number: The signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
