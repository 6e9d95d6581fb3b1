"""Deaths of the main process that are tolerated, and the loop that they can become."""

from __future__ import annotations

from typing import Any

from scene import (
    BANNER,
    LOAD,
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
    server,
    tree,
    watch,
)

from vllm_startup import Timeouts
from vllm_startup._events import AttemptEnded, AttemptStarted
from vllm_startup._readings import NotRestarted, ProcessExited


def one(at: float, pid: int, *lines: str) -> list[Seen]:
    """A start of the process with this pid that fails ten seconds later."""
    return [
        (at, found(pid)),
        (at, tree(proc(pid, "vllm", ppid=1), root=pid)),
        (at + 5, log(api(BANNER, pid=pid), *lines)),
        (at + 10, ProcessExited(pid=pid, name="vllm", code=1, root=True)),
        (at + 10, tree(root=pid)),
    ]


def attempts_told(run: Run) -> list[AttemptStarted | AttemptEnded]:
    return [e for e in run.events if isinstance(e, AttemptStarted | AttemptEnded)]


def cause(run: Run) -> Any:
    assert run.report.cause is not None
    return run.report.cause


def test_a_tolerated_death_does_not_end_the_wait() -> None:
    rows: list[Seen] = [(0, opened()), *one(0, 10, *failing(OOM), *aftermath())]
    run = watch(rows, restarts=1, until_s=300)
    assert run.report.outcome == "unfinished"
    assert [e.cause.kind for e in run.told("cause_found")] == ["gpu_out_of_memory"]


def test_the_next_process_may_become_ready() -> None:
    rows: list[Seen] = [
        (0, opened()),
        *one(0, 10, *failing(OOM), *aftermath()),
        (20, found(11)),
        (20, tree(proc(11, "vllm", ppid=1), root=11)),
        (25, log(api(BANNER, pid=11))),
        (60, answered()),
    ]
    run = watch(rows, restarts=1)
    assert (run.report.outcome, run.report.ready_s) == ("ready", 40.0)
    assert [(a.outcome, a.cause.kind if a.cause else None) for a in run.report.attempts] == [
        ("failed", "gpu_out_of_memory"),
        ("ready", None),
    ]
    assert run.phases == {"launching": 0.0, "configuring": 5.0, "starting_server": 40.0, "ready": 40.0}


def test_attempts_end_and_begin_as_events() -> None:
    rows: list[Seen] = [*one(0, 10), (20, found(11))]
    run = watch(rows, restarts=1)
    told = [(e.event, e.attempt) for e in attempts_told(run)]
    assert told == [("attempt_started", 1), ("attempt_ended", 1), ("attempt_started", 2)]
    (ended,) = run.told("attempt_ended")
    assert (ended.outcome, ended.cause.kind) == ("failed", "process_exited")


def test_one_death_too_many_is_a_restart_loop_with_the_attempts_causes() -> None:
    rows: list[Seen] = [
        (0, opened()),
        *one(0, 10, *failing(OOM), *aftermath()),
        *one(20, 11, *failing("ValueError: something else"), *aftermath()),
    ]
    run = watch(rows, restarts=1, until_s=100)
    assert run.report.outcome == "failed"
    assert (cause(run).kind, cause(run).restarts) == ("restart_loop", 1)
    assert "was restarted once and failed again" in cause(run).message
    assert [c.kind for c in cause(run).causes] == ["gpu_out_of_memory", "unclassified_error"]


def test_each_attempt_of_a_loop_keeps_its_own_cause() -> None:
    rows: list[Seen] = [(0, opened()), *one(0, 10, *failing(OOM), *aftermath()), *one(20, 11)]
    run = watch(rows, restarts=1, until_s=100)
    kinds = [a.cause.kind if a.cause else None for a in run.report.attempts]
    assert kinds[0] == "gpu_out_of_memory"
    assert kinds[1] in {"process_exited", "restart_loop"}


def test_no_restart_is_tolerated_by_default() -> None:
    rows = one(0, 10)
    run = watch(rows, until_s=100)
    assert (run.report.outcome, cause(run).kind) == ("failed", "process_exited")


def test_a_restart_that_does_not_come_is_ended_by_a_limit() -> None:
    run = watch(one(0, 10), restarts=3, timeouts=Timeouts(120), until_s=200)
    assert run.report.outcome == "timed_out"
    assert run.told("ended")[0].at == 120.0


def test_the_stall_of_a_new_attempt_counts_from_its_beginning() -> None:
    rows: list[Seen] = [*one(0, 10), (500, found(11)), (500, tree(proc(11, "vllm", ppid=1), root=11))]
    run = watch(rows, restarts=1, timeouts=Timeouts(stall=600), until_s=5000)
    assert run.told("ended")[0].at == 1100.0


