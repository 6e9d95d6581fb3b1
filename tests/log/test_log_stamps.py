from __future__ import annotations

import pytest

from vllm_startup._log.lines import LineReader
from vllm_startup._log.stamps import StampClock


def times(*stamps: str | None) -> list[float]:
    """What the clock shows at lines with these stamps."""
    reader, clock = LineReader(), StampClock()
    shown = []
    for stamp in stamps:
        text = "plain" if stamp is None else stamp + " m" if "T" in stamp else f"INFO {stamp} [a.py:1] m"
        (line,) = reader.read(text)
        shown.append(clock.at(line))
    return shown


@pytest.mark.parametrize(
    ("stamps", "expected"),
    [
        pytest.param(("11-30 14:06:44", "11-30 14:06:50"), [0, 6], id="seconds"),
        pytest.param(
            (None, "11-30 14:06:44", None, "11-30 14:06:45", None), [0, 0, 0, 1, 1], id="lines without"
        ),
        pytest.param(("11-30 23:59:50", "12-01 00:00:10"), [0, 20], id="midnight"),
        pytest.param(("12-31 23:59:50", "01-01 00:00:10"), [0, 20], id="New Year"),
        pytest.param(("02-28 23:59:50", "03-01 00:00:10"), [0, 20], id="February 28 of most years"),
        pytest.param(("02-29 23:59:50", "03-01 00:00:10"), [0, 20], id="February 29"),
        pytest.param(("02-28 23:59:50", "02-29 00:00:10", "03-01 00:00:10"), [0, 20, 86_420], id="leap day"),
        pytest.param(("11-30 14:06:45", "11-30 14:06:44", "11-30 14:06:45"), [0, 0, 0], id="out of order"),
        pytest.param(
            ("10-25 02:59:58", "10-25 02:59:59", "10-25 02:00:00", "10-25 02:00:05"),
            [0, 1, 1, 6],
            id="summer time ends",
        ),
        pytest.param(("2026-12-31T23:59:59.5Z", "2027-01-01T00:00:01Z"), [0, 1.5], id="with the year"),
        pytest.param(("2026-02-28T23:59:50Z", "2026-03-01T00:00:10Z"), [0, 20], id="with the year, February"),
        pytest.param(
            ("12-31 23:59:50", "2027-01-01T00:00:10Z", "01-01 00:00:12"), [0, 20, 22], id="one with its year"
        ),
        pytest.param(("2026-03-05T10:00:00Z", "03-05 10:00:07"), [0, 7], id="from with to without the year"),
        pytest.param(("02-11 10:00:00", "2026-02-11T10:00:07Z"), [0, 7], id="from without to with the year"),
    ],
)
def test_the_clock_goes_on(stamps: tuple[str | None, ...], expected: list[float]) -> None:
    assert times(*stamps) == pytest.approx(expected)


def test_small_disorder_does_not_add_up() -> None:
    assert times(*(["11-30 14:06:45", "11-30 14:06:44"] * 50))[-1] == 0


def test_a_clock_without_any_stamp_stands_at_zero() -> None:
    clock = StampClock()
    (line,) = LineReader().read("plain")
    assert (clock.at(line), clock.now, clock.started) == (0.0, 0.0, False)


def test_a_clock_shows_the_latest_line() -> None:
    clock = StampClock()
    for text in ("INFO 11-30 14:06:44 [a.py:1] m", "INFO 11-30 14:06:50 [a.py:1] m"):
        for line in LineReader().read(text):
            clock.at(line)
    assert (clock.now, clock.started) == (6.0, True)
