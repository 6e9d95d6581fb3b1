"""A systemd unit on another machine: an OpenSSH server inside a systemd of the tests' own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sshd as server
from sshd import Sshd
from systemd_sandbox import REPOSITORY, Sandbox

import vllm_startup
from vllm_startup import Event, Timeouts, targets
from vllm_startup.targets import TargetError, ssh

LIMIT = Timeouts(total=60)


class Box(Sshd):
    """A machine with a systemd, on this one's loopback."""

    def __init__(self, sandbox: Sandbox, address: str = "127.0.0.1") -> None:
        self.sandbox = sandbox
        super().__init__(Path(tempfile.mkdtemp(prefix="sshd-", dir=sandbox.folder)), address=address)
        sandbox.run("mkdir", "-p", "/run/sshd")

    def command(self, *argv: str) -> list[str]:
        return self.sandbox.command(*argv)


@pytest.fixture
def box(
    systemd: Sandbox, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Box]:
    """The other machine."""
    if server.MISSING:
        pytest.skip(server.WHY)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("sockets")))
    made = Box(systemd)
    made.start()
    yield made
    made.stop()


def unit(box: Box, *options: str, settings: str = "") -> int:
    """Write and start a unit with a simulated server; return its port."""
    port = server._free_port()
    words = ["-m", "vllm_startup._demo", *options, "vllm", "serve", "Qwen/Qwen3-8B"]
    command = " ".join([sys.executable, *words, "--host", "127.0.0.1", "--port", str(port)])
    service = f"Environment=PYTHONPATH={REPOSITORY} PYTHONUNBUFFERED=1\nExecStart={command}\n{settings}"
    box.sandbox.unit("vllm.service", service)
    box.sandbox.run("systemctl", "start", "--no-block", "vllm.service")
    return port


@pytest.fixture(autouse=True)
def _gone(systemd: Sandbox) -> Iterator[None]:
    yield
    systemd.run("systemctl", "stop", "vllm.service", check=False)
    systemd.run("systemctl", "reset-failed", check=False)


async def test_a_unit_there_is_followed_over_a_lost_connection(box: Box) -> None:
    began = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    port = unit(box, "--speed=2.5")
    events: list[Event] = []

    def hear(event: Event) -> None:
        events.append(event)
        if event.event == "phase_entered" and event.phase == "loading_weights":
            box.cut()

    target = ssh("gpubox", targets.systemd("vllm"), options=box.options)
    report = await vllm_startup.wait_until_ready(target=target, timeouts=LIMIT, on_event=hear)
    assert report.outcome == "ready"
    assert report.url == f"http://127.0.0.1:{port}"
    assert len([each for each in report.attempts if (each.started_at or "") >= began]) == 1
    assert {"compiling", "warming_up"} <= {span.phase.value for span in report.phases}
    broken = [event for event in events if event.event == "probe_broken"]
    assert len(broken) == 1
    assert "the connection to gpubox is lost" in broken[0].error
    assert [e.probe for e in events if e.event == "probe_recovered"] == [broken[0].probe]
    assert server.left_behind() == []


async def test_a_unit_there_that_is_restarted_is_found_again(box: Box) -> None:
    unit(box, "--speed=6", "--scenario=out-of-memory", settings="Restart=on-failure\nRestartSec=1\n")
    target = ssh("gpubox", targets.systemd("vllm"), options=box.options)
    with pytest.raises(vllm_startup.StartupError) as caught:
        await vllm_startup.wait_until_ready(target=target, timeouts=LIMIT, restarts=1, exit_grace=2)
    assert caught.value.cause.kind == "restart_loop"
    assert {cause.kind for cause in caught.value.cause.causes} == {"gpu_out_of_memory"}
    assert [attempt.outcome for attempt in caught.value.report.attempts[-2:]] == ["failed", "failed"]
    assert server.left_behind() == []


async def test_a_kill_there_is_told_with_its_signal(box: Box) -> None:
    unit(box, "--scenario=hang", "--speed=5")
    pid = ""

    def kill(event: Event) -> None:
        nonlocal pid
        if event.event == "phase_entered" and event.phase == "initializing":
            pid = box.sandbox.run("systemctl", "show", "-P", "MainPID", "vllm.service").strip()
            box.sandbox.run("kill", "-9", pid)

    target = ssh("gpubox", targets.systemd("vllm"), options=box.options)
    with pytest.raises(vllm_startup.StartupError) as caught:
        await vllm_startup.wait_until_ready(target=target, timeouts=LIMIT, on_event=kill, exit_grace=2)
    assert caught.value.cause.kind == "process_killed"  # systemd knows what the kernel tells its parent
    assert caught.value.cause.fields["signal"] == 9


def test_a_unit_that_does_not_exist_there(box: Box) -> None:
    unit(box, "--scenario=hang")
    with pytest.raises(TargetError, match=r"unit vlm\.service does not exist on gpubox: did you mean vllm"):
        ssh("gpubox", targets.systemd("vlm"), options=box.options).locate()
    assert server.left_behind() == []
