"""What holds for every bring-up, however strange."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from scene import BANNER, NOON, ROUTES, api, found
from strategies import LINES, bring_ups, texts, wild_terms

from vllm_startup import Phase
from vllm_startup._machine.machine import StartupMachine
from vllm_startup._machine.reporting import report, status
from vllm_startup._machine.terms import Terms
from vllm_startup._readings import LogLines, Observation, WatchPaused
from vllm_startup._recording import Recorder, replay

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_startup._events import Event

many = settings(max_examples=100, deadline=None)


def run(
    observations: list[Observation],
    terms: Terms,
    *,
    ticks: tuple[float, ...] = (),
    end_at: float | None = None,
) -> tuple[StartupMachine, list[Event]]:
    """A machine that saw it all, with further ticks in between."""
    machine = StartupMachine(terms, wall=NOON)
    events = machine.tick(0.0)
    for observation in observations:
        for share in ticks:
            events += machine.tick(machine.now + (observation.at - machine.now) * share)
        events += machine.feed(observation)
    events += machine.tick(machine.now if end_at is None else end_at)
    return machine, events


def told(machine: StartupMachine) -> dict[str, Any]:
    return report(machine, machine.now, versions={}).to_dict()


@many
@given(**wild_terms())
def test_no_reading_breaks_the_machine(observations: list[Observation], terms: Terms) -> None:
    machine, events = run(observations, terms)
    json.dumps(told(machine))
    json.dumps([event.to_dict() for event in events])
    assert status(machine, machine.now).summary


@many
@given(**wild_terms())
@example(
    observations=[
        Observation(at=0.5, probe="log", reading=LogLines(lines=(api(BANNER), api(ROUTES)))),
        Observation(at=3.0, probe="process", reading=found(age_s=0.1)),
    ],
    terms=Terms(),
)
def test_phases_only_move_forward(observations: list[Observation], terms: Terms) -> None:
    machine, _ = run(observations, terms)
    for attempt in machine.bringup.chronicle.attempts:
        orders = [span.phase.order for span in attempt.course.spans]
        begins = [span.started_at for span in attempt.course.spans]
        assert orders == sorted(set(orders))
        assert begins == sorted(begins)
        for span, after in pairwise(attempt.course.spans):
            assert span.ended_at == after.started_at


@many
@given(**wild_terms())
def test_there_is_one_ending_and_nothing_after_it(observations: list[Observation], terms: Terms) -> None:
    machine, events = run(observations, terms, end_at=1e7)
    kinds = [event.event for event in events]
    assert kinds.count("ended") == (machine.outcome is not None)
    if machine.outcome is not None:
        assert kinds[-1] == "ended"
        assert machine.next_deadline is None


@many
@given(**wild_terms())
def test_a_failure_has_a_cause_and_ready_has_none(observations: list[Observation], terms: Terms) -> None:
    machine, _ = run(observations, terms, end_at=1e7)
    found = report(machine, machine.now, versions={})
    if found.outcome == "ready":
        assert found.cause is None
        assert found.phase is Phase.READY
        assert found.ready_s is not None
    elif found.outcome != "unfinished":
        assert found.cause is not None
        assert found.phase is not Phase.READY
        assert found.ready_s is None


@many
@given(ticks=st.lists(st.floats(0, 1), max_size=4).map(sorted).map(tuple), **wild_terms())
def test_more_ticks_change_nothing(
    observations: list[Observation], terms: Terms, ticks: tuple[float, ...]
) -> None:
    # A pause says that nobody ran before it, which a tick in that time would contradict.
    observations = [o for o in observations if not isinstance(o.reading, WatchPaused)]
    plain, few = run(observations, terms)
    often, more = run(observations, terms, ticks=ticks)
    assert told(often) == told(plain)
    assert more == few


@many
@given(**wild_terms())
def test_the_next_deadline_is_when_something_happens(observations: list[Observation], terms: Terms) -> None:
    """Nothing happens between now and the next deadline, and time does not stand still at it."""
    machine, _ = run(observations, terms)
    for _ in range(200):
        due = machine.next_deadline
        if due is None:
            return
        assert due > machine.now
        assert machine.tick(machine.now + (due - machine.now) / 2) == []
        machine.tick(due)
    raise AssertionError("deadlines without end")


@settings(max_examples=60, deadline=None)
@given(**wild_terms())
def test_any_run_replays_to_the_same_report(
    tmp_path_factory: Any, observations: list[Observation], terms: Terms
) -> None:
    path: Path = tmp_path_factory.mktemp("recordings") / "run.jsonl"
    recorder = Recorder(path)
    recorder.begin(terms, wall=NOON, utc_offset_s=0.0)
    for observation in observations:
        recorder.write(observation)
    machine, _ = run(observations, terms)
    recorder.end(machine.now)
    machine.finish(machine.now, ended=False)
    assert told(replay(path)) == told(machine)


@many
@given(
    lines=st.lists(texts, max_size=30), cuts=st.lists(st.integers(0, 30), max_size=5), history=st.booleans()
)
@example(
    lines=[api("Waiting for 1 local, 0 remote core engine proc(s) to start."), api(BANNER)],
    cuts=[1],
    history=True,
)
def test_lines_mean_the_same_whole_and_in_pieces(lines: list[str], cuts: list[int], history: bool) -> None:
    borders = sorted({0, len(lines), *(cut for cut in cuts if cut < len(lines))})
    pieces = [tuple(lines[a:b]) for a, b in pairwise(borders)]
    whole = [Observation(at=5.0, probe="log", reading=LogLines(lines=tuple(lines), history=history))]
    cut = [Observation(at=5.0, probe="log", reading=LogLines(lines=p, history=history)) for p in pieces]
    terms = Terms()
    (one, _), (other, _) = run(whole, terms, end_at=60.0), run(cut, terms, end_at=60.0)
    assert told(one) == told(other)


@many
@given(observations=bring_ups())
def test_a_machine_is_ready_only_if_somebody_answered(observations: list[Observation]) -> None:
    machine, _ = run(observations, Terms(), end_at=1e7)
    if machine.outcome == "ready":
        answers = [o.reading for o in observations if type(o.reading).__name__ == "Answer"]
        assert any(a.ok and a.owner != "foreign" and a.tier == "health" for a in answers)  # type: ignore[attr-defined]  # answers only


def test_the_strategy_knows_lines_of_every_kind() -> None:
    assert len(LINES) > 40
