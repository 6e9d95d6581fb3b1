"""Limits: in all, by phase, and without any progress."""

from __future__ import annotations

from typing import Any

import pytest
from scene import (
    BANNER,
    COMPILE,
    DIST,
    GIB,
    INIT,
    LOAD,
    MIB,
    SERVED,
    Run,
    Seen,
    answered,
    api,
    core,
    engine,
    found,
    gpu,
    listening,
    log,
    observed,
    proc,
    rank,
    refused,
    server,
    tree,
    watch,
    worker,
)

from vllm_startup import Timeouts, causes, probes
from vllm_startup._machine.machine import StartupMachine
from vllm_startup._machine.terms import Terms
from vllm_startup._readings import Answer, ProbeBroken, ProbeNote, ProbeRecovered, WatchPaused

QUIET: list[Seen] = [(0, found()), (0, tree(server()))]


def ended(rows: list[Seen], until_s: float = 10_000, **terms: Any) -> tuple[float, str]:
    """When the wait ended, and what of."""
    run = watch(rows, until_s=until_s, **terms)
    (event,) = run.told("ended")
    return event.at, event.cause.kind


def fields(run: Run) -> dict[str, Any]:
    assert run.report.cause is not None
    return run.report.cause.fields


# --- in all -------------------------------------------------------------------------------


def test_total_counts_from_the_call() -> None:
    rows: list[Seen] = [(0, found(age_s=100))]
    assert ended(rows, timeouts=Timeouts(60)) == (60.0, "timed_out")


def test_total_names_the_phase_and_the_limit() -> None:
    run = watch([*QUIET, (5, log(engine(LOAD)))], timeouts=Timeouts(60), until_s=60)
    assert fields(run) == {"phase": "loading_weights", "limit_s": 60, "suspect": None}
    assert run.report.outcome == "timed_out"
    assert run.report.phase == "loading_weights"


def test_total_is_not_moved_by_progress() -> None:
    rows: list[Seen] = [*QUIET, *((float(i), log(engine(f"{LOAD} {i}"))) for i in range(1, 59))]
    assert ended(rows, timeouts=Timeouts(60)) == (60.0, "timed_out")


def test_without_any_limit_nothing_ends_a_wait() -> None:
    run = watch(QUIET, timeouts=Timeouts(stall=None), until_s=1e6)
    assert run.report.outcome == "unfinished"
    assert run.machine.next_limit is None


def test_ready_at_the_moment_of_the_limit_is_too_late() -> None:
    assert watch([*QUIET, (60, answered())], timeouts=Timeouts(60)).report.outcome == "timed_out"
    assert watch([*QUIET, (59.9, answered())], timeouts=Timeouts(60)).report.outcome == "ready"


# --- by phase -----------------------------------------------------------------------------


def test_a_phases_limit_counts_from_its_beginning() -> None:
    rows: list[Seen] = [*QUIET, (30, log(engine(LOAD)))]
    assert ended(rows, timeouts=Timeouts(loading_weights=20)) == (50.0, "phase_timed_out")


def test_a_phases_limit_is_over_when_the_phase_is() -> None:
    rows: list[Seen] = [*QUIET, (30, log(engine(LOAD))), (45, log(engine(COMPILE)))]
    run = watch(rows, timeouts=Timeouts(loading_weights=20, stall=None), until_s=1000)
    assert run.report.outcome == "unfinished"


def test_a_phases_limit_counts_from_the_call_when_the_phase_began_before() -> None:
    rows: list[Seen] = [(0, found(age_s=500)), (0, tree(server()))]
    assert ended(rows, timeouts=Timeouts(launching=20)) == (20.0, "phase_timed_out")


def test_the_first_phases_limit_holds_before_anything_is_seen() -> None:
    assert ended([], timeouts=Timeouts(launching=20)) == (20.0, "phase_timed_out")


def test_the_nearest_limit_wins() -> None:
    rows: list[Seen] = [*QUIET, (30, log(engine(LOAD)))]
    timeouts = Timeouts(100, stall=500, loading_weights=200)
    assert ended(rows, timeouts=timeouts) == (100.0, "timed_out")


