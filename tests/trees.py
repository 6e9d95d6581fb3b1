"""What the tests of launched servers share: programs that are hard to end, and a look at what lives."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

PYTHON = (sys.executable, "-I", "-S", "-c")
"""A Python that starts in some 15 ms."""

STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
"""
"""A program's first lines: it ignores what asks it to end, as engines do that initialise."""

SLEEP = 'print("ready", flush=True)\nwhile True: time.sleep(600)\n'
"""Its last: it says that it has done what is above."""

ESCAPE = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(3, 50):
            try: os.close(number)
            except OSError: pass
        time.sleep(600)
    os._exit(0)
os.wait()
"""
"""A grandchild leaves the session and the group, and loses its parent."""

FORK_ON = """
def fork_on():
    while True:
        if os.fork():
            os._exit(0)
"""
"""A process that exists for an instant only, and then is another one."""


class Tree:
    """The processes of one launch, told by a variable in their environment, wherever they went."""

    def __init__(self) -> None:
        self.mark = {"LAUNCH_TEST": str(uuid.uuid4())}

    @property
    def env(self) -> dict[str, str]:
        """The environment to launch with: ours, and the mark."""
        return {**os.environ, **self.mark}

    def alive(self) -> dict[int, str]:
        """The living processes and their command lines."""
        found: dict[int, str] = {}
        [mark] = (f"{name}={value}".encode() for name, value in self.mark.items())
        for entry in Path("/proc").iterdir():
            mine = entry.name.isdigit() and mark in read(entry / "environ").split(b"\0")
            if mine and read(entry / "stat").rpartition(b")")[2].split()[:1] != [b"Z"]:
                found[int(entry.name)] = (
                    read(entry / "cmdline").replace(b"\0", b" ").decode("utf-8", "replace")
                )
        return found


def read(path: Path) -> bytes:
    """A file of /proc; empty when its process is gone."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def guardians(parent: int) -> list[int]:
    """The guardians that a process has."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and b"guardian.py" in read(entry / "cmdline"):
            fields = read(entry / "stat").rpartition(b")")[2].split()
            if fields and int(fields[1]) == parent and fields[0] != b"Z":
                found.append(int(entry.name))
    return found


def eventually(condition: Callable[[], object], *, within: float = 10.0) -> bool:
    """Whether something comes true in time."""
    until = time.monotonic() + within
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
