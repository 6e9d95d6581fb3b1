"""How a start ends: which cause is the first, and when the wait is over."""
# ruff: noqa: E501 - lines and messages as they are printed

from __future__ import annotations

from typing import Any

import pytest
from scene import (
    AFTERMATH,
    BANNER,
    INIT,
    LOAD,
    NOON,
    OOM,
    Run,
    Seen,
    aftermath,
    answered,
    api,
    core,
    died,
    engine,
    failing,
    found,
    log,
    opened,
    proc,
    rank,
    server,
    tree,
    watch,
    worker,
)

from vllm_startup._readings import LogCaughtUp, LogEnded, LogOpened, MemoryEvents, ProbeNote, ProcessExited
from vllm_startup._report import ExitStatus

START: list[Seen] = [(0, opened()), (0, found()), (0, tree(server(), core()))]
STREAM: list[Seen] = [(0, opened(stream=True)), (0, found()), (0, tree(server(), core()))]


def cause(run: Run) -> Any:
    assert run.report.cause is not None
    return run.report.cause


def found_at(run: Run) -> list[float]:
    return [event.at for event in run.told("cause_found")]


def ended_at(run: Run) -> float:
    (event,) = run.told("ended")
    return float(event.at)


# --- what a death alone tells -------------------------------------------------------------


@pytest.mark.parametrize(
    ("death", "kind", "fields"),
    [
        pytest.param({"code": 0}, "process_exited", {"exit_code": 0}, id="exit 0 before ready is a failure"),
        pytest.param({"code": 3}, "process_exited", {"exit_code": 3}, id="exit status"),
        pytest.param({"signal": 9}, "process_killed", {"signal": 9, "process": "vllm"}, id="KILL"),
        pytest.param({"signal": 11}, "process_crashed", {"signal": 11, "process": "vllm"}, id="SEGV"),
        pytest.param({"signal": 6}, "process_crashed", {"signal": 6, "process": "vllm"}, id="ABRT"),
        pytest.param({"signal": 15}, "shutdown_requested", {"signal": 15}, id="TERM"),
        pytest.param({"signal": 2}, "shutdown_requested", {"signal": 2}, id="INT"),
        pytest.param({"signal": 1}, "shutdown_requested", {"signal": 1}, id="HUP"),
        pytest.param({}, "process_vanished", {"process": "vllm", "pid": 10}, id="nobody can tell"),
    ],
)
def test_a_death_of_the_main_process_without_a_word(
    death: dict[str, Any], kind: str, fields: dict[str, Any]
) -> None:
    run = watch([*START, (9, died(**death)), (9, tree())], until_s=60)
    assert run.report.outcome == "failed"
    assert (cause(run).kind, cause(run).fields) == (kind, fields)
    assert run.report.exit is not None
    assert (run.report.exit.code, run.report.exit.signal) == (death.get("code"), death.get("signal"))


@pytest.mark.parametrize(
    ("number", "kind"),
    [(9, "process_killed"), (15, "process_killed"), (11, "process_crashed"), (7, "process_crashed")],
)
def test_an_engine_that_is_ended_by_a_signal_ends_the_start(number: int, kind: str) -> None:
    rows: list[Seen] = [*START, (9, died(20, "VLLM::EngineCore", signal=number)), (9, tree(server()))]
    run = watch(rows, until_s=60)
    assert (cause(run).kind, cause(run).fields["signal"]) == (kind, number)
    assert cause(run).fields["process"] == "VLLM::EngineCore"
    assert found_at(run) == [10.0]


def test_what_is_said_of_a_log_fits_what_was_named() -> None:
    missing = ProbeNote(code="log_missing", text="there is no log at vlm.log yet")
    rows: list[Seen] = [(0, found(10)), (1, tree(server())), (9, died(code=1)), (9, tree())]
    for further, words in (
        ([], "its log would say why: give log="),
        ([(0, missing)], "the log that was named is not there"),
        ([(0, opened())], "no line says why"),
    ):
        assert cause(watch([*further, *rows], until_s=60)).message.endswith(words)


def test_an_engine_that_exits_under_a_living_parent_ends_the_start() -> None:
    rows: list[Seen] = [*START, (9, died(20, "VLLM::EngineCore", code=1)), (9, tree(server()))]
    run = watch(rows, until_s=60)
    assert run.report.outcome == "failed"
    assert ended_at(run) == 20.0


