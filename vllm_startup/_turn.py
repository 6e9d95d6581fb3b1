"""When a probe's next sample is due; put off while the probe glances and sees nothing new."""

from __future__ import annotations

from collections.abc import Callable

from vllm_startup._clock import Clock, Timer
from vllm_startup.probes._protocol import Glancing, Probe

_SHORT = 1e-6  # of an interval: sums of floats fall short of the turn that they mean


class Turn:
    """Calls back at a probe's next turn, or at the first later one that may see something new.

    Turns are counted from the watch's beginning, so that probes of one cadence come together, and
    a missed turn is skipped. A probe that can glance is asked from the timer itself. Both save
    wake-ups, which on a small virtual machine cost ten times as much as most looks.

    Args:
        clock: The time.
        probe: Whose turn it is.
        origin: When the watch began, in seconds on the clock.
        interval_s: From one turn to the next; more than 0.
        ring: What is called, once.
    """

    def __init__(
        self, clock: Clock, probe: Probe, origin: float, interval_s: float, ring: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._glance = probe.glance if isinstance(probe, Glancing) else None
        self._origin = origin
        self._interval_s = interval_s
        self._ring = ring
        self._timer: Timer = clock.call_at(self._next(), self._come)

    def cancel(self) -> None:
        """Take it back."""
        self._timer.cancel()

    def _next(self) -> float:
        turns = (self._clock.now() - self._origin) / self._interval_s
        return self._origin + (int(turns + _SHORT) + 1) * self._interval_s

    def _come(self) -> None:
        if self._may_see():
            self._ring()
        else:
            self._timer = self._clock.call_at(self._next(), self._come)

    def _may_see(self) -> bool:
        if self._glance is None:
            return True
        try:
            return self._glance(self._clock.now())
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - whatever is wrong, the sample will say it
            return True
