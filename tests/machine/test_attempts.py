"""Several starts in one log, and which of them is the live one."""

from __future__ import annotations

from typing import Any

import pytest
from scene import (
    ARCHITECTURE,
    BANNER,
    INIT,
    LOAD,
    NOON,
    OOM,
    SERVED,
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
    stamped,
    tree,
    watch,
    worker,
)

from vllm_startup import Timeouts
from vllm_startup._events import AttemptEnded, AttemptStarted
from vllm_startup._log.lines import Line
from vllm_startup._log.markers import Sighting, sight
from vllm_startup._machine import chronicle
from vllm_startup._readings import LogCaughtUp

FAILURE = (
    "EngineCore failed to start.",
    "Traceback (most recent call last):",
    '  File "/x/core.py", line 9',
    OOM,
)


def crashed(pid: int = 5) -> tuple[str, ...]:
    """A start that failed, as text."""
    return (api(BANNER, pid=pid), engine(INIT, pid=pid + 1), *failing(OOM, pid=pid + 1), *aftermath())


def attempts_told(run: Run) -> list[AttemptStarted | AttemptEnded]:
    return [e for e in run.events if isinstance(e, AttemptStarted | AttemptEnded)]


def outcomes(run: Run) -> list[tuple[str, str]]:
    return [(a.outcome, a.cause.kind if a.cause else "") for a in run.report.attempts]


def test_a_watch_has_an_attempt_from_its_beginning() -> None:
    assert outcomes(watch([])) == [("unfinished", "")]


def test_a_crash_in_history_never_ends_the_wait() -> None:
    rows: list[Seen] = [
        (0, opened()),
        (0, log(*crashed(), history=True)),
        (0.1, found(age_s=3.0)),
        (0.1, tree(server())),
        (0.2, LogCaughtUp()),
    ]
    run = watch(rows, until_s=500)
    assert run.told("cause_found") == []
    assert run.report.outcome == "unfinished"
    assert outcomes(run) == [("failed", "gpu_out_of_memory"), ("unfinished", "")]


@pytest.mark.parametrize("order", ["log first", "process first"])
def test_the_order_in_which_probes_speak_does_not_matter(order: str) -> None:
    told: list[Seen] = [(0.1, log(*crashed(), history=True)), (0.2, LogCaughtUp())]
    process: list[Seen] = [(0.1, found(age_s=3.0)), (0.1, tree(server()))]
    rows = [*told, *process] if order == "log first" else [*process, *told]
    rows = sorted([(0, opened()), *rows, (5, log(api(BANNER)))], key=lambda row: row[0])
    run = watch(rows, until_s=100)
    assert outcomes(run) == [("failed", "gpu_out_of_memory"), ("unfinished", "")]
    assert run.report.phase == "configuring"


def test_a_crash_in_history_without_a_process_to_bind_to_does_not_end_the_wait() -> None:
    run = watch([(0, opened()), (0, log(*crashed(), history=True)), (0.2, LogCaughtUp())], until_s=500)
    assert run.told("cause_found") == []


def test_a_new_banner_begins_a_new_attempt() -> None:
    rows: list[Seen] = [
        (0, opened()),
        (0, log(*crashed(5), history=True)),
        (0, log(api(BANNER), history=True)),
    ]
    assert outcomes(watch(rows)) == [("failed", "gpu_out_of_memory"), ("unfinished", "")]


def test_two_api_servers_of_one_start_are_one_attempt() -> None:
    rows: list[Seen] = [
        (0, found()),
        (1, log(engine(BANNER, name="ApiServer_0", pid=11))),
        (2, log(engine(BANNER, name="ApiServer_1", pid=12))),
    ]
    assert len(watch(rows).report.attempts) == 1


def test_a_containers_next_start_has_the_same_pids_and_is_a_new_attempt() -> None:
    start = (api(BANNER, pid=1), engine(INIT, pid=50), engine(LOAD, pid=50))
    rows: list[Seen] = [(0, opened()), (0, log(*start, SERVED, *start, history=True))]
    assert outcomes(watch(rows)) == [("ready", ""), ("unfinished", "")]


def test_a_start_that_never_left_its_configuration_is_an_attempt_too() -> None:
    rows: list[Seen] = [(0, opened()), (0, log(api(BANNER, pid=1), api(BANNER, pid=1), history=True))]
    assert len(watch(rows).report.attempts) == 2


