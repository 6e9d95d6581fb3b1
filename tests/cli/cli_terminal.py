"""A terminal, and a shell with job control in it, for the commands that are looked at there."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

SHELL = Path(__file__).with_name("tiny_shell.py")


class Terminal:
    """A terminal with a tiny shell, in which one command runs."""

    def __init__(self, *command: str, **environ: str) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(80, 24)
        without = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")}
        self._shell = subprocess.Popen(
            [sys.executable, str(SHELL), *command], stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True, env={**without, "TERM": "xterm-256color", **environ},
        )  # fmt: skip
        os.close(theirs)
        self.seen = b""
        self._all = b""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def until(self, text: bytes, within: float = 20.0) -> str:
        """Read until a text is there; return what stood before it, and forget that."""
        deadline = time.monotonic() + within
        while text not in self.seen:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} does not come: {self.seen!r}"
            try:
                data = os.read(self._ours, 65536)
            except OSError:
                pytest.fail(f"the terminal is closed without {text!r}: {self.seen!r}")
            self.seen += data
            self._all += data
        before, _, self.seen = self.seen.partition(text)
        return before.decode()

    def screen(self) -> str:
        """What stands on it after all that was read."""
        pyte = pytest.importorskip("pyte")
        screen = pyte.Screen(80, 24)
        pyte.ByteStream(screen).feed(self._all)
        return "\n".join(line.rstrip() for line in screen.display).rstrip()

    def close(self) -> None:
        if self._shell.poll() is None:
            os.killpg(self._shell.pid, signal.SIGKILL)
        os.close(self._ours)  # hangs up: whatever is left in it gets SIGHUP
        self._shell.wait(10)
