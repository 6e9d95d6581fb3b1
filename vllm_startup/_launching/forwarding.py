"""A command's output on its way to where ours goes: every byte, in order, and a copy for the watch."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import AsyncIterator, Callable
from typing import Final

from vllm_startup._blocking import start_thread
from vllm_startup._launching.output import OutputTail

Write = Callable[[int, bytes], None]
"""Writes all of some bytes to a file descriptor, however long that takes."""

_READ_BYTES: Final = 64 * 1024  # a pipe's default size
_CARRIED_BYTES: Final = 64 * 1024  # of an unfinished line; it is cut there


def write_all(fd: int, data: bytes) -> None:
    """Write to a file descriptor, and wait where its reader is slow."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:  # made so by a program that shares it with us
            poller = select.poll()
            poller.register(fd, select.POLLOUT)
            poller.poll()


class Tap:
    """A copy of what goes by, as one stream. Where it is read slowly its oldest part is lost, never time.

    Two streams come together line by line, so that none cuts the other's lines.

    Args:
        named: As for `OutputTail`.
    """

    def __init__(self, named: Callable[[bytes], None] = lambda _: None) -> None:
        reading, writing = os.pipe()
        self._tail = OutputTail(reading, named)
        self._writing: int | None = writing
        self._closed = False
        self._lock = threading.Lock()
        self._carried: dict[int, bytes] = {}
        self._unfinished: int | None = None  # the stream whose bar stands on the line that is not ended

    def put(self, stream: int, data: bytes) -> None:
        """Take what one of the streams has brought."""
        with self._lock:
            if self._writing is None:
                return
            data = self._carried.pop(stream, b"") + data
            end = data.rfind(b"\n") + 1
            # A bar that redraws itself is told at once; any other line is told when it is whole.
            if b"\r" not in data[end:] and len(data) - end < _CARRIED_BYTES:
                data, self._carried[stream] = data[:end], data[end:]
            if not data:
                return
            if self._unfinished not in (None, stream):
                data = b"\n" + data
            self._unfinished = None if data.endswith(b"\n") else stream
            write_all(self._writing, data)

    def follow(self) -> AsyncIterator[bytes]:
        """All that is kept, and what will come, until `end`."""
        return self._tail.follow()

    def end(self) -> None:
        """Note that nothing more will come. Harmless when it is called again."""
        with self._lock:
            if self._writing is None:
                return
            for rest in filter(None, self._carried.values()):
                write_all(self._writing, rest + b"\n")
            os.close(self._writing)
            self._writing = None

    def close(self) -> None:
        """Let go of everything. Harmless when it is called again."""
        self.end()
        if not self._closed:
            self._closed = True
            self._tail.close()


class Forwarder:
    """Copies from one file descriptor to another, in a thread, as fast as the slower side.

    It blocks where the reader of our output does not read, and so the command does, as without us. When
    that reader has gone the command's pipe is closed, so that its next write says so, as without us. What
    cannot be written for another reason (a full disk) is lost, as without us.

    Args:
        source: Read to its end, and then closed.
        target: Written to; left open.
        write: How.
        tap: Gets a copy, for as long as it is set.
        ended: Called in the thread when all has been forwarded.
    """

    def __init__(
        self, source: int, target: int, *, write: Write, tap: Tap | None, ended: Callable[[], None]
    ) -> None:
        self.tap = tap
        self._source = source
        self._target = target
        self._write = write
        self._ended = ended
        self._thread = start_thread(self._forward, f"vllm-startup to {target}")

    def _forward(self) -> None:
        try:
            while data := self._read():
                tap = self.tap
                if tap is not None:
                    tap.put(self._target, data)
                try:
                    self._write(self._target, data)
                except BrokenPipeError:
                    return
                except OSError:
                    pass  # a full disk, a terminal that was hung up
        finally:
            os.close(self._source)
            self._ended()

    def _read(self) -> bytes:
        try:
            return os.read(self._source, _READ_BYTES)
        except OSError as error:
            if error.errno == errno.EIO:  # how a pseudo-terminal says that its other side is closed
                return b""
            raise
