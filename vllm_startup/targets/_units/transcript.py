"""The log that a unit's journal stands for: each start whole, in the order in which things happened."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import attrs

from vllm_startup._readings import LogCaughtUp, LogOpened, Reading
from vllm_startup.probes._log import TAIL_LINES, batches
from vllm_startup.targets._units.journal import Entry

HISTORY_STARTS: Final = 5
"""How many of the newest starts are told of what was there before."""


class Transcript:
    """Writes entries down as a log, in the order in which things happened.

    The server's lines and systemd's come to the journal by two ways, and the faster one wins: a
    start's first lines may stand before "Started", its last ones behind "Main process exited". The
    invocation tells which start a line belongs to. So each start begins with systemd's word of it, and
    what systemd says of its end waits for `finish`, or for what is of another start.

    Args:
        unit: The unit's whole name.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._begun: deque[str] = deque(maxlen=HISTORY_STARTS)
        self._ending: str | None = None
        self._ended: str | None = None
        self._last: list[Entry] = []

    def lines(self, entry: Entry) -> list[str]:
        """The lines that may be told with an entry."""
        start = entry.invocation
        if start is None:
            return entry.lines()
        if start == self._ending and not entry.starts:
            if entry.by_manager:
                self._last.append(entry)
                return []
            return entry.lines()
        before = self.finish()
        if entry.closes and start != self._ended:
            self._ending, self._last = start, [entry]
            return before
        return [*before, *self._told(entry, start)]

    def finish(self) -> list[str]:
        """What is left to be told of the end of a start."""
        if self._ending is None:
            return []
        last, self._last = self._last, []
        self._ended, self._ending = self._ending, None
        return [line for entry in last for line in entry.lines()]

    def _told(self, entry: Entry, start: str) -> list[str]:
        if start in self._begun:
            return [] if entry.announces else entry.lines()
        if entry.by_manager and not entry.starts:
            return entry.lines()
        self._begun.append(start)
        if entry.starts:
            return entry.lines()
        said = attrs.evolve(entry, text=f"Starting {self._unit}...", writer=("systemd", 1))
        return [*said.lines(), *entry.lines()]


def written(unit: str, entries: Iterable[Entry], transcript: Transcript | None = None) -> list[str]:
    """The log of a unit's entries, from the first to the last."""
    transcript = transcript or Transcript(unit)
    return [*(line for entry in entries for line in transcript.lines(entry)), *transcript.finish()]


def as_history(
    unit: str, entries: Sequence[Entry], transcript: Transcript, *, clock_ahead_s: float
) -> Iterator[Reading]:
    """The readings that tell what was in the journal before it was watched.

    Args:
        unit: The unit's whole name.
        entries: What was there, the oldest first.
        transcript: What goes on with what comes.
        clock_ahead_s: How far the clock of the unit's machine is ahead of this one's.
    """
    source = f"journal of {unit}"
    if not entries:
        yield LogOpened(source=source)
        return
    lines = written(unit, entries, transcript)
    tail, at = tuple(lines[-TAIL_LINES:]), entries[-1].at_s
    yield LogOpened(source=source, modified_at=at, tail=tail, clock_ahead_s=clock_ahead_s)
    yield from batches(lines, history=True)
    yield LogCaughtUp()


def recent(entries: Sequence[Entry], starts: int = HISTORY_STARTS) -> Sequence[Entry]:
    """The entries of the newest starts."""
    seen: set[str] = set()
    for index in range(len(entries) - 1, -1, -1):
        invocation = entries[index].invocation
        if invocation is not None and invocation not in seen:
            if len(seen) == starts:
                return entries[index + 1 :]
            seen.add(invocation)
    return entries
