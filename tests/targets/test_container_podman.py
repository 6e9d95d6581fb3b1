"""Containers of a real engine, with a simulated server in them."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from podman_engine import REPOSITORY, Podman

import vllm_startup
from vllm_startup import StartupError, StartupReport, StartupTimeout, Timeouts, causes
from vllm_startup._diagnosing import diagnose
from vllm_startup._report import ExitStatus
from vllm_startup.targets import TargetError, container

pytestmark = pytest.mark.slow

LIMIT = Timeouts(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def failed(target: object, **options: object) -> StartupReport:
    """The report of a wait that fails."""
    with pytest.raises(StartupError) as raised:
        await vllm_startup.wait_until_ready(target=target, **{"timeouts": LIMIT, **options})  # type: ignore[arg-type]
    return raised.value.report


async def once(
    told: Callable[[vllm_startup.Event], bool], act: Callable[[], object]
) -> Callable[..., Awaitable[None]]:
    """Watches, and acts at the first event that is meant."""

    async def run(startup: vllm_startup.Startup) -> None:
        async for event in startup.events():
            if told(event):
                await asyncio.to_thread(act)
                return

    return run


def entered(phase: str) -> Callable[[vllm_startup.Event], bool]:
    return lambda event: event.event == "phase_entered" and event.phase == phase


async def while_it_waits(
    target: object, meant: Callable[[vllm_startup.Event], bool], act: Callable[[], object], **options: object
) -> StartupReport:
    """Wait for a server, and do something to it at the first event that is meant."""
    startup = await asyncio.to_thread(
        lambda: vllm_startup.watch(target=target, **{"timeouts": LIMIT, **options})  # type: ignore[arg-type]
    )
    async with startup:
        acting = asyncio.create_task((await once(meant, act))(startup))
        try:
            return await startup.wait_until_ready()
        except StartupError as error:
            return error.report
        finally:
            await acting


def codes(report: StartupReport) -> list[str]:
    return [warning.code for warning in report.warnings if not warning.code.startswith("nvml")]


# --- good ends --------------------------------------------------------------------------------


async def test_a_server_in_a_container_comes_up_and_is_found_again_later(box: Podman, tmp_path: Path) -> None:
    port = free_port()
    box.serve("vllm", tmp_path, speed=4, port=port)
    report = await vllm_startup.wait_until_ready(
        target=container("vllm", engine=box.url), until="model", timeouts=LIMIT
    )
    assert report.url == f"http://127.0.0.1:{port}"  # as its own command says
    phases = [span.phase.value for span in report.phases]
    assert phases[:4] == ["launching", "configuring", "initializing", "loading_weights"]
    assert {process.role for process in report.processes} >= {"engine", "worker"}
    log_pids = {process.pid for process in report.processes}
    assert min(log_pids) == 1  # they are the container's own
    assert max(log_pids) < 100
    # Once more, from the command line: what its log held before is history.
    # A server that is ready already may be found so before its log was read, hence the second.
    words = [
        "-m",
        "vllm_startup",
        "wait",
        "--container",
        "vllm",
        "--engine",
        box.url,
        "--json",
        "--stable-for=1",
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    late = json.loads(out)
    assert (process.returncode, late["outcome"], len(late["attempts"])) == (0, "ready", 1)
    assert [span["phase"] for span in late["phases"]][:4] == phases[:4]
    assert late["facts"]["vllm_version"] == "0.32.0"


async def test_the_address_is_the_one_that_a_script_in_it_gives(box: Podman, tmp_path: Path) -> None:
    port = free_port()
    server = f"{sys.executable} -m vllm_startup._demo --speed 20 vllm serve Qwen/Qwen3-8B"
    script = tmp_path / "entry.sh"
    script.write_text(
        f"export PYTHONPATH={REPOSITORY} TMPDIR={tmp_path}\nsleep 1; P={port}; exec {server} --port $P\n"
    )
    mount = f"--volume={tmp_path}:/host{tmp_path}"
    box.up("vllm", "chroot", "/host", "sh", str(script), options=(mount,))
    report = await vllm_startup.wait_until_ready(target=container("vllm", engine=box.url), timeouts=LIMIT)
    assert report.url == f"http://127.0.0.1:{port}"


# --- failures ----------------------------------------------------------------------------------


async def test_a_failed_start_is_told_with_its_cause_while_and_after(box: Podman, tmp_path: Path) -> None:
    box.serve("vllm", tmp_path, "out-of-memory", speed=4, port=free_port())
    target = container("vllm", engine=box.url)
    report = await failed(target)
    assert isinstance(report.cause, causes.GpuOutOfMemory)
    assert report.exit == ExitStatus(code=1, signal=None)
    after = await failed(target)
    assert isinstance(after.cause, causes.GpuOutOfMemory)
    assert [line.text for line in after.cause.evidence] == [line.text for line in report.cause.evidence]
    diagnosed = await asyncio.to_thread(lambda: diagnose(target.read_log()))
    assert isinstance(diagnosed.cause, causes.GpuOutOfMemory)
    assert diagnosed.exit == ExitStatus(code=1, signal=None)


async def test_a_killed_worker_is_named_as_its_log_does(box: Podman, tmp_path: Path) -> None:
    box.serve("vllm", tmp_path, "killed", speed=2, port=free_port())
    report = await failed(container("vllm", engine=box.url))
    assert isinstance(report.cause, causes.ProcessKilled)
    assert report.cause.process == "VLLM::Worker_TP1"
    workers = {process.pid: process.exit for process in report.processes if process.role == "worker"}
    sibling = re.search(r"\(Worker_TP0 pid=(\d+)\)", box.run("logs", "vllm"))
    assert sibling is not None
    assert int(sibling[1]) in workers  # the log and the processes have the same numbers
    killed = [pid for pid, how in workers.items() if how == ExitStatus(signal=9)]
    assert report.cause.evidence[0].text == f"pid {killed[0]} was ended by SIGKILL"


async def test_a_restart_loop_is_told_with_the_cause_of_each_start(box: Podman, tmp_path: Path) -> None:
    box.serve(
        "vllm", tmp_path, "out-of-memory", speed=8, port=free_port(), options=("--restart=on-failure:4",)
    )
    report = await failed(container("vllm", engine=box.url), restarts=1)
    assert isinstance(report.cause, causes.RestartLoop)
    assert [cause.kind for cause in report.cause.causes] == ["gpu_out_of_memory"] * 2
    first, second = report.attempts[:2]
    assert (first.phase, second.phase) == ("loading_weights", "loading_weights")


async def test_no_restart_is_waited_for_that_its_policy_does_not_allow(box: Podman) -> None:
    box.up("vllm", "sh", "-c", "sleep 0.1; exit 3", options=("--restart=on-failure:1",))
    report = await failed(container("vllm", engine=box.url), restarts=5)
    assert report.exit == ExitStatus(code=3)
    assert "not_restarted" in codes(report)


# --- what happens to it while it is waited for ---------------------------------------------------


async def test_a_container_that_is_stopped_was_asked_to_stop(box: Podman) -> None:
    """Podman shows it while it lasts; the first process to end is the sign to look."""
    ends = 'sleep 60 & child=$!; trap "kill $child; sleep 3; exit 0" TERM; wait'
    box.up("vllm", "sh", "-c", ends)

    def stop() -> None:
        time.sleep(3)  # until the child is known
        box.run("stop", "--time=10", "vllm")

    report = await while_it_waits(container("vllm", engine=box.url), entered("launching"), stop)
    assert isinstance(report.cause, causes.ShutdownRequested)
    assert report.exit == ExitStatus(code=0, signal=None)
    assert [line.text for line in report.cause.evidence] == [
        "pid 1 was asked to end by SIGTERM, and exited with status 0"
    ]
    assert "container_stopped" in codes(report)


async def test_a_container_that_is_killed_is_told_not_what_the_kernel_ended_with_it(
    box: Podman, tmp_path: Path
) -> None:
    box.serve("vllm", tmp_path, speed=4, port=free_port())
    report = await while_it_waits(
        container("vllm", engine=box.url), entered("loading_weights"), lambda: box.run("kill", "vllm")
    )
    assert isinstance(report.cause, causes.ProcessKilled)
    assert (report.cause.process, report.cause.signal) == ("container vllm", 9)


async def test_a_container_that_is_removed_is_a_reading(box: Podman) -> None:
    box.up("vllm", "sleep", "60")
    report = await while_it_waits(
        container("vllm", engine=box.url),
        entered("launching"),
        lambda: box.run("rm", "--force", "--time=0", "vllm"),
    )
    assert report.outcome == "failed"
    assert isinstance(report.cause, causes.Crash | causes.ShutdownRequested)
    assert report.exit == ExitStatus(code=None, signal=9)


async def test_a_container_of_the_same_name_is_its_next_start(box: Podman, tmp_path: Path) -> None:
    port = free_port()

    def replace() -> None:
        box.run("rm", "--force", "--time=0", "vllm")
        box.serve("vllm", tmp_path, speed=8, port=port)

    box.serve("vllm", tmp_path, speed=4, port=free_port())
    report = await while_it_waits(
        container("vllm", engine=box.url), entered("configuring"), replace, restarts=1
    )
    assert report.outcome == "ready"
    assert [attempt.outcome for attempt in report.attempts] == ["failed", "ready"]
    assert report.url == f"http://127.0.0.1:{port}"  # the new one listens elsewhere


async def test_a_container_that_was_only_created_is_waited_for(box: Podman) -> None:
    box.up("vllm", "sh", "-c", "sleep 0.3; exit 7", verb="create")
    report = await while_it_waits(
        container("vllm", engine=box.url),
        lambda event: event.event == "warning" and event.code == "container_not_started",
        lambda: box.run("start", "vllm"),
    )
    assert report.exit == ExitStatus(code=7, signal=None)


async def test_an_engine_that_goes_and_comes_back_loses_nothing(box: Podman, tmp_path: Path) -> None:
    port = free_port()
    box.serve("vllm", tmp_path, speed=4, port=port)

    def restart() -> None:
        box.stop()
        time.sleep(0.3)
        box.start()

    events: list[vllm_startup.Event] = []
    report = await while_it_waits(
        container("vllm", engine=box.url), entered("loading_weights"), restart, on_event=events.append
    )
    assert report.outcome == "ready"
    told = [event.event for event in events if event.event.startswith("probe_")]
    assert told == ["probe_broken", "probe_recovered"]
    done = [event.done for event in events if event.event == "progress" and event.what == "shards"]
    assert done == sorted(done)
    assert len([span for span in report.phases if span.because[0].probe == "log"]) >= 6


async def test_a_log_of_a_terminal_and_a_pause_are_read(box: Podman) -> None:
    line = (
        "(APIServer pid=1) INFO 11-30 12:00:00 [api_utils.py:299] vLLM server version 0.20.0, serving model m"
    )
    box.up("vllm", "sh", "-c", f"echo '{line}'; sleep 60", options=("--tty",))

    def trouble() -> None:
        box.run("pause", "vllm")
        time.sleep(1.0)  # its state is asked for when the engine tells of it
        box.run("unpause", "vllm")

    startup = await asyncio.to_thread(
        lambda: vllm_startup.watch(
            target=container("vllm", engine=box.url), until="engine", timeouts=Timeouts(6)
        )
    )
    async with startup:
        acting = asyncio.create_task((await once(entered("configuring"), trouble))(startup))
        with pytest.raises(StartupTimeout) as raised:
            await startup.wait_until_ready()
        await acting
    report = raised.value.report
    assert report.facts["vllm_version"] == "0.20.0"
    assert "container_paused" in codes(report)


# --- which one -------------------------------------------------------------------------------------


async def test_a_compose_service_is_found_by_its_name(box: Podman) -> None:
    def labels(project: str, service: str) -> tuple[str, ...]:
        prefix = "--label=com.docker.compose."
        return (f"{prefix}project={project}", f"{prefix}service={service}")

    box.up("prod-llm-1", "true", options=labels("prod", "llm"))
    box.up("prod-web-1", "true", options=labels("prod", "web"))
    box.up("test-web-1", "true", options=labels("test", "web"))

    def site(name: str) -> str:
        return container(name, engine=box.url).locate().name

    assert await asyncio.to_thread(site, "llm") == "container prod-llm-1"
    assert await asyncio.to_thread(site, "test/web") == "container test-web-1"
    with pytest.raises(TargetError, match="several containers; give one: prod-web-1, test-web-1"):
        await asyncio.to_thread(site, "web")
    with pytest.raises(TargetError, match="'prod-lm-1' does not exist; did you mean prod-llm-1"):
        await asyncio.to_thread(site, "prod-lm-1")


async def test_a_container_that_does_not_exist_is_wrong_usage(box: Podman) -> None:
    words = ["-m", "vllm_startup", "diagnose", "--container", "vlm", "--engine", box.url]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stderr=asyncio.subprocess.PIPE)
    _, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 2
    assert b"container 'vlm' does not exist; the engine has no containers" in err
