"""A server on another machine, watched over a real connection: its process, its log, its GPUs, its health."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import sshd as server
from sshd import Sshd

import vllm_startup
from vllm_startup import Event, StartupError, StartupReport, Timeouts, causes
from vllm_startup._wait import located
from vllm_startup.targets import TargetError, ssh

GPUS = 2
NVIDIA_SMI = """#!/bin/sh
# What the real one prints for these two queries; the memory is what a file says.
case $1 in
--query-gpu=index,uuid,name,memory.used,memory.total)
    for i in 0 1; do echo "$i, GPU-$i-abc, NVIDIA H200, $(cat {used}), 97887"; done ;;
--query-compute-apps=gpu_uuid,pid,used_memory)
    for p in $(cat {pids}); do echo "GPU-0-abc, $p, 1000"; done ;;
esac
"""


class Server:
    """A simulated server that runs on the other machine, with its output in a file there."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "vllm.log"
        self.port = server._free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, scenario: str = "ready", *, speed: float = 5.0) -> int:
        """Start it, as something else would; return its pid."""
        command = [sys.executable, "-m", "vllm_startup._demo", f"--scenario={scenario}", f"--speed={speed}"]
        serve = ["vllm", "serve", "Qwen/Qwen3-8B", "--host", "127.0.0.1", "--port", str(self.port)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*command, *serve], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(process)
        return process.pid

    def script(self) -> int:
        """Run a script there that comes to the server's command in a second; return its pid."""
        server = f"{sys.executable} -m vllm_startup._demo --speed=20 vllm serve m --port $PORT"
        code = f"sleep 1; PORT={self.port}; exec {server} >{self.log} 2>&1"
        process = subprocess.Popen(["sh", "-c", code], stdin=subprocess.DEVNULL, start_new_session=True)
        self._processes.append(process)
        return process.pid

    def wrapped(self, scenario: str) -> int:
        """Run it in a script there that goes on when it has ended; return the script's pid."""
        demo = f"{sys.executable} -m vllm_startup._demo --scenario={scenario} --speed=10"
        code = f"{demo} vllm serve m --port {self.port} >{self.log} 2>&1; sleep 60; exit 1"
        process = subprocess.Popen(["bash", "-c", code], stdin=subprocess.DEVNULL, start_new_session=True)
        self._processes.append(process)
        return process.pid

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Kill it, and reap it as its parent there would."""
        process = next(process for process in self._processes if process.pid == pid)
        process.send_signal(number)
        process.wait()

    def stop(self) -> None:
        """End what is left of it."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Server]:
    """A server on the other machine."""
    started = Server(tmp_path)
    yield started
    started.stop()


@contextlib.asynccontextmanager
async def watched(
    sshd: Sshd, *, pid: int | None, log: Path | None, **terms: object
) -> AsyncIterator[vllm_startup.Startup]:
    target = ssh("gpubox", pid=pid, log=log, options=sshd.options)
    site = await located(target)
    async with vllm_startup.watch(target=site, **terms) as startup:  # type: ignore[arg-type]
        yield startup
    assert server.left_behind() == []


async def told(startup: vllm_startup.Startup) -> list[Event]:
    return [event async for event in startup.events()]


def texts(report: StartupReport) -> list[str]:
    return [f"{warning.code}: {warning.text}" for warning in report.warnings]


# --- starts -------------------------------------------------------------------------------


async def test_a_good_start_is_followed_from_its_first_line_to_its_first_answer(
    sshd: Sshd, there: Server
) -> None:
    pid = there.start()
    async with watched(sshd, pid=pid, log=there.log, until="inference") as startup:
        report = await startup.wait_until_ready()
    assert report.outcome == "ready"
    assert report.url == f"http://127.0.0.1:{there.port}"
    assert list(report.tiers) == ["engine", "health", "model", "inference"]
    phases = [span.phase.value for span in report.phases]
    assert phases[:4] == ["launching", "configuring", "initializing", "loading_weights"]
    assert phases[-2:] == ["starting_server", "ready"]
    assert report.facts["model"] == "Qwen/Qwen3-8B"
    assert {p.role for p in report.processes} >= {"engine", "worker"}
    assert texts(report) == [
        "nvml_unavailable: there is no nvidia-smi on gpubox, so GPU memory is not watched"
    ]