def test_a_phases_limit_of_a_new_attempt_counts_from_its_beginning() -> None:
    rows: list[Seen] = [*one(0, 10), (50, found(11)), (50, tree(proc(11, "vllm", ppid=1), root=11))]
    run = watch(rows, restarts=1, timeouts=Timeouts(launching=30), until_s=5000)
    assert (run.told("ended")[0].at, cause(run).kind) == (80.0, "phase_timed_out")


def test_evidence_of_the_dead_attempt_says_nothing_of_the_new_one() -> None:
    rows: list[Seen] = [
        (0, opened()),
        (0, found(10)),
        (0, tree(server(), core(rss=0))),
        (1, log(engine(LOAD))),
        (9, died(code=1)),
        (9, tree()),
        (20, found(11)),
        (20, tree(proc(11, "vllm", ppid=1), root=11)),
    ]
    run = watch(rows, restarts=1, until_s=100)
    assert run.phases == {"launching": 0.0}
    assert run.report.processes[0].pid == 11
    assert len(run.report.processes) == 1


def test_late_lines_of_the_dead_do_not_move_the_new_attempt() -> None:
    """The new process is there before the old one's last lines were read."""
    rows: list[Seen] = [
        (0, opened()),
        *one(0, 10, engine(LOAD, pid=12))[:-1],
        (10.1, found(11)),
        (10.1, tree(proc(11, "vllm", ppid=1), root=11)),
        (10.2, log(*failing(OOM, pid=12))),
    ]
    run = watch(rows, restarts=1, until_s=60)
    assert run.report.outcome == "unfinished"


def test_a_restart_before_the_death_was_judged_is_not_tolerated_either() -> None:
    """systemd waits for 100 ms by default, and a death's last words for 250."""
    rows: list[Seen] = [
        (0, opened()),
        *one(0, 10, *failing(OOM), *aftermath())[:-1],
        (10.1, found(11)),
        (10.1, tree(proc(11, "vllm", ppid=1), root=11)),
        (40, answered()),
    ]
    run = watch(rows, until_s=100)
    assert (run.report.outcome, cause(run).kind) == ("failed", "gpu_out_of_memory")
    assert run.told("ended")[0].at == 10.1
    assert [attempt.outcome for attempt in run.report.attempts] == ["failed", "unfinished"]
    tolerant = watch(rows, restarts=1, until_s=100)
    assert (tolerant.report.outcome, tolerant.report.ready_s) == ("ready", 29.9)


def test_a_death_too_many_that_is_followed_at_once_is_a_restart_loop() -> None:
    rows: list[Seen] = [
        (0, opened()),
        *one(0, 10, *failing(OOM), *aftermath())[:-1],
        *one(10.1, 11, *failing("ValueError: something else"), *aftermath())[:-1],
        (20.2, found(12)),
    ]
    run = watch(rows, restarts=1, until_s=100)
    assert (cause(run).kind, cause(run).restarts) == ("restart_loop", 1)
    assert [c.kind for c in cause(run).causes] == ["gpu_out_of_memory", "unclassified_error"]


def test_where_no_restart_will_come_none_is_waited_for() -> None:
    rows: list[Seen] = [*one(0, 10), *one(20, 11), (31, NotRestarted(reason="start-limit-hit"))]
    run = watch(rows, restarts=5, until_s=300)
    assert run.told("ended")[0].at == 31.0
    assert (run.report.outcome, cause(run).kind, cause(run).restarts) == ("failed", "restart_loop", 1)
    assert any("not started again: start-limit-hit" in warning.text for warning in run.report.warnings)


def test_a_supervisor_that_gives_up_before_the_death_is_judged_is_heard_too() -> None:
    rows: list[Seen] = [
        (0, opened()),
        *one(0, 10)[:-1],
        (10.05, NotRestarted(reason="off")),
        (10.1, tree(root=10)),
    ]
    run = watch(rows, restarts=5, until_s=300)
    assert (run.report.outcome, cause(run).kind) == ("failed", "process_exited")
    assert run.told("ended")[0].at == 10.25


def test_a_start_after_all_is_waited_for() -> None:
    """An administrator may start it by hand."""
    rows: list[Seen] = [(0, found(10)), (5, NotRestarted(reason="off")), (6, found(11)), *one(10, 12)]
    run = watch(rows, restarts=5, until_s=300)
    assert run.report.outcome == "unfinished"


def test_a_process_that_is_found_after_a_death_is_of_the_next_attempt() -> None:
    """The dead one was gone before anybody found it; its supervisor told of its end."""
    rows: list[Seen] = [
        (0, opened()),
        (1, ProcessExited(pid=10, name="vllm", code=1, root=True)),
        (5, found(11)),
        (5, tree(proc(11, "vllm", ppid=1), root=11)),
        (9, answered()),
    ]
    run = watch(rows, restarts=1, until_s=60)
    assert [(a.outcome, a.exit and a.exit.code) for a in run.report.attempts] == [
        ("failed", 1),
        ("ready", None),
    ]
