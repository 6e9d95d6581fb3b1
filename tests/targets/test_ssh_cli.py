"""``--ssh HOST`` on the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sshd import Sshd

from vllm_startup._demo.command import simulated_server


class Client:
    """The command line, with a folder of its own for what it may leave behind."""

    def __init__(self, sshd: Sshd, folder: Path) -> None:
        self._folder = folder / "client"
        self._folder.mkdir()
        path = f"{sshd.client_bin()}:{os.environ['PATH']}"
        self._env = {**os.environ, "PATH": path, "TMPDIR": str(self._folder)}

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Start it."""
        command = [sys.executable, "-m", "vllm_startup", *argv]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._env
        )

    def run(self, *argv: str) -> tuple[int, str, str]:
        """Run it to its end."""
        process = self.start(*argv)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def folders(self) -> list[Path]:
        """Its connections' folders that are there."""
        return list(self._folder.glob("vllm-ssh-*"))


@pytest.fixture
def client(sshd: Sshd, tmp_path_factory: pytest.TempPathFactory) -> Client:
    return Client(sshd, tmp_path_factory.mktemp("cli"))  # a short path: sockets will lie in it


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["wait", "--ssh", "gpubox"], "--ssh says on which machine; say what to look at there"),
        (["diagnose", "--ssh", "gpubox"], "say what to look at there: --unit U, FILE"),
        (["wait", "--ssh", "gpubox", "--log", "-"], "standard input is on this machine"),
        (["wait", "--ssh=-v", "--pid", "1"], "host must be a host as ssh takes it"),
        (["wait", "--ssh", "no-such-host.invalid", "--pid", "1"], "Could not resolve hostname"),
        (["wait", "--ssh", "gpubox", "--pid", "99999999"], "pid 99999999 does not exist on gpubox"),
        (["diagnose", "--ssh", "gpubox", "/no/such.log"], "the log on gpubox cannot be read: No such file"),
        (["wait", "--ssh", "gpubox", "--pid", "1", "--restarts", "1"], "restarts needs a target"),
    ],
)
def test_wrong_usage_ends_with_status_2_and_the_fix(client: Client, argv: list[str], said: str) -> None:
    code, out, err = client.run(*argv)
    assert (code, out) == (2, "")
    assert said in err
    assert client.folders() == []


def test_a_log_there_is_diagnosed(client: Client, tmp_path: Path) -> None:
    log = tmp_path / "vllm log.txt"  # with a blank, and larger than what is read at once
    case = Path(__file__).parents[1] / "cases" / "dependency_version_mismatch.log"
    log.write_text("INFO: noise\n" * 150_000 + case.read_text())
    code, out, _ = client.run("diagnose", "--ssh", "gpubox", "--json", str(log))
    assert code == 1
    assert json.loads(out)["cause"]["kind"] == "dependency_version_mismatch"
    assert client.folders() == []


def test_a_server_there_is_waited_for(client: Client) -> None:
    server = subprocess.Popen(
        simulated_server(speed=10), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        code, out, err = client.run("wait", "--ssh", "gpubox", "--pid", str(server.pid), "--json")
    finally:
        server.kill()
        server.wait()
    assert code == 0, err
    assert json.loads(out)["outcome"] == "ready"
    assert client.folders() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_connects_leaves_nothing(sshd: Sshd, client: Client, number: int) -> None:
    sshd.config.write_text(sshd.config.read_text() + "\n    ProxyCommand sleep 60\n")
    process = client.start("wait", "--ssh", "gpubox", "--pid", "1")
    until(lambda: bool(client.folders()))
    time.sleep(0.2)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert "interrupted by" in err
    assert client.folders() == []
    until(lambda: not clients(sshd))


def test_a_signal_while_it_waits_leaves_nothing(sshd: Sshd, client: Client) -> None:
    process = client.start("wait", "--ssh", "gpubox", "--pid", str(os.getpid()))
    until(lambda: bool(client.folders()) and bool(sshd.sessions()))
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 143
    assert client.folders() == []
    until(lambda: not clients(sshd))


def clients(sshd: Sshd) -> str:
    """The OpenSSH clients that use this server's configuration."""
    return subprocess.run(
        ["pgrep", "-af", f"^ssh .*{sshd.config}"], capture_output=True, text=True, check=False
    ).stdout


def until(found: object) -> None:
    assert callable(found)
    deadline = time.monotonic() + 20
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)
