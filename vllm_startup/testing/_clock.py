"""A clock for tests: it stands still while anything can run, then jumps to what is due next."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable

# Rounds of the loop in which nobody asks for the time. A probe may await that many things that
# are ready at once between two looks at the clock; each costs some 5 us.
_QUIET_ROUNDS = 25
# Rounds without any moment of quiet: a task that polls without ever waiting for the clock.
_BUSY_ROUNDS = 50_000
_NEW_YEAR_2026 = 1_767_225_600.0
# Longer than any start; to pass them takes 5 s of real time with one probe that sees nothing.
_HORIZON_S = 43_200.0


class ClockStuckError(RuntimeError):
    """Time cannot move, or moves for ever: the test would never end."""


class FakeClock:
    """A clock that tests move, or that moves by itself whenever all tasks wait.

    With ``autojump`` it jumps to the next timer as soon as the event loop has been idle for some
    rounds, so that hours pass in milliseconds and always in the same order. Without it, only
    `advance` moves it. Work that the loop cannot see (a thread, a real socket) needs ``settle_s``.

    Args:
        autojump: Whether it moves by itself.
        start: What it shows at first, in seconds.
        wall: The same moment in seconds since the Unix epoch; None for no time of day.
        settle_s: Real seconds of idleness before each jump.
        horizon_s: How many seconds may pass in all. A wait that nothing ends would otherwise jump
            for ever; past it, `ClockStuckError` is raised.

    Raises:
        ValueError: A number makes no sense.
    """

    def __init__(
        self,
        *,
        autojump: bool = True,
        start: float = 0.0,
        wall: float | None = _NEW_YEAR_2026,
        settle_s: float = 0.0,
        horizon_s: float = _HORIZON_S,
    ) -> None:
        if settle_s < 0:
            raise ValueError(f"settle_s must be a number of seconds from 0, not {settle_s!r}")
        if not horizon_s > 0:
            raise ValueError(f"horizon_s must be a positive number of seconds, not {horizon_s!r}")
        self._autojump = autojump
        self._start = self._now = float(start)
        self._wall = wall
        self._settle_s = settle_s
        self._horizon = self._start + horizon_s
        self._timers: list[_Timer] = []
        self._order = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching = False
        self._by_hand = 0
        self._touched = 0
        self._stuck: str | None = None

    def __repr__(self) -> str:
        """What it shows."""
        return f"<FakeClock at {self._now:g} s, {len(self._timers)} timers>"

    # --- the clock -----------------------------------------------------------------------

    def now(self) -> float:
        """The current time.

        Raises:
            ClockStuckError: Time cannot move any more.
        """
        if self._stuck is not None:
            raise ClockStuckError(self._stuck)
        self._touched += 1
        return self._now

    def wall(self) -> float | None:
        """The same moment in seconds since the Unix epoch."""
        return None if self._wall is None else self._wall + self._now - self._start

    def call_at(self, at: float, callback: Callable[[], None]) -> _Timer:
        """Call back when the clock shows ``at``.

        Raises:
            ClockStuckError: Time cannot move any more.
        """
        if self._stuck is not None:
            raise ClockStuckError(self._stuck)
        self._touched += 1
        self._enter(asyncio.get_running_loop())
        timer = _Timer(at, next(self._order), callback)
        heapq.heappush(self._timers, timer)
        self._watch()
        return timer

    async def sleep(self, seconds: float) -> None:
        """Sleep for so many seconds of this clock: what code under test may take for its pauses."""
        awake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_at(self.now() + seconds, lambda: None if awake.done() else awake.set_result(None))
        try:
            await awake
        finally:
            timer.cancel()
        self.now()

    # --- for tests -----------------------------------------------------------------------

    async def advance(self, seconds: float) -> None:
        """Let so many seconds pass, stopping at everything that is due on the way.

        Raises:
            ValueError: ``seconds`` is negative or not finite.
        """
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"seconds must be a finite number from 0, not {seconds!r}")
        until = self._now + seconds
        self._by_hand += 1
        try:
            await self.settle()
            while (timer := self._next()) is not None and timer.at <= until:
                self._jump(timer.at)
                await self.settle()
            self._now = max(self._now, until)
            await self.settle()
        finally:
            self._by_hand -= 1
            self._watch()

    async def settle(self) -> None:
        """Let everything run that can run without time passing."""
        quiet, touched = 0, self._touched
        for _ in range(_BUSY_ROUNDS):
            if quiet >= _QUIET_ROUNDS:
                break
            await asyncio.sleep(0)
            quiet, touched = (quiet + 1 if touched == self._touched else 0), self._touched
        if self._settle_s:
            await asyncio.sleep(self._settle_s)

    # --- jumping -------------------------------------------------------------------------

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Leave a loop behind that another test used."""
        if self._loop is not loop:
            self._loop, self._watching = loop, False
            self._timers.clear()

    def _watch(self) -> None:
        if self._autojump and not self._by_hand and not self._watching and self._loop is not None:
            self._watching = True
            self._loop.call_soon(self._look, self._loop, self._touched, 0, 0)

    def _look(self, loop: asyncio.AbstractEventLoop, touched: int, quiet: int, rounds: int) -> None:
        """See in every round of the loop whether anybody has asked for the time."""
        if loop is not self._loop:
            return
        quiet = quiet + 1 if touched == self._touched else 0
        if rounds >= _BUSY_ROUNDS:
            self._give_up(f"after {rounds} rounds something still runs without waiting for the clock")
        elif quiet < _QUIET_ROUNDS:
            loop.call_soon(self._look, loop, self._touched, quiet, rounds + 1)
        elif self._settle_s:
            loop.call_later(self._settle_s, self._settled, loop, self._touched)
        else:
            self._settled(loop, self._touched)

    def _settled(self, loop: asyncio.AbstractEventLoop, touched: int) -> None:
        if loop is not self._loop:
            return
        self._watching = False
        timer = self._next()
        if timer is None or self._by_hand:
            return  # the next call_at, or the end of `advance`, watches again
        if touched == self._touched:
            if timer.at > self._horizon:
                shown = self._now - self._start
                self._give_up(f"nothing has ended the wait within {shown:g} s, and only time would pass")
                return
            self._jump(timer.at)
        self._watch()

    def _next(self) -> _Timer | None:
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        return self._timers[0] if self._timers else None

    def _jump(self, at: float) -> None:
        self._now = max(self._now, at)
        self._fire(lambda timer: timer.at <= self._now)

    def _fire(self, due: Callable[[_Timer], bool]) -> None:
        while (timer := self._next()) is not None and due(timer):
            heapq.heappop(self._timers)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()

    def _give_up(self, why: str) -> None:
        """Wake everybody up: whoever looks at the clock then gets the error."""
        self._watching = False
        self._stuck = (
            f"{why} (the clock shows {self._now:g} s);"
            " set a limit with Timeouts, script an end, or raise horizon_s"
        )
        self._fire(lambda _: True)


class _Timer:
    """A call that is due."""

    __slots__ = ("at", "callback", "order")

    def __init__(self, at: float, order: int, callback: Callable[[], None]) -> None:
        self.at, self.order = at, order
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: _Timer) -> bool:
        return (self.at, self.order) < (other.at, other.order)

    def cancel(self) -> None:
        """Take it back."""
        self.callback = None
