"""Probes for tests: one that reads from a script, one that never answers."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from vllm_startup._readings import Reading

_ROUNDING_S = 1e-6  # a time that was added up may fall short of the script's by some bits

Step: TypeAlias = "Reading | Sequence[Reading] | Exception"
Script: TypeAlias = "Iterable[tuple[float, Step]]"
"""What a probe sees, as (seconds since its first sample, what it sees then). An exception is raised."""


class ScriptedProbe:
    """A probe that sees what a script says.

    Args:
        name: Its name in the watch.
        script: Pairs of a time, in seconds since the first sample (which a watch takes at once),
            and what is seen then: a reading, several, or an exception to raise. The times do not
            go back.
        interval_s: Seconds between samples, as of a probe that polls: what the script has for a
            time is then seen at the next sample. None: at its time (a watch rounds up to 20 ms).
        after: What follows the script: ``"silence"``, the ``"end"`` of the probe, or to
            ``"repeat"`` its last readings at every interval (1 s if it has none).
        follows_restarts: Whether this probe finds the next process after a restart, which a
            watch with ``restarts=`` needs.

    Raises:
        TypeError: A step is neither a reading nor an exception.
        ValueError: The times go back, or one is no time.
    """

    def __init__(
        self,
        name: str,
        script: Script,
        *,
        interval_s: float | None = None,
        after: Literal["silence", "end", "repeat"] = "silence",
        follows_restarts: bool = False,
    ) -> None:
        self.name = name
        self.follows_restarts = follows_restarts
        self.closed = False
        self.samples = 0
        self._steps = deque(_checked(script))
        self._cadence_s = interval_s
        self._after = after
        self._began_at: float | None = None
        self._now = 0.0
        self._last: tuple[Reading, ...] = ()

    def __repr__(self) -> str:
        """The name and what is left of the script."""
        return f"<ScriptedProbe {self.name!r}, {len(self._steps)} steps to come>"

    @property
    def interval_s(self) -> float:
        """Seconds until the next sample."""
        if self._cadence_s is not None:
            return self._cadence_s
        if self._steps and self._began_at is not None:
            return max(0.0, self._began_at + self._steps[0][0] - self._now)
        return 1.0 if self._after == "repeat" else 0.0

    @property
    def limit_s(self) -> float | None:
        """None: the end of the script may be waited for."""
        return None

    async def sample(self, now: float) -> Iterable[Reading]:
        """See what is due."""
        self.samples += 1
        self._now = now
        if self._began_at is None:
            self._began_at = now
        if not self._steps:
            return await self._rest()
        seen: list[Reading] = []
        while self._steps and self._began_at + self._steps[0][0] <= now + _ROUNDING_S:
            step = self._steps[0][1]
            if isinstance(step, Exception):
                if seen:
                    break
                self._steps.popleft()
                raise step
            self._steps.popleft()
            seen += step
        self._last = tuple(seen) or self._last
        return seen

    async def aclose(self) -> None:
        """Note that the watch is over."""
        self.closed = True

    async def _rest(self) -> Iterable[Reading]:
        if self._after == "repeat":
            return self._last
        if self._after == "end":
            raise StopAsyncIteration
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")


class HungProbe:
    """A probe whose samples never return: a driver call that hangs.

    Args:
        name: Its name in the watch.
        limit_s: After how many seconds the watch gives up on a sample; None for never.
        interval_s: Seconds between samples.
    """

    def __init__(self, name: str = "hung", *, limit_s: float | None = 5.0, interval_s: float = 1.0) -> None:
        self.name = name
        self.limit_s = limit_s
        self.interval_s = interval_s
        self.samples = 0
        self.closed = False

    def __repr__(self) -> str:
        """The name."""
        return f"<HungProbe {self.name!r}>"

    async def sample(self, now: float) -> Iterable[Reading]:
        """Wait for ever."""
        del now
        self.samples += 1
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")

    async def aclose(self) -> None:
        """Note that the watch is over."""
        self.closed = True


def _checked(script: Script) -> Iterable[tuple[float, tuple[Reading, ...] | Exception]]:
    before = 0.0
    for at, step in script:
        if not (math.isfinite(at) and at >= before):
            raise ValueError(
                f"script must hold times from 0 that do not go back, not {at!r} after {before!r}"
            )
        before = at
        yield at, _readings(step)


def _readings(step: Step) -> tuple[Reading, ...] | Exception:
    if isinstance(step, Exception):
        return step
    readings = (step,) if isinstance(step, Reading) else tuple(step)
    for reading in readings:
        if not isinstance(reading, Reading):
            raise TypeError(
                f"script must hold readings of vllm_startup.probes or exceptions, not {reading!r}"
            )
    return readings
