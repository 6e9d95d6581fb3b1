"""Events as values and as JSON."""

from __future__ import annotations

import json

import attrs
import pytest
from scene import BANNER, LOAD, Seen, answered, api, died, engine, found, log, proc, server, tree, watch

import vllm_startup
from vllm_startup import Event, causes
from vllm_startup._events import AttemptStarted
from vllm_startup._readings import ProbeBroken, ProbeNote, ProbeRecovered

BAR = "Loading safetensors checkpoint shards:  61% Completed | 41/67 [00:10<00:05,  4.10it/s]"
ROWS: list[Seen] = [
    (0, found()),
    (0, tree(server())),
    (1, log(api(BANNER))),
    (2, ProbeNote(code="note", text="a note")),
    (3, ProbeBroken(error="OSError()")),
    (4, ProbeRecovered()),
    (5, log(engine(LOAD))),
    (6, log(BAR)),
    (7, died(code=1)),
    (7, tree()),
    (9, found(11)),
    (9, tree(proc(11, "vllm", ppid=1), root=11)),
    (20, answered()),
]


def test_every_kind_of_event_has_the_name_of_the_contract() -> None:
    told = {event.event for event in watch(ROWS, restarts=1).events}
    assert told == {
        "attempt_started",
        "attempt_ended",
        "phase_entered",
        "progress",
        "probe_broken",
        "probe_recovered",
        "warning",
        "tier_reached",
        "cause_found",
        "ended",
    }


def test_the_json_begins_with_what_all_events_have() -> None:
    for event in watch(ROWS, restarts=1).events:
        values = attrs.evolve(event, seq=7, ts="2026-01-01T00:00:00.000000Z").to_dict()
        assert list(values)[:5] == ["schema", "seq", "ts", "elapsed_s", "event"]
        assert (values["schema"], values["seq"], values["ts"]) == (1, 7, "2026-01-01T00:00:00.000000Z")
        assert json.loads(json.dumps(values)) == values


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        ("attempt_started", {"attempt": 1, "pid": None}),
        (
            "phase_entered",
            {"phase": "launching", "because": {"probe": "process", "text": "process 10 exists", "at_s": 0}},
        ),
        ("progress", {"phase": "loading_weights", "what": "checkpoint shards", "done": 41, "total": 67}),
        ("probe_broken", {"probe": "other", "error": "OSError()"}),
        ("probe_recovered", {"probe": "other"}),
        ("warning", {"code": "note", "text": "a note"}),
        ("tier_reached", {"tier": "health"}),
        ("ended", {"outcome": "ready", "cause": None}),
    ],
)
def test_the_json_of_each_kind(kind: str, members: dict[str, object]) -> None:
    event = next(event for event in watch(ROWS, restarts=1).events if event.event == kind)
    values = event.to_dict()
    for name in ("schema", "seq", "ts", "elapsed_s", "event"):
        del values[name]
    assert values == members


def test_the_json_of_a_cause_in_an_event() -> None:
    event = next(event for event in watch(ROWS, restarts=1).events if event.event == "cause_found")
    assert event.to_dict()["cause"]["kind"] == "process_exited"


def test_a_phase_is_dated_to_its_beginning() -> None:
    rows: list[Seen] = [(0, found()), (5, tree(server(), proc(20, "VLLM::EngineCore")))]
    event = watch(rows, until_s=60).told("phase_entered")[-1]
    assert (event.phase, event.elapsed_s) == ("initializing", 5.0)


def test_times_are_seconds_of_the_current_attempt() -> None:
    ended = watch(ROWS, restarts=1).told("ended")[0]
    assert (ended.at, ended.elapsed_s) == (20.0, 11.0)


def test_events_do_not_change() -> None:
    event = AttemptStarted(at=0.0, elapsed_s=0.0, attempt=1)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        event.attempt = 2  # type: ignore[misc]  # that is the test


def test_all_kinds_are_public() -> None:
    kinds = {kind.__name__ for kind in Event.__subclasses__()}
    assert kinds <= set(vllm_startup.__all__)


def test_a_bar_that_redraws_often_is_told_five_times_a_second_at_most() -> None:
    bars = [
        log(f"Loading safetensors checkpoint shards:  1% Completed | {n}/999 [00:10<00:05]")
        for n in range(200)
    ]
    rows: list[Seen] = [
        (0, found()),
        (1, log(engine(LOAD))),
        *((2 + i / 100, bar) for i, bar in enumerate(bars)),
    ]
    assert 9 <= len(watch(rows).told("progress")) <= 11


def test_the_last_step_of_a_bar_is_always_told() -> None:
    rows: list[Seen] = [
        (0, found()),
        (1, log("Loading safetensors checkpoint shards:  1% Completed | 1/2 [00:10<00:05]")),
        (1.01, log("Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:10<00:05]")),
    ]
    assert [(e.done, e.total) for e in watch(rows).told("progress")] == [(1, 2), (2, 2)]


def test_a_users_cause_has_a_kind_of_its_own() -> None:
    class LicenseExpired(causes.Cause):
        pass

    assert (LicenseExpired.kind, LicenseExpired.family) == ("license_expired", "LicenseExpired")
