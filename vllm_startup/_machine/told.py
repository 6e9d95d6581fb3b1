"""What the log has said: of one attempt, and as a source that opens and ends."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from vllm_startup._diagnosis.diagnosis import Clue, Diagnosis
from vllm_startup._log.lines import Line
from vllm_startup.causes import Cause

_LINES_TO_LOOK_AT = 10_000  # a log that has not spoken vLLM's form by then will not


_COMES_S = 0.5  # an engine hands on what a container has printed within 0.1 s


@attrs.define(kw_only=True)
class Source:
    """The log that is followed, whichever attempt writes it."""

    since: float = 0.0
    opened: bool = False
    missing: bool = False
    """Whether one was named, and is not there."""
    stream: bool = False
    ended: bool = False
    line_at: float | None = None
    history_at: float | None = None
    """When the newest part of what it held before the watch was read."""
    held_before: bool = False
    """Whether it held something before the watch."""
    caught_up_at: float | None = None
    """When all of that had been read, which takes a while where it is a gigabyte."""

    @property
    def unread(self) -> str | None:
        """What to do about a log that could say more; None where one is read."""
        if self.opened:
            return None
        return "the log that was named is not there" if self.missing else "its log would say why: give log="

    @property
    def caught_up(self) -> bool:
        """Whether all that it held before the watch has been read."""
        return self.caught_up_at is not None

    def comes(self, at: float) -> bool:
        """Whether its first lines are on their way: it was opened when the watch began, a moment before."""
        return self.opened and self.line_at is None and at < self.since + _COMES_S

    @property
    def behind(self) -> bool:
        """Whether more is known to stand in it than has been read."""
        return self.held_before and not self.caught_up and not self.ended


class Told:
    """What an attempt's text has said, apart from phases.

    What was there before the watch is history: it can explain a death, but ends no wait.
    """

    def __init__(self) -> None:
        self.diagnosis = Diagnosis()
        self.lines = 0
        self.first_at: float | None = None
        self.stamped_from: float | None = None
        """When the first line that bears a time was written."""
        self.stamped_at: float | None = None
        """When the last one was."""
        self.only_history = True
        self.holds_history = False
        self.live = False
        """Whether a line that tells its process or its time was written while the watch was on."""
        self.banners: dict[str | None, int | None] = {}
        self.announced: set[tuple[str | None, str]] = set()
        """Who said by which line that it starts."""
        self.unit_step: int | None = None
        """How far systemd's own lines about this start have come."""
        self.over = False
        self.over_at: float | None = None
        self.reaped = False
        """Whether it was systemd that said so: a journal's lines may be older than they stand there."""
        self.writers: set[int] = set()
        """Processes that wrote lines, by the journal's prefix."""
        self.strangers: set[int] = set()
        """Processes of other servers that write into the same log."""
        self.doubted = False
        """Whether somebody has written whom no look at the tree has shown since."""
        self.exit: tuple[int | None, int | None] | None = None
        self.served_at: float | None = None
        self.heartbeat: str | None = None
        """The marker of the wait that was told last, until the start moves on."""
        self.root_at: float | None = None
        self.fatal_at: float | None = None
        self.rule_cause: Cause | None = None
        self.ruled_at: float | None = None
        self.wants_record = True
        """Whether the first line in vLLM's form is still awaited."""
        self._lines_looked_at = 0

    @property
    def ended_at(self) -> float | None:
        """When the start ended, as far as the text tells: the next one may be made hours later."""
        return self.stamped_at if self.over_at is None else self.over_at

    def looked_for_record(self, *, found: bool) -> None:
        """Note whether a line was the first one in vLLM's form."""
        self._lines_looked_at += 1
        self.wants_record = not found and self._lines_looked_at < _LINES_TO_LOOK_AT

    def hear(self, line: Line, at: float, clues: Sequence[Clue] | None = None) -> None:
        """Fold a line into the diagnosis.

        Args:
            line: The line, parsed.
            at: When it was written, on the watch's clock.
            clues: The only ones of the diagnosis's clues that it may hold, where that is known.
        """
        self.lines += 1
        self.first_at = at if self.first_at is None else self.first_at
        if line.stamp_s is not None:
            self.stamped_from = at if self.stamped_from is None else self.stamped_from
            self.stamped_at = at
        if clues is not None and not clues and not self.diagnosis.busy:
            self.diagnosis.skip(line)
            return
        known = self.diagnosis.fatal
        if not self.diagnosis.feed(line, clues):
            return
        if not known and not self.only_history and self.diagnosis.fatal:
            self.fatal_at = at
        if self.root_at is None:
            cause = self.diagnosis.cause
            if cause is not None and cause.confidence != "unknown":
                self.root_at = at

    def ruled(self, cause: Cause, at: float, *, history: bool) -> None:
        """Take a cause from a rule of the caller's; the first one counts."""
        if self.rule_cause is None:
            self.rule_cause = cause
            self.ruled_at = None if history else at

    def verdict(self, *, ended: bool, quiet: bool = False) -> Cause | None:
        """The cause that the text names, once it is fixed."""
        return self.rule_cause or self.diagnosis.verdict(ended=ended, quiet=quiet)
