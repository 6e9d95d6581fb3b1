"""The main job as one call: which probes look, what is refused, and a small server in earnest."""
# ruff: noqa: E501 - lines as a server prints them

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest

import vllm_startup
from vllm_startup import (
    StartupError,
    StartupTimeout,
    Timeouts,
    probes,
    wait_until_ready,
    wait_until_ready_sync,
    watch,
)
from vllm_startup.testing import FakeClock, replay, simulated_server

if TYPE_CHECKING:
    from collections.abc import Iterator

# Prints like a server, listens after a moment, answers /health and /v1/models.
SERVER = textwrap.dedent("""
    import http.server, sys, time

    port, delay = int(sys.argv[1]), float(sys.argv[2])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = b'{"object": "list", "data": [{"id": "tiny", "object": "model"}]}'
            self.send_response(200 if self.path in ("/health", "/v1/models") else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    print("(APIServer pid=1) INFO 01-01 00:00:00 [model.py:1] Resolved architecture: LlamaForCausalLM", flush=True)
    time.sleep(delay)
    print("(EngineCore pid=2) INFO 01-01 00:00:00 [core.py:1] Loading weights took 0.10 seconds", flush=True)
    time.sleep(0.3)  # the file is looked at less often than the port
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
""")

DYING = textwrap.dedent("""
    import sys
    print("(APIServer pid=1) INFO 01-01 00:00:00 [model.py:1] Resolved architecture: LlamaForCausalLM", flush=True)
    raise ValueError("the number of heads is odd")
""")


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found: int = free.getsockname()[1]
    return found


@contextmanager
def running(code: str, *arguments: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdout=file, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


# --- in earnest ---------------------------------------------------------------------------


async def test_a_server_becomes_ready(tmp_path: Path, port: int) -> None:
    log, recording = tmp_path / "vllm.log", tmp_path / "r.jsonl"
    url = f"http://127.0.0.1:{port}"
    with running(SERVER, str(port), "0.1", log=log) as process:
        report = await wait_until_ready(
            url, process=process, log=log, record=recording, timeouts=Timeouts(30)
        )
    found = [span.phase for span in report.phases]
    assert report.outcome == "ready"
    assert found[0] == "launching"
    assert found[-2:] == ["starting_server", "ready"]
    assert "loading_weights" in found
    assert report.url == url
    assert report.processes[0].pid == process.pid
    assert replay(recording).to_dict()["phases"] == report.to_dict()["phases"]


def test_a_server_becomes_ready_without_a_loop(tmp_path: Path, port: int) -> None:
    log = tmp_path / "vllm.log"
    with running(SERVER, str(port), "0.1", log=log) as process:
        report = wait_until_ready_sync(
            f"http://127.0.0.1:{port}", pid=process.pid, log=log, until="model", timeouts=Timeouts(30)
        )
    assert set(report.tiers) == {"health", "model"}


async def test_a_server_that_dies_says_why(tmp_path: Path, port: int) -> None:
    log = tmp_path / "vllm.log"
    with running(DYING, log=log) as process, pytest.raises(StartupError) as caught:
        await wait_until_ready(f"http://127.0.0.1:{port}", process=process, log=log, timeouts=Timeouts(30))
    assert caught.value.cause.kind == "unclassified_error"
    assert "the number of heads is odd" in str(caught.value)
    assert caught.value.report.exit is not None
    assert caught.value.report.exit.code == 1


async def test_a_server_that_is_killed(tmp_path: Path, port: int) -> None:
    log = tmp_path / "vllm.log"
    with running(SERVER, str(port), "60", log=log) as process:
        killer = threading.Timer(0.3, process.send_signal, [signal.SIGKILL])
        killer.start()
        with pytest.raises(StartupError) as caught:
            await wait_until_ready(
                f"http://127.0.0.1:{port}", process=process, log=log, timeouts=Timeouts(30)
            )
        killer.join()
    assert caught.value.cause.kind == "process_killed"


async def test_a_limit_ends_the_wait_and_leaves_the_server_alone(tmp_path: Path, port: int) -> None:
    log = tmp_path / "vllm.log"
    with running(SERVER, str(port), "60", log=log) as process:
        with pytest.raises(StartupTimeout):
            await wait_until_ready(
                f"http://127.0.0.1:{port}", pid=process.pid, log=log, timeouts=Timeouts(0.3)
            )
        assert process.poll() is None


async def test_an_asyncio_process_whose_output_is_read_here(port: int) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVER,
        str(port),
        "0.1",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        report = await wait_until_ready(
            f"http://127.0.0.1:{port}", process=process, log=process.stdout, timeouts=Timeouts(30)
        )
    finally:
        process.kill()
        await process.communicate()
    assert "loading_weights" in {span.phase for span in report.phases}


# --- which probes look --------------------------------------------------------------------


def names(startup: vllm_startup.Startup) -> set[str]:
    return {sampler.name for sampler in startup._samplers}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, {"health"}),
        ({"url": "http://a:1"}, {"health"}),
        ({"log": "vllm.log"}, {"log", "health"}),
        ({"pid": 1}, {"process", "tree", "gpu", "caches", "cgroup", "health"}),
        ({"gpus": [0]}, {"gpu", "health"}),
        ({"until": "engine", "log": "x"}, {"log"}),
        ({"until": "engine", "log": "x", "url": "http://a:1"}, {"log", "health"}),
    ],
)
def test_the_arguments_choose_the_probes(arguments: dict[str, Any], expected: set[str]) -> None:
    assert names(watch(**arguments)) == expected