@pytest.mark.parametrize("first", [START, [(0, found()), (0, tree(server(), core()))]], ids=["log", "no log"])
def test_an_engine_that_ends_without_a_word_follows_a_main_process_that_was_killed(first: list[Seen]) -> None:
    """Whose end the kernel tells first is chance."""
    run = watch([*first, (5, died(20, code=0, name="VLLM::EngineCore")), (5.02, died(signal=9))], until_s=60)
    assert (cause(run).kind, cause(run).fields) == ("process_killed", {"signal": 9, "process": "vllm"})
    run = watch([*first, (5, died(20, code=0, name="VLLM::EngineCore")), (6.5, died(signal=9))], until_s=60)
    assert cause(run).kind == "process_exited"


def test_an_engine_that_ends_after_the_main_process_is_what_followed() -> None:
    run = watch([*START, (5, died(signal=9)), (5.1, died(20, code=0, name="VLLM::EngineCore"))], until_s=60)
    assert (cause(run).kind, cause(run).fields["signal"]) == ("process_killed", 9)


def test_a_server_that_ends_under_a_script_is_told_where_no_log_says_why() -> None:
    rows: list[Seen] = [(0, found()), (0, tree(server(), proc(11, "vllm"))), (9, died(11, "vllm", code=1))]
    run = watch([*rows, (9, tree(server()))], until_s=60)
    (warning,) = run.told("warning")
    assert (warning.code, warning.at) == ("server_ended", 9)
    assert "process 11 (vllm) ended with status 1" in warning.text
    run = watch([(0, opened()), *rows], until_s=60)
    assert not run.told("warning")


@pytest.mark.parametrize("signal", [11, 6])
def test_a_crash_whose_words_name_no_process_is_that_of_the_process_that_ended_so(signal: int) -> None:
    said = {11: "!!!!!!! Segfault encountered !!!!!!!", 6: "*** SIGABRT received at time=1 on cpu 3 ***"}[
        signal
    ]
    rows: list[Seen] = [*START, (9, log(said)), (9.2, died(30, "VLLM::Worker_TP1", signal=signal))]
    run = watch([*rows, (9.3, died(20, "VLLM::EngineCore", code=1))], until_s=60)
    assert (cause(run).kind, cause(run).fields) == (
        "process_crashed",
        {"signal": signal, "process": "VLLM::Worker_TP1"},
    )
    assert [item.text[:10] for item in cause(run).evidence] == [said[:10], "pid 30 was"]


def test_an_engine_that_vanishes_is_told_as_such() -> None:
    rows: list[Seen] = [*START, (9, died(20, "VLLM::EngineCore")), (9, tree(server()))]
    run = watch(rows, until_s=60)
    assert (cause(run).kind, cause(run).fields["pid"]) == ("process_vanished", 20)


@pytest.mark.parametrize("asked_at", [9.5, 12], ids=["at once", "after the engine's end was judged"])
def test_a_server_that_is_asked_to_stop_ends_its_engines_first(asked_at: float) -> None:
    rows: list[Seen] = [
        *START,
        (9, died(20, "VLLM::EngineCore", code=0)),
        (asked_at, died(signal=15)),
        (asked_at, tree()),
    ]
    run = watch(rows, until_s=60)
    assert (cause(run).kind, cause(run).fields) == ("shutdown_requested", {"signal": 15})


@pytest.mark.parametrize("name", ["nvcc", "python3", "vllm"])
def test_helpers_may_end(name: str) -> None:
    """Compilers, model inspection and resource trackers come and go."""
    run = watch([*START, (9, died(99, name, code=0))], until_s=60)
    assert run.told("cause_found") == []


# --- before or after the root exception ---------------------------------------------------


def test_a_worker_killed_before_the_aftermath_is_the_cause() -> None:
    """The log of such a start holds nothing but the aftermath."""
    rows: list[Seen] = [
        *START,
        (8, log(worker(LOAD))),
        (9, died(30, "VLLM::Worker", signal=9)),
        (
            9.1,
            log(
                *failing(
                    "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
                )
            ),
        ),
        (11, log(*aftermath())),
        (12, died(code=1)),
        (12, tree()),
    ]
    run = watch(rows, until_s=60)
    assert (cause(run).kind, cause(run).fields["process"]) == ("process_killed", "VLLM::Worker")


