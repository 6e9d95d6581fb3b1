"""Processes as vLLM names them, with and without a server above them: for the tests of what is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import attrs

# Titles as setproctitle sets them: the arguments' place overwritten, the program renamed.
_RENAME = "import ctypes; ctypes.CDLL(None).prctl(15, {name!r}.encode()[:15], 0, 0, 0)\n"
_WAIT = "import time\nwhile True: time.sleep(1)\n"

# Starts children under their titles: title and program of each stand in its arguments.
_SPAWN = """
import os, subprocess, sys
for title, text in zip(sys.argv[2::2], sys.argv[3::2]):
    child = subprocess.Popen([title, "-c", text], executable=sys.executable)
    print(child.pid, flush=True)
"""


def titled(name: str, then: str = _WAIT) -> str:
    """A program that has the title of one of vLLM's processes."""
    return _RENAME.format(name=name) + then


@attrs.frozen
class Family:
    """A parent and its children."""

    parent: subprocess.Popen[str]
    children: tuple[int, ...]

    def orphan(self) -> tuple[int, ...]:
        """End the parent by force, as an out-of-memory killer does; return who is left."""
        self.parent.kill()
        self.parent.wait()
        return self.children

    def end(self) -> None:
        """End everybody who is still there."""
        for pid in (self.parent.pid, *self.children):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.parent.wait()
        assert self.parent.stdout is not None
        self.parent.stdout.close()


def family(*children: tuple[str, str]) -> Family:
    """Start a server with children: their titles, and the programs that they run."""
    words = [sys.executable, "-c", _SPAWN + _WAIT, "server", *(word for child in children for word in child)]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = tuple(int(parent.stdout.readline()) for _ in children)
    for pid, (title, _) in zip(pids, children, strict=True):
        eventually_titled(pid, title)
    return Family(parent, pids)


def eventually_titled(pid: int, title: str, limit_s: float = 10) -> None:
    """Wait until a process is what it is to be, with its own program run so far."""
    name = title[:15]
    deadline = time.monotonic() + limit_s
    while Path(f"/proc/{pid}/comm").read_text().strip() != name:
        assert time.monotonic() < deadline, f"{pid} is not {title}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process is there, and is more than its exit status."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
