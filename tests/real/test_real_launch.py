"""A real vLLM that is launched: on every way out nothing is left, which is seen in the system itself."""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_launches import EAGER, GONE_S, LIMIT_S, Launching
from trees import eventually

pytestmark = pytest.mark.real

rarely = pytest.mark.every_way
EVERY_PHASE = [  # of the CPU build, which warms up while it compiles
    pytest.param("launching", EAGER, marks=rarely),
    pytest.param("configuring", EAGER, marks=rarely),
    pytest.param("initializing", EAGER, marks=rarely),
    pytest.param("loading_weights", EAGER),
    pytest.param("compiling", (), marks=rarely),
    pytest.param("allocating_kv_cache", EAGER, marks=rarely),
    pytest.param("starting_server", EAGER, marks=rarely),
    pytest.param("allocating_kv_cache", (*EAGER, "-tp", "2"), marks=rarely),  # which has shared memory
]


@pytest.fixture
def launching(real: Path, tmp_path: Path) -> Iterator[Launching]:
    with Launching(real, tmp_path) as made:
        yield made


@rarely
def test_ready_and_an_orderly_end(launching: Launching) -> None:
    told = launching.caller("leave").end()

    assert told["outcome"] == "ready", told
    assert launching.traces.all() == []


@pytest.mark.parametrize(("phase", "arguments"), EVERY_PHASE)
def test_a_caller_that_is_cancelled(phase: str, arguments: tuple[str, ...], launching: Launching) -> None:
    told = launching.caller("cancel", phase=phase, arguments=arguments).end()

    assert (told["raised"], phase in told["phases"]) == ("cancelled", True), told
    assert launching.traces.all() == []


@rarely
@pytest.mark.parametrize("phase", ["initializing", "ready"])
def test_an_exception_in_the_block(phase: str, launching: Launching) -> None:
    told = launching.caller("raise", phase=phase).end()

    assert told["raised"] == "the caller's own", told
    assert launching.traces.all() == []


@pytest.mark.parametrize(
    "phase", ["loading_weights", pytest.param("launching", marks=rarely), pytest.param("ready", marks=rarely)]
)
def test_a_caller_that_is_killed(phase: str, launching: Launching) -> None:
    told = launching.caller("SIGKILL", phase=phase).end()

    assert told["status"] == -signal.SIGKILL, told
    assert launching.is_clean(within=GONE_S), launching.traces.all()


@rarely
def test_a_detached_server_lives_on_with_its_log_until_it_is_ended(launching: Launching) -> None:
    told = launching.caller("detach").end()
    assert told["status"] == 0, told

    server = [line for line in launching.traces.processes().values() if " serve " in line or "VLLM" in line]
    assert len(server) == 3  # and no guardian
    size = launching.log.stat().st_size
    with urllib.request.urlopen(f"http://127.0.0.1:{launching.port}/v1/models", timeout=10) as answer:
        assert answer.status == 200
    assert eventually(lambda: launching.log.stat().st_size > size)

    os.kill(told["pid"], signal.SIGTERM)
    assert eventually(lambda: not launching.traces.processes(), within=20), launching.traces.processes()
    assert not launching.traces.port_is_taken()


@pytest.mark.parametrize("stays", ["all", pytest.param("server", marks=rarely)])
def test_a_failed_start_that_does_not_exit(stays: str, launching: Launching) -> None:
    told = launching.caller("fail", model="long", stays=stays).end()

    assert told["raised"] == "kv_cache_too_small", told
    assert launching.traces.all() == []


@rarely
@pytest.mark.parametrize("stays", ["all", "server"])
def test_run_ends_a_failed_start_that_does_not_exit(stays: str, launching: Launching) -> None:
    process = launching.run("--exit-grace", "2", model="long", stays=stays)
    _, errors = process.communicate(timeout=LIMIT_S)

    assert (process.returncode, "kv_cache_too_small" in errors) == (1, True), errors
    assert launching.traces.all() == []


@rarely
def test_two_launches_on_one_port(launching: Launching) -> None:
    """The first becomes ready and is left alone by the second, which fails and leaves nothing."""
    first = launching.caller("hold")
    first.wait_for(outcome="ready")
    before = launching.traces.all()

    second = launching.caller("fail").end()
    assert second["raised"] == "port_in_use", second
    assert launching.traces.all() == before
    with urllib.request.urlopen(f"http://127.0.0.1:{launching.port}/health", timeout=10) as answer:
        assert answer.status == 200

    assert first.end()["status"] == 0
    assert launching.traces.all() == []


@rarely
def test_run_forwards_a_sigterm_and_stays_as_long_as_the_server(launching: Launching) -> None:
    """This vLLM does not mind one that comes while its engine loads, with `run` in front as without."""
    process = launching.run(model="big")
    assert process.stdout is not None
    assert any("Starting to load model" in line for line in process.stdout)
    process.send_signal(signal.SIGTERM)
    assert any("Supported tasks" in line for line in process.stdout)
    assert eventually(launching.traces.port_is_taken)
    time.sleep(1)  # until its handler is there

    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert launching.traces.all() == []


@rarely
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_run_that_is_ended_while_it_starts(number: signal.Signals, launching: Launching) -> None:
    """SIGTERM is not minded by the engine, and SIGKILL is what a supervisor sends in the end."""
    process = launching.run(model="big")
    assert process.stdout is not None
    assert any("Starting to load model" in line for line in process.stdout)
    process.send_signal(number)
    process.kill()

    assert launching.is_clean(within=GONE_S), launching.traces.all()
