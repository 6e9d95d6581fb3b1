"""A real vLLM that does not become ready: what is named as the cause, and how soon."""

from __future__ import annotations

import json
import pickle
import platform
import subprocess
import sys

import pytest
from real_starts import STALL_S, Bringup

from vllm_startup import StartupError, StartupStalled, causes
from vllm_startup.testing import replay

pytestmark = pytest.mark.real

GONE_S = 1.0  # from the main process's end to the exception: the log's last lines are waited for
GIB = 2**30

DEAD = ["port-taken", "model-missing", "kv-cache-too-small", "corrupt-weights", "worker-killed"]
every_dead_start = pytest.mark.parametrize("bringup", DEAD, indirect=True)
every_failure = pytest.mark.parametrize("bringup", [*DEAD, "engine-suspended"], indirect=True)


def of(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("bringup", [name], indirect=True)


def raised(bringup: Bringup) -> StartupError:
    error = bringup.watched.error
    assert error is not None
    return error


@of("port-taken")
def test_a_taken_port_is_named(bringup: Bringup) -> None:
    cause = raised(bringup).cause
    assert isinstance(cause, causes.PortInUse)
    assert (cause.purpose, cause.confidence) == ("http", "certain")
    assert "Address already in use" in cause.evidence[0].text


@of("port-taken")
def test_who_holds_the_port_is_not_taken_for_the_server(bringup: Bringup) -> None:
    assert bringup.watched.report["tiers"] == {}


@of("model-missing")
def test_a_missing_model_is_named(bringup: Bringup) -> None:
    cause = bringup.watched.report["cause"]
    assert (cause["kind"], cause["retryable"]) == ("model_not_found", False)
    assert cause["fields"]["model"].endswith("/models/missing")
    assert bringup.watched.report["phase"] == "configuring"


@of("model-missing")
def test_the_command_line_says_why(bringup: Bringup) -> None:
    assert bringup.watched.status == 1
    assert "model_not_found" in bringup.watched.said


@of("kv-cache-too-small")
def test_a_small_kv_cache_is_named_with_its_sizes(bringup: Bringup) -> None:
    cause = raised(bringup).cause
    assert isinstance(cause, causes.KvCacheTooSmall)
    assert cause.max_model_len == 262_144
    assert cause.needed_bytes == 2 * GIB
    assert cause.available_bytes == GIB
    assert cause.fits_len == 130_944  # vLLM's own estimate, which keeps a block back
    assert "130944" in (cause.hint or "")
    assert bringup.watched.report["phase"] == "allocating_kv_cache"


@of("corrupt-weights")
def test_a_damaged_checkpoint_is_named(bringup: Bringup) -> None:
    cause = raised(bringup).cause
    assert isinstance(cause, causes.CheckpointCorrupt)
    assert cause.confidence == "certain"
    assert bringup.watched.report["phase"] == "loading_weights"


@of("worker-killed")
def test_a_killed_worker_is_named_though_the_log_holds_only_the_aftermath(bringup: Bringup) -> None:
    cause = raised(bringup).cause
    if kernel_tells_exits():
        assert isinstance(cause, causes.ProcessKilled)
        assert cause.signal == 9
    else:
        assert isinstance(cause, causes.ProcessVanished)
    assert "Worker" in (cause.process or "")
    assert bringup.watched.report["phase"] == "loading_weights"
    assert "SIGKILL" not in bringup.log.read_text(errors="replace")


@of("worker-killed")
def test_the_killed_worker_is_among_the_processes(bringup: Bringup) -> None:
    (worker,) = [p for p in bringup.watched.report["processes"] if p["pid"] == bringup.victim]
    assert worker["role"] == "worker"
    if kernel_tells_exits():
        assert worker["exit"] == {"code": None, "signal": 9}


def kernel_tells_exits() -> bool:
    """Whether a process's exit can be asked by others than its parent: Linux 6.15 and newer."""
    major, minor = platform.release().split(".")[:2]
    return (int(major), int(minor.split("-")[0])) >= (6, 15)


@of("engine-suspended")
def test_a_suspended_engine_is_a_stall_with_a_suspect(bringup: Bringup) -> None:
    error = raised(bringup)
    assert isinstance(error, StartupStalled)
    assert isinstance(error.cause, causes.Stalled)
    assert error.cause.silent_s == pytest.approx(STALL_S, abs=1)
    assert str(bringup.victim) in (error.cause.suspect or "")
    assert "EngineCore" in (error.cause.suspect or "")


@of("engine-suspended")
def test_a_suspended_engine_is_told_at_once(bringup: Bringup) -> None:
    events = bringup.watched.events
    (warned,) = [event for event in events if event.get("code") == "process_suspended"]
    assert str(bringup.victim) in warned["text"]
    assert events[-1]["elapsed_s"] - warned["elapsed_s"] >= STALL_S - 1


@of("engine-suspended")
def test_a_stalled_server_is_left_running(bringup: Bringup) -> None:
    assert bringup.pid in bringup.alive
    assert bringup.victim in bringup.alive
    assert bringup.watched.report["exit"] is None


@every_dead_start
def test_failure_comes_with_its_evidence(bringup: Bringup) -> None:
    report = bringup.watched.report
    assert report["outcome"] == "failed"
    assert report["exit"] == {"code": 1, "signal": None}
    texts = [evidence["text"] for evidence in report["cause"]["evidence"]]
    assert texts
    lines = bringup.log.read_bytes().decode(errors="replace").split("\n")  # as editors count: not at every \r
    numbered = [evidence for evidence in report["cause"]["evidence"] if evidence["line"] is not None]
    assert numbered
    for evidence in numbered:
        assert evidence["text"] in lines[evidence["line"] - 1]


@every_dead_start
def test_failure_is_told_when_everything_is_gone(bringup: Bringup) -> None:
    assert bringup.exited_at is not None
    assert 0 <= bringup.watched.noticed_at - bringup.exited_at <= GONE_S
    assert bringup.alive == {}


@every_dead_start
def test_the_cause_is_an_event_before_the_end(bringup: Bringup) -> None:
    events = bringup.watched.events
    found = [event for event in events if event["event"] == "cause_found"]
    assert [event["cause"]["kind"] for event in found] == [bringup.watched.report["cause"]["kind"]]
    assert (events[-1]["event"], events[-1]["outcome"]) == ("ended", "failed")


@every_failure
def test_failure_pickles(bringup: Bringup) -> None:
    if bringup.watched.error is None:
        return
    again = pickle.loads(pickle.dumps(bringup.watched.error))
    assert type(again) is type(bringup.watched.error)
    assert again.report.to_dict() == bringup.watched.report


@every_failure
def test_its_recording_replays_to_the_same_report(bringup: Bringup) -> None:
    again = replay(bringup.recording).to_dict()
    assert {**again, "versions": None} == {**bringup.watched.report, "versions": None}


@pytest.mark.parametrize(
    ("bringup", "kinds"),
    [
        pytest.param("port-taken", {"port_in_use"}, id="port-taken"),
        pytest.param("model-missing", {"model_not_found"}, id="model-missing"),
        pytest.param("kv-cache-too-small", {"kv_cache_too_small"}, id="kv-cache-too-small"),
        pytest.param("corrupt-weights", {"checkpoint_corrupt"}, id="corrupt-weights"),
        pytest.param(
            "worker-killed", {"unclassified_error", "process_exited", "process_vanished"}, id="worker-killed"
        ),
    ],
    indirect=["bringup"],
)
def test_the_log_alone_tells_the_same_or_less(bringup: Bringup, kinds: set[str]) -> None:
    command = [sys.executable, "-m", "vllm_startup", "diagnose", "--json", str(bringup.log)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["cause"]["kind"] in kinds
