"""The contract between the watch and its probes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from vllm_startup._readings import Reading


@runtime_checkable
class Probe(Protocol):
    """Something that looks at the server from outside.

    The watch calls `sample` again and again, one call at a time, at multiples of ``interval_s`` from
    its beginning; turns that are missed because a sample took longer are skipped. A probe never
    sleeps for cadence and never retries without a bound; it may wait for something to happen when
    ``limit_s`` is None.
    """

    @property
    def name(self) -> str:
        """A short name, unique in a watch; it stands in reports and recordings."""
        ...

    @property
    def interval_s(self) -> float:
        """Seconds from the start of one sample to the start of the next; 0 for "at once"."""
        ...

    @property
    def limit_s(self) -> float | None:
        """Seconds that one sample may take before it is cancelled; None for no limit."""
        ...

    async def sample(self, now: float) -> Iterable[Reading]:
        """Look once.

        It may raise (the watch notes `ProbeBroken` and goes on), block (it is cancelled at its
        limit) and be cancelled at any await. A probe that has seen all there will ever be raises
        `StopAsyncIteration`.

        Args:
            now: The clock of the watch, in seconds.
        """
        ...

    async def aclose(self) -> None:
        """Release what the probe holds. Called once, also after a failed or cancelled sample."""
        ...


@runtime_checkable
class Glancing(Protocol):
    """A probe that can tell cheaply that there is nothing new, so that most samples are saved."""

    def glance(self, now: float) -> bool:
        """Whether a sample may see something new.

        Called from the event loop when a sample is due: it must take microseconds, and never block.
        If it raises, the sample is made.
        """
        ...
