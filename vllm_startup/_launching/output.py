"""What a server prints, when nothing else keeps it: drained always, the newest part kept."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Final

from vllm_startup._blocking import start_thread
from vllm_startup._launching.left_files import LONGEST_STORE, stores_in

_KEPT_BYTES: Final = 4 * 1024 * 1024
"""The output of a long start is under 1 MB; what is older than this is of no use for a cause."""

_READ_BYTES: Final = 64 * 1024  # a pipe's default size
_LAST_LOOKS: Final = 20  # when told to stop: a pipe holds up to 1 MiB
_LEAVE_S: Final = 2.0


class OutputTail:
    """Reads a pipe in a thread, so that its writer is never held up: not by a blocked event loop either.

    A caller's synchronous call to its own server would stop both for good if the loop drained the pipe.

    Args:
        fd: The reading end. It is closed in the end.
        named: Called in the thread with each store (see `left_files`) that the output names.
    """

    def __init__(self, fd: int, named: Callable[[bytes], None] = lambda _: None) -> None:
        self._fd = fd
        self._named = named
        self._stop, self._stopper = os.pipe()
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._offset = 0  # of the first byte that is kept
        self._ended = False
        self._followers: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._thread = start_thread(self._drain, "vllm-startup output")

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """Everything from the oldest byte that is kept to the end. Who is too slow misses whole lines."""
        arrived = asyncio.Event()
        follower = (asyncio.get_running_loop(), arrived)
        with self._lock:
            self._followers.add(follower)
        try:
            position = 0
            while True:
                arrived.clear()
                data, position, ended = self._from(position)
                if data:
                    yield data
                elif ended:
                    return
                else:
                    await arrived.wait()
        finally:
            with self._lock:
                self._followers.discard(follower)

    def join(self) -> None:
        """Wait for the end of the output."""
        self._thread.join()

    def close(self) -> None:
        """Read what is there, and no more."""
        os.write(self._stopper, b"x")
        self._thread.join(_LEAVE_S)
        for fd in (self._stop, self._stopper, self._fd):
            os.close(fd)

    def _from(self, position: int) -> tuple[bytes, int, bool]:
        with self._lock:
            skip = position - self._offset
            if skip < 0:  # the line that was cut is of no use
                skip = self._kept.find(b"\n") + 1
            data = bytes(self._kept[skip : skip + _READ_BYTES])
            return data, self._offset + skip + len(data), self._ended

    def _drain(self) -> None:
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        poller.register(self._stop, select.POLLIN)
        looks = _LAST_LOOKS
        while looks:
            ready = {fd for fd, _ in poller.poll(0 if looks < _LAST_LOOKS else None)}
            looks -= self._stop in ready
            data = os.read(self._fd, _READ_BYTES) if self._fd in ready else b""
            if data:
                self._keep(data)
            elif ready:
                break
        with self._lock:
            self._ended = True
            self._wake()

    def _keep(self, data: bytes) -> None:
        with self._lock:
            before = bytes(self._kept[-LONGEST_STORE:])
            self._kept += data
            excess = len(self._kept) - _KEPT_BYTES
            if excess > _KEPT_BYTES // 4:  # seldom, as the rest is moved
                del self._kept[:excess]
                self._offset += excess
            self._wake()
        for path in stores_in(before + data):
            self._named(path)

    def _wake(self) -> None:
        for loop, arrived in self._followers:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(arrived.set)
