"""Several engines and ranks: the furthest of an engine, the least of the server."""

from __future__ import annotations

import pytest
from scene import (
    CAPTURED,
    COMPILE,
    DIST,
    ENGINE_READY,
    INIT,
    KV,
    LOAD,
    ROUTES,
    Seen,
    api,
    core,
    engine,
    found,
    log,
    rank,
    server,
    tree,
    watch,
    worker,
)

from vllm_startup._machine.engines import Engines
from vllm_startup._roles import role_of


def dp0(text: str) -> str:
    return engine(text, name="EngineCore_DP0", pid=20)


def dp1(text: str) -> str:
    return engine(text, name="EngineCore_DP1", pid=21)


def test_an_engine_is_as_far_as_the_furthest_of_its_core_and_its_workers() -> None:
    run = watch([(0, found()), (1, log(engine(INIT))), (2, log(worker(LOAD))), (3, log(engine(DIST)))])
    assert run.report.phase == "loading_weights"


def test_one_rank_that_speaks_is_enough() -> None:
    """From 0.11.1 only rank 0 prints most lines."""
    workers = [rank(pid=30 + i, name=f"VLLM::Worker_TP{i}") for i in range(8)]
    run = watch([(0, found()), (1, tree(server(), core(), *workers)), (2, log(worker(COMPILE)))])
    assert run.report.phase == "compiling"


def test_the_server_is_as_far_as_its_last_engine() -> None:
    rows: list[Seen] = [(0, found()), (1, log(dp0(INIT))), (1, log(dp1(INIT))), (5, log(dp0(KV)))]
    assert watch(rows).report.phase == "initializing"
    assert watch([*rows, (9, log(dp1(LOAD)))]).phases["loading_weights"] == 9.0
    assert watch([*rows, (9, log(dp1(LOAD))), (12, log(dp1(KV)))]).phases["allocating_kv_cache"] == 12.0


def test_engines_of_the_tree_are_waited_for_before_they_say_anything() -> None:
    two = tree(server(), core(pid=20, name="VLLM::EngineCore_DP0"), core(pid=21, name="VLLM::EngineCore_DP1"))
    run = watch([(0, found()), (1, two), (5, log(dp0(KV)))])
    assert run.report.phase == "initializing"


def test_workers_of_the_same_name_are_told_apart_by_their_pids() -> None:
    """``-dp 2`` prints ``(Worker pid=N)`` twice."""
    two = tree(
        server(),
        core(pid=20, name="VLLM::EngineCore_DP0"),
        core(pid=21, name="VLLM::EngineCore_DP1"),
        rank(pid=30, ppid=20, name="VLLM::Worker"),
        rank(pid=31, ppid=21, name="VLLM::Worker"),
    )
    rows: list[Seen] = [(0, found()), (1, two), (5, log(worker(LOAD, name="Worker", pid=30)))]
    assert watch(rows).report.phase == "initializing"
    run = watch([*rows, (8, log(worker(LOAD, name="Worker", pid=31)))])
    assert run.phases["loading_weights"] == 8.0


def test_workers_of_the_same_name_without_a_tree_are_dealt_out() -> None:
    rows: list[Seen] = [
        (0, found()),
        (1, log(dp0(INIT), dp1(INIT))),
        (5, log(worker(LOAD, name="Worker", pid=30))),
        (6, log(worker(KV, name="Worker", pid=30))),
    ]
    assert watch(rows).report.phase == "initializing"
    run = watch([*rows, (8, log(worker(LOAD, name="Worker", pid=31)))])
    assert run.report.phase == "loading_weights"


def test_a_line_without_a_prefix_moves_nobody_where_there_are_several_engines() -> None:
    bar = "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 516.79it/s]"
    run = watch([(0, found()), (1, log(dp0(INIT), dp1(INIT))), (5, log(bar))])
    assert run.report.phase == "initializing"


def test_a_line_without_a_prefix_belongs_to_the_only_engine() -> None:
    bar = "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 516.79it/s]"
    run = watch([(0, found()), (1, log(engine(INIT))), (5, log(bar))])
    assert run.report.phase == "loading_weights"


def test_capture_lines_are_judged_by_their_own_engines_kv_size() -> None:
    rows: list[Seen] = [
        (0, found()),
        (1, log(dp0(INIT), dp1(INIT))),
        (2, log(dp0(KV))),
        (3, log(dp1(CAPTURED))),
    ]
    assert watch(rows).phases["compiling"] == 3.0


def test_the_engine_tier_needs_every_engine() -> None:
    rows: list[Seen] = [(0, found()), (1, log(dp0(INIT), dp1(INIT))), (5, log(dp0(ENGINE_READY)))]
    assert watch(rows, until="engine").report.outcome == "unfinished"
    run = watch([*rows, (7, log(dp1(ENGINE_READY)))], until="engine")
    assert (run.report.outcome, run.report.ready_s) == ("ready", 7.0)


def test_the_server_may_start_although_an_engine_was_silent() -> None:
    rows: list[Seen] = [(0, found()), (1, log(dp0(INIT), dp1(INIT))), (5, log(api(ROUTES)))]
    assert watch(rows).report.phase == "starting_server"


def test_the_report_names_the_processes_with_their_roles_and_phases() -> None:
    rows: list[Seen] = [(0, found()), (1, tree(server(), core(), rank())), (2, log(worker(LOAD)))]
    processes = watch(rows).report.processes
    assert [(p.role, p.pid, p.phase) for p in processes] == [
        ("server", 10, None),
        ("engine", 20, "loading_weights"),
        ("worker", 30, "loading_weights"),
    ]


def test_the_engine_that_lags_is_the_suspect() -> None:
    rows: list[Seen] = [
        (0, found()),
        (0, tree(server())),
        (1, log(dp0(INIT), dp1(INIT))),
        (5, log(dp0(KV))),
        (6, log(dp1(LOAD))),
    ]
    cause = watch(rows, until_s=700).report.cause
    assert cause is not None
    assert cause.fields["suspect"] == "waiting for EngineCore_DP1, which is in loading_weights"


@pytest.mark.parametrize(
    ("first", "second"),
    [("EngineCore", "EngineCore"), ("EngineCore_DP0", "EngineCore_DP0")],
)
def test_an_engine_whose_pid_in_the_log_is_another_one_is_the_same(first: str, second: str) -> None:
    """In a container the log and the tree count pids apart."""
    engines = Engines()
    engines.appear(20, 10, f"VLLM::{first}")
    assert engines.find(second, role_of(second), 7) is engines.all[0]
    assert len(engines.all) == 1
