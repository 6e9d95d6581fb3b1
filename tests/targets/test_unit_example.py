"""The README's unit file under a real systemd: it is started, watched, hung, broken and stopped."""

from __future__ import annotations

import re
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from examples import example
from systemd_sandbox import Sandbox, python

UNIT = "vllm.service"
TEXT = example(UNIT, "ini")
PLACE = "/srv/vllm/bin"
SIMULATED = "vllm_startup._demo --scenario"  # in the command line of a server's main process, in no other


def simulated(scenario: str, speed: float) -> Sequence[str]:
    return python("-m", *SIMULATED.split(), scenario, "--speed", f"{speed:g}", "vllm")


class Service:
    """The unit, with other numbers where the README's would take too long."""

    def __init__(self, systemd: Sandbox) -> None:
        self.systemd = systemd
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port: int = listener.getsockname()[1]

    def install(
        self, vllm: Sequence[str], *, served: str = "Qwen/Qwen3-8B", stall: int = 600, **settings: str
    ) -> None:
        """Write it, with another program as vLLM; ``settings`` are systemd's."""
        self.program("vllm-startup", *python("-m", "vllm_startup"))
        self.program("vllm", *vllm)
        text = TEXT.replace("Qwen/Qwen3-8B", f"{served} --port {self.port}")
        text = text.replace("--stall 600", f"--stall {stall}")
        for name, value in settings.items():
            text, found = re.subn(rf"^{name}=.*$", f"{name}={value}", text, flags=re.MULTILINE)
            assert found == 1, name
        self.systemd.write(UNIT, text)

    def program(self, name: str, *words: str) -> None:
        text = f'#!/bin/sh\nexec {" ".join(words)} "$@"\n'
        self.systemd.run("sh", "-c", f"printf %s '{text}' >{PLACE}/{name}")
        self.systemd.run("chmod", "755", f"{PLACE}/{name}")

    def show(self, name: str) -> str:
        return self.systemd.run("systemctl", "show", UNIT, "--property", name, "--value").strip()

    def until(self, holds: Callable[[], bool], within_s: float = 60) -> None:
        end = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < end, self.systemd.run("systemctl", "status", UNIT, check=False)
            time.sleep(0.1)

    def pids(self, text: str = "vllm_startup") -> list[int]:
        """Of the processes of the unit whose command line has this, the oldest first."""
        found = self.systemd.run("pgrep", "--full", text, check=False)
        return [int(pid) for pid in found.split()]

    def heard(self) -> str:
        """What systemd was told, as its debug log has it."""
        return "\n".join(
            line
            for line in self.systemd.run("journalctl", "--unit", UNIT, "--output", "cat").splitlines()
            if "Got notification message" in line
        )


@pytest.fixture
def service(systemd: Sandbox) -> Iterator[Service]:
    systemd.run("mount", "-t", "tmpfs", "tmpfs", "/srv")
    systemd.run("mkdir", "--parents", PLACE)
    systemd.run("systemctl", "log-level", "debug")
    yield Service(systemd)
    systemd.run("systemctl", "log-level", "info")
    systemd.run("systemctl", "kill", "--signal=KILL", UNIT, check=False)
    systemd.run("systemctl", "stop", UNIT, check=False)
    systemd.run("systemctl", "reset-failed", UNIT, check=False)
    systemd.remove(UNIT)
    systemd.run("umount", "/srv")


def test_systemd_finds_no_fault_in_it(service: Service) -> None:
    service.install(simulated("ready", 1))
    assert service.systemd.run("systemd-analyze", "verify", f"/run/systemd/system/{UNIT}") == ""


