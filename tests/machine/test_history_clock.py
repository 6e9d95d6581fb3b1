"""When the lines of a log were written that was there before the watch."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from scene import (
    BANNER,
    INIT,
    KV,
    LOAD,
    NOON,
    ROUTES,
    SERVED,
    Seen,
    core,
    found,
    log,
    opened,
    server,
    tree,
    watch,
)

from vllm_startup._readings import LogCaughtUp, LogOpened

HOUR = 3600.0


def at(clock: str, text: str = BANNER, *, pid: int = 10, name: str = "APIServer", day: str = "11-30") -> str:
    return f"({name} pid={pid}) INFO {day} {clock} [x.py:1] {text}"


def history(*lines: str) -> list[Seen]:
    return [(0, opened()), (0, log(*lines, history=True))]


def test_stamps_are_read_in_the_watchers_zone() -> None:
    run = watch(history(at("13:59:00")), wall=NOON, utc_offset_s=2 * HOUR)
    assert run.report.started_at == "2026-11-30T11:59:00.000Z"


def test_without_a_time_of_day_stamps_say_nothing() -> None:
    run = watch(history(at("11:59:00"), at("11:59:30", INIT, name="EngineCore", pid=20)))
    assert run.phases["initializing"] == 0.0
    assert run.report.started_at is None


BAR = "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00,  2.29it/s]"


def test_lines_without_a_stamp_are_of_the_time_of_their_neighbours() -> None:
    """An import's message comes first, a progress bar in between: neither dates what follows to now."""
    lines = [
        "Triton is installed, but doesn't include CPU backend. Disabling Triton.",
        at("11:59:10"),
        at("11:59:20", INIT, name="EngineCore", pid=20),
        at("11:59:30", LOAD, name="EngineCore", pid=20),
        BAR,
        at("11:59:50", KV, name="EngineCore", pid=20),
        SERVED,
    ]
    rows = [(0, found(age_s=60.0, started_at=NOON - 60)), *history(*lines)]
    run = watch(rows, wall=NOON, until_s=5)
    assert run.phases == {
        "launching": 0.0,
        "configuring": 10.0,
        "initializing": 20.0,
        "loading_weights": 30.0,
        "allocating_kv_cache": 50.0,
        "starting_server": 50.0,
    }


def test_the_progress_of_long_ago_is_told() -> None:
    run = watch(history(at("11:59:10"), at("11:59:30", LOAD, name="EngineCore", pid=20), BAR), wall=NOON)
    assert [(event.what, event.done, event.total) for event in run.told("progress")] == [
        ("checkpoint shards", 1, 2)
    ]


def test_a_start_that_was_ready_took_as_long_as_it_took() -> None:
    """Not until the next one began, days later."""
    first = [at("11:00:00"), at("11:00:20", INIT, name="EngineCore", pid=20), at("11:00:30", ROUTES), SERVED]
    second = [at("11:59:00", pid=11)]
    run = watch([(0, opened()), (0, log(*first, *second, history=True))], wall=NOON)
    attempt = run.report.attempts[0]
    assert (attempt.outcome, attempt.phase, attempt.duration_s) == ("ready", "ready", 30.0)


def test_a_stamp_a_moment_ahead_is_now() -> None:
    run = watch(history(at("12:00:01")), wall=NOON)
    assert run.report.started_at == "2026-11-30T12:00:00.000Z"


def test_a_day_between_is_a_day() -> None:
    run = watch(history(at("11:00:00", day="11-29")), wall=NOON)
    assert run.report.started_at == "2026-11-29T11:00:00.000Z"


def test_the_leap_day_is_known() -> None:
    leap_day = 1_835_438_400.0  # 2028-02-29 12:00:00 UTC
    run = watch(history(at("12:00:00", day="02-29")), wall=leap_day)
    assert run.report.started_at is not None
    assert run.report.started_at.startswith("2028-02-29T12:00:00")


def test_a_container_in_another_zone_is_told_by_the_time_of_its_file() -> None:
    """The log's last stamp is 3 h behind the time at which the file was written."""
    lines = [at("08:59:00"), at("08:59:40", INIT, name="EngineCore", pid=20)]
    rows: list[Seen] = [
        (0, LogOpened(source="vllm.log", modified_at=NOON - 20, tail=(lines[-1],))),
        (0, found(age_s=65.0, started_at=NOON - 65)),
        (0, tree(server(), core())),
        (0.1, log(*lines, history=True)),
        (0.2, LogCaughtUp()),
    ]
    run = watch(rows, wall=NOON, until_s=5)
    assert len(run.report.attempts) == 1
    assert run.report.started_at == "2026-11-30T11:58:55.000Z"


@pytest.mark.parametrize("ahead_s", [-300.0, 300.0, 7200.0])
def test_a_writer_whose_clock_is_known_to_be_another_is_read_by_that(ahead_s: float) -> None:
    """Without that, its stamps lie before the start of the process, which would be another one's."""
    began = NOON + ahead_s - 60
    clock = datetime.fromtimestamp(began, UTC).strftime("%H:%M:%S")
    later = datetime.fromtimestamp(began + 40, UTC).strftime("%H:%M:%S")
    lines = [at(clock), at(later, INIT, name="EngineCore", pid=20)]
    opening = LogOpened(source="log", modified_at=began + 40, tail=(lines[-1],), clock_ahead_s=ahead_s)
    rows: list[Seen] = [
        (0, opening),
        (0, found(age_s=62.0, started_at=began - 2)),
        (0, tree(server(), core())),
        (0.1, log(*lines, history=True)),
        (0.2, LogCaughtUp()),
    ]
    run = watch(rows, wall=NOON, until_s=5)
    assert len(run.report.attempts) == 1
    assert run.report.started_at == "2026-11-30T11:58:58.000Z"  # by our clock
    assert run.phases["initializing"] == pytest.approx(42, abs=1.5)


@pytest.mark.parametrize("stamp", ["00:00:00", "23:59:59"])
def test_strange_stamps_break_nothing(stamp: str) -> None:
    run = watch(history(at(stamp), at(stamp, INIT, name="EngineCore", pid=20)), wall=NOON, until_s=1)
    assert run.report.elapsed_s >= 0
    assert list(run.phases.values()) == sorted(run.phases.values())
