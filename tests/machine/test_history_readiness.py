"""What an older start left in the log makes no newer one ready."""

from __future__ import annotations

import pytest
from scene import (
    BANNER,
    ENGINE_READY,
    INIT,
    NOON,
    OOM,
    Run,
    Seen,
    aftermath,
    answered,
    core,
    died,
    failing,
    found,
    log,
    opened,
    server,
    stamped,
    tree,
    watch,
)

from vllm_startup._readings import LogCaughtUp

UNPREFIXED = "Triton is installed, but doesn't include CPU backend. Disabling Triton."


def start(hour: str, *, pid: int) -> tuple[str, ...]:
    """A start whose engines came up, as text."""
    return (
        stamped(BANNER, f"{hour}:06", pid=pid),
        stamped(INIT, f"{hour}:10", name="EngineCore", pid=pid + 10),
        stamped(ENGINE_READY, f"{hour}:30", name="EngineCore", pid=pid + 10),
    )


OLD = start("11:50", pid=5)
NEW_BANNER = stamped(BANNER, "11:59:59")
PROCESS: list[Seen] = [(0.1, found(age_s=5.0, started_at=NOON - 5)), (0.1, tree(server()))]


def seen(*rows: Seen, until: str = "engine") -> Run:
    in_order = sorted([(0.0, opened()), *rows], key=lambda row: row[0])
    return watch(in_order, wall=NOON, until_s=100, until=until)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(0, log(*OLD, history=True)), (0.01, LogCaughtUp())], id="log first"),
        pytest.param([(0.2, log(*OLD, history=True)), (0.3, LogCaughtUp())], id="process first"),
        pytest.param([(0.2, log(*OLD, UNPREFIXED, history=True)), (0.3, LogCaughtUp())], id="new words"),
        pytest.param(
            [(0, log(*OLD, history=True)), (0.01, LogCaughtUp()), (0.05, log(UNPREFIXED))],
            id="new words before the process is found",
        ),
        pytest.param([(0, log(*OLD, NEW_BANNER, history=True)), (0.01, LogCaughtUp())], id="new banner"),
        pytest.param(
            [(0, log(*OLD, history=True)), (0.01, log(NEW_BANNER, history=True)), (0.02, LogCaughtUp())],
            id="new banner in a piece of its own",
        ),
    ],
)
def test_the_engines_of_an_older_start_make_no_newer_one_ready(rows: list[Seen]) -> None:
    run = seen(*rows, *PROCESS)
    assert (run.report.outcome, run.report.tiers) == ("unfinished", {})
    assert len(run.report.attempts) == 2
    words = (stamped(text, "12:00:20", name="EngineCore", pid=20) for text in (INIT, ENGINE_READY))
    run = seen(*rows, *PROCESS, (20, log(*words)))
    assert (run.report.outcome, run.report.ready_s) == ("ready", 24.9)


def test_the_tiers_of_an_older_start_are_not_in_the_report() -> None:
    run = seen((0, log(*OLD, history=True)), (0.01, LogCaughtUp()), *PROCESS, (9, answered()), until="health")
    assert (run.report.outcome, run.report.tiers) == ("ready", {"health": 13.9})


def test_a_late_look_finds_the_engines_ready_as_soon_as_their_process_is_found() -> None:
    own: list[Seen] = [(0.1, found(age_s=60.0, started_at=NOON - 60)), (0.1, tree(server(), core()))]
    run = seen((0, log(*start("11:59", pid=10), history=True)), (0.01, LogCaughtUp()), *own)
    assert (run.report.outcome, run.report.ready_s, run.report.tiers) == ("ready", 60.0, {"engine": 29.9})


def test_a_late_look_at_the_log_alone_finds_the_engines_ready_soon() -> None:
    run = seen((0, log(*start("11:59", pid=10), history=True)), (0.01, LogCaughtUp()))
    assert run.report.outcome == "ready"
    assert run.machine.now == 2.0


def test_a_log_whose_last_start_is_over_shows_no_engines_that_are_ready() -> None:
    over = "systemd[1]: vllm.service: Main process exited, code=exited, status=1/FAILURE"
    rows: list[Seen] = [(0, log(*OLD, f"Nov 30 11:55:00 host {over}", history=True)), (0.01, LogCaughtUp())]
    assert seen(*rows).report.outcome == "unfinished"
    assert seen(*rows, (9, answered())).report.outcome == "ready"


def test_an_old_cause_explains_no_newer_death_though_lines_came_before_the_process_was_found() -> None:
    crash = (*OLD[:2], *(line.replace("14:20:40", "11:50:40") for line in (*failing(OOM), *aftermath())))
    rows: list[Seen] = [(0, log(*crash, history=True)), (0.01, LogCaughtUp()), (0.05, log(UNPREFIXED))]
    run = seen(*rows, *PROCESS, (5, died(code=1)), (5, tree()))
    kinds = [a.cause.kind for a in run.report.attempts if a.cause]
    assert kinds == ["gpu_out_of_memory", "process_exited"]
