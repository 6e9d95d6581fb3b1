"""When the lines of a log were written that was there before the watch began."""

from __future__ import annotations

import attrs

from vllm_startup._log.lines import Line

_DAY_S = 86_400.0
_YEAR_S = 366 * _DAY_S  # stamps below are seconds in a year that they do not name
_ZONE_S = 900.0  # offsets from UTC are multiples of a quarter of an hour
_SLACK_S = 2.0  # stamps are whole seconds
_OLDEST_S = 30 * _DAY_S  # no start takes longer; beyond that the year or the zone is another one


@attrs.define(kw_only=True)
class HistoryClock:
    """Puts a line's own stamp on the clock of the watch.

    vLLM's stamps name neither year nor zone. They are read in the watcher's zone; where that
    gives a time to come or a very old one, the zones differ, and only what is left within a
    quarter of an hour is used.

    Attributes:
        called_at: When the watch began, on its own clock.
        wall: The same moment in seconds since the Unix epoch; None where unknown.
        utc_offset_s: The watcher's zone.
    """

    called_at: float
    wall: float | None = None
    utc_offset_s: float = 0.0

    def when(self, line: Line, at: float) -> float:
        """The time of a line that was read at ``at``; ``at`` itself where nobody can tell."""
        if line.stamp_s is None or self.wall is None:
            return at
        now = self.wall + (at - self.called_at)
        if line.stamp_s < _YEAR_S:
            now = _in_leap_year(now + self.utc_offset_s)
        lag = now - line.stamp_s
        if lag < -_DAY_S and line.stamp_s < _YEAR_S:
            lag += _YEAR_S  # the line is from before New Year
        if -_SLACK_S <= lag < 0:
            lag = 0.0
        return at - (lag if 0 <= lag < _OLDEST_S else lag % _ZONE_S)


def _in_leap_year(unix_s: float) -> float:
    from datetime import UTC, datetime

    now = datetime.fromtimestamp(unix_s, UTC)
    return (now.replace(year=2000) - datetime(2000, 1, 1, tzinfo=UTC)).total_seconds()