# --- stall --------------------------------------------------------------------------------


def test_nothing_that_advances_is_a_stall() -> None:
    run = watch([*QUIET, (5, log(engine(LOAD)))], until_s=10_000)
    assert (run.report.outcome, run.told("ended")[0].at) == ("stalled", 605.0)
    assert fields(run) == {"phase": "loading_weights", "silent_s": 600.0, "suspect": None}


@pytest.mark.parametrize(
    "sign",
    [
        pytest.param(log(engine(COMPILE)), id="a marker"),
        pytest.param(
            log("Loading safetensors checkpoint shards:  61% Completed | 41/67 [00:10<00:05,  4.10it/s]"),
            id="a bar",
        ),
        pytest.param(gpu(9_000), id="GPU memory"),
        pytest.param(tree(server(rss=GIB)), id="host memory"),
        pytest.param(tree(server(read=GIB)), id="bytes read"),
        pytest.param(tree(server(), proc(99, "nvcc")), id="a new process"),
        pytest.param(tree(server(cpu_s=60.0)), id="CPU time"),
        pytest.param(probes.CacheSize(what="hub", total_bytes=9), id="a download"),
        pytest.param(probes.CacheSize(what="compile", total_bytes=9), id="the compile cache"),
    ],
)
def test_progress_of_any_kind_holds_a_stall_off(sign: probes.Reading) -> None:
    rows: list[Seen] = [
        *QUIET,
        (0, gpu(500)),
        (0, probes.CacheSize(what="hub", total_bytes=1)),
        (0, probes.CacheSize(what="compile", total_bytes=1)),
        (1, log(engine(LOAD))),
        (500, tree(server())),
        (501, sign),
    ]
    at, kind = ended(rows)
    assert kind == "stalled"
    assert at == pytest.approx(1101.0, abs=31)


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(
            log(engine("Waiting for 1 local, 0 remote core engine proc(s) to start.")), id="heartbeat"
        ),
        pytest.param(gpu(520), id="a breath of GPU memory"),
        pytest.param(tree(server(rss=20 * MIB)), id="a breath of host memory"),
        pytest.param(tree(server(read=1000)), id="a few bytes"),
        pytest.param(tree(server(cpu_s=0.5)), id="a poll loop"),
        pytest.param(log(api("anything else")), id="a line that is no marker"),
    ],
)
def test_noise_holds_no_stall_off(noise: probes.Reading) -> None:
    rows: list[Seen] = [*QUIET, (0, gpu(500)), (1, log(engine(LOAD))), (470, tree(server())), (500, noise)]
    assert ended(rows) == (601.0, "stalled")


def test_memory_that_others_take_holds_no_stall_off_where_the_servers_is_known() -> None:
    """Another tenant of the GPU comes and goes while the server hangs."""
    rows: list[Seen] = [*QUIET, (0, gpu(500, tree_mib=400)), (1, log(engine(LOAD)))]
    rows += [(2, gpu(30_000, tree_mib=29_900))]
    rows += [(float(i), gpu(30_000 + i % 7 * 5_000, tree_mib=29_910)) for i in range(10, 1500, 10)]
    assert ended(rows) == (602.0, "stalled")
    rows = [*rows[:50], *((at + 100, gpu(60_000, tree_mib=40_000)) for at, _ in rows[50:])]
    assert ended(rows)[0] == rows[50][0] + 600


def test_memory_that_moves_is_progress_where_nobody_knows_whose_it_is() -> None:
    rows: list[Seen] = [*QUIET, (1, log(engine(LOAD)))]
    rows += [(float(i), gpu(30_000 + i % 7 * 5_000)) for i in range(10, 1500, 10)]
    assert watch(rows).report.outcome == "unfinished"


def test_a_heartbeat_that_is_told_for_ever_holds_no_stall_off() -> None:
    line = api("Waiting for 1 local, 0 remote core engine proc(s) to start.")
    rows: list[Seen] = [*QUIET, (1, log(engine(INIT))), *((float(i), log(line)) for i in range(10, 1200, 10))]
    assert ended(rows)[0] == 601.0


