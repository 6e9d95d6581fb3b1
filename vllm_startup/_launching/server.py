"""A server that was launched: waiting for it, looking at it, leaving it alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import attrs

from vllm_startup._events import Event
from vllm_startup._launching.guarded import ServerProcess
from vllm_startup._machine.reporting import Status
from vllm_startup._readings import Tier
from vllm_startup._report import StartupReport
from vllm_startup._startup import Startup
from vllm_startup._timeouts import Timeouts


@attrs.frozen(kw_only=True)
class Wish:
    """What one call of `Server.wait_until_ready` asks for; None for what `launch` was given."""

    timeouts: Timeouts | None = None
    until: Tier | None = None
    stable_for: float | None = None
    model: str | None = None


@attrs.define(eq=False)
class _Watch:
    wish: Wish
    startup: Startup
    waiters: int = 0


class Server:
    """A server that `launch` has started. Its block in the ``async with`` statement is its life.

    Attributes:
        process: Its main process, with ``returncode``, ``wait()`` and ``send_signal()``.
        url: Where it will listen, as far as the command tells, None where it does not; once it was
            ready, where it answers.
        log: The file that it prints to; None for a pipe.
    """

    def __init__(
        self,
        *,
        process: ServerProcess,
        url: str | None,
        log: Path | None,
        watch: Callable[[Wish], Startup],
        release: Callable[[], None],
    ) -> None:
        self.process = process
        self.url = url
        self.log = log
        self._make = watch
        self._release = release
        self._watches: list[_Watch] = []
        self._newest: Startup | None = None
        self._begun = asyncio.Event()
        self._closed = False

    @property
    def pid(self) -> int:
        """The main process's id."""
        return self.process.pid

    async def wait_until_ready(
        self,
        *,
        timeouts: Timeouts | None = None,
        until: Tier | None = None,
        stable_for: float | None = None,
        model: str | None = None,
    ) -> StartupReport:
        """Wait until the server is ready. It may be called again, for more or for longer, and by many.

        A wait that ends, in whatever way, does not end the server: leaving the block does.

        Args:
            timeouts: Limits of this wait.
            until: How much ready means, if not what `launch` was given.
            stable_for: For how many seconds that must hold, if not what `launch` was given.
            model: The model that must be listed, if not what `launch` was given.

        Returns:
            Where the time went.

        Raises:
            StartupError: The start failed; ``error.cause`` says why.
            StartupTimeout: A limit ended the wait (`StartupStalled`: nothing had advanced).
            ValueError: An argument makes no sense.
            RuntimeError: The block has been left.
        """
        if self._closed:
            raise RuntimeError("the launched server has been left: wait inside the async with block")
        watch = await self._watch(Wish(timeouts=timeouts, until=until, stable_for=stable_for, model=model))
        watch.waiters += 1
        try:
            report = await watch.startup.wait_until_ready()
            self.url = report.url
            return report
        finally:
            watch.waiters -= 1
            if watch.waiters == 0 and watch.startup.status.outcome is not None:
                await self._drop(watch)

    async def events(self) -> AsyncIterator[Event]:
        """The events of the newest wait, from its first to its last; if none has begun, of the next."""
        await self._begun.wait()
        if self._newest is not None:
            async for event in self._newest.events():
                yield event

    @property
    def status(self) -> Status:
        """What is known at this moment.

        Raises:
            RuntimeError: No wait has begun.
        """
        if self._newest is None:
            raise RuntimeError("nothing watches the server yet: call wait_until_ready() first")
        return self._newest.status

    def detach(self) -> None:
        """Let the server live when the block is left, and when this program ends.

        Raises:
            RuntimeError: The server prints to a pipe, which ends with the block.
        """
        if self.log is None:
            raise RuntimeError(
                "a server that prints to a pipe of ours would be stopped by it: give launch(log=...) a file"
            )
        self._release()

    async def close(self) -> None:
        """Stop watching."""
        self._closed = True
        self._begun.set()
        for watch in list(self._watches):
            await self._drop(watch)

    async def _watch(self, wish: Wish) -> _Watch:
        """The watch that goes on with the same wish, else a new one."""
        for watch in self._watches:
            if watch.wish == wish:
                return watch
        startup = self._make(wish)
        await startup.__aenter__()
        watch = _Watch(wish, startup)
        self._watches.append(watch)
        self._newest = startup
        self._begun.set()
        return watch

    async def _drop(self, watch: _Watch) -> None:
        if watch in self._watches:
            self._watches.remove(watch)
            await watch.startup.__aexit__(None, None, None)
