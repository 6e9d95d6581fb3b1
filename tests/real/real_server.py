"""A real ``vllm serve`` that a test starts, with what an observer of its own sees of it."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Self

import psutil

PORTS = range(20_000, 32_000)  # below those that the kernel gives to outgoing connections
POLL_S = 0.01  # how exactly the observer knows when the server listens
LINE_LIMIT_S = 200.0  # two starts at a time on two cores: the slowest takes 60 s to its last line
STOP_LIMIT_S = 20.0


def free_port() -> int:
    """A port that nobody listens on, and that nobody is given unasked before the server takes it."""
    for port in random.sample(PORTS, k=len(PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no port of {PORTS} is free")


class Server:
    """The process and its log. Used as a context manager, nothing of it survives.

    Attributes:
        listened_at: When its port first took a connection, in seconds since the epoch.
        exited_at: When its main process ended.
    """

    def __init__(self, command: list[str], *, environment: dict[str, str], port: int, place: Path) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = place / "vllm.log"
        self.listened_at: float | None = None
        self.exited_at: float | None = None
        self._over = threading.Event()
        with self.log.open("wb") as log:
            # a session of its own: its number finds every descendant, even those that init adopted
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._observers = [
            threading.Thread(target=observe, name=f"{observe.__name__}:{self.pid}", daemon=True)
            for observe in (self._see_it_listen, self._see_it_exit)
        ]
        for observer in self._observers:
            observer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.alive():
            _signal(pid, signal.SIGKILL)
        self._over.set()
        for observer in self._observers:
            observer.join()
        self._process.wait()  # last: an observer waits for the same exit without reaping it

    def alive(self) -> dict[int, str]:
        """What runs of the server: pid to command line. Zombies have ended."""
        found = {}
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = " ".join(process.cmdline())
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
        return found

    def signal_to(self, title: str, number: signal.Signals) -> int:
        """Send a signal to the process with this title (``VLLM::Worker``), and say which it was."""
        pid = next(pid for pid, words in self.alive().items() if words.startswith(title))
        _signal(pid, number)
        return pid

    def wait_for_line(self, text: str) -> None:
        """Return when the log holds the text.

        Raises:
            TimeoutError: It did not come, or the server ended before.
        """
        limit = time.monotonic() + LINE_LIMIT_S
        while text not in self.log.read_text(errors="replace"):
            if time.monotonic() > limit or self.exited_at is not None:
                raise TimeoutError(f"the log never said {text!r}")
            time.sleep(POLL_S)

    def stop(self) -> dict[int, str]:
        """Ask it to end as a supervisor does, and say what is left of it."""
        _signal(self.pid, signal.SIGTERM)
        limit = time.monotonic() + STOP_LIMIT_S
        while (left := self.alive()) and time.monotonic() < limit:
            time.sleep(0.1)
        return left

    def _see_it_listen(self) -> None:
        while not self._over.wait(POLL_S):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                continue
            self.listened_at = time.time()
            return

    def _see_it_exit(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)  # its zombie stays, as under a busy supervisor
        self.exited_at = time.time()


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
