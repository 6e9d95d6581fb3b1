"""An OpenSSH server of the tests' own: its keys, its port on loopback, its configuration."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
MISSING = SSHD is None or shutil.which("ssh") is None
WHY = "needs OpenSSH's client and server (openssh-server)"


class Sshd:
    """A server in a folder; `gpubox` is its name in the client's configuration there.

    Args:
        folder: An empty one.
        settings: Further lines for ``sshd_config``.
        address: Where it listens.
    """

    def __init__(self, folder: Path, *settings: str, address: str = "127.0.0.1") -> None:
        self.folder = folder
        self.address = address
        self.port = _free_port()
        self.config = folder / "ssh_config"
        self.options = ("-F", str(self.config))
        self.bin = folder / "far-bin"
        self._process: subprocess.Popen[bytes] | None = None
        self.bin.mkdir()
        for name in ("host", "user"):
            self._keygen(name)
        shutil.copy(folder / "user.pub", folder / "authorized_keys")
        (folder / "sshd_config").write_text(
            "\n".join(
                (
                    f"ListenAddress {address}:{self.port}",
                    f"HostKey {folder / 'host'}",
                    "PidFile none",
                    f"AuthorizedKeysFile {folder / 'authorized_keys'}",
                    "StrictModes no",
                    "UsePAM no",
                    "PasswordAuthentication no",
                    "KbdInteractiveAuthentication no",
                    # Not its user's own home: what a login shell reads there is none of the tests' matter.
                    f"SetEnv HOME={folder} PATH={self.bin}:/usr/local/bin:/usr/bin:/bin",
                    *settings,
                    "",
                )
            )
        )
        self.config.write_text(
            f"""
            Host gpubox
                HostName {address}
                Port {self.port}
                User {getpass.getuser()}
                IdentityFile {folder / "user"}
                IdentitiesOnly yes
                IdentityAgent none
                UserKnownHostsFile {folder / "known_hosts"}
                GlobalKnownHostsFile /dev/null
            """
        )
        self.trust()

    def trust(self, key: str = "host") -> None:
        """Let the client know a host key."""
        public = (self.folder / f"{key}.pub").read_text()
        (self.folder / "known_hosts").write_text(f"[{self.address}]:{self.port} {public}")

    def start(self) -> None:
        """Listen."""
        assert SSHD is not None
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        log = (self.folder / "sshd.log").open("ab")
        with log:
            command = [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")]
            self._process = subprocess.Popen(
                self.command(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                socket.create_connection((self.address, self.port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise RuntimeError((self.folder / "sshd.log").read_text())

    def command(self, *argv: str) -> list[str]:
        """What to run so that a command runs on its machine."""
        return list(argv)

    def client_bin(self) -> Path:
        """A folder for the path, whose ``ssh`` reads the client's configuration here."""
        folder = self.folder / "client-bin"
        folder.mkdir(exist_ok=True)
        program = folder / "ssh"
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.config} "$@"\n')
        program.chmod(0o755)
        return folder

    def stop(self) -> None:
        """Listen no more, and end what there is."""
        process, self._process = self._process, None
        if process is None:
            return
        sessions = _tree(process.pid)
        process.kill()
        process.wait()
        _signal(sessions, signal.SIGCONT)
        _signal(sessions, signal.SIGKILL)

    def cut(self) -> None:
        """End every connection, as a network that goes away does, but for its silence."""
        _signal(self.sessions(), signal.SIGKILL)

    def freeze(self) -> None:
        """Let nothing be heard of any connection any more."""
        _signal(self.sessions(), signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        _signal(self.sessions(), signal.SIGCONT)

    def sessions(self) -> list[psutil.Process]:
        """The server's own processes, one or two a connection."""
        assert self._process is not None
        return [p for p in _tree(self._process.pid) if _is_session(p)]

    def program(self, name: str, script: str) -> None:
        """Put a program into the path of those who come in."""
        path = self.bin / name
        path.write_text(script)
        path.chmod(0o755)

    def _keygen(self, name: str) -> None:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
        subprocess.run(command, check=True)


@contextmanager
def running(folder: Path, *settings: str) -> Iterator[Sshd]:
    """A server that listens in here."""
    folder.mkdir(parents=True, exist_ok=True)
    server = Sshd(folder, *settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def have_networks() -> bool:
    """Whether this user may make network namespaces."""
    name = f"vs-probe-{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


@contextmanager
def network(name: str) -> Iterator[tuple[str, str]]:
    """A network namespace with a cable to this one: its name, and this one's address on the cable."""
    here, there = "198.18.77.1", "198.18.77.2"  # of RFC 2544's, for tests
    _ip("netns", "add", name)
    try:
        _ip("link", "add", f"{name}-a", "type", "veth", "peer", "name", f"{name}-b", "netns", name)
        _ip("addr", "add", f"{here}/30", "dev", f"{name}-a")
        _ip("link", "set", f"{name}-a", "up")
        _ip("-n", name, "addr", "add", f"{there}/30", "dev", f"{name}-b")
        _ip("-n", name, "link", "set", f"{name}-b", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        yield name, here
    finally:
        _ip("netns", "del", name)  # the cable goes with it


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def left_behind() -> list[str]:
    """What of the clients under test stays there: processes of ours, folders for sockets."""
    deadline = time.monotonic() + 2
    while (found := _left()) and time.monotonic() < deadline:
        time.sleep(0.02)  # a client that has lost its master is about to end
    return found


def _left() -> list[str]:
    return [
        *(str(child) for child in psutil.Process().children() if _is_client(child)),
        *map(str, Path(tempfile.gettempdir()).glob("vllm-ssh-*")),
    ]


def _is_client(process: psutil.Process) -> bool:
    try:
        return process.name() == "ssh" and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _tree(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def _is_session(process: psutil.Process) -> bool:
    """Whether it is one of the server's own that the listening one started."""
    try:
        parent = process.parent()
        return process.name() == "sshd" and parent is not None and parent.name() == "sshd"
    except psutil.NoSuchProcess:
        return False


def _signal(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