def test_whoever_says_that_it_ended_a_worker_is_believed_though_it_is_heard_later() -> None:
    unfed = "Nov 30 14:29:21 gpu01 systemd[1]: vllm.service: Watchdog timeout (limit 1min)!"
    rows: list[Seen] = [
        *START,
        (8, log(worker(LOAD))),
        (9, died(30, "VLLM::Worker", signal=6)),
        (9.2, log(unfed)),
    ]
    run = watch([*rows, (9.3, died(signal=6)), (9.3, tree())], until_s=60)
    assert (cause(run).kind, cause(run).fields["signal"]) == ("shutdown_requested", 6)
    assert "watchdog" in cause(run).message


def test_a_worker_killed_long_after_another_ended_is_aftermath() -> None:
    """The engine ends what is left, and kills what does not end within its grace."""
    rows: list[Seen] = [
        *START,
        (8, log(worker(LOAD))),
        (9, died(31, "VLLM::Worker_TP1", code=0)),
        (9, log("(EngineCore pid=20) WARNING 11-30 14:20:49 [multiproc_executor.py:501] [shutdown] Executor: workers still running after SIGTERM; sending SIGKILL count=1")),
        (16, died(30, "VLLM::Worker_TP0", signal=9)),
        (19, died(code=1)),
        (19, tree()),
    ]  # fmt: skip
    run = watch(rows, until_s=60)
    assert (cause(run).kind, cause(run).confidence) == ("process_exited", "unknown")
    assert "Worker_TP1" in cause(run).message
    assert len(found_at(run)) == 1


def test_a_worker_killed_at_the_time_at_which_another_ended_is_the_cause() -> None:
    rows: list[Seen] = [
        *START,
        (8, log(worker(LOAD))),
        (9, died(31, "VLLM::Worker_TP1", code=0)),
        (9.2, died(30, "VLLM::Worker_TP0", signal=9)),
        (12, died(code=1)),
        (12, tree()),
    ]
    run = watch(rows, until_s=60)
    assert (cause(run).kind, cause(run).fields["process"]) == ("process_killed", "VLLM::Worker_TP0")


STOPS = "[shutdown] API server: shutdown triggered"
FORCED = (
    "(APIServer pid=10) WARNING 11-30 14:20:49 [utils.py:653] [shutdown] Process manager: force killing remaining process EngineCore pid 20",
    "(APIServer pid=10) WARNING 11-30 14:20:49 [system_utils.py:225] [shutdown] force killing sub process VLLM::Worker pid 30",
)


@pytest.mark.parametrize("end", [{"signal": 9}, {"signal": 15}, {"code": 0}], ids=str)
def test_processes_that_the_server_ends_as_it_stops_are_no_cause(end: dict[str, int]) -> None:
    """Ctrl-C just before it was seen to be ready."""
    rows: list[Seen] = [
        *START,
        (8, log(worker(LOAD))),
        (9, log(api(STOPS), *FORCED)),
        (9.01, died(20, "VLLM::EngineCore", **end)),
        (9.02, died(30, "VLLM::Worker", **end)),
        (9.6, died(code=0)),
        (9.6, tree()),
    ]
    run = watch(rows, until_s=60)
    assert (cause(run).kind, cause(run).confidence) == ("shutdown_requested", "likely")
    assert [event.cause.kind for event in run.told("cause_found")] == ["shutdown_requested"]


def test_an_engine_killed_from_outside_is_the_cause_whoever_the_server_kills_then() -> None:
    rows: list[Seen] = [
        *START,
        (8, log(worker(LOAD))),
        (9, died(20, "VLLM::EngineCore", signal=9)),
        (9.1, log(FORCED[1])),
        (9.2, died(30, "VLLM::Worker", signal=9)),
        (9.6, died(code=1)),
        (9.6, tree()),
    ]
    run = watch(rows, until_s=60)
    assert (cause(run).kind, cause(run).fields["process"]) == ("process_killed", "VLLM::EngineCore")


def test_a_worker_killed_after_the_root_exception_is_aftermath() -> None:
    rows: list[Seen] = [
        *START,
        (9, log(*failing(OOM))),
        (9.5, died(30, "VLLM::Worker", signal=9)),
        (11, log(*aftermath())),
        (12, died(code=1)),
        (12, tree()),
    ]
    run = watch(rows, until_s=60)
    assert cause(run).kind == "gpu_out_of_memory"


