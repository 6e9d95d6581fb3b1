"""A container on another machine: a real engine behind an OpenSSH server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import sshd as server
from podman_engine import Podman
from sshd import Sshd

import vllm_startup
from vllm_startup import Event, Timeouts
from vllm_startup.targets import TargetError, container, ssh

pytestmark = pytest.mark.slow

LIMIT = Timeouts(total=60)


async def test_a_container_there_is_followed_over_a_lost_connection(
    sshd: Sshd, box: Podman, tmp_path: Path
) -> None:
    port = server._free_port()
    box.serve("vllm", tmp_path, speed=2.5, port=port)
    events: list[Event] = []

    def hear(event: Event) -> None:
        events.append(event)
        if event.event == "phase_entered" and event.phase == "loading_weights":
            sshd.cut()

    target = ssh("gpubox", container("vllm", engine=box.url), options=sshd.options)
    report = await vllm_startup.wait_until_ready(target=target, timeouts=LIMIT, on_event=hear)
    assert report.outcome == "ready"
    assert report.url == f"http://127.0.0.1:{port}"
    assert len(report.attempts) == 1
    pids = {process.pid for process in report.processes}
    assert min(pids) == 1  # as its log numbers them
    assert max(pids) < 100
    assert {process.role for process in report.processes} >= {"engine", "worker"}
    assert {"compiling", "warming_up"} <= {span.phase.value for span in report.phases}
    assert any("is lost" in event.error for event in events if event.event == "probe_broken")
    assert server.left_behind() == []


async def test_a_failed_start_there_has_its_cause(sshd: Sshd, box: Podman, tmp_path: Path) -> None:
    box.serve("vllm", tmp_path, "out-of-memory", speed=6, port=server._free_port())
    target = ssh("gpubox", container("vllm", engine=box.url), options=sshd.options)
    with pytest.raises(vllm_startup.StartupError) as caught:
        await vllm_startup.wait_until_ready(target=target, timeouts=LIMIT, exit_grace=2)
    assert caught.value.cause.kind == "gpu_out_of_memory"


async def test_one_that_takes_its_place_there_is_asked_at_its_own_address(
    sshd: Sshd, box: Podman, tmp_path: Path
) -> None:
    port = server._free_port()
    box.serve("vllm", tmp_path, "hang", speed=4, port=server._free_port())
    target = ssh("gpubox", container("vllm", engine=box.url), options=sshd.options)
    startup = await asyncio.to_thread(lambda: vllm_startup.watch(target=target, timeouts=LIMIT, restarts=1))
    async with startup:
        async for event in startup.events():
            if event.event == "phase_entered" and event.phase == "configuring":
                break
        await asyncio.to_thread(box.run, "rm", "--force", "--time=0", "vllm")
        await asyncio.to_thread(box.serve, "vllm", tmp_path, speed=8, port=port)
        report = await startup.wait_until_ready()
    assert (report.outcome, report.url) == ("ready", f"http://127.0.0.1:{port}")


def test_a_container_or_engine_that_is_not_there(sshd: Sshd, box: Podman) -> None:
    with pytest.raises(TargetError, match="'vlm' does not exist"):
        ssh("gpubox", container("vlm", engine=box.url), options=sshd.options).locate()
    with pytest.raises(TargetError, match="gives no answer"):
        ssh("gpubox", container("vllm", engine="unix:///no/such.sock"), options=sshd.options).locate()
    assert server.left_behind() == []