def test_two_different_banners_of_one_process_are_one_start() -> None:
    lines = (api("vLLM API server version 0.14.0", pid=1), api(BANNER, pid=1))
    assert len(watch([(0, opened()), (0, log(*lines, history=True))]).report.attempts) == 1


def test_a_supervisors_start_line_begins_a_new_attempt() -> None:
    lines = [
        "Nov 30 12:00:00 host systemd[1]: Started vllm.service - vLLM.",
        *(f"Nov 30 12:00:05 host vllm[5]: {line}" for line in crashed()),
        "Nov 30 12:00:09 host systemd[1]: vllm.service: Main process exited, code=exited, status=1/FAILURE",
        "Nov 30 12:00:09 host systemd[1]: vllm.service: Failed with result 'exit-code'.",
        "Nov 30 12:00:19 host systemd[1]: Started vllm.service - vLLM.",
        "Nov 30 12:00:24 host vllm[10]: " + api(BANNER),
    ]
    run = watch([(0, opened()), (0, log(*lines, history=True))])
    assert outcomes(run) == [("failed", "gpu_out_of_memory"), ("unfinished", "")]
    exited = run.report.attempts[0].exit
    assert exited is not None
    assert exited.code == 1


STARTING = "Nov 30 12:00:00 host systemd[1]: Starting vllm.service - vLLM..."
STARTED = "Nov 30 12:00:30 host systemd[1]: Started vllm.service - vLLM."
AGAIN = "Nov 30 12:00:19 host systemd[1]: vllm.service: Scheduled restart job, restart counter is at 1."
EXITED = "Nov 30 12:00:09 host systemd[1]: vllm.service: Main process exited, code=exited, status=1/FAILURE"


def test_systemds_lines_about_one_start_begin_one_attempt() -> None:
    """A unit of Type=notify has "started" when it is ready."""
    first = [STARTING, *(f"Nov 30 12:00:05 host vllm[5]: {line}" for line in crashed()), EXITED]
    second = [AGAIN, STARTING, "Nov 30 12:00:24 host vllm[10]: " + api(BANNER), STARTED]
    run = watch([(0, opened()), (0, log(*first, *second, history=True))])
    assert outcomes(run) == [("failed", "gpu_out_of_memory"), ("unfinished", "")]
    assert run.report.phase == "configuring"


def test_first_lines_that_overtake_systemds_are_of_the_start_that_it_tells() -> None:
    banner = "Nov 30 12:00:19 host vllm[10]: " + api(BANNER)
    started = STARTED.replace("12:00:30", "12:00:19")
    first = [STARTING, *(f"Nov 30 12:00:05 host vllm[5]: {line}" for line in crashed()), EXITED]
    run = watch([(0, opened()), (0, log(*first, banner, started, history=True))], wall=NOON + 60)
    assert outcomes(run) == [("failed", "gpu_out_of_memory"), ("unfinished", "")]


def test_a_restart_that_systemd_refuses_is_no_attempt() -> None:
    refused = "Nov 30 12:00:20 host systemd[1]: vllm.service: Start request repeated too quickly."
    crash = [STARTING, *(f"Nov 30 12:00:05 host vllm[5]: {line}" for line in crashed()), EXITED]
    run = watch([(0, opened()), (0, log(*crash, AGAIN, refused, history=True))])
    assert [attempt.exit.code for attempt in run.report.attempts if attempt.exit] == [1]
    assert len(run.report.attempts) == 1


@pytest.mark.parametrize("again", [STARTING, STARTED])
def test_a_start_without_a_word_about_the_end_before_begins_another_attempt(again: str) -> None:
    banner = "Nov 30 12:00:24 host vllm[10]: " + api(BANNER)
    run = watch([(0, opened()), (0, log(STARTING, banner, STARTED, again, history=True))])
    assert len(run.report.attempts) == 2


def test_lines_that_the_journal_got_after_the_exit_are_of_the_dead() -> None:
    lines = crashed()
    rows = [
        STARTED,
        *(f"Nov 30 12:00:05 host vllm[5]: {line}" for line in lines[:2]),
        EXITED,
        *(f"Nov 30 12:00:05 host vllm[5]: {line}" for line in lines[2:]),
        "Nov 30 12:00:09 host systemd[1]: vllm.service: Failed with result 'exit-code'.",
    ]
    run = watch([(0, opened()), (0, log(*rows, history=True)), (1, died(code=1)), (1, tree())], until_s=5)
    assert outcomes(run) == [("failed", "gpu_out_of_memory")]


