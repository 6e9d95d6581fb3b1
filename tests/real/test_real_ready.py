"""A real vLLM that becomes ready: which phases are told, when, and on which evidence."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from real_starts import API_KEY, Bringup, Json, Watched

from vllm_startup.testing import replay

pytestmark = pytest.mark.real

LATENCY_S = 0.3  # from the first connection that the port takes; measured: 20 to 60 ms
OBSERVER_S = 0.05  # the observer may see it later than the watch does
STAMP_SLACK_S = 1.5  # vLLM's stamps are whole seconds, and a busy machine prints late

ALL = [
    "launching",
    "configuring",
    "initializing",
    "loading_weights",
    "allocating_kv_cache",
    "starting_server",
    "ready",
]
WITHOUT_MARKERS = ["launching", "initializing", "loading_weights", "starting_server", "ready"]

# What vLLM 0.32 says first in a phase, for a look at the log that owes nothing to the library's own markers.
FIRST_WORDS = {
    "configuring": "version 0.32.0",
    "initializing": "Initializing a V1 LLM engine",
    "loading_weights": "Starting to load model",
    "allocating_kv_cache": "for KV cache on node",
    "starting_server": "Supported tasks",
}

READY = ["eager", "compiled", "tp2", "dp2", "log-level-warning", "logging-not-configured", "json-logs"]
every_ready_start = pytest.mark.parametrize("bringup", READY, indirect=True)


def of(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("bringup", [name], indirect=True)


def names(report: Json) -> list[str]:
    return [phase["phase"] for phase in report["phases"]]


def roles(report: Json) -> list[str]:
    return sorted(process["role"] for process in report["processes"])


@every_ready_start
def test_becomes_ready(bringup: Bringup) -> None:
    report = bringup.watched.report
    assert (report["outcome"], report["phase"], report["cause"]) == ("ready", "ready", None)
    assert len(report["attempts"]) == 1
    assert report["disputed"] == []


@every_ready_start
def test_is_noticed_at_once(bringup: Bringup) -> None:
    (reached,) = [event for event in bringup.watched.events if event.get("tier") == "health"]
    assert bringup.listened_at is not None
    delay = datetime.fromisoformat(reached["ts"]).timestamp() - bringup.listened_at
    assert -OBSERVER_S <= delay <= LATENCY_S


@every_ready_start
def test_returns_as_soon_as_it_knows(bringup: Bringup) -> None:
    ended = bringup.watched.events[-1]
    assert bringup.watched.noticed_at - datetime.fromisoformat(ended["ts"]).timestamp() <= LATENCY_S


@every_ready_start
def test_goes_through_its_phases_without_gaps(bringup: Bringup) -> None:
    phases = bringup.watched.report["phases"]
    assert phases[0]["started_s"] == 0
    assert [phase["ended_s"] for phase in phases[:-1]] == [phase["started_s"] for phase in phases[1:]]
    assert all(one["started_s"] <= other["started_s"] for one, other in pairwise(phases))
    assert all(phase["because"] for phase in phases)


@pytest.mark.parametrize(
    ("bringup", "expected"),
    [
        pytest.param("eager", ALL, id="eager"),
        pytest.param("compiled", [*ALL[:4], "compiling", *ALL[4:]], id="compiled"),
        pytest.param("tp2", ALL, id="tp2"),
        pytest.param("dp2", ALL, id="dp2"),
        pytest.param("json-logs", ALL, id="json-logs"),
    ],
    indirect=["bringup"],
)
def test_tells_every_phase_from_the_log(bringup: Bringup, expected: list[str]) -> None:
    assert names(bringup.watched.report) == expected


@pytest.mark.parametrize("bringup", ["log-level-warning", "logging-not-configured"], indirect=True)
def test_tells_the_phases_of_a_quiet_start_from_its_processes(bringup: Bringup) -> None:
    told = names(bringup.watched.report)
    assert [phase for phase in told if phase in WITHOUT_MARKERS] == WITHOUT_MARKERS


@pytest.mark.parametrize("bringup", ["eager", "compiled", "tp2"], indirect=True)
def test_dates_the_phases_as_the_log_stamps_them(bringup: Bringup) -> None:
    report = bringup.watched.report
    began = datetime.fromisoformat(report["started_at"]).astimezone()
    started = {phase["phase"]: began + timedelta(seconds=phase["started_s"]) for phase in report["phases"]}
    for phase, words in FIRST_WORDS.items():
        assert abs(started[phase] - stamp_of(bringup, words, began.year)) <= timedelta(
            seconds=STAMP_SLACK_S
        ), phase


def stamp_of(bringup: Bringup, words: str, year: int) -> datetime:
    line = next(line for line in bringup.log.read_text(errors="replace").splitlines() if words in line)
    found = re.search(r"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) \[", line)
    assert found is not None, line
    month, day, hour, minute, second = map(int, found.groups())
    middle = 500_000  # of the second that the stamp names
    return datetime(year, month, day, hour, minute, second, middle).astimezone()


@of("compiled")
def test_compiling_lasts_from_its_first_line_to_its_last(bringup: Bringup) -> None:
    report = bringup.watched.report
    year = datetime.fromisoformat(report["started_at"]).year
    began, ended = (
        stamp_of(bringup, words, year)
        for words in ("Warming up model for the compilation", "Warming up done")
    )
    (compiling,) = [phase for phase in report["phases"] if phase["phase"] == "compiling"]
    took = timedelta(seconds=compiling["ended_s"] - compiling["started_s"])
    assert abs(took - (ended - began)) <= timedelta(seconds=STAMP_SLACK_S)
    assert took >= timedelta(seconds=3)  # a cold cache: 6 s at the least, 17 s on two cores


@pytest.mark.parametrize(
    ("bringup", "expected"),
    [
        pytest.param("eager", ["engine", "server", "worker"], id="eager"),
        pytest.param("log-level-warning", ["engine", "server", "worker"], id="log-level-warning"),
        pytest.param("tp2", ["engine", "server", "worker", "worker"], id="tp2"),
        pytest.param(
            "dp2",
            [*["api_server"] * 2, "coordinator", *["engine"] * 2, "server", *["worker"] * 2],
            id="dp2",
        ),
    ],
    indirect=["bringup"],
)
def test_knows_the_processes(bringup: Bringup, expected: list[str]) -> None:
    assert roles(bringup.watched.report) == expected


@pytest.mark.parametrize("bringup", ["eager", "compiled", "tp2", "dp2", "json-logs"], indirect=True)
def test_reads_the_facts(bringup: Bringup) -> None:
    facts = bringup.watched.report["facts"]
    assert facts["vllm_version"] == "0.32.0"
    assert facts["architecture"] == "LlamaForCausalLM"
    assert facts["model"].endswith("/models/tiny")
    assert facts["port"] == bringup.port
    assert facts["max_model_len"] == 2048
    assert facts["kv_cache_bytes"] == 2**30


@pytest.mark.parametrize(
    ("bringup", "size", "tokens"),
    [pytest.param("eager", 1, 2_097_152, id="eager"), pytest.param("tp2", 2, 4_194_304, id="tp2")],
    indirect=["bringup"],
)
def test_reads_what_the_parallel_size_makes_of_the_kv_cache(bringup: Bringup, size: int, tokens: int) -> None:
    facts = bringup.watched.report["facts"]
    assert (facts["tensor_parallel_size"], facts["kv_cache_tokens"]) == (size, tokens)


@pytest.mark.parametrize("bringup", ["eager", "json-logs"], indirect=True)
def test_times_each_tier(bringup: Bringup) -> None:
    tiers = bringup.watched.report["tiers"]
    assert list(tiers) == ["engine", "health", "model", "inference"]
    assert list(tiers.values()) == sorted(tiers.values())
    assert tiers["inference"] == bringup.watched.report["ready_s"]
    told = [event["tier"] for event in bringup.watched.events if event["event"] == "tier_reached"]
    assert told == ["engine", "health", "model", "inference"]


@of("eager")
def test_inference_is_one_completion(bringup: Bringup) -> None:
    lines = bringup.log.read_text(errors="replace").splitlines()
    served = [line for line in lines if '"POST ' in line]
    assert len(served) == 1
    assert served[0].endswith('"POST /v1/completions HTTP/1.1" 200 OK')


@pytest.mark.parametrize("later", ["model", "any_model", "engine", "without_log", "stable"])
@of("eager")
def test_a_late_watch_is_ready_at_once(bringup: Bringup, later: str) -> None:
    watched: Watched = bringup.later[later]
    assert watched.report["outcome"] == "ready"
    took = watched.noticed_at - watched.asked_at
    assert (1.0 <= took <= 2.0) if later == "stable" else took <= 1.0


@of("eager")
def test_another_model_is_not_ready(bringup: Bringup) -> None:
    watched: Watched = bringup.later["other_model"]
    assert watched.report["outcome"] == "timed_out"
    cause = watched.report["cause"]
    assert cause["kind"] in {"timed_out", "unhealthy"}
    assert "'second'" in cause["message"]
    assert "'first'" in cause["message"]


@of("json-logs")
def test_the_api_key_is_nowhere_to_be_seen(bringup: Bringup) -> None:
    watched = bringup.watched
    shown = [str(watched.report), str(watched.events), watched.said, bringup.recording.read_text()]
    assert [text for text in shown if API_KEY in text] == []


@pytest.mark.parametrize("bringup", ["json-logs", "log-level-warning"], indirect=True)
def test_the_command_line_says_ready(bringup: Bringup) -> None:
    assert bringup.watched.status == 0
    assert "ready" in bringup.watched.said


@every_ready_start
def test_events_tell_what_the_report_tells(bringup: Bringup) -> None:
    events = bringup.watched.events
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    entered = [event["phase"] for event in events if event["event"] == "phase_entered"]
    assert entered == names(bringup.watched.report)
    assert (events[-1]["event"], events[-1]["outcome"]) == ("ended", "ready")


@every_ready_start
def test_its_recording_replays_to_the_same_report(bringup: Bringup) -> None:
    again = replay(bringup.recording).to_dict()
    assert {**again, "versions": None} == {**bringup.watched.report, "versions": None}


@every_ready_start
def test_the_watch_leaves_the_server_alone(bringup: Bringup) -> None:
    assert bringup.pid in bringup.alive
    assert bringup.exited_at is None or bringup.exited_at > bringup.watched.noticed_at
    assert bringup.left == {}