def test_a_start_far_longer_than_its_timeout_is_seen_through_and_watched(service: Service) -> None:
    service.install(simulated("ready", 1), TimeoutStartSec="4", WatchdogSec="2", RestartSec="1")
    began = time.monotonic()
    service.systemd.run("systemctl", "start", "--no-block", UNIT)
    service.until(lambda: service.show("StatusText").startswith("loading weights"))
    assert 'Status: "loading weights' in service.systemd.run("systemctl", "status", UNIT, check=False)
    assert service.show("ActiveState") == "activating"
    service.until(lambda: service.show("ActiveState") == "active")
    assert time.monotonic() - began > 8  # twice the timeout
    assert service.show("StatusText") == "ready"
    assert service.show("NRestarts") == "0"

    time.sleep(3)  # longer than the watchdog waits
    assert service.show("NRestarts") == "0"
    (server,) = service.pids(SIMULATED)
    service.install(simulated("ready", 5), RestartSec="1")  # for the next start
    service.systemd.run("kill", "-STOP", str(server))
    service.until(lambda: service.show("NRestarts") == "1")
    assert "watchdog" in service.systemd.run("journalctl", "--unit", UNIT, "--output", "cat").lower()
    service.until(lambda: service.show("ActiveState") == "active")
    assert server not in service.pids()

    service.systemd.run("systemctl", "stop", UNIT)
    assert (service.show("Result"), service.show("ActiveState")) == ("success", "inactive")
    assert service.pids() == []
    heard = service.heard()
    assert "EXTEND_TIMEOUT_USEC=630000000" in heard
    assert heard.count("READY=1") == 2
    assert "WATCHDOG=1" in heard
    assert "STOPPING=1" in heard


def test_a_reload_of_systemd_does_not_end_a_start(service: Service) -> None:
    service.install(simulated("ready", 1))
    service.systemd.run("systemctl", "start", "--no-block", UNIT)
    service.until(lambda: service.show("StatusText").startswith("loading weights"))
    service.systemd.run("systemctl", "daemon-reload")  # sets the timeout anew, from the start's beginning
    assert service.show("TimeoutStartUSec") == "infinity"
    service.until(lambda: service.show("ActiveState") != "activating")
    assert (service.show("ActiveState"), service.show("NRestarts")) == ("active", "0")


def test_a_start_that_hangs_is_ended_by_the_stall_limit(service: Service) -> None:
    service.install(simulated("hang", 4), stall=3, Restart="no")
    service.systemd.run("systemctl", "start", "--no-block", UNIT)
    service.until(lambda: service.show("ActiveState") == "failed")
    assert (service.show("Result"), service.show("ExecMainStatus")) == ("exit-code", "3")
    assert service.show("StatusText").startswith("stalled: ")
    assert service.pids() == []


def test_a_start_that_fails_says_why(service: Service) -> None:
    service.install(simulated("out-of-memory", 4), Restart="no")
    service.systemd.run("systemctl", "start", UNIT, check=False)
    assert (service.show("Result"), service.show("ExecMainStatus")) == ("exit-code", "1")
    assert service.show("StatusText").startswith("failed: ")
    assert "memory" in service.show("StatusText")
    assert service.pids() == []


def test_a_server_that_is_killed_after_it_was_ready_is_restarted(service: Service) -> None:
    service.install(simulated("ready", 5), RestartSec="3")
    service.systemd.run("systemctl", "start", UNIT)
    (server,) = service.pids(SIMULATED)
    service.systemd.run("kill", "-KILL", str(server))
    service.until(lambda: service.show("SubState") == "auto-restart")
    assert service.show("StatusText") == "the server was ended by SIGKILL after it was ready"


@pytest.mark.every_way
@pytest.mark.real
@pytest.mark.slow
def test_a_real_start_far_longer_than_its_timeout_is_seen_through(service: Service, real: Path) -> None:
    environ = {
        "HOME": str(Path.home()),
        "HF_HOME": f"{real}/cache/huggingface",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": f"{real}/cache/vllm",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    service.install(
        vllm=["env", *(f"{key}={value}" for key, value in environ.items()), f"{real}/venv/bin/vllm"],
        served=f"{real}/models/tiny --enforce-eager",
        TimeoutStartSec="5",
    )
    began = time.monotonic()
    service.systemd.run("systemctl", "start", "--no-block", UNIT)
    told = set()

    def active() -> bool:
        told.add(service.show("StatusText").partition(",")[0])
        return service.show("ActiveState") == "active"

    service.until(active, 400)
    active()  # once more: what was told with readiness
    assert time.monotonic() - began > 10  # twice the timeout
    assert {"launching", "loading weights", "ready"} <= told, told
    assert service.show("NRestarts") == "0"
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/health", timeout=30) as answer:
        assert answer.status == 200
    service.systemd.run("systemctl", "stop", UNIT)
    assert service.show("Result") == "success"
    assert service.pids("VLLM::|bin/vllm") == []