async def test_the_address_is_the_servers_own_once_a_script_has_come_to_it(sshd: Sshd, there: Server) -> None:
    async with watched(sshd, pid=there.script(), log=there.log, timeouts=Timeouts(60)) as startup:
        report = await startup.wait_until_ready()
    assert report.url == f"http://127.0.0.1:{there.port}"


async def test_without_a_log_the_processes_and_gpus_there_tell_the_phases(sshd: Sshd, there: Server) -> None:
    used, pids = sshd.folder / "used", sshd.folder / "pids"
    used.write_text("512")
    pids.write_text("")
    sshd.program("nvidia-smi", NVIDIA_SMI.format(used=used, pids=pids))
    pid = there.start("hang", speed=1.0)
    async with watched(sshd, pid=pid, log=None) as startup:
        await asyncio.sleep(4)
        pids.write_text(str(pid))
        used.write_text("40000")
        await until(startup, lambda: any("40,000" in str(b) for b in grounds(startup)), 15)
        report = startup.report()
    assert [span.phase.value for span in report.phases][:3] == [
        "launching",
        "initializing",
        "loading_weights",
    ]
    assert {(g.baseline_bytes >> 20, g.used_bytes >> 20, g.total_bytes >> 20) for g in report.gpus} == {
        (512, 40_000, 97_887)
    }
    assert [g.uuid for g in report.gpus] == ["GPU-0-abc", "GPU-1-abc"]
    assert texts(report) == []


def grounds(startup: vllm_startup.Startup) -> list[object]:
    return [ground for span in startup.report().phases for ground in span.because]


async def until(startup: vllm_startup.Startup, found: object, limit_s: float) -> None:
    assert callable(found)
    deadline = time.monotonic() + limit_s
    while not found():
        assert time.monotonic() < deadline, startup.report()
        await asyncio.sleep(0.05)


async def test_a_failed_start_has_its_cause(sshd: Sshd, there: Server) -> None:
    pid = there.start("out-of-memory")
    async with watched(sshd, pid=pid, log=there.log, exit_grace=2) as startup:
        with pytest.raises(StartupError) as caught:
            await startup.wait_until_ready()
    assert isinstance(caught.value.cause, causes.GpuOutOfMemory)
    assert caught.value.cause.confidence == "certain"


async def test_the_log_of_one_that_dies_as_the_watch_begins_is_read_first(sshd: Sshd, there: Server) -> None:
    pid = there.wrapped("out-of-memory")
    await asyncio.to_thread(wait_for_line, there.log, "Engine core initialization failed")
    site = await located(ssh("gpubox", pid=pid, log=there.log, options=sshd.options))
    there.kill(pid)
    async with vllm_startup.watch(target=site) as startup:
        with pytest.raises(StartupError) as caught:
            await startup.wait_until_ready()
    assert isinstance(caught.value.cause, causes.GpuOutOfMemory)
    assert "loading_weights" in [span.phase.value for span in caught.value.report.phases]
    assert len(caught.value.report.attempts) == 1
    assert server.left_behind() == []


async def test_a_kill_in_the_middle_is_told(sshd: Sshd, there: Server) -> None:
    pid = there.start("hang")
    async with watched(sshd, pid=pid, log=there.log) as startup:
        await until(startup, lambda: startup.status.phase.value == "initializing", 15)
        began = time.monotonic()
        there.kill(pid)
        with pytest.raises(StartupError) as caught:
            await startup.wait_until_ready()
    assert isinstance(caught.value.cause, causes.ProcessVanished)  # nobody there can tell how
    assert caught.value.cause.pid == pid
    assert time.monotonic() - began < 15


async def test_a_late_attach_reads_what_was_said_before(sshd: Sshd, there: Server) -> None:
    pid = there.start(speed=10)
    await asyncio.to_thread(wait_for_line, there.log, "Application startup complete")
    async with watched(sshd, pid=pid, log=there.log) as startup:
        report = await startup.wait_until_ready()
    assert report.facts["vllm_version"] == "0.32.0"
    assert "loading_weights" in [span.phase.value for span in report.phases]
    assert len(report.attempts) == 1


