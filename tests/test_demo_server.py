"""The simulated server: real processes that start, print, listen, fail and end as vLLM's do."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from trees import Tree, eventually, read

from vllm_startup import PhaseEntered, StartupError, StartupStalled, causes, launch
from vllm_startup._demo.demo import demo, demo_timeouts
from vllm_startup._demo.settings import Settings, parse
from vllm_startup.testing import simulated_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="titles and trees are looked at on Linux")

PHASES = [
    "launching",
    "configuring",
    "initializing",
    "loading_weights",
    "compiling",
    "allocating_kv_cache",
    "warming_up",
    "starting_server",
    "ready",
]
VERSIONS = ["0.17.1", "0.32.0"]
FAST = 8.0


@attrs.frozen
class Running:
    """A simulated server that runs without a guardian."""

    process: subprocess.Popen[bytes]
    tree: Tree
    log: Path
    url: str

    def says(self, text: str) -> bool:
        """Wait until it has printed something."""
        return eventually(lambda: text.encode() in read(self.log))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """One that becomes ready."""
    tree, log, command = Tree(), tmp_path / "log", simulated_server(speed=FAST)
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, env=tree.env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as process,
    ):
        yield Running(process, tree, log, f"http://127.0.0.1:{command[-1]}")
        process.kill()
        assert eventually(lambda: not tree.alive()), tree.alive()


# --- the scenarios, as they are watched ------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_ready_goes_through_every_phase(version: str) -> None:
    entered: list[object] = []
    async with demo(speed=FAST, version=version, on_event=entered.append) as server:
        report = await server.wait_until_ready(until="inference", timeouts=demo_timeouts("ready"))
    assert [event.phase for event in entered if isinstance(event, PhaseEntered)] == PHASES
    assert set(report.tiers) == {"engine", "health", "model", "inference"}
    assert report.facts["vllm_version"] == version
    assert report.facts["architecture"] == "Qwen3ForCausalLM"
    assert report.facts["kv_cache_tokens"] == 85_312
    assert report.disputed == ()


@pytest.mark.parametrize("version", VERSIONS)
async def test_out_of_memory_names_the_gpu_and_the_sizes(version: str) -> None:
    async with demo("out-of-memory", speed=FAST, version=version) as server:
        with pytest.raises(StartupError) as caught:
            await server.wait_until_ready(timeouts=demo_timeouts("out-of-memory"))
        assert await server.process.wait() == 1
    cause = caught.value.cause
    assert isinstance(cause, causes.GpuOutOfMemory)
    assert cause.confidence == "certain"
    assert cause.device == 1
    assert cause.tried_bytes == round(1.16 * 1024**3)
    assert caught.value.report.phase == "loading_weights"


@pytest.mark.parametrize("version", VERSIONS)
async def test_killed_is_seen_by_the_process_alone(version: str) -> None:
    async with demo("killed", speed=3, version=version) as server:
        with pytest.raises(StartupError) as caught:
            await server.wait_until_ready(timeouts=demo_timeouts("killed"))
        assert await server.process.wait() == 1
    cause = caught.value.cause
    assert isinstance(cause, causes.ProcessKilled)
    assert (cause.process, cause.signal) == ("VLLM::Worker_TP1", 9)


@pytest.mark.parametrize("version", VERSIONS)
async def test_hang_is_a_stall_although_there_are_heartbeats(version: str) -> None:
    async with demo("hang", speed=FAST, version=version) as server:
        with pytest.raises(StartupStalled) as caught:
            await server.wait_until_ready(timeouts=attrs.evolve(demo_timeouts("hang"), stall=2.5))
        assert server.process.returncode is None
    assert isinstance(caught.value.cause, causes.Stalled)
    assert caught.value.cause.phase == "initializing"


def test_a_demonstration_that_hangs_is_told_in_seconds() -> None:
    assert demo_timeouts("hang").stall == 4
    assert demo_timeouts("ready").stall == 600


# --- what is real about it ------------------------------------------------------------------


def test_its_processes_have_vllms_titles(running: Running) -> None:
    assert running.says("startup complete")
    names = sorted(line.strip() for line in running.tree.alive().values() if line.startswith("VLLM"))
    assert names == ["VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1"]
    programs = {read(Path(f"/proc/{pid}/comm")).decode().strip() for pid in running.tree.alive()}
    assert {"VLLM::EngineCor", "VLLM::Worker_TP"} < programs


def test_its_port_is_bound_at_once_and_listened_on_last(running: Running) -> None:
    port = int(running.url.rpartition(":")[2])
    assert running.says("Loading")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with pytest.raises(urllib.error.URLError, match="refused"):
        get(running.url + "/health")
    assert running.says("startup complete")
    assert eventually(lambda: listens(running.url))


def test_it_answers_as_vllm_does(running: Running) -> None:
    assert eventually(lambda: listens(running.url))
    assert get(running.url + "/health") == (200, b"")
    status, body = get(running.url + "/v1/models")
    assert (status, json.loads(body)["data"][0]["id"]) == (200, "Qwen/Qwen3-8B")
    status, body = get(running.url + "/v1/completions", {"model": "Qwen/Qwen3-8B", "prompt": "a"})
    assert (status, json.loads(body)["choices"][0]["text"]) == (200, " simulated")
    assert get(running.url + "/v1/completions", {"model": "other"})[0] == 404
    assert get(running.url + "/v1/completions", b"no json")[0] == 200
    assert get(running.url + "/v1/chat/completions", {})[0] == 404
    assert get(running.url + "/nothing")[0] == 404
    assert get(running.url + "/version")[0] == 200


def test_sigterm_ends_it_in_good_order(running: Running) -> None:
    assert eventually(lambda: listens(running.url))
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(10) == 0
    assert eventually(lambda: not running.tree.alive())
    assert running.says("Application shutdown complete.")


@pytest.mark.parametrize("when", ["version 0.32.0", "Loading"])
async def test_a_signal_while_it_starts_is_told_as_what_ended_it(when: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with launch(simulated_server(speed=FAST), log=log) as server:
        waiting = asyncio.create_task(server.wait_until_ready())
        assert await asyncio.to_thread(eventually, lambda: when.encode() in read(log))
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(StartupError) as caught:
            await waiting
        assert await server.process.wait() == 1
    assert isinstance(caught.value.cause, causes.ShutdownRequested)
    assert caught.value.cause.signal == signal.SIGTERM


def test_nothing_is_left_when_its_main_process_is_killed(running: Running) -> None:
    assert running.says("Loading")
    assert len(running.tree.alive()) == 4
    running.process.kill()
    assert eventually(lambda: not running.tree.alive())


def test_it_computes_and_reads(running: Running) -> None:
    assert running.says("torch.compile took")
    [worker] = [pid for pid, line in running.tree.alive().items() if "Worker_TP0" in line]
    fields = read(Path(f"/proc/{worker}/stat")).rpartition(b")")[2].split()
    assert (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") >= 0.1
    io = read(Path(f"/proc/{worker}/io")).decode()
    assert int(re.search(r"rchar: (\d+)", io)[1]) > 32 * 1024 * 1024  # type: ignore[index]


def test_it_leaves_no_file(running: Running) -> None:
    assert running.says("startup complete")
    assert not list(Path(tempfile.gettempdir()).glob("vllm-startup-demo-*"))


async def test_a_taken_port_is_told_by_its_output(tmp_path: Path) -> None:
    async with demo(speed=FAST) as first:
        await first.wait_until_ready()
        port = int(first.url.rpartition(":")[2])  # type: ignore[union-attr]
        log = tmp_path / "log"
        async with launch(simulated_server(speed=FAST, port=port), log=log) as second:
            assert await second.process.wait() == 1
        assert "OSError: [Errno 98] Address already in use" in log.read_text()


# --- its form -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "lines"),
    [
        (
            "0.17.1",
            [
                r"\(APIServer pid=\d+\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[utils.py:302\] .* version 0.17.1\r",
                r"\(EngineCore_DP0 pid=\d+\) INFO .* Initializing a V1 LLM engine \(v0.17.1\) with .*",
                r"\(Worker_TP0 pid=\d+\) \rLoading safetensors checkpoint shards: 100% Completed \| 8/8 .*",
                r"\(EngineCore_DP0 pid=\d+\) INFO .* GPU KV cache size: 85,312 tokens",
                r"\(APIServer pid=\d+\) INFO .* Starting vLLM API server 0 on http://127.0.0.1:\d+",
                r"\(APIServer pid=\d+\) INFO:     Application startup complete.",
            ],
        ),
        (
            "0.32.0",
            [
                r"\(APIServer pid=\d+\) INFO .*  version 0.32.0\r",
                r"\(EngineCore pid=\d+\) INFO .* Initializing a V1 LLM engine \(v0.32.0\) with config: .*",
                r"\rLoading safetensors checkpoint shards: 100% Completed \| 8/8 .*",
                r"\(EngineCore pid=\d+\) INFO .* GPU KV cache size: 85,312 tokens, Maximum concurrency .*",
                r"\(APIServer pid=\d+\) INFO .* Starting vLLM server on http://127.0.0.1:\d+",
                r"INFO:     Application startup complete.",
            ],
        ),
    ],
    ids=VERSIONS,
)
async def test_its_lines_have_the_form_of_the_version(version: str, lines: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with launch(simulated_server(speed=FAST, version=version), log=log) as server:
        await server.wait_until_ready()
    printed = log.read_bytes().decode().split("\n")
    for line in lines:
        assert any(re.fullmatch(line, found) for found in printed), line


def test_its_command_is_read_back() -> None:
    settings = Settings(
        scenario="hang", speed=2.5, version="0.17.1", role="worker", rank=1, port=9, host="::1"
    )
    assert parse(settings.command()[3:]) == settings


def test_it_understands_no_other_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["vllm", "bench", "m"])
    assert caught.value.code == 2
    assert "vllm serve MODEL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scenario": "fine"}, "scenario must be one of ready, out-of-memory, hang, killed, not 'fine'"),
        ({"version": "0.1"}, "version must be one of 0.17.1, 0.32.0, not '0.1'"),
        ({"speed": 0}, "speed must be above 0, not 0"),
        ({"speed": float("inf")}, "speed must be above 0, not inf"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        simulated_server(**arguments)  # type: ignore[arg-type]  # that is the point


def get(url: str, body: dict[str, object] | bytes | None = None) -> tuple[int, bytes]:
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, data=data), timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def listens(url: str) -> bool:
    try:
        return get(url + "/health")[0] == 200
    except urllib.error.URLError:
        return False