def test_requests_that_a_server_logs_hold_no_stall_off() -> None:
    """Those of a wait for a tier that it never meets, among them."""
    asked = 'INFO:     127.0.0.1:40000 - "GET /v1/models HTTP/1.1" 200 OK'
    rows: list[Seen] = [*QUIET, (1, log(engine(LOAD))), (20, log(SERVED))]
    rows += [(float(at), log(asked)) for at in range(25, 1500, 5)]
    assert ended(rows, until="model") == (620.0, "stalled")


def test_a_bar_that_redraws_the_same_counter_is_no_progress() -> None:
    bar = "Loading safetensors checkpoint shards:  61% Completed | 41/67 [00:10<00:05,  4.10it/s]"
    rows: list[Seen] = [
        *QUIET,
        (1, log(engine(LOAD))),
        (2, log(bar)),
        *((float(i), log(bar)) for i in range(3, 900)),
    ]
    assert ended(rows)[0] == 602.0


def test_a_trickle_of_cpu_time_counts_for_nothing() -> None:
    """A real hang used 0.005 s a second."""
    rows: list[Seen] = [*QUIET, (1, log(engine(LOAD)))]
    rows += [(float(i), tree(server(), core(cpu_s=0.05 * i))) for i in range(2, 1500)]
    assert ended(rows)[0] == pytest.approx(602, abs=1)


def test_work_of_a_fifth_of_a_core_counts() -> None:
    rows: list[Seen] = [*QUIET, (1, log(engine(LOAD)))]
    rows += [(float(i), tree(server(), core(cpu_s=0.2 * i))) for i in range(2, 1500)]
    assert watch(rows).report.outcome == "unfinished"


def test_cpu_time_alone_holds_a_stall_off_for_a_while_only() -> None:
    rows: list[Seen] = [*QUIET, (1, log(engine(LOAD)))]
    rows += [(float(i), tree(server(), core(cpu_s=float(i)))) for i in range(2, 6000, 2)]
    at, kind = ended(rows, timeouts=Timeouts(stall=600, cpu_only=1000))
    assert kind == "stalled"
    assert at == pytest.approx(2.0 + 1000 + 600, abs=2)


def test_cpu_only_none_lets_cpu_time_hold_it_off_for_ever() -> None:
    rows: list[Seen] = [*QUIET, (1, log(engine(LOAD)))]
    rows += [(float(i), tree(server(), core(cpu_s=float(i)))) for i in range(2, 9000, 2)]
    assert watch(rows, timeouts=Timeouts(cpu_only=None)).report.outcome == "unfinished"


def test_other_progress_begins_the_time_of_cpu_alone_again() -> None:
    rows: list[Seen] = [*QUIET, (1, log(engine(LOAD)))]
    for i in range(2, 3000, 2):
        rows.append((float(i), tree(server(), core(cpu_s=float(i)))))
        if i == 900:
            rows.append((900.5, log(engine(COMPILE))))
    at, _ = ended(rows, timeouts=Timeouts(stall=600, cpu_only=1000))
    assert at == pytest.approx(900.5 + 1600, abs=2)


def test_nccl_that_spins_while_ranks_join_is_no_work() -> None:
    rows: list[Seen] = [*QUIET, (1, tree(server(), core(), rank())), (5, log(worker(DIST)))]
    rows += [(float(i), tree(server(), core(), rank(cpu_s=float(i)))) for i in range(6, 1200, 2)]
    run = watch(rows)
    assert run.report.outcome == "stalled"
    assert run.told("ended")[0].at == pytest.approx(605, abs=1)
    assert "ranks do not find each other" in fields(run)["suspect"]


def test_cpu_time_counts_again_after_the_first_sign_of_loading() -> None:
    rows: list[Seen] = [
        *QUIET,
        (1, tree(server(), core(), rank())),
        (5, log(worker(DIST))),
        (100, log(worker(LOAD))),
    ]
    rows += [(float(i), tree(server(), core(), rank(cpu_s=float(i)))) for i in range(101, 1500, 2)]
    assert watch(rows).report.outcome == "unfinished"


