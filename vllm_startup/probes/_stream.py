"""The server's output as a stream that only we read: a pipe, a `asyncio.StreamReader`, an iterable."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
from collections import deque
from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from vllm_startup._blocking import start_thread
from vllm_startup._log.splitter import LineSplitter
from vllm_startup._readings import LogEnded, LogLines, LogOpened
from vllm_startup.probes._log import POLL_S, SLICE_BYTES, batches

if TYPE_CHECKING:
    from vllm_startup._readings import Reading

QUEUE_ITEMS: Final = 1000
"""Items that a blocking iterable may be ahead of the watch, before it has to wait."""


class HasFileno(Protocol):
    """A file object over a file descriptor."""

    def fileno(self) -> int:
        """The file descriptor."""
        ...


Reader = asyncio.StreamReader | int | HasFileno | AsyncIterable[bytes | str] | Iterable[bytes | str]


class StreamProbe:
    """Drains a stream, always and at once, so that its writer is never held up by a full pipe.

    Bytes may be cut anywhere. A ``str`` item is one line or several whole ones, its last newline may be
    missing. An iterable that is not asynchronous is read in a daemon thread, since it may block.

    Args:
        reader: A `asyncio.StreamReader`, a file descriptor, a file object over one (a ``Popen``'s
            ``stdout``), or an iterable of ``bytes`` or ``str``. Nobody else may read it. A file
            descriptor is not closed.
        name: The probe's name, under which its lines stand in reports.

    Raises:
        TypeError: ``reader`` is none of these.
        ValueError: ``reader`` is a file descriptor that is not open.
    """

    def __init__(self, reader: Reader, name: str = "log") -> None:
        self._source = _source(reader)
        self._name = name
        self._splitter = LineSplitter()
        self._ready: deque[Reading] = deque([LogOpened(source=name, stream=True)])
        self._untold = False
        self._ended = False

    @property
    def name(self) -> str:
        """The name that was given."""
        return self._name

    @property
    def interval_s(self) -> float:
        """0: a sample waits for something to arrive."""
        return 0.0

    @property
    def limit_s(self) -> None:
        """No limit, for the same reason."""
        return

    async def sample(self, now: float) -> Iterable[Reading]:
        """Wait for output and return it, a bounded number of lines.

        Raises:
            StopAsyncIteration: The end has been told.
            OSError: The stream cannot be read any more.
        """
        await asyncio.sleep(0)  # a stream that is always full must not starve the other probes
        if not self._ready:
            if self._ended:
                raise StopAsyncIteration
            data = await self._source.read(POLL_S if self._untold else None)
            if data is None:
                self._untold = False
                return self._partial()
            self._take(data)
        return [self._ready.popleft()] if self._ready else ()

    async def aclose(self) -> None:
        """Stop reading. File descriptors stay open, as they were."""
        await self._source.aclose()

    def _take(self, data: bytes) -> None:
        lines = self._splitter.feed(data)
        if data:
            self._untold = not data.endswith(b"\n")
        else:
            lines = self._splitter.finish()
        self._ready.extend(batches(lines))
        if not data:
            self._ended = True
            self._ready.append(LogEnded())

    def _partial(self) -> list[Reading]:
        text = self._splitter.partial()
        return [LogLines(partial=text)] if text else []


class _Source(Protocol):
    """Where the bytes come from."""

    async def read(self, wait_s: float | None) -> bytes | None:
        """What has arrived; None when nothing came within ``wait_s``, empty at the end."""
        ...

    async def aclose(self) -> None: ...


def _source(reader: Reader) -> _Source:
    if isinstance(reader, asyncio.StreamReader):
        return _ReaderSource(reader)
    if (fd := _descriptor(reader)) is not None:
        return _FdSource(fd)
    if isinstance(reader, AsyncIterable):
        return _AsyncIterableSource(reader)
    if isinstance(reader, Iterable) and not isinstance(reader, (str, bytes)):
        return _IterableSource(reader)
    raise TypeError(
        "reader must be a StreamReader, a file descriptor, an open file or an iterable of bytes or str,"
        f" not {type(reader).__name__}"
    )


def _descriptor(reader: object) -> int | None:
    if isinstance(reader, bool):
        return None
    if isinstance(reader, int):
        fd = reader
    else:
        fileno = getattr(reader, "fileno", None)
        if fileno is None:
            return None
        try:
            fd = fileno()
        except OSError:  # io.UnsupportedOperation: a file in memory, which is read as an iterable
            return None
    try:
        os.fstat(fd)
    except OSError as error:
        raise ValueError(f"reader must be open, which file descriptor {fd} is not") from error
    return fd


class _ReaderSource:
    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def read(self, wait_s: float | None) -> bytes | None:
        deadline = asyncio.timeout(wait_s)
        try:
            async with deadline:
                return await self._reader.read(SLICE_BYTES)
        except TimeoutError:
            if not deadline.expired():
                raise
            return None

    async def aclose(self) -> None:
        pass


class _FdSource:
    """A file descriptor, read when the loop says that it can be read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        mode = os.fstat(fd).st_mode
        self._waits = not stat.S_ISREG(mode)
        # A terminal's flags are shared with the shell that it belongs to, so it is left as it is.
        self._restore = (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)) and os.get_blocking(fd)

    async def read(self, wait_s: float | None) -> bytes | None:
        if self._restore:
            os.set_blocking(self._fd, False)
        while True:
            if self._waits and not await self._readable(wait_s):
                return None
            try:
                return os.read(self._fd, SLICE_BYTES)
            except BlockingIOError:
                continue  # somebody else took it, or a spurious wake-up
            except OSError as error:
                if error.errno == errno.EIO:  # how a pseudo-terminal says that its other side is closed
                    return b""
                raise

    async def _readable(self, wait_s: float | None) -> bool:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._fd, _settle, ready)
        try:
            await asyncio.wait((ready,), timeout=wait_s)
        finally:
            loop.remove_reader(self._fd)
        return ready.done()

    async def aclose(self) -> None:
        if self._restore:
            try:
                os.set_blocking(self._fd, True)
            except OSError:
                pass  # its owner has closed it


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