def test_a_worker_that_vanishes_after_the_root_exception_is_aftermath() -> None:
    rows: list[Seen] = [
        *START,
        (9, log(*failing(OOM))),
        (9.2, died(20, "VLLM::EngineCore")),
        (11, log(*aftermath())),
        (12, died(code=1)),
        (12, tree()),
    ]
    assert cause(watch(rows, until_s=60)).kind == "gpu_out_of_memory"


def test_a_cause_is_told_at_once_when_wrapper_and_exception_are_there() -> None:
    run = watch([*START, (9, log(*failing(OOM)))], until_s=9.2)
    assert found_at(run) == [9.0]
    assert cause(run).kind == "gpu_out_of_memory"
    assert run.report.outcome == "unfinished"


def test_an_exception_that_no_rule_knows_is_told_when_its_message_is_whole() -> None:
    run = watch([*START, (9, log(*failing("ThermalError: the sun went out")))], until_s=9.2)
    assert found_at(run) == [pytest.approx(9.05)]
    assert cause(run).kind == "unclassified_error"
    assert cause(run).text == "the sun went out"


def test_a_message_that_goes_on_is_waited_for() -> None:
    *first, last = failing("ThermalError: the sun went out")
    rows: list[Seen] = [*START, (9, log(*first)), (9.04, log(last)), (9.08, log(engine("at noon", "ERROR")))]
    run = watch(rows, until_s=9.5)
    assert found_at(run) == [pytest.approx(9.13)]
    assert cause(run).text == "the sun went out at noon"


def test_a_cause_that_a_rule_knows_replaces_one_that_none_knows() -> None:
    """Both are likely; a message that is written slowly is told before it is whole."""
    unknown = failing("AcceleratorError: the queue was full", pid=21, name="Worker_TP0")
    known = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."
    rows: list[Seen] = [*START, (9, log(*unknown)), (9.5, log(*failing(known)))]
    run = watch(rows, until_s=10)
    kinds = [event.cause.kind for event in run.told("cause_found")]
    assert kinds == ["unclassified_error", "host_out_of_memory"]


def test_an_exception_alone_is_no_cause_while_everything_lives() -> None:
    """vLLM retries some errors; the level ERROR alone decides nothing."""
    rows: list[Seen] = [
        *START,
        (9, log(engine("Error retrieving safetensors: timed out, retrying 1 of 2", "ERROR"))),
    ]
    assert watch(rows, until_s=500).told("cause_found") == []


def test_an_aftermath_alone_is_taken_after_a_moment_as_unknown() -> None:
    run = watch([*START, (9, log(*aftermath()))], until_s=60)
    assert run.told("cause_found")[0].at == pytest.approx(10.0)
    assert cause(run).confidence == "unknown"
    assert run.report.outcome == "failed"


def test_a_better_cause_replaces_an_unknown_one() -> None:
    rows: list[Seen] = [*START, (9, log(*aftermath())), (12, log(*failing(OOM)))]
    run = watch(rows, until_s=60)
    assert [event.cause.confidence for event in run.told("cause_found")] == ["unknown", "certain"]
    assert cause(run).kind == "gpu_out_of_memory"


def test_a_death_is_explained_by_the_last_lines() -> None:
    rows: list[Seen] = [*START, (9, died(code=1)), (9, tree()), (9.2, log(*failing(OOM), *aftermath()))]
    run = watch(rows, until_s=60)
    assert cause(run).kind == "gpu_out_of_memory"
    assert found_at(run) == [9.2]
    assert ended_at(run) == 9.45


# --- when it is over ----------------------------------------------------------------------


def test_a_file_is_read_out_when_it_has_not_grown_for_a_quarter_of_a_second() -> None:
    run = watch([*START, (9, died(code=1)), (9, tree())], until_s=60)
    assert ended_at(run) == 9.25


def test_a_file_that_goes_on_growing_is_waited_for_two_seconds() -> None:
    rows: list[Seen] = [*START, (9, died(code=1)), (9, tree())]
    rows += [(9 + i / 10, log(f"still here {i}")) for i in range(1, 60)]
    assert ended_at(watch(rows, until_s=60)) == 11.0


def test_a_stream_is_read_out_at_its_end() -> None:
    rows: list[Seen] = [*STREAM, (9, died(code=1)), (9, tree()), (9.7, log("last words")), (9.8, LogEnded())]
    assert ended_at(watch(rows, until_s=60)) == 9.8


