"""Time as a seam: the running loop's clock, or one that tests move."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Take it back. Harmless once it was made."""
        ...


@runtime_checkable
class Clock(Protocol):
    """Where a watch gets its time from. All values are seconds."""

    def now(self) -> float:
        """The current time, which never goes back."""
        ...

    def wall(self) -> float | None:
        """The same moment in seconds since the Unix epoch; None where there is no time of day."""
        ...

    def call_at(self, at: float, callback: Callable[[], None]) -> Timer:
        """Call back from the running loop at ``at`` or soon after."""
        ...


class LoopClock:
    """The running event loop's own clock."""

    def now(self) -> float:
        """The loop's time."""
        return asyncio.get_running_loop().time()

    def wall(self) -> float | None:
        """The time of day."""
        return time.time()

    def call_at(self, at: float, callback: Callable[[], None]) -> Timer:
        """Call back from the running loop."""
        return asyncio.get_running_loop().call_at(at, callback)
