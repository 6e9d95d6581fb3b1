"""Probes of one process, made for whichever process is the server's main one at the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from vllm_startup._readings import Reading
from vllm_startup.probes._protocol import Probe

P = TypeVar("P", bound=Probe)

_IDLE_S: Final = 0.2  # between two looks whether there is a process


class MainProcess:
    """The main process of a server that is restarted, as its supervisor names it.

    Whoever asks the supervisor sets it; `FollowingProbe` follows it. Used from one event loop.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._changed = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Its process id on this machine; None while there is none."""
        return self._pid

    @pid.setter
    def pid(self, pid: int | None) -> None:
        if pid != self._pid:
            self._pid = pid
            self._changed.set()
            self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Wait until it is another one."""
        await self._changed.wait()


class FollowingProbe(Generic[P]):
    """Looks with a probe at the main process, and with a new probe at the next one.

    While there is none, and once the probe has seen all of it, nothing is seen.

    Args:
        name: The probe's name in reports.
        main: Which process it is.
        make: Makes the probe of a process; ValueError where that has ended already.
    """

    def __init__(self, name: str, main: MainProcess, make: Callable[[int], P]) -> None:
        self.name = name
        self._main = main
        self._make = make
        self._pid: int | None = None
        self._probe: P | None = None
        self._over = False

    @property
    def probe(self) -> P | None:
        """The probe of the process that is looked at; None while there is none."""
        return self._probe

    @property
    def interval_s(self) -> float:
        """The probe's own, while there is one that has more to see."""
        return _IDLE_S if self._probe is None or self._over else self._probe.interval_s

    @property
    def limit_s(self) -> float | None:
        """The probe's own."""
        return None if self._probe is None else self._probe.limit_s

    async def sample(self, now: float) -> Iterable[Reading]:
        """Look once with the probe of the main process; return when that is another one."""
        if self._main.pid != self._pid:
            await self._change()
        if self._probe is None or self._over:
            return ()
        sample = asyncio.ensure_future(self._look(self._probe, now))
        change = asyncio.ensure_future(self._main.changed())
        try:
            await asyncio.wait((sample, change), return_when=asyncio.FIRST_COMPLETED)
            return sample.result() if sample.done() else ()
        finally:
            change.cancel()
            sample.cancel()
            await asyncio.gather(change, sample, return_exceptions=True)

    async def aclose(self) -> None:
        """Close the probe that is there."""
        probe, self._probe = self._probe, None
        if probe is not None:
            await probe.aclose()

    async def _look(self, probe: P, now: float) -> Iterable[Reading]:
        try:
            return await probe.sample(now)
        except StopAsyncIteration:  # of this process; the next one gets a probe of its own
            self._over = True
            return ()

    async def _change(self) -> None:
        await self.aclose()
        self._pid, self._over = self._main.pid, False
        if self._pid is not None:
            try:
                self._probe = self._make(self._pid)
            except ValueError:
                self._over = True  # it has ended since
