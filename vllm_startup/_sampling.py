"""A probe as the watch takes it: whatever goes wrong in it becomes a reading, and ends nothing."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from vllm_startup._clock import Clock
from vllm_startup._readings import ProbeBroken, ProbeRecovered, Reading
from vllm_startup._redact import redact
from vllm_startup._text import described
from vllm_startup.probes._protocol import Probe

_T = TypeVar("_T")
_log = logging.getLogger("vllm_startup")

LEAVE_S: Final = 2.0
"""How long a probe may hang on to its cancellation, or to what it holds."""

_UNPACED_S: Final = 1.0  # the cadence of a probe that gives none
_NEEDED: Final = ("name", "interval_s", "limit_s", "sample", "aclose")


class Sampler:
    """Samples one probe.

    Args:
        probe: Anybody's.
        clock: The time, for the limit of a sample.
        tell: Takes readings that cannot wait for the sample's end.
    """

    def __init__(self, probe: Probe, clock: Clock, tell: Callable[[Iterable[Reading]], None]) -> None:
        self.probe = probe
        self.name = probe.name
        self._clock = clock
        self._tell = tell
        self._broken = False
        self._unpaced = False

    @property
    def interval_s(self) -> float:
        """The probe's cadence; a slow one if it gives none, which is told once."""
        try:
            return _number(self.probe.interval_s)
        except Exception as error:  # noqa: BLE001 - a probe may raise anything; the others go on
            if not self._unpaced:
                self._unpaced = True
                self._tell([ProbeBroken(error=f"its interval_s: {described(error)}")])
            return _UNPACED_S

    async def sample(self, now: float) -> tuple[Reading, ...]:
        """Look once.

        Raises:
            StopAsyncIteration: The probe has seen all there will ever be.
        """
        scope = asyncio.timeout(None)
        try:
            limit = self.probe.limit_s
            async with scope:
                timer = None
                if limit is not None:
                    timer = self._clock.call_at(now + limit, lambda: self._overran(limit, scope))
                try:
                    seen = tuple(await _awaitable(self.probe.sample(now), "sample"))
                finally:
                    if timer is not None:
                        timer.cancel()
        except StopAsyncIteration:
            raise
        except TimeoutError as error:
            return () if scope.expired() else self._broke(described(error))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._broke("sample() was cancelled by something of its own")
        except Exception as error:  # noqa: BLE001 - a probe may raise anything; the others go on
            return self._broke(described(error))
        return self._works(seen)

    async def close(self) -> None:
        """Let the probe release what it holds; say so if it does not."""
        try:
            async with asyncio.timeout(LEAVE_S):
                await _awaitable(self.probe.aclose(), "aclose")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a probe may raise anything; the others are closed too
            _log.warning("probe %s was not closed: %s", self.name, described(error))

    def _overran(self, limit_s: float, scope: asyncio.Timeout) -> None:
        """Cancel a sample; and tell, since a probe may swallow the cancellation."""
        self._tell(self._broke(f"no answer within {limit_s:g} s"))
        scope.reschedule(asyncio.get_running_loop().time())

    def _broke(self, error: str) -> tuple[Reading, ...]:
        _log.debug("probe %s: %s", self.name, redact(error))
        if self._broken:
            return ()
        self._broken = True
        return (ProbeBroken(error=error),)

    def _works(self, seen: tuple[Reading, ...]) -> tuple[Reading, ...]:
        if wrong := [reading for reading in seen if not isinstance(reading, Reading)]:
            return self._broke(f"sample() gave {described(wrong[0])}, which is no Reading")
        if not self._broken:
            return seen
        self._broken = False
        return (ProbeRecovered(), *seen)


def checked(probes: Sequence[Probe]) -> tuple[Probe, ...]:
    """The probes of a watch.

    Raises:
        TypeError: One of them is no probe.
        ValueError: There are none, or two have one name.
    """
    if not probes:
        raise ValueError("probes must hold at least one probe; without any there is nothing to watch")
    for probe in probes:
        if missing := [name for name in _NEEDED if not hasattr(probe, name)]:
            raise TypeError(
                f"probes must hold probes (see vllm_startup.Probe), not {described(probe)}:"
                f" it has no {', '.join(missing)}"
            )
        if not isinstance(probe.name, str) or not probe.name.isprintable():
            raise TypeError(f"a probe's name must be printable text, not {probe.name!r}")
        for value, name in ((probe.interval_s, "interval_s"), (probe.limit_s or 0.0, "limit_s")):
            try:
                _number(value)
            except TypeError as error:
                raise TypeError(f"{name} of probe {probe.name!r} {error}") from None
    names = [probe.name for probe in probes]
    if doubles := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"probes must have names of their own; {min(doubles)!r} is there twice")
    return tuple(probes)


def _awaitable(called: Awaitable[_T], method: str) -> Awaitable[_T]:
    """What a probe's method gave. It is judged by that: a partial or an object may give an awaitable, too."""
    if not inspect.isawaitable(called):
        raise TypeError(f"{method} must be async def; it returned {described(called)}")
    return called


def _number(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise TypeError(f"must be a number of seconds, not {value!r}")
    return value
