"""The machine's frame: time, deadlines, probes that break, notes, and what it logs."""

from __future__ import annotations

import logging

import pytest
from scene import (
    INIT,
    KV,
    LOAD,
    OOM,
    Seen,
    aftermath,
    answered,
    core,
    died,
    engine,
    failing,
    found,
    log,
    observed,
    opened,
    proc,
    server,
    tree,
    watch,
)

from vllm_startup import Timeouts
from vllm_startup._machine.machine import StartupMachine
from vllm_startup._machine.terms import Terms
from vllm_startup._phases import Phase
from vllm_startup._readings import LogEnded, Observation, ProbeBroken, ProbeNote, ProbeRecovered


def test_a_machine_warns_nobody_through_logging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        watch([(0, found()), (1, log(engine(INIT))), (2, answered())])
        watch([(0, found()), (1, died(code=1))], until_s=60)
    assert caplog.records == []


def test_the_first_phase_is_launching_before_anything_is_seen() -> None:
    run = watch([])
    assert (run.report.phase, run.report.phases) == ("launching", ())


def test_a_probe_that_breaks_and_recovers_is_told_once_each() -> None:
    rows: list[Seen] = [
        (1, ProbeBroken(error="OSError()")),
        (2, ProbeBroken(error="OSError()")),
        (3, ProbeRecovered()),
        (4, ProbeRecovered()),
        (5, ProbeBroken(error="again")),
    ]
    run = watch(rows)
    assert [(e.event, e.at) for e in run.events if e.event.startswith("probe")] == [
        ("probe_broken", 1),
        ("probe_recovered", 3),
        ("probe_broken", 5),
    ]


def test_what_several_probes_meet_together_is_told_once() -> None:
    """Such as a lost connection, over which all of them go."""
    machine = StartupMachine(Terms())
    lost, other = ProbeBroken(error="the connection is lost"), ProbeBroken(error="no such file")
    rows = [
        (1, "process", lost),
        (2, "gpu", lost),
        (3, "log", other),
        (4, "gpu", ProbeRecovered()),
        (5, "process", ProbeRecovered()),
        (6, "gpu", lost),
    ]
    events = [
        event
        for at, probe, reading in rows
        for event in machine.feed(Observation(at=at, probe=probe, reading=reading))
    ]
    assert [(e.event, e.at) for e in events if e.event.startswith("probe")] == [
        ("probe_broken", 1),
        ("probe_broken", 3),
        ("probe_recovered", 5),
        ("probe_broken", 6),
    ]
    assert set(machine.bringup.notices.broken) == {"gpu", "log"}


def test_a_note_is_told_once() -> None:
    note = ProbeNote(code="nvml_unavailable", text="no NVML here")
    run = watch([(1, note), (2, note), (3, ProbeNote(code="nvml_unavailable", text="other"))])
    assert [(w.code, w.text) for w in run.report.warnings] == [
        ("nvml_unavailable", "no NVML here"),
        ("nvml_unavailable", "other"),
    ]


def test_time_that_goes_back_is_taken_as_now() -> None:
    machine = StartupMachine(Terms())
    for observation in observed([(0, found()), (9, log(engine(INIT))), (4, log(engine(LOAD)))]):
        machine.feed(observation)
    assert machine.now == 9
    assert machine.attempt.course.spans[-1].started_at == 9


def test_the_next_deadline_comes_nearer_and_is_kept() -> None:
    machine = StartupMachine(Terms(timeouts=Timeouts(100, stall=None)))
    assert machine.next_deadline == 100
    for observation in observed([(0, found()), (1, tree(server(), core()))]):
        machine.feed(observation)
    assert machine.next_deadline == 3.0
    events = machine.tick(3.0)
    assert [e.event for e in events] == ["phase_entered"]
    assert machine.next_deadline == 100


def test_no_deadline_without_limits() -> None:
    assert StartupMachine(Terms(timeouts=Timeouts(stall=None))).next_deadline is None


def test_a_late_tick_dates_what_happened_to_its_deadline() -> None:
    rows: list[Seen] = [(0, found()), (0, tree(server()))]
    run = watch(rows, timeouts=Timeouts(50), until_s=5000)
    assert run.told("ended")[0].at == 50.0
    assert run.report.cause is not None
    assert run.report.cause.evidence


def test_a_machine_that_began_late_on_its_clock() -> None:
    machine = StartupMachine(Terms(timeouts=Timeouts(60)), called_at=1000.0)
    machine.feed(Observation(at=1000.0, probe="process", reading=found(age_s=5.0)))
    machine.tick(2000)
    assert machine.outcome == "timed_out"
    assert machine.attempt.elapsed(1060.0) == 65.0


def test_facts_come_from_the_log() -> None:
    run = watch([(0, found()), (1, log(engine(INIT), engine(KV)))])
    assert run.report.facts == {
        "vllm_version": "0.32.0",
        "model": "/models/m",
        "kv_cache_tokens": 412_336,
    }


def test_the_summary_is_one_sentence() -> None:
    from vllm_startup._machine.reporting import status

    bar = "Loading safetensors checkpoint shards:  61% Completed | 41/67 [00:10<00:05,  4.10it/s]"
    rows: list[Seen] = [(0, found()), (0, tree(server())), (1, log(engine(LOAD))), (10, log(bar))]
    run = watch(rows, until_s=14)
    assert (
        status(run.machine, 14).summary
        == "loading weights, checkpoint shards 41 of 67, last progress 4 s ago"
    )


def test_the_summary_names_who_is_waited_for() -> None:
    from vllm_startup._machine.reporting import status

    rows: list[Seen] = [
        (0, found()),
        (1, log(engine(LOAD, name="EngineCore_DP0", pid=20), engine(KV, name="EngineCore_DP1", pid=21))),
    ]
    run = watch(rows)
    assert "waiting for EngineCore_DP0, which is in loading_weights" in status(run.machine, 2).summary


def test_a_server_of_many_processes_is_followed() -> None:
    processes = [proc(100 + i, f"VLLM::Worker_TP{i}", ppid=20) for i in range(64)]
    run = watch([(0, found()), (1, tree(server(), core(), *processes))], until_s=5)
    assert len(run.report.processes) == 66
    assert run.report.phase is Phase.INITIALIZING


@pytest.mark.parametrize(
    ("rows", "warned"),
    [
        pytest.param([(1, log(engine(INIT)))], ["log_ended"], id="nothing else tells"),
        pytest.param([(0, found()), (1, log(engine(INIT)))], [], id="its process is watched"),
        pytest.param([(1, log(engine(INIT), *failing(OOM), *aftermath()))], [], id="it says why"),
    ],
)
def test_a_log_that_ends_without_a_word_is_a_warning(rows: list[Seen], warned: list[str]) -> None:
    run = watch([(0, opened(stream=True)), *rows, (2, LogEnded())])
    assert [w.code for w in run.report.warnings] == warned
