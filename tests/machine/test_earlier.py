"""An earlier start of the same model: what differs from it is told at the end."""

from __future__ import annotations

from typing import Any

import pytest
from scene import BANNER, LOAD, MIB, Seen, answered, api, engine, found, gpu, log, watch

from vllm_startup._machine.earlier import Earlier

ROWS: list[Seen] = [
    (0, found()),
    (0, gpu(500, 500)),
    (5, log(api(BANNER))),
    (10, log(engine(LOAD))),
    (50, gpu(70_000, 70_000)),
    (60, answered()),
]
SAME = Earlier(
    footprint={"GPU-0": 70_000 * MIB, "GPU-1": 70_000 * MIB},
    phases={"launching": 5.0, "loading_weights": 45.0},
)


def warned(earlier: Earlier, rows: list[Seen] = ROWS) -> list[tuple[str, str]]:
    return [(w.code, w.text) for w in watch(rows, earlier=earlier).report.warnings]


def test_what_is_about_the_same_is_not_told() -> None:
    assert warned(SAME) == []


def test_without_an_earlier_start_nothing_is_told() -> None:
    assert watch(ROWS).report.warnings == ()


def test_another_footprint_is_told() -> None:
    earlier = Earlier(footprint={"GPU-0": 60_000 * MIB, "GPU-1": 70_000 * MIB})
    assert warned(earlier) == [
        ("footprint_differs", "GPU 0 holds 70,000 MiB now, 60,000 MiB in the earlier start")
    ]


def test_other_gpus_are_not_compared() -> None:
    assert warned(Earlier(footprint={"GPU-7": 1})) == []


def test_a_phase_that_took_much_longer_is_told() -> None:
    assert warned(Earlier(phases={"loading_weights": 20.0})) == [
        ("phase_slower", "loading_weights took 50 s, 20 s in the earlier start")
    ]


@pytest.mark.parametrize("before", [{"loading_weights": 40.0}, {"launching": 1.0}, {"compiling": 1.0}])
def test_a_phase_that_took_a_little_longer_is_not(before: dict[str, float]) -> None:
    assert warned(Earlier(phases=before)) == []


def test_gpus_that_are_less_even_than_before_are_told() -> None:
    rows: list[Seen] = [*ROWS[:4], (50, gpu(70_000, 56_000)), (60, answered())]
    assert warned(Earlier(), rows) == [
        ("uneven_gpus", "GPUs differ by 20% of the fullest one, 0% in the earlier start")
    ]
    assert warned(Earlier(spread=0.18), rows) == []


def test_an_earlier_report_is_read_from_its_json() -> None:
    report = watch(ROWS).report.to_dict()
    earlier = Earlier.of(report)
    assert earlier.footprint == SAME.footprint
    assert earlier.phases["loading_weights"] == 50.0
    assert earlier.spread == 0.0
    assert warned(earlier) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        [],
        {"gpus": [{}], "phases": []},
        {"gpus": [], "phases": 7},
        {"gpus": [{"uuid": "GPU-0", "used_bytes": "a"}], "phases": []},
        {"gpus": [], "phases": [{"phase": "launching", "started_s": 0.0, "ended_s": float("nan")}]},
    ],
)
def test_what_is_no_report_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="baseline must be a report"):
        Earlier.of(wrong)


@pytest.mark.parametrize(
    ("other", "said"),
    [({"schema": 2}, "has schema 2, and this version reads 1"), ({"outcome": "failed"}, "it is 'failed'")],
)
def test_what_cannot_be_compared_with_is_refused(other: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Earlier.of({**watch(ROWS).report.to_dict(), **other})
