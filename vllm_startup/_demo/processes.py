"""How the simulated processes start, are named, talk and end."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Final

import attrs

from vllm_startup._demo.settings import Settings

_PR_SET_NAME: Final = 15  # linux/prctl.h


class Child:
    """A process that was started. What is written to it are orders; it ends when that pipe does."""

    def __init__(self, settings: Settings) -> None:
        answers, theirs = os.pipe()
        self.process = subprocess.Popen(
            attrs.evolve(settings, answers=theirs).command(),
            stdin=subprocess.PIPE,
            pass_fds=(theirs, settings.weights),
        )
        os.close(theirs)
        self.answers = answers

    def order(self, what: str) -> None:
        """Tell it what to do next."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{what}\n".encode())
            self.process.stdin.flush()

    def let_go(self) -> None:
        """Let it end."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


def all_done(children: Iterable[Child]) -> bool:
    """Wait until every child has answered; False as soon as one has ended instead."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.answers, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                if not os.read(key.fd, 1):
                    return False
                selector.unregister(key.fileobj)
    return True


class Orders:
    """What the parent says. When it is gone or wants no more, this process ends at once."""

    def __init__(self, settings: Settings) -> None:
        self._answers = settings.answers
        self._orders: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def next(self) -> str:
        """Wait for an order."""
        return self._orders.get()

    def done(self) -> None:
        """Tell that the last order was carried out."""
        os.write(self._answers, b".")

    def _listen(self) -> None:
        for line in sys.stdin:
            self._orders.put(line.strip())
        os._exit(0)


def set_title(title: str) -> None:
    """Set the process's title as ``setproctitle`` does: over its arguments, and as the program's name."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_NAME, title.encode())
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - read as bytes, once
        fields = file.read().rpartition(b")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start, arg_end: fields 48 and 49 in proc(5)
    if end > begin:
        ctypes.memmove(
            begin, title.encode().ljust(end - begin, b"\0")[: end - begin - 1] + b"\0", end - begin
        )


def compute(settings: Settings, seconds: float) -> None:
    """Use half a core for what are so many seconds at speed 1."""
    import hashlib
    import time

    block = bytes(1 << 20)
    until = time.monotonic() + seconds / settings.speed
    while time.monotonic() < until:
        began = time.thread_time()
        while time.thread_time() - began < 0.01:
            hashlib.sha256(block).digest()
        time.sleep(0.01)