def wait_for_line(log: Path, text: str) -> None:
    deadline = time.monotonic() + 20
    while not log.exists() or text not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- the connection -----------------------------------------------------------------------


async def test_a_lost_connection_is_told_once_and_made_again_and_nothing_is_lost(
    sshd: Sshd, there: Server
) -> None:
    pid = there.start(speed=2.5)
    async with watched(sshd, pid=pid, log=there.log) as startup:
        events = asyncio.create_task(told(startup))
        await until(startup, lambda: startup.status.phase.value == "loading_weights", 15)
        sshd.cut()
        report = await startup.wait_until_ready()
        seen = await events
    broken = [event for event in seen if event.event == "probe_broken"]
    recovered = [event for event in seen if event.event == "probe_recovered"]
    assert len(broken) <= 1, broken  # one that is made again before anybody looks is no news
    assert all("the connection to gpubox is lost" in event.error for event in broken)
    assert [event.probe for event in recovered] == [event.probe for event in broken]
    assert len(report.attempts) == 1
    assert {"compiling", "warming_up"} <= {span.phase.value for span in report.phases}


async def test_a_machine_that_goes_away_ends_no_wait_but_a_limit_does(sshd: Sshd, there: Server) -> None:
    pid = there.start("hang")
    async with watched(sshd, pid=pid, log=there.log, timeouts=Timeouts(total=6, stall=3)) as startup:
        await until(startup, lambda: startup.status.phase.value == "initializing", 15)
        sshd.stop()
        with pytest.raises(vllm_startup.StartupTimeout) as caught:
            await startup.wait_until_ready()
    assert caught.value.report.outcome == "timed_out"  # what is not looked at is not stalled
    assert isinstance(caught.value.cause, causes.TimedOut)
    assert any("the connection to gpubox is lost" in text for text in texts(caught.value.report))


async def test_a_machine_that_falls_silent_goes_on_where_it_was(sshd: Sshd, there: Server) -> None:
    pid = there.start(speed=2.5)
    async with watched(sshd, pid=pid, log=there.log) as startup:
        await until(startup, lambda: startup.status.phase.value == "loading_weights", 15)
        sshd.freeze()
        await asyncio.sleep(2)
        sshd.thaw()
        report = await startup.wait_until_ready()
    assert report.outcome == "ready"
    assert len(report.attempts) == 1


# --- bad input ----------------------------------------------------------------------------


async def test_a_pid_that_is_not_there(sshd: Sshd) -> None:
    with pytest.raises(TargetError, match=r"^pid 99999999 does not exist on gpubox: give the id of"):
        await vllm_startup.wait_until_ready(target=ssh("gpubox", pid=99999999, options=sshd.options))
    assert server.left_behind() == []


async def test_arguments_that_make_no_sense_leave_no_connection(sshd: Sshd, there: Server) -> None:
    target = ssh("gpubox", pid=there.start("hang"), options=sshd.options)
    with pytest.raises(ValueError, match="restarts needs a target"):
        await vllm_startup.wait_until_ready(target=target, restarts=1)
    assert server.left_behind() == []


async def test_a_wait_that_is_cancelled_while_it_connects_leaves_nothing(sshd: Sshd) -> None:
    sshd.program("sh", '#!/bin/sh\nsleep 2\nexec /bin/sh "$@"\n')
    wait = asyncio.create_task(
        vllm_startup.wait_until_ready(target=ssh("gpubox", pid=1, options=sshd.options))
    )
    await asyncio.sleep(1)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    deadline = time.monotonic() + 20
    while server.left_behind():
        assert time.monotonic() < deadline, server.left_behind()
        await asyncio.sleep(0.1)


async def test_forwarding_that_is_forbidden_is_told_with_the_fix(
    tmp_path: Path, sshd: Sshd, there: Server
) -> None:
    with server.running(tmp_path / "closed", "AllowTcpForwarding no") as closed:
        pid = there.start()
        async with watched(closed, pid=pid, log=there.log, timeouts=Timeouts(total=5)) as startup:
            with pytest.raises(StartupError) as caught:
                await startup.wait_until_ready()
    assert "AllowTcpForwarding" in str(caught.value)
