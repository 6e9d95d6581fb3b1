"""The end of a unit's main process, between being seen and being told."""

from __future__ import annotations

import time
from typing import Final, Self

import attrs

from vllm_startup._readings import ProcessExited
from vllm_startup.probes._exits import Exit

# journald tells readers of new entries every 0.25 s (POST_CHANGE_TIMER_INTERVAL_USEC): the last words of
# a process come that much later than its end.
LAST_WORDS_S: Final = 0.6
# A busy machine is later still. systemd logs every failure, so that its words are worth waiting for.
LATE_WORDS_S: Final = 3.0
_SETTLE_S: Final = 0.1  # the journal takes what systemd and the server write by two ways
_OF_SYSTEMD: Final = range(200, 246)


@attrs.define
class Mourned:
    """The end of a main process that waits for the journal: for its last words, and for how it ended.

    Attributes:
        seen_at: When it was seen.
        told: Whether the journal that is read is to tell of it, if it is a failure.
        heard_at: When the journal told of it; None while it has not.
    """

    reading: ProcessExited
    seen_at: float
    told: bool
    heard_at: float | None = None

    @classmethod
    def now(cls, reading: ProcessExited, *, told: bool) -> Self:
        """An end that is seen at this moment."""
        return cls(reading, clock(), told)

    def hear(self, how: Exit | None) -> None:
        """Take it that the journal tells of it."""
        if self.heard_at is None:
            self.heard_at = clock()
        self.learn(how)

    def learn(self, how: Exit | None, name: str | None = None) -> None:
        """Take how it ended, if that is not known."""
        if how is not None and not self._known:
            name = name or self.reading.name
            self.reading = attrs.evolve(self.reading, code=how.code, signal=how.signal, name=name)

    def due(self, *, log: bool) -> float:
        """When it is told; the journal is waited for where it is the server's log."""
        until = self.seen_at + (LATE_WORDS_S if self.told and self.reading.code != 0 else LAST_WORDS_S)
        if not self._known or ((log or self._could_not_run) and self.heard_at is None):
            return until
        return 0.0 if self.heard_at is None else min(until, self.heard_at + _SETTLE_S)

    @property
    def _could_not_run(self) -> bool:
        """Whether the status is one of systemd's own (systemd.exec(5)): only the journal says more."""
        return self.reading.code in _OF_SYSTEMD

    @property
    def _known(self) -> bool:
        return self.reading.code is not None or self.reading.signal is not None


def clock() -> float:
    """The time, in seconds."""
    return time.monotonic()