def test_unprefixed_lines_after_an_exit_belong_to_the_start_that_they_announce() -> None:
    lines = [
        "Nov 30 12:00:00 host systemd[1]: Started vllm.service - vLLM.",
        "Nov 30 12:00:09 host systemd[1]: vllm.service: Main process exited, code=killed, status=9/KILL",
        "Traceback (most recent call last):",
        '  File "/opt/vllm/bin/vllm", line 5, in <module>',
        "    from vllm.entrypoints.cli.main import main",
        "ModuleNotFoundError: No module named 'vllm'",
        "Nov 30 12:00:19 host systemd[1]: vllm.service: Main process exited, code=exited, status=1/FAILURE",
    ]
    run = watch([(0, opened()), (0, log(*lines, history=True))])
    assert outcomes(run)[0] == ("failed", "process_killed")
    assert run.report.attempts[0].exit is not None
    assert run.report.attempts[0].exit.signal == 9
    assert len(run.report.attempts) == 2


def test_history_is_dated_by_its_own_stamps() -> None:
    rows: list[Seen] = [
        (0, opened()),
        (
            0,
            log(
                stamped(BANNER, "11:58:00"),
                stamped(INIT, "11:58:20", name="EngineCore", pid=20),
                stamped(LOAD, "11:59:00", name="EngineCore", pid=20),
                history=True,
            ),
        ),
    ]
    run = watch(rows, wall=NOON, until_s=10)
    assert run.report.started_at == "2026-11-30T11:58:00.000Z"
    assert run.phases["initializing"] == 20.0
    assert run.phases["loading_weights"] == 60.0
    assert run.report.elapsed_s == 130.0


def test_history_of_the_live_process_sets_the_phase() -> None:
    """A late attach: the log from its start, the process by its age."""
    rows: list[Seen] = [
        (0, opened()),
        (0, found(age_s=120.0, started_at=NOON - 120)),
        (0, tree(server(), core())),
        (
            0.1,
            log(
                stamped(BANNER, "11:58:06"),
                stamped(LOAD, "11:59:00", name="EngineCore", pid=20),
                history=True,
            ),
        ),
        (0.2, LogCaughtUp()),
        (30, answered()),
    ]
    run = watch(rows, wall=NOON)
    assert len(run.report.attempts) == 1
    assert run.report.started_at == "2026-11-30T11:58:00.000Z"
    assert run.phases["launching"] == 0.0
    assert run.phases["configuring"] == pytest.approx(6.0, abs=0.2)
    assert run.phases["loading_weights"] == pytest.approx(60.0, abs=0.2)
    assert run.report.ready_s == 150.0


def test_a_log_whose_newest_attempt_is_another_process_is_left_to_the_past() -> None:
    """It failed before the live process began, and the live one has not said anything yet."""
    rows: list[Seen] = [
        (0, opened()),
        (0, found(age_s=5.0, started_at=NOON - 5)),
        (0, tree(server())),
        (
            0.1,
            log(
                stamped(BANNER, "11:50:06", pid=5),
                stamped(LOAD, "11:51:00", name="EngineCore", pid=6),
                history=True,
            ),
        ),
        (0.2, LogCaughtUp()),
        (9, log(api(BANNER))),
    ]
    run = watch(rows, wall=NOON, until_s=20)
    assert len(run.report.attempts) == 2
    assert run.report.started_at == "2026-11-30T11:59:55.000Z"
    assert run.phases == {"launching": 0.0, "configuring": 14.0}


def test_an_old_attempt_that_served_was_ready() -> None:
    lines = [api(BANNER, pid=5), engine(LOAD, pid=6), SERVED, api(BANNER, pid=10)]
    assert outcomes(watch([(0, opened()), (0, log(*lines, history=True))]))[0] == ("ready", "")


def test_a_failure_of_the_living_process_in_history_is_a_warning() -> None:
    rows: list[Seen] = [
        (0, found(age_s=60)),
        (0, tree(server())),
        (0.1, opened()),
        (0.1, log(api(BANNER, pid=10), *failing(OOM), *aftermath(), history=True)),
        (0.2, LogCaughtUp()),
    ]
    run = watch(rows, until_s=100)
    assert run.report.outcome == "unfinished"
    assert [w.code for w in run.report.warnings] == ["failure_in_history"]

    cause = watch(rows, timeouts=Timeouts(50), until_s=100).report.cause
    assert cause is not None
    assert cause.kind == "timed_out"
    assert "the log holds a failure: GPU" in cause.message