class _AsyncIterableSource:
    """An asynchronous iterable. The step under way outlives a sample: cancelling it would end a generator."""

    def __init__(self, iterable: AsyncIterable[bytes | str]) -> None:
        self._iterator = aiter(iterable)
        self._step: asyncio.Task[bytes] | None = None

    async def read(self, wait_s: float | None) -> bytes | None:
        if self._step is None:
            self._step = asyncio.create_task(self._next())
        await asyncio.wait((self._step,), timeout=wait_s)
        if not self._step.done():
            return None
        step, self._step = self._step, None
        return step.result()

    async def _next(self) -> bytes:
        async for item in self._iterator:
            if data := _encoded(item):
                return data
        return b""

    async def aclose(self) -> None:
        if self._step is not None:
            self._step.cancel()
            await asyncio.wait((self._step,))
            if not self._step.cancelled():
                self._step.exception()  # nobody asks for it any more
        close = getattr(self._iterator, "aclose", None)
        if close is not None:
            await close()


class _IterableSource:
    """A blocking iterable, read in a thread that is never more than `QUEUE_ITEMS` ahead."""

    def __init__(self, iterable: Iterable[bytes | str]) -> None:
        self._iterable = iterable
        self._items: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._done = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived = asyncio.Event()

    async def read(self, wait_s: float | None) -> bytes | None:
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = start_thread(self._work, "vllm-startup stream")
        await self._wait(wait_s)
        with self._changed:
            data = b"".join(self._items)
            self._items.clear()
            self._changed.notify()
            self._arrived.clear()
            if self._done:
                self._arrived.set()
        if data:
            return data
        if self._error is not None:
            raise self._error
        return b"" if self._done else None

    async def _wait(self, wait_s: float | None) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._arrived.wait()
        except TimeoutError:
            pass

    def _work(self) -> None:
        try:
            for item in self._iterable:
                if (data := _encoded(item)) and not self._put(data):
                    return
        except BaseException as error:  # noqa: BLE001 - it is raised again where the stream is read
            self._error = error
        with self._changed:
            self._done = True
        self._wake()

    def _put(self, data: bytes) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < QUEUE_ITEMS)
            if self._closed:
                return False
            self._items.append(data)
        return self._wake()

    def _wake(self) -> bool:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._arrived.set)
        except RuntimeError:
            return False  # the loop is closed: nobody reads any more
        return True

    async def aclose(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()


def _encoded(item: bytes | str) -> bytes:
    if isinstance(item, str):
        data = item.encode("utf-8", "replace")
        return data if data.endswith(b"\n") else data + b"\n"
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    raise TypeError(f"the stream must give bytes or str, not {type(item).__name__}")