def test_an_engine_core_that_spins_while_its_workers_sleep_is_no_work() -> None:
    rows: list[Seen] = [*QUIET, (1, tree(server(), core(), rank())), (5, log(engine(LOAD)))]
    rows += [(float(i), tree(server(), core(cpu_s=float(i)), rank(cpu_s=1.0))) for i in range(6, 1200, 2)]
    assert ended(rows)[0] == pytest.approx(605, abs=31)


def test_an_engine_core_without_workers_works() -> None:
    rows: list[Seen] = [*QUIET, (1, tree(server(), core())), (5, log(engine(LOAD)))]
    rows += [(float(i), tree(server(), core(cpu_s=float(i)))) for i in range(6, 1200, 2)]
    assert watch(rows).report.outcome == "unfinished"


def test_children_of_workers_work() -> None:
    rows: list[Seen] = [*QUIET, (1, tree(server(), core(), rank())), (5, log(engine(COMPILE)))]
    rows += [
        (float(i), tree(server(), core(), rank(), proc(50, "nvcc", float(i), ppid=30)))
        for i in range(6, 1200, 2)
    ]
    assert watch(rows).report.outcome == "unfinished"


def test_the_api_server_works_only_before_engines_exist() -> None:
    alone: list[Seen] = [*QUIET, *((float(i), tree(server(cpu_s=float(i)))) for i in range(2, 1200, 2))]
    assert watch(alone).report.outcome == "unfinished"
    later: list[Seen] = [*QUIET, (5, tree(server(), core()))]
    later += [(float(i), tree(server(cpu_s=float(i)), core())) for i in range(6, 1200, 2)]
    assert ended(later)[0] == pytest.approx(605, abs=1)


def test_a_process_whose_pid_is_used_again_brings_no_cpu_time() -> None:
    """Other start time, other process: its first total is no growth of the old one."""
    rows: list[Seen] = [*QUIET, (1, log(engine(LOAD))), (2, tree(server(), core(cpu_s=5.0)))]
    rows += [(float(i), tree(server(), core(cpu_s=5.0))) for i in range(3, 1200, 2)]
    assert ended(rows)[0] == pytest.approx(602, abs=1)


# --- arming -------------------------------------------------------------------------------


def test_a_stall_is_not_armed_without_a_probe_that_sees_silent_work() -> None:
    run = watch([(0, found()), (1, log(engine(LOAD)))], until_s=5000)
    assert run.report.outcome == "unfinished"
    assert [w.code for w in run.report.warnings] == ["stall_unarmed"]


AWAITED = ProbeNote(code="unit_inactive", text="unit vllm.service is inactive", awaits=True)


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param([], id="nobody looks"),
        pytest.param([(1, gpu(500)), (700, gpu(500))], id="its GPUs are seen"),
    ],
)
def test_what_is_only_awaited_does_not_stall_and_nothing_is_said_of_stalls(looks: list[Seen]) -> None:
    run = watch([(0.1, AWAITED), *looks], until_s=5000)
    assert run.report.outcome == "unfinished"
    assert [w.code for w in run.report.warnings] == ["unit_inactive"]


def test_what_was_awaited_stalls_from_its_start_on() -> None:
    rows: list[Seen] = [(0.1, AWAITED), (1, gpu(500)), (1000, found()), (1001, tree(server()))]
    run = watch(rows, until_s=5000)
    assert [event.at for event in run.told("ended")] == [1600]
    assert fields(run)["silent_s"] == 600


def test_that_no_stall_can_be_told_is_said_once_it_was_started() -> None:
    run = watch([(0.1, AWAITED), (1000, found())], until_s=5000)
    (warned,) = [event for event in run.told("warning") if event.code == "stall_unarmed"]
    assert warned.at == 1005


def test_no_warning_where_no_stall_was_asked_for() -> None:
    run = watch([(0, found())], timeouts=Timeouts(stall=None), until_s=5000)
    assert run.report.warnings == ()


