"""Times as logs write them, in seconds.

A time with its year becomes seconds since the Unix epoch; one without (vLLM's own ``MM-DD
HH:MM:SS``, syslog's ``Nov 30 14:06:44``) seconds since the start of a leap year, so that every
date has a place. The largest of those is far below any epoch time that a log can hold.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import cache, lru_cache

DAY_S = 86_400
YEAR_S = 366 * DAY_S
"""Below: seconds in a year that is not known. At or above: seconds since the Unix epoch."""

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAYS_BEFORE = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)

# A log says the same second many times over; and 32 processes do not say more than a few at once.
_REMEMBERED = 64

_ISO = (
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r" ?(Z|UTC|[+-]\d\d:?\d\d)?"
)


@cache
def _iso() -> re.Pattern[str]:
    return re.compile(_ISO)


def _in_year(month: int, day: int, hour: int, minute: int, second: float) -> float | None:
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    return (_DAYS_BEFORE[month - 1] + day - 1) * DAY_S + hour * 3600 + minute * 60 + second


@lru_cache(maxsize=_REMEMBERED)
def month_day(text: str) -> float | None:
    """``MM-DD HH:MM:SS``, vLLM's own form; None for what is no such time."""
    try:
        return _in_year(int(text[0:2]), int(text[3:5]), int(text[6:8]), int(text[9:11]), float(text[12:]))
    except ValueError:
        return None


def syslog(text: str) -> float | None:
    """``Nov 30 14:06:44`` with or without a fraction; None for what is no such time."""
    month, _, rest = text.partition(" ")
    day, _, clock = rest.strip().partition(" ")
    try:
        hour, minute, second = clock.strip().split(":")
        return _in_year(_MONTHS.index(month) + 1, int(day), int(hour), int(minute), float(second))
    except ValueError:
        return None


@lru_cache(maxsize=_REMEMBERED)
def iso(text: str) -> float | None:
    """A date with its year, ISO 8601 or nearly (``2026-11-30 14:06:44,123``); None for others.

    Without a zone it is read as UTC.
    """
    found = _iso().match(text)
    if not found:
        return None
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    try:
        whole = datetime(
            int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=_zone(zone)
        )
    except ValueError:
        return None
    return whole.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


def _zone(text: str | None) -> timezone:
    if text in (None, "Z", "UTC"):
        return UTC
    offset = timedelta(hours=int(text[1:3]), minutes=int(text[-2:]))
    return timezone(-offset if text[0] == "-" else offset)


def epoch(number: float) -> float | None:
    """A count since 1970 in seconds, milli-, micro- or nanoseconds, told apart by its size."""
    for unit in (1, 1e3, 1e6, 1e9):
        # 1e9 s is 2001, 1e11 s is 5138: the ranges of the units do not meet.
        if 1e9 <= number / unit < 1e11:
            return number / unit
    return None
