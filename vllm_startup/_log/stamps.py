"""Seconds since a log began, told from its lines' own stamps."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from vllm_startup._log.times import DAY_S, YEAR_S

if TYPE_CHECKING:
    from vllm_startup._log.lines import Line

# Processes hand their lines over a little out of order; stamps have whole seconds. A step back
# that is longer is the clock's own (NTP, summer time), and time goes on from there.
_DISORDER_S = 30.0
_HALF_YEAR_S = YEAR_S / 2
# In a leap year's count: the start of February 29 and of March 1.
_FEB_29_S = 59 * DAY_S
_MAR_1_S = 60 * DAY_S


class StampClock:
    """A clock that runs on the lines' stamps, for logs without arrival times.

    It never runs backwards. Stamps have no year: January 1 after December 31 goes on.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._elapsed = 0.0

    @property
    def now(self) -> float:
        """Seconds at the latest line."""
        return self._elapsed

    @property
    def started(self) -> bool:
        """Whether any line had a stamp."""
        return self._last is not None

    def at(self, line: Line) -> float:
        """Seconds from the first stamped line to this one; a line without stamp keeps the last."""
        stamp = line.stamp_s
        if stamp is None:
            return self._elapsed
        if self._last is None:
            self._last = stamp
            return self._elapsed
        passed = _between(self._last, stamp)
        if passed < 0 and passed > -_DISORDER_S:
            return self._elapsed
        self._last = stamp
        self._elapsed += max(0.0, passed)
        return self._elapsed


def _between(before: float, after: float) -> float:
    """Seconds from one stamp to another, negative for a step back."""
    if before >= YEAR_S and after >= YEAR_S:
        return after - before
    # One of them lacks its year: a logger of another library writes it, vLLM's does not.
    before, after = _in_year(before), _in_year(after)
    passed = after - before
    if passed < -_HALF_YEAR_S:
        passed += YEAR_S
    elif passed > _HALF_YEAR_S:
        passed -= YEAR_S
    if passed >= DAY_S and before < _FEB_29_S and after >= _MAR_1_S:
        # Without the year, a silent February 29 is less likely than none.
        passed -= DAY_S
    return passed


def _in_year(stamp: float) -> float:
    if stamp < YEAR_S:
        return stamp
    date = datetime.fromtimestamp(stamp, UTC)
    start = date.replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    leap = (date.replace(month=12, day=31) - start).days >= 365
    passed = (date - start).total_seconds()
    return passed if leap or passed < _FEB_29_S else passed + DAY_S
