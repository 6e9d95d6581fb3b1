"""What the probes of a container share: its start that is told of, and the streams of its engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import attrs

from vllm_startup.targets._containers.engine import Engine
from vllm_startup.targets._containers.state import Life
from vllm_startup.targets._following import MainProcess


@attrs.frozen(kw_only=True)
class Start:
    """A start of the container that the watch has been told of.

    Attributes:
        started: When, in the engine's words.
        since: From when on its log's lines are its own, in seconds since the Unix epoch.
        earlier: Whether it had begun when the watch did.
    """

    id: str
    started: str | None
    since: float
    tty: bool
    earlier: bool


class Watch:
    """What the probes of one container know together.

    The engine tells of starts and ends; what is seen of a new start (its log, its processes) is told
    only once the watch has been told of the start itself, and its end once its log has been read.

    Args:
        engine: Which engine runs it.
        name: The container's name.
        life: Its life so far.
        main: Its main process, where it is seen on this machine; set as it changes.
        skew_s: How far the engine's clock is ahead of this machine's.
    """

    def __init__(
        self, engine: Engine, name: str, *, life: Life, main: MainProcess | None = None, skew_s: float = 0.0
    ) -> None:
        self.engine = engine
        self.name = name
        self.life = life
        self.start: Start | None = None
        self.until: float | None = None
        """Until when the log's lines are those of `start`: when the next one began; None without one."""
        self.alive = False
        self.listening = False
        self._read: Start | None = None
        self._main = main
        self._skew_s = skew_s
        self._news = asyncio.Event()
        self._moved = asyncio.Event()

    @property
    def wall(self) -> float:
        """The engine's time, in seconds since the Unix epoch."""
        return time.time() + self._skew_s

    def wake(self) -> None:
        """Have the container looked at now."""
        self._news.set()

    async def news(self, limit_s: float) -> None:
        """Wait until there is something to look at, or so many seconds."""
        await _within(limit_s, self._news)
        self._news.clear()

    def release(self, start: Start | None, *, alive: bool) -> None:
        """Let what is seen of a start be told, and of its end."""
        newest = self.life.newest
        if newest is None:
            return
        if alive and self._main is not None:
            self._main.pid = newest.pid  # after its end it is looked at until all of its tree are gone
        later = start is not None and (newest.id, newest.started) != (start.id, start.started)
        self.until = newest.lines_since if later else None
        if (start, alive) != (self.start, self.alive):
            self.start, self.alive = start, alive
            self._move()

    def read(self, start: Start | None) -> None:
        """Note that the log of a start that has ended was read to its end, and told."""
        if start != self._read:
            self._read = start
            self._move()

    async def moved(self, limit_s: float) -> None:
        """Wait until anything of the above was noted, or so many seconds."""
        await _within(limit_s, self._moved)

    async def last_words(self, limit_s: float) -> None:
        """Wait until the log of the start that has ended was read, or so many seconds."""
        try:
            async with asyncio.timeout(limit_s):
                while self.start is not None and self._read != self.start:
                    await self._moved.wait()
        except TimeoutError:
            pass

    def _move(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


async def _within(limit_s: float, event: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        pass


class EngineStream:
    """One answer that goes on and on, kept from sample to sample."""

    def __init__(self, engine: Engine) -> None:
        self.broken = False
        """Whether the last one broke, instead of ending."""
        self._engine = engine
        self._stack: AsyncExitStack | None = None
        self._chunks: AsyncIterator[bytes] | None = None

    @property
    def open(self) -> bool:
        """Whether there may be more."""
        return self._chunks is not None

    async def begin(self, path: str, **query: object) -> bool:
        """Ask for it; False where the engine cannot be reached.

        Raises:
            EngineError: The engine refuses.
        """
        import httpx

        stack = AsyncExitStack()
        try:
            self._chunks = await stack.enter_async_context(self._engine.stream(path, **query))
        except (httpx.TransportError, OSError):
            return False
        self._stack, self.broken = stack, False
        return True

    async def next(self) -> bytes:
        """The next piece; none at the end, when it has been closed."""
        import httpx

        assert self._chunks is not None
        try:
            async for data in self._chunks:
                if data:
                    return data
        except (httpx.TransportError, OSError):
            self.broken = True
        await self.aclose()
        return b""

    async def aclose(self) -> None:
        """Ask for no more of it."""
        stack, self._stack, self._chunks = self._stack, None, None
        if stack is not None:
            await stack.aclose()