@pytest.mark.parametrize("reading", [tree(server()), gpu(500), probes.CacheSize(what="hub", total_bytes=1)])
def test_any_probe_that_sees_silent_work_arms_it(reading: probes.Reading) -> None:
    run = watch([(0, found()), (1, reading)], until_s=5000)
    assert run.report.outcome == "stalled"
    assert run.report.warnings == ()


def test_a_probe_that_breaks_disarms_it() -> None:
    machine = StartupMachine(Terms())
    for observation in observed(QUIET):
        machine.feed(observation)
    machine.feed(probes_observation(10, "tree", ProbeBroken(error="PermissionError()")))
    machine.tick(5000)
    assert machine.outcome is None
    machine.feed(probes_observation(5001, "tree", ProbeRecovered()))
    machine.tick(5600)
    assert machine.outcome is None
    machine.tick(5602)
    assert machine.outcome == "stalled"


def probes_observation(at: float, probe: str, reading: probes.Reading) -> Any:
    from vllm_startup.testing import Observation

    return Observation(at=at, probe=probe, reading=reading)


# --- what is to blame ---------------------------------------------------------------------


def test_a_suspended_process_is_told_at_once_and_named_by_the_stall() -> None:
    rows: list[Seen] = [*QUIET, (1, tree(server(), core())), (9, tree(server(), core(status="stopped")))]
    run = watch(rows, until_s=5000)
    assert [(w.code, w.at) for w in run.told("warning")] == [("process_suspended", 9)]
    assert fields(run)["suspect"] == "process VLLM::EngineCore (pid 20) is suspended by a signal"


def test_a_suspended_process_is_told_once_until_it_runs_again() -> None:
    stopped = tree(server(), core(status="stopped"))
    rows: list[Seen] = [*QUIET, (1, stopped), (2, stopped), (3, tree(server(), core())), (4, stopped)]
    run = watch(rows, until_s=10)
    assert [w.at for w in run.told("warning")] in ([1], [1, 4])


def test_an_engine_that_a_debugger_holds_is_the_suspect() -> None:
    rows: list[Seen] = [*QUIET, (1, tree(server(), core(status="tracing-stop"))), (2, log(worker(DIST)))]
    run = watch(rows, timeouts=Timeouts(stall=60), until_s=100)
    assert fields(run)["suspect"] == "process VLLM::EngineCore (pid 20) is held by a debugger"


def test_a_server_that_is_up_by_its_log_and_listens_nowhere_is_told_and_the_suspect() -> None:
    rows: list[Seen] = [*QUIET, (1, refused()), (20, log(api(BANNER), SERVED)), (20.1, refused())]
    assert watch(rows).report.warnings == ()
    run = watch([*rows, (30, refused())], timeouts=Timeouts(stall=60), until_s=100)
    assert [warning.code for warning in run.report.warnings] == ["not_listening"]
    assert "nothing listens at its address" in fields(run)["suspect"]
    later = watch([*rows, (22, listening()), (22, answered()), (40, refused())], stable_for=60)
    assert later.report.warnings == ()


def test_a_server_that_closes_its_port_before_it_was_stable_is_unhealthy() -> None:
    rows: list[Seen] = [*QUIET, (30, listening()), (30, answered()), (35, refused())]
    run = watch(rows, stable_for=20, timeouts=Timeouts(60), until_s=70)
    assert run.report.outcome == "timed_out"
    assert isinstance(run.report.cause, causes.Unhealthy)
    assert "nothing listens any more" in run.report.cause.message


def test_a_server_that_flaps_is_unhealthy_whatever_it_answered_last() -> None:
    flaps: list[Seen] = [(t, answered(200 if t % 2 else 503)) for t in range(30, 41)]
    rows: list[Seen] = [*QUIET, (30, listening()), *flaps]
    for last in (answered(200), answered(503)):
        run = watch([*rows, (41, last)], stable_for=20, timeouts=Timeouts(42), until_s=50)
        assert run.report.cause is not None
        assert (run.report.cause.kind, fields(run)) == ("unhealthy", {"status": 503})
        assert "failed again before it was stable" in run.report.cause.message


