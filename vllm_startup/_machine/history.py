"""When the lines of a log were written that was there before the watch began."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

import attrs

from vllm_startup._log.lines import Line, LineReader

_DAY_S = 86_400.0
_YEAR_S = 366 * _DAY_S  # stamps below are seconds in a year that they do not name
_SLACK_S = 2.0  # stamps are whole seconds
# Bars without stamps are written for minutes after the last stamped line; offsets from UTC are
# multiples of a quarter of an hour.
_TRUSTED_S = 900.0
_FIRST_LINES: Final = 100


@attrs.define(kw_only=True)
class HistoryClock:
    """Puts a line's own stamp on the clock of the watch.

    vLLM's stamps name neither year nor zone. They are read in the watcher's zone, unless the last
    of them is far from when the file was last written to: then the writer's zone or clock is
    another one, and the last stamp is taken for that time.

    Attributes:
        called_at: When the watch began, on its own clock.
        wall: The same moment in seconds since the Unix epoch; None where unknown.
        utc_offset_s: The watcher's zone.
        ahead_s: How far the writer's clock is known to be ahead of the watcher's.
    """

    called_at: float
    wall: float | None = None
    utc_offset_s: float = 0.0
    shift_s: float = 0.0
    ahead_s: float = 0.0
    _last: float | None = attrs.field(default=None, init=False)
    _looked_ahead: bool = attrs.field(default=False, init=False)

    def anchor(self, tail: Iterable[str], modified_at: float | None, ahead_s: float) -> None:
        """Learn how far the stamps are off: from the writer's clock, a file's last lines and its time."""
        self.ahead_s = ahead_s
        self._last, self._looked_ahead = None, False
        if self.wall is None or modified_at is None:
            return
        reader = LineReader()
        stamps = [line.stamp_s for text in tail for line in reader.read(text) if line.stamp_s is not None]
        if stamps:
            behind = self._lag(stamps[-1], modified_at)
            self.shift_s = behind if not -_SLACK_S <= behind < _TRUSTED_S else 0.0

    def look_ahead(self, lines: Iterable[str], at: float) -> None:
        """Learn when a log's first lines were written, which have no stamp: just before one that has."""
        if self._looked_ahead:
            return
        self._looked_ahead = True
        reader = LineReader()
        found = (line for text in islice(lines, _FIRST_LINES) for line in reader.read(text))
        first = next((line for line in found if line.stamp_s is not None), None)
        if first is not None and self.wall is not None:
            self._last = self.when(first, at)

    def when(self, line: Line, at: float) -> float:
        """The time of a line that was read at ``at``; ``at`` itself where nobody can tell.

        A line without a stamp was written soon after the one before that has one.
        """
        if line.stamp_s is None or self.wall is None:
            return at if self._last is None else min(at, self._last)
        self._last = self._stamped(line.stamp_s, at)
        return self._last

    def _stamped(self, stamp_s: float, at: float) -> float:
        assert self.wall is not None
        now = self.wall + (at - self.called_at) + self.ahead_s
        return at - max(0.0, self._lag(stamp_s, now) - self.shift_s)

    def _lag(self, stamp_s: float, now: float) -> float:
        """How long before ``now``, in seconds since the Unix epoch, a stamp was."""
        if stamp_s >= _YEAR_S:
            return now - stamp_s
        lag = _in_leap_year(now + self.utc_offset_s) - stamp_s
        return lag + _YEAR_S if lag < -_DAY_S else lag  # the line is from before New Year


def _in_leap_year(unix_s: float) -> float:
    from datetime import UTC, datetime

    now = datetime.fromtimestamp(unix_s, UTC)
    return (now.replace(year=2000) - datetime(2000, 1, 1, tzinfo=UTC)).total_seconds()