@pytest.mark.parametrize("prefix", ["(APIServer pid=77) ", ""], ids=["a child's", "none"])
def test_a_failure_behind_a_wrapper_is_of_the_live_process(prefix: str) -> None:
    """The pid that was given is a shell's, or the banner names no process: it began after the shell did."""
    banner = f"{prefix}INFO 11-30 11:59:56 [api_server.py:1000] {BANNER}"
    failure = [stamped(line, "11:59:57", name="EngineCore", pid=78, level="ERROR") for line in FAILURE]
    rows: list[Seen] = [
        (0, found(age_s=5.0, started_at=NOON - 5)),
        (0, tree(server())),
        (0.1, opened()),
        (0.1, log(banner, *failure, history=True)),
        (0.2, LogCaughtUp()),
        (3, died(code=1)),
        (3, tree()),
    ]
    run = watch(rows, wall=NOON, until_s=20)
    assert [attempt.cause and attempt.cause.kind for attempt in run.report.attempts] == ["gpu_out_of_memory"]
    assert run.report.cause is not None
    assert run.report.cause.kind == "gpu_out_of_memory"


@pytest.mark.parametrize("prefix", ["(APIServer pid=77) ", ""], ids=["named", "no pid"])
def test_a_failure_that_a_quick_restart_left_in_the_log_is_not_the_new_process_s(prefix: str) -> None:
    """A loop in a shell restarts at once, and the log begins with a line that tells no time."""
    banner = f"{prefix}INFO 11-30 11:59:10 [api_server.py:1000] {BANNER}"
    failure = [stamped(line, "11:59:57", name="EngineCore", pid=78, level="ERROR") for line in FAILURE]
    rows: list[Seen] = [
        (0, opened()),
        (0.1, log("Triton is installed, but doesn't include CPU backend.", banner, *failure, history=True)),
        (0.2, LogCaughtUp()),
        (0.3, found(age_s=2.0, started_at=NOON - 2)),
        (0.3, tree(server())),
        (3, died(signal=9)),
        (3, tree()),
    ]
    run = watch(rows, wall=NOON, until_s=20)
    kinds = [attempt.cause and attempt.cause.kind for attempt in run.report.attempts]
    assert kinds == ["gpu_out_of_memory", "process_killed"]


def test_the_cause_in_history_explains_a_death_that_is_seen() -> None:
    rows: list[Seen] = [
        (0, found(age_s=60)),
        (0, tree(server())),
        (0.1, opened()),
        (0.1, log(api(BANNER, pid=10), *failing(OOM), *aftermath(), history=True)),
        (0.2, LogCaughtUp()),
        (3, died(code=1)),
        (3, tree()),
    ]
    run = watch(rows, until_s=100)
    assert run.report.outcome == "failed"
    assert run.report.cause is not None
    assert run.report.cause.kind == "gpu_out_of_memory"


def test_facts_of_the_past_stay_with_their_attempt() -> None:
    rows: list[Seen] = [
        (0, opened()),
        (0, log(api(" █  version 0.31.0", pid=5), history=True)),
        (0, log(api(" █  version 0.32.0", pid=10), history=True)),
    ]
    assert watch(rows).report.facts["vllm_version"] == "0.32.0"


def test_attempts_are_told_as_they_begin_and_end() -> None:
    rows: list[Seen] = [(0, opened()), (1, log(*crashed(5))), (3, log(api(BANNER, pid=10)))]
    run = watch(rows)
    assert [(e.event, e.attempt) for e in attempts_told(run)] == [
        ("attempt_started", 1),
        ("attempt_ended", 1),
        ("attempt_started", 2),
    ]


def test_attempts_of_the_past_are_no_news() -> None:
    rows: list[Seen] = [(0, opened()), (0, log(*crashed(5), api(BANNER, pid=10), history=True))]
    kinds = [e.event for e in watch(rows).events]
    assert "attempt_ended" not in kinds
    assert "cause_found" not in kinds


def test_a_start_over_new_year_does_not_break() -> None:
    new_year = 1_798_761_600.0  # 2027-01-01 00:00:00 UTC
    lines = [
        f"(APIServer pid=10) INFO 12-31 23:59:30 [x.py:1] {BANNER}",
        f"(EngineCore pid=20) INFO 01-01 00:00:10 [x.py:1] {INIT}",
    ]
    run = watch([(0, opened()), (0, log(*lines, history=True))], wall=new_year + 20, until_s=1)
    assert run.phases["initializing"] == 40.0
    assert run.report.started_at == "2026-12-31T23:59:30.000Z"


