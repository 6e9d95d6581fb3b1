"""When a probe's next sample is due; put off while the probe glances and sees nothing new."""

from __future__ import annotations

import math
from collections.abc import Callable

from vllm_startup._clock import Clock, Timer
from vllm_startup.probes._protocol import Glancing, Probe

_SHORT = 1e-6  # of an interval: sums of floats fall short of the turn that they mean


class Turns:
    """Calls back at the next turn of each probe, or at the first later one that may see something new.

    Turns are counted from the watch's beginning, so that probes of one cadence come together, by one
    timer, and a missed turn is skipped. A probe that can glance is asked from the timer itself. All of
    that saves wake-ups, which on a small virtual machine cost ten times as much as most looks.

    Args:
        clock: The time.
        origin: When the watch began, in seconds on the clock.
    """

    def __init__(self, clock: Clock, origin: float) -> None:
        self._clock = clock
        self._origin = origin
        self._waiting: dict[Turn, float] = {}
        self._timer: Timer | None = None
        self._timer_at = math.inf

    def wait(self, probe: Probe, interval_s: float, ring: Callable[[], None]) -> Turn:
        """Call ``ring``, once, at a turn of a probe.

        Args:
            probe: Whose turn it is.
            interval_s: From one turn to the next; more than 0.
            ring: What is called.
        """
        turn = Turn(probe, interval_s, ring)
        self._waiting[turn] = at = self._next(turn, self._clock.now())
        self._set_timer(at)
        return turn

    def cancel(self, turn: Turn) -> None:
        """Take it back. Harmless once it was called."""
        self._waiting.pop(turn, None)
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, math.inf

    def _next(self, turn: Turn, now: float) -> float:
        passed = (now - self._origin) / turn.interval_s
        return self._origin + (int(passed + _SHORT) + 1) * turn.interval_s

    def _set_timer(self, at: float) -> None:
        if at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._clock.call_at(at, self._come), at

    def _come(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = self._clock.now()
        for turn, at in list(self._waiting.items()):
            if at > now + _SHORT * turn.interval_s:
                continue
            if turn.may_see(now):
                del self._waiting[turn]
                turn.ring()
            else:
                self._waiting[turn] = self._next(turn, now)
        if self._waiting:
            self._set_timer(min(self._waiting.values()))


class Turn:
    """One probe that waits."""

    def __init__(self, probe: Probe, interval_s: float, ring: Callable[[], None]) -> None:
        self._glance = probe.glance if isinstance(probe, Glancing) else None
        self.interval_s = interval_s
        self.ring = ring

    def may_see(self, now: float) -> bool:
        """Whether a sample may see something new; so it is where the probe cannot tell."""
        if self._glance is None:
            return True
        try:
            return self._glance(now)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - whatever is wrong, the sample will say it
            return True