def test_a_stream_that_a_grandchild_holds_is_waited_for_two_seconds() -> None:
    assert ended_at(watch([*STREAM, (9, died(code=1)), (9, tree())], until_s=60)) == 11.0


def test_without_a_log_there_is_nothing_to_wait_for() -> None:
    rows: list[Seen] = [(0, found()), (0, tree(server())), (9, died(code=1)), (9, tree())]
    assert ended_at(watch(rows, until_s=60)) == 9.0


def test_the_exception_waits_for_the_tree_to_be_gone() -> None:
    rows: list[Seen] = [*START, (9, died(code=1)), (9, tree(core())), (13, tree())]
    run = watch(rows, until_s=60)
    assert found_at(run) == [9.25]
    assert ended_at(run) == 13.0


def test_the_exception_waits_no_longer_than_the_grace() -> None:
    rows: list[Seen] = [*START, (9, died(code=1)), (9, tree(core()))]
    assert ended_at(watch(rows, until_s=60)) == pytest.approx(19.25)
    assert ended_at(watch(rows, until_s=60, exit_grace=3.0)) == pytest.approx(12.25)


def test_zombies_are_gone() -> None:
    rows: list[Seen] = [*START, (9, died(code=1)), (9, tree(core(status="zombie")))]
    assert ended_at(watch(rows, until_s=60)) == 9.25


def test_a_start_that_failed_and_does_not_die_ends_after_the_grace() -> None:
    run = watch([*START, (9, log(*failing(OOM), *aftermath()))], until_s=60)
    assert run.report.outcome == "failed"
    assert ended_at(run) == pytest.approx(19.0, abs=0.3)
    assert run.report.exit is None


def test_raise_early_ends_at_the_cause() -> None:
    run = watch([*START, (9, log(*failing(OOM), *aftermath()))], raise_early=True, until_s=60)
    assert ended_at(run) == found_at(run)[0]
    assert ended_at(run) == pytest.approx(9.0, abs=0.3)


def test_the_cause_stands_in_the_status_before_the_wait_is_over() -> None:
    run = watch([*START, (9, log(*failing(OOM), *aftermath()))], until_s=12)
    assert run.report.outcome == "unfinished"
    assert cause(run).kind == "gpu_out_of_memory"


def test_a_failed_start_keeps_the_last_phase_that_it_reached() -> None:
    rows: list[Seen] = [
        *START,
        (1, log(api(BANNER))),
        (2, log(engine(INIT))),
        (9, died(signal=9)),
        (9, tree()),
    ]
    run = watch(rows, until_s=60)
    assert run.report.phase == "initializing"
    assert run.report.phases[-1].ended_s is not None


def test_there_is_one_ending() -> None:
    rows: list[Seen] = [*START, (9, died(code=1)), (9, tree()), (20, answered()), (21, died(signal=9))]
    run = watch(rows, until_s=600)
    assert [event.event for event in run.events].count("ended") == 1


def test_nothing_is_taken_after_the_end() -> None:
    rows: list[Seen] = [*START, (9, died(code=1)), (9, tree())]
    before = watch(rows, until_s=30).report
    after = watch([*rows, (40, log(engine(LOAD))), (41, answered())], until_s=50).report
    assert (after.phase, after.outcome, after.cause) == (before.phase, before.outcome, before.cause)
    assert after.phases == before.phases


def test_an_ended_watch_has_no_deadline() -> None:
    run = watch([*START, (9, died(code=1)), (9, tree())], until_s=30)
    assert run.machine.next_deadline is None
    assert run.machine.next_limit is None
    assert not run.machine.hurry


def test_a_death_that_is_being_judged_makes_every_probe_hurry() -> None:
    assert watch([*START, (9, died(code=1))]).machine.hurry
    assert not watch(START).machine.hurry


def test_the_evidence_names_the_attempt() -> None:
    run = watch([*START, (9, died(signal=9)), (9, tree())], until_s=30)
    assert [item.attempt for item in cause(run).evidence] == [1]


def test_the_processes_exits_stand_in_the_report() -> None:
    rows: list[Seen] = [(0, found()), (0, tree(server(), core(), rank()))]
    rows += [(9, died(30, "VLLM::Worker_TP0", signal=9)), (10, died(code=1)), (10, tree())]
    exits = {p.pid: p.exit for p in watch(rows, until_s=30).report.processes}
    assert exits[20] is None
    assert exits[30] is not None
    assert exits[30].signal == 9