def shared(*rows: Seen) -> Run:
    """A server of process 10 that has spoken, and what follows in its log."""
    ours = (api(BANNER, pid=10), engine(INIT, pid=20))
    members = tree(server(), core(20))
    return watch([(0, opened()), (0, found(10)), (1, members), (2, log(*ours)), *rows], until_s=60)


def test_another_servers_failure_in_a_shared_log_is_not_ours() -> None:
    theirs = [line.replace("pid=10)", "pid=500)") for line in crashed(pid=500)]
    run = shared((3, log(*theirs)), (4, log(engine(LOAD, pid=20))), (5, answered()))
    assert (run.report.outcome, len(run.report.attempts)) == ("ready", 1)
    assert [warning.code for warning in run.report.warnings] == ["log_shared"]
    assert "loading_weights" in run.phases


def test_the_watched_servers_own_failure_is_found_in_a_shared_log() -> None:
    own = (*failing(OOM, pid=20), *aftermath())
    run = shared(
        (3, log(api(BANNER, pid=500))), (4, log(*own)), (5, died(20, "VLLM::EngineCore")), (6, died())
    )
    assert run.report.outcome == "failed"
    assert run.report.cause is not None
    assert run.report.cause.kind == "gpu_out_of_memory"


def test_a_new_process_after_the_death_of_ours_is_no_stranger() -> None:
    run = shared((3, died(20, "VLLM::EngineCore")), (3.1, died()), (3.2, log(api(BANNER, pid=500))))
    assert len(run.report.attempts) == 2
    assert run.report.warnings == ()


# Another server, process 500 with the engine 600, that starts at the same time into the same log.
THEIRS = [api(BANNER, pid=500), api(ARCHITECTURE, pid=500)]
THEIR_END = [*failing(OOM, pid=600), *(api(line, pid=500) for line in aftermath())]
OURS = [api(BANNER, pid=10), engine(INIT, pid=20)]


@pytest.mark.parametrize(
    "order",
    [
        pytest.param([(0, found(10)), (1, log(*THEIRS)), (2, log(*OURS))], id="theirs first, live"),
        pytest.param(
            [(0, log(*OURS, *THEIRS, history=True)), (0.1, LogCaughtUp()), (0.2, found(10))],
            id="ours first, before the process is found",
        ),
        pytest.param(
            [
                (0, log(*OURS, *THEIRS, history=True)),
                (0.1, LogCaughtUp()),
                (0.2, log(api(BANNER, pid=800))),
                (1, found(10)),
            ],
            id="ours first, and one more before the process is found",
        ),
        pytest.param(
            [(0, log(*THEIRS, *OURS, history=True)), (0.1, LogCaughtUp()), (0.2, found(10))],
            id="theirs first, before the process is found",
        ),
        pytest.param(
            [(0, found(10)), (0.1, log(*THEIRS, *OURS, history=True)), (0.2, LogCaughtUp())],
            id="theirs first, after the process is found",
        ),
    ],
)
@pytest.mark.parametrize("between", [0, 2], ids=["two servers", "four servers"])
def test_servers_that_start_together_into_one_log_are_told_apart(order: list[Seen], between: int) -> None:
    more = [(0, log(*(api(BANNER, pid=700 + n) for n in range(between)), history=True))] if between else []
    members = tree(server(), core(20))
    rows: list[Seen] = [(0, opened()), *more, *order, (3, members), (4, log(api(ARCHITECTURE, pid=500)))]
    rows += [(5, log(*THEIR_END)), (6, log(engine(LOAD, pid=20)))]
    run = watch([*rows, (40, answered())], until_s=60)
    assert run.report.outcome == "ready"
    assert [warning.code for warning in run.report.warnings] == ["log_shared"] * len(run.report.warnings)
    assert "loading_weights" in run.phases
    own = watch([*rows, (7, log(*failing("ValueError: ours", pid=20))), (8, died()), (8, tree())], until_s=60)
    assert own.report.cause is not None
    assert "ours" in own.report.cause.message


def test_in_a_shared_log_words_without_a_process_end_no_wait_of_a_server_that_lives() -> None:
    nobodys = log(engine(LOAD, pid=20), *aftermath())
    run = shared((3, log(api(BANNER, pid=500))), (4, nobodys), (30, answered()))
    assert run.report.outcome == "ready"
    run = shared((3, log(api(BANNER, pid=500))), (4, nobodys), (4.1, died(20, "VLLM::EngineCore", code=1)))
    assert run.told("cause_found")