async def test_probes_of_the_callers_own_look_too(port: int) -> None:
    from vllm_startup.testing import ScriptedProbe

    own = ScriptedProbe("own", [(5, probes.Answer(tier="health", ok=True, status=200))])
    startup = watch(f"http://127.0.0.1:{port}", probes=[own], clock=FakeClock(settle_s=0.002))
    async with startup:
        assert (await startup.wait_until_ready()).ready_s == pytest.approx(5.0, abs=0.1)


async def test_the_address_is_the_servers_own_once_a_script_has_come_to_it(tmp_path: Path) -> None:
    *server, port = simulated_server(speed=20)
    log, recording = tmp_path / "vllm.log", tmp_path / "r.jsonl"
    code = f"sleep 1; PORT={port}; exec {' '.join(server)} $PORT"
    script = tmp_path / "start.sh"
    script.write_text(code)
    with log.open("wb") as file:
        process = subprocess.Popen(["sh", script], stdout=file, stderr=subprocess.STDOUT)
    try:
        report = await wait_until_ready(pid=process.pid, log=log, timeouts=Timeouts(60), record=recording)
    finally:
        process.terminate()
        process.wait()
    assert report.url == f"http://127.0.0.1:{port}"
    assert replay(recording) == report


def test_the_default_address() -> None:
    assert watch()._terms.url == "http://127.0.0.1:8000"


# --- misuse -------------------------------------------------------------------------------


def _closed() -> BinaryIO:
    with Path(__file__).open("rb") as stream:
        return stream


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"url": "127.0.0.1:8000"}, ValueError, "url.*scheme"),
        ({"url": "ftp://a"}, ValueError, "url must begin with"),
        ({"url": ""}, ValueError, "url"),
        ({"pid": 2**22 + 7}, ValueError, "pid"),
        ({"pid": -1}, ValueError, "pid"),
        ({"pid": 0}, ValueError, "pid"),
        ({"pid": "1"}, TypeError, "pid"),
        ({"pid": 1, "restarts": 2}, ValueError, "restarts"),
        ({"restarts": 1}, ValueError, "restarts"),
        ({"until": "soon"}, ValueError, "until"),
        ({"until": "engine"}, ValueError, "until='engine' needs log="),
        ({"until": "engine", "url": "http://127.0.0.1:8000"}, ValueError, "until='engine' needs log="),
        (
            {"timeouts": 60},
            TypeError,
            r"timeouts must be vllm_startup.Timeouts, such as Timeouts\(600\), not 60",
        ),
        ({"raise_early": "no"}, TypeError, "raise_early must be True or False"),
        ({"process": 7}, TypeError, "process must be"),
        ({"model": 7}, TypeError, "model must be"),
        ({"model": ""}, ValueError, "model must not be empty"),
        ({"stable_for": -5}, ValueError, "stable_for"),
        ({"log": "."}, ValueError, "log.*directory"),
        ({"log": 7}, TypeError, "log must be"),
        ({"log": 7.5}, TypeError, "log must be"),
        ({"log": b"vllm.log"}, TypeError, "log must be"),
        ({"log": "a\0b"}, ValueError, "log must be"),
        ({"log": _closed()}, ValueError, "log must be an open stream"),
        ({"gpus": ["first"]}, ValueError, "gpus"),
        ({"gpus": []}, ValueError, "gpus"),
        ({"probes": [7]}, TypeError, "probes"),
        ({"on_event": 7}, TypeError, "on_event"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_misuse_is_refused_at_once_and_names_the_argument(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"(?is){message}"):
        watch(**arguments)


def test_a_process_and_a_pid_are_one_too_many() -> None:
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process,
        pytest.raises(ValueError, match="either process= or pid="),
    ):
        watch(process=process, pid=process.pid)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_pipe_that_nobody_reads_is_refused(stream: str) -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, stream: subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", "input()"], **pipes) as process:
        with pytest.raises(ValueError, match=f"process has {stream}=PIPE.*log=process.{stream}"):
            watch(process=process)
        process.communicate(b"\n")


def test_a_second_pipe_that_nobody_reads_is_refused_too() -> None:
    """``log=process.stdout`` drains one of them; the other one fills up all the same."""
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        with pytest.raises(ValueError, match="process has stderr=PIPE"):
            watch(process=process, log=process.stdout)
    finally:
        process.communicate(b"\n")


def test_a_pid_that_is_gone_is_refused(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(ValueError, match=f"(?i)pid.*{process.pid}|{process.pid}.*pid"):
        watch(pid=process.pid)
