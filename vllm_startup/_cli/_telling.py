"""What is told while a watch goes on: its events, and how it stands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from vllm_startup._blocking import BlockingRunner, NoThreadError
from vllm_startup._cli._events import EventLines
from vllm_startup._cli._progress import Progress
from vllm_startup._events import Event
from vllm_startup._machine.reporting import Status


class Watched(Protocol):
    """A watch: a `Startup`, or a `Server` that is waited for."""

    @property
    def status(self) -> Status:
        """How it stands."""
        ...

    def events(self) -> AsyncIterator[Event]:
        """All its events."""
        ...


class Telling:
    """Tells of one watch for as long as its block lasts."""

    def __init__(self, watched: Watched, progress: Progress, events: EventLines) -> None:
        self._watched = watched
        self._progress = progress
        self._events = events
        self._writer = BlockingRunner("vllm-startup events")
        self._told: list[asyncio.Task[None]] = []
        self._ticker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Begin to tell."""
        self._told = [asyncio.create_task(self._show()), asyncio.create_task(self._write())]
        return self

    async def finish(self, limit_s: float | None = None) -> None:
        """Tell the last events of a watch that has ended, for so many seconds at most."""
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*self._told)
        except TimeoutError:
            pass  # a file system hangs, or nobody reads

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell nothing more."""
        tasks = [*self._told, *([self._ticker] if self._ticker is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._writer.close()

    async def _show(self) -> None:
        async for event in self._watched.events():
            self._progress.event(event)
            if self._ticker is None:  # a server that is looked for has no status before its first event
                self._ticker = asyncio.create_task(self._tick())

    async def _write(self) -> None:
        """Write events from a thread: a reader that does not read must not hold up the wait."""
        async for event in self._watched.events():
            try:
                await self._writer.run(partial(self._events.write, event))
            except NoThreadError:
                self._events.write(event)

    async def _tick(self) -> None:
        while True:
            self._progress.status(self._watched.status)
            await asyncio.sleep(self._progress.interval_s)