def test_a_log_that_only_told_the_aftermath_says_so() -> None:
    rows: list[Seen] = [*START, (9, log(*aftermath())), (10, died(code=1)), (10, tree())]
    run = watch(rows, until_s=30)
    assert cause(run).confidence == "unknown"
    assert cause(run).kind in {"process_exited", "unclassified_error"}
    assert AFTERMATH.partition(":")[2].strip() not in cause(run).message


@pytest.mark.parametrize(
    ("signal", "confidence"), [(9, "certain"), (None, "likely")], ids=["killed", "status unknown"]
)
def test_a_worker_that_the_kernel_killed_for_memory(signal: int | None, confidence: str) -> None:
    rows: list[Seen] = [
        *START,
        (2, MemoryEvents(oom_kills=3, limit_bytes=8 << 30)),
        (9, died(30, "VLLM::Worker_TP0", signal=signal)),
        (9.2, MemoryEvents(oom_kills=4, limit_bytes=8 << 30)),
    ]
    found = cause(watch(rows, until_s=60))
    assert (found.kind, found.confidence) == ("host_out_of_memory", confidence)
    assert "8.0 GiB" in found.message


@pytest.mark.parametrize(
    ("pid", "name"), [(10, "vllm"), (30, "VLLM::Worker_TP0")], ids=["the main process", "a worker"]
)
@pytest.mark.parametrize("speaks", [False, True], ids=["no log", "a log that has ended"])
def test_a_kill_waits_for_the_count_of_kills_for_memory_where_no_log_is_waited_for(
    pid: int, name: str, *, speaks: bool
) -> None:
    rows: list[Seen] = [*START] if speaks else [(0, found()), (0, tree(server(), core()))]
    rows += [(2, MemoryEvents(oom_kills=3, limit_bytes=8 << 30))]
    if speaks:
        rows += [(8.9, LogEnded())]
    rows += [(9, died(pid, name, signal=9))]
    counted = (9.005, MemoryEvents(oom_kills=4, limit_bytes=8 << 30))
    run = watch([*rows, counted], until_s=60)
    assert (cause(run).kind, cause(run).confidence) == ("host_out_of_memory", "certain")
    quiet = watch(rows, until_s=60)
    assert cause(quiet).kind == "process_killed"
    assert found_at(quiet)[0] <= 9.05


@pytest.mark.parametrize("code", ["-9", "None"])
def test_a_starved_worker_whose_exit_code_the_log_tells_is_starved_all_the_same(code: str) -> None:
    said = engine(f"Worker proc VllmWorker-0 died unexpectedly (exit code: {code}), shutting down executor.")
    rows: list[Seen] = [*START, (2, MemoryEvents(oom_kills=0, limit_bytes=8 << 30))]
    rows += [(8.9, MemoryEvents(oom_kills=1, limit_bytes=8 << 30))]
    rows += [(9, died(30, "VLLM::Worker_TP0", signal=9)), (9.004, log(said))]
    assert cause(watch(rows, until_s=60)).kind == "host_out_of_memory"


def test_a_kill_long_before_or_a_crash_is_not_for_memory() -> None:
    early = (2, MemoryEvents(oom_kills=3)), (3, MemoryEvents(oom_kills=4))
    rows: list[Seen] = [*START, *early, (9, died(30, "VLLM::Worker_TP0", signal=9))]
    assert cause(watch(rows, until_s=60)).kind == "process_killed"
    rows = [*START, (2, MemoryEvents(oom_kills=3)), (9, MemoryEvents(oom_kills=4))]
    rows += [(9, died(30, "VLLM::Worker_TP0", signal=11))]
    assert cause(watch(rows, until_s=60)).kind == "process_crashed"