def test_a_pending_placement_group_is_the_suspect() -> None:
    line = api("Waiting for creating a placement group of specs for 10 seconds. specs=[{'GPU': 1.0}].")
    rows: list[Seen] = [*QUIET, *((float(i), log(line)) for i in range(10, 100, 10))]
    run = watch(rows, until_s=5000)
    assert fields(run)["suspect"] == "Ray's placement group is pending"


def test_a_placement_group_that_was_pending_is_no_suspect_later() -> None:
    waits = api("Waiting for creating a placement group of specs for 10 seconds. specs=[{'GPU': 1.0}].")
    run = watch([*QUIET, (10, log(waits)), (20, log(engine(LOAD)))], until_s=5000)
    assert fields(run)["suspect"] is None


def test_answers_of_5xx_are_the_cause() -> None:
    run = watch([*QUIET, (5, listening()), (6, answered(503))], until_s=5000)
    assert run.report.outcome == "stalled"
    assert run.report.cause is not None
    assert run.report.cause.kind == "unhealthy"


def test_a_server_that_listens_and_does_not_answer_is_the_suspect() -> None:
    run = watch([*QUIET, (5, listening())], timeouts=Timeouts(20), until_s=50)
    assert fields(run)["suspect"] == "the port listens, and nothing has answered yet"
    silent = watch([*QUIET, (5, listening())], timeouts=Timeouts(20), until="engine", until_s=50)
    assert fields(silent)["suspect"] is None


def test_no_secret_of_an_answer_gets_into_the_cause() -> None:
    said = Answer(tier="health", ok=False, status=302, owner="tree", detail="HTTP 302 to http://u:hunter2@b/")
    run = watch([*QUIET, (5, listening()), (6, said)], timeouts=Timeouts(20), until_s=50)
    assert run.report.cause is not None
    assert "http://***@b/" in run.report.cause.message


def test_the_stall_says_what_moved_last() -> None:
    run = watch([*QUIET, (5, log(engine(LOAD)))], until_s=5000)
    assert run.report.last_progress is not None
    assert (run.report.last_progress.at_s, run.report.last_progress.what) == (5.0, LOAD)


# --- nobody watched -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeouts", "without"),
    [
        (Timeouts(100, stall=None), 100.0),
        (Timeouts(launching=100, stall=None), 100.0),
        (Timeouts(stall=100), 100.0),
    ],
    ids=["total", "phase", "stall"],
)
def test_a_time_in_which_nobody_watched_counts_for_no_limit(timeouts: Timeouts, without: float) -> None:
    assert ended(QUIET, timeouts=timeouts)[0] == without
    paused: list[Seen] = [*QUIET, (90, WatchPaused(paused_s=60))]
    assert ended(paused, timeouts=timeouts)[0] == without + 60


def test_a_stall_does_not_count_a_time_in_which_nobody_watched_as_silence() -> None:
    run = watch([*QUIET, (90, WatchPaused(paused_s=60))], timeouts=Timeouts(stall=100), until_s=500)
    assert fields(run)["silent_s"] == 100.0


def test_a_pause_that_outlasts_the_limit_does_not_end_the_wait() -> None:
    rows: list[Seen] = [*QUIET, (5000, WatchPaused(paused_s=4990))]
    run = watch(rows, timeouts=Timeouts(100, stall=100), until_s=5050)
    assert run.report.outcome == "unfinished"
    assert [w.code for w in run.report.warnings] == ["watch_paused"]


def test_the_status_names_the_limit_that_fires_first() -> None:
    run = watch([*QUIET, (1, log(api(BANNER)))], timeouts=Timeouts(900, stall=600), until_s=10)
    assert run.machine.next_limit == (601.0, "stall")


def test_what_was_waited_before_counts_for_the_limit_of_all_alone() -> None:
    run = watch([(0, found())], until_s=20, timeouts=Timeouts(10, launching=9), waited_s=4)
    assert run.report.cause is not None
    assert (run.report.cause.kind, run.report.elapsed_s) == ("timed_out", 6.0)
    assert run.report.cause.message.startswith("not ready after 10 s")