def test_who_speaks_for_a_while_and_is_not_in_the_tree_is_a_stranger() -> None:
    """Another server's engine may be the first to speak after ours began."""
    theirs = engine(INIT, pid=600)
    failure = log(*failing(OOM, pid=600), *aftermath())
    run = shared((3, log(theirs)), *[(n, tree(server(), core(20))) for n in range(4, 8)], (8, failure))
    assert run.report.outcome == "unfinished"
    assert [warning.code for warning in run.report.warnings] == ["log_shared"]
    young = shared((3, log(worker(LOAD, pid=30))), (3.5, tree(server(), core(20), rank(pid=30))))
    late = tree(server(), core(20), rank(pid=30))
    assert young.report.warnings == shared((8, late)).report.warnings == ()


def test_a_failure_of_somebody_whom_no_look_has_shown_is_doubted() -> None:
    """Its first words came just now: that it is another server's engine is known after the next looks."""
    failure = log(*failing(OOM, pid=600), *(api(line, pid=500) for line in aftermath()))
    looks = [(n, tree(server(), core(20))) for n in range(4, 8)]
    run = shared((3, log(engine(INIT, pid=600))), (3.5, failure), *looks, (8, answered()))
    assert run.report.outcome == "ready"
    assert not run.told("cause_found")
    blind = shared((3, log(engine(INIT, pid=600))), (3.5, failure))
    assert [event.at for event in blind.told("cause_found")] == [8.5]


def test_a_server_that_its_wrapper_starts_again_is_a_new_attempt_of_the_same_process() -> None:
    first, second = proc(11, "vllm"), proc(12, "vllm")
    run = watch(
        [
            (0, opened()),
            (0, found(10)),
            (1, tree(server(), first)),
            (2, log(api(BANNER, pid=11))),
            (3, died(11, "VLLM::APIServer", code=1)),
            (4, tree(server(), second)),
            (5, log(api(BANNER, pid=12))),
            (9, answered()),
        ],
        until_s=20,
    )
    assert [attempt.outcome for attempt in run.report.attempts] == ["failed", "ready"]
    assert run.report.warnings == ()


def test_requests_of_a_server_before_are_passed_over_once_it_is_known_to_have_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A week of them is a gigabyte: to parse each one took minutes before the new start was seen."""
    looks: list[str] = []

    def counted(line: Line, *markers: Any) -> tuple[Sighting, ...]:
        looks.append(line.message)
        return sight(line, *markers)

    monkeypatch.setattr(chronicle, "sight", counted)
    request = '(APIServer pid=3) INFO:     10.2.3.4:5 - "POST /v1/completions HTTP/1.1" 200 OK'
    old = (api(BANNER, pid=3), api(SERVED, pid=3), *[request] * 99)
    rows: list[Seen] = [(0, opened()), (0, found()), (0, log(*old, history=True))]
    rows += [(0, log(api(BANNER), history=True)), (0, LogCaughtUp())]
    run = watch(rows, until_s=1)
    assert [attempt.outcome for attempt in run.report.attempts] == ["ready", "unfinished"]
    assert len(looks) < 10


@pytest.mark.parametrize("end", [{"code": 0}, {"code": 1}, {"signal": 9}], ids=str)
@pytest.mark.parametrize("wrote", [True, False], ids=["wrote", "only seen"])
def test_what_a_start_before_has_left_behind_may_end_when_it_likes(
    *, wrote: bool, end: dict[str, int]
) -> None:
    """A script starts the server again while a worker of the first start is still there."""
    shell, left = proc(10, "sh"), proc(30, "VLLM::Worker", ppid=1)
    first = [api(BANNER, pid=11), engine(INIT, pid=20), worker(LOAD, pid=30 if wrote else 29)]
    second = [api(BANNER, pid=12), engine(INIT, pid=21), worker(LOAD, pid=31)]
    rows: list[Seen] = [(0, opened()), (0, found()), (0, log(*first, history=True)), (0.1, LogCaughtUp())]
    rows += [(0.2, tree(shell, left)), (1, log(*second)), (1, tree(shell, proc(12, "vllm"), left))]
    rows += [(5, died(30, "VLLM::Worker", **end)), (9, answered())]
    run = watch(rows, until_s=60)
    assert run.report.outcome == "ready"
    rows.insert(-2, (4, died(31, "VLLM::Worker", **end)))
    assert watch(rows, until_s=60).report.outcome == "failed"