def test_a_worker_that_is_killed_before_its_title_is_seen_is_named_as_the_log_names_it() -> None:
    run = watch(
        [
            (0, found()),
            (5, log(worker("Starting to load model /models/tiny..."))),
            (6, died(30, "python3", signal=9)),
        ],
        until_s=20,
    )
    cause = run.report.cause
    assert cause is not None
    assert (cause.kind, cause.message) == ("process_killed", "Worker_TP0 was ended by SIGKILL")
    assert [p.role for p in run.report.processes if p.pid == 30] == ["worker"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"code": 0}, "exited with status 0"),
        ({"code": 1}, "exited with status 1"),
        ({"signal": 9}, "was ended by SIGKILL"),
        ({}, "is gone"),
    ],
)
def test_a_request_to_end_is_the_cause_however_it_ended_then(how: dict[str, int], said: str) -> None:
    gone = ProcessExited(pid=10, name="container vllm", root=True, requested=15, **how)
    followed = died(20, "VLLM::EngineCore", code=0)
    rows: list[Seen] = [*START, (0, MemoryEvents(oom_kills=0)), (4.95, followed), (5, gone), (5, tree())]
    run = watch([*rows, (5, MemoryEvents(oom_kills=1))], until_s=60)
    assert (cause(run).kind, cause(run).signal) == ("shutdown_requested", 15)
    assert cause(run).evidence[0].text == f"pid 10 was asked to end by SIGTERM, and {said}"
    assert run.report.exit == ExitStatus(**{"code": None, "signal": None, **how})


# --- a start that was over before the watch ---


@pytest.mark.parametrize(
    ("ago_s", "lasted_s"),
    [
        pytest.param(40.0, 15.0, id="at its end"),
        pytest.param(52.0, 5.0, id="not before its last line"),
        pytest.param(None, 60.0, id="just now"),
    ],
)
def test_a_start_that_was_over_lasted_until_its_end(ago_s: float | None, lasted_s: float) -> None:
    """Its log tells when it began: 55 s before its end is told, 60 s before that has been judged."""
    lines = (
        "2026-11-30T12:00:00+00:00 gpu01 vllm[3]: " + BANNER,
        "2026-11-30T12:00:05+00:00 gpu01 vllm[3]: " + INIT,
    )
    gone = ProcessExited(pid=10, name="vllm", code=1, root=True, ago_s=ago_s)
    rows: list[Seen] = [
        (0, LogOpened(source="journal", modified_at=NOON + 15)),
        (0, log(*lines, history=True)),
    ]
    rows += [(0, LogCaughtUp()), (0, gone)]
    run = watch(rows, until_s=60, wall=NOON + 55, raise_early=True)
    report = run.report
    (ended,), (told,) = run.told("ended"), run.told("cause_found")
    expected = lasted_s if ago_s is not None else ended.at + 55
    assert (report.outcome, report.elapsed_s) == ("failed", expected)
    assert [attempt.duration_s for attempt in report.attempts] == [expected]
    assert report.phases[-1].ended_s == expected
    assert (told.elapsed_s, ended.elapsed_s) == (expected, expected)


# --- a log that takes long to read --------------------------------------------------------

OLD = tuple(f'(APIServer pid=3) INFO:  10.2.3.4:{n} - "GET /metrics HTTP/1.1" 200 OK' for n in range(3))


def reading_history(until: int) -> list[Seen]:
    """A gigabyte of a server before, appended to: it is read for ``until`` seconds."""
    rows: list[Seen] = [(0, found(started_at=NOON)), (0, tree(server(), core()))]
    rows.append((0, LogOpened(source="vllm.log", modified_at=NOON - 500)))
    return [*rows, *((second, log(*OLD, history=True)) for second in range(until))]


@pytest.mark.parametrize(
    "death",
    [
        pytest.param([(3, died(code=1)), (3, tree())], id="main process"),
        pytest.param([(3, died(20, "VLLM::EngineCore", code=1)), (3, tree(server()))], id="engine"),
    ],
)
def test_a_death_waits_until_the_log_from_before_has_been_read(death: list[Seen]) -> None:
    rows = sorted([*reading_history(9), *death], key=lambda row: row[0])
    rows += [(9, LogCaughtUp()), (9, log(*failing(OOM))), (9, log(*aftermath()))]
    run = watch(rows, until_s=60, wall=NOON)
    assert (cause(run).kind, cause(run).confidence) == ("gpu_out_of_memory", "certain")
    assert found_at(run)[0] <= 9.3


def test_a_log_from_before_that_is_read_no_further_holds_up_no_death() -> None:
    """Its disk hangs, or it may not be read any more."""
    rows = sorted([*reading_history(6), (3, died(code=1)), (3, tree())], key=lambda row: row[0])
    run = watch(rows, until_s=60, wall=NOON)
    assert cause(run).kind == "process_exited"
    assert found_at(run) == [7.0]
