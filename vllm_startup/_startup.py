"""The pump: runs the probes, stamps what they see, feeds the machine, tells what became known.

This is the only module that makes tasks. One task drives each probe and one lets time pass; all
of them end in `Startup.__aexit__`, also when that is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

import attrs

from vllm_startup._clock import Clock, LoopClock
from vllm_startup._events import Event
from vllm_startup._exceptions import error_for
from vllm_startup._hooks import Hook
from vllm_startup._machine.earlier import Earlier
from vllm_startup._machine.machine import StartupMachine
from vllm_startup._machine.reporting import Status, report, status
from vllm_startup._machine.terms import Terms
from vllm_startup._readings import (
    Observation,
    ProbeBroken,
    ProbeNote,
    Reading,
    Tier,
    WatchPaused,
)
from vllm_startup._recording import Recorder
from vllm_startup._report import Baseline, StartupReport, baseline_values
from vllm_startup._rules import Rule
from vllm_startup._sampling import LEAVE_S, Sampler, checked
from vllm_startup._text import described
from vllm_startup._timeouts import Timeouts
from vllm_startup._turn import Turns
from vllm_startup._versions import versions
from vllm_startup.probes._protocol import Probe

_log = logging.getLogger("vllm_startup")

_BEAT_S = 1.0  # how often the pump looks whether time went by without it
_PAUSED_S = 3.0  # a gap longer than this was a suspended machine, a stopped watcher or a blocked loop
_HURRY_S = 0.05  # cadence of every probe while a death is being judged


class Startup:
    """A watch over one server. Use it as an async context manager.

    Args:
        probes: What looks at the server; at least one, with names of their own.
        url: The server's address, for the report; which address is asked is the probes' matter.
        rules: Further rules on lines and readings.
        until: The readiness tier that ends the wait.
        stable_for: For how many seconds it must hold without a miss.
        timeouts: Limits; those of `Timeouts()` if not given.
        restarts: How many deaths of the main process are tolerated. It needs a probe that finds
            the next one and says so with an attribute ``follows_restarts = True``.
        exit_grace: How many seconds a failed start's processes may take to be gone.
        raise_early: Raise as soon as the cause is known.
        on_event: Called with every event, in order, from a thread of its own, so that it may
            block or raise without harm to the wait.
        record: A file to which everything seen is written, secrets removed.
        baseline: An earlier report of the same model, or its JSON file.
        clock: The time; the running loop's if not given.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument makes no sense; the message names it and the fix.
        OSError: ``record`` cannot be created, or ``baseline`` cannot be read.
    """

    def __init__(
        self,
        probes: Sequence[Probe],
        *,
        url: str | None = None,
        rules: Sequence[Rule] = (),
        until: Tier = "health",
        stable_for: float = 0.0,
        timeouts: Timeouts | None = None,
        restarts: int = 0,
        exit_grace: float = 10.0,
        raise_early: bool = False,
        on_event: Callable[[Event], object] | None = None,
        record: str | os.PathLike[str] | None = None,
        baseline: Baseline | None = None,
        clock: Clock | None = None,
    ) -> None:
        probes = checked(probes)
        self._terms = Terms(
            url=url,
            until=until,
            stable_for=stable_for,
            timeouts=Timeouts() if timeouts is None else timeouts,
            restarts=restarts,
            exit_grace=exit_grace,
            raise_early=raise_early,
            rules=tuple(rules),
            earlier=None if baseline is None else Earlier.of(baseline_values(baseline)),
        )
        if restarts and not any(getattr(probe, "follows_restarts", False) for probe in probes):
            raise ValueError(
                "restarts needs a target that finds the next process after a restart (a systemd unit, a"
                " container); a pid, a process or a url does not. Leave restarts at 0"
            )
        if clock is not None and not isinstance(clock, Clock):
            raise TypeError(f"clock must have now(), wall() and call_at(), as FakeClock has, not {clock!r}")
        self._clock: Clock = clock if clock is not None else LoopClock()
        self._samplers = [Sampler(probe, self._clock, partial(self._feed, probe.name)) for probe in probes]
        self._hook = Hook(on_event) if on_event is not None else None
        self._recorder = Recorder(record) if record is not None else None
        self._events: list[Event] = []
        self._machine: StartupMachine | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._resting_probes: set[asyncio.Future[None]] = set()
        self._resting_time: set[asyncio.Future[None]] = set()
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fault: BaseException | None = None
        self._left_at: float | None = None
        self._began_at = 0.0
        self._turns = Turns(self._clock, self._began_at)
        self._alive_at = 0.0
        self._next_tick = 0.0

    def already_waited(self, seconds: float) -> None:
        """Let ``timeouts.total`` run from so many seconds ago: this watch goes on with a wait.

        Raises:
            RuntimeError: The watch has begun.
            ValueError: It is negative.
        """
        if self._machine is not None:
            raise RuntimeError("say how long was waited before the watch is entered")
        self._terms = attrs.evolve(self._terms, waited_s=seconds)

    # --- life ----------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Begin to watch."""
        if self._machine is not None:
            raise RuntimeError("a Startup can be entered once; make another one to watch again")
        self._loop = asyncio.get_running_loop()
        self._began_at = self._clock.now()
        self._turns = Turns(self._clock, self._began_at)
        wall = self._clock.wall()
        offset = datetime.fromtimestamp(wall).astimezone().utcoffset() if wall is not None else None
        offset_s = offset.total_seconds() if offset is not None else 0.0
        self._machine = StartupMachine(self._terms, wall=wall, utc_offset_s=offset_s)
        if self._recorder is not None:
            self._recorder.begin(self._terms, wall=wall, utc_offset_s=offset_s)
        self._tell(self._machine.tick(0.0))
        drivers = [_task(self._drive(s), s.name) for s in self._samplers]
        self._tasks = [*drivers, _task(self._pass_time(), "time")]
        for task in self._tasks:
            task.add_done_callback(self._over)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop watching. The server is left alone."""
        stopping = _task(self._stop(), "stop")
        cancelled: asyncio.CancelledError | None = None
        while not stopping.done():  # bounded, and what is open must be closed
            try:
                await asyncio.wait([stopping])
            except asyncio.CancelledError as again:  # anyio's comes again each turn of the loop
                cancelled = again
        if cancelled is not None:
            raise cancelled
        stopping.result()

    async def _stop(self) -> None:
        self._left_at = self._now()
        self._wake_waiters()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            _, stuck = await asyncio.wait(self._tasks, timeout=LEAVE_S)
            for task in stuck:
                _log.warning("%s does not end when it is cancelled; it is left behind", task.get_name())
        self._tasks = []
        closing = [_task(s.close(), s.name) for s in self._samplers]
        _, stuck = await asyncio.wait(closing, timeout=2 * LEAVE_S)
        for task in stuck:
            _log.warning("aclose() of %s swallows its cancellation; it is left behind", task.get_name())
        if self._recorder is not None:
            self._recorder.end(self._now())
        if self._hook is not None:
            await self._hook.aclose()

    def _over(self, task: asyncio.Task[None]) -> None:
        """Let a fault of our own end every wait, instead of the task alone."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault = self._fault or error
            self._wake_waiters()

    def _wake_waiters(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- for callers ---------------------------------------------------------------------

    async def wait_until_ready(self) -> StartupReport:
        """Wait for the end of the bring-up. Any number of tasks may; cancelling one ends only its wait.

        Returns:
            The report, when the server is ready.

        Raises:
            StartupError: The start failed.
            StartupTimeout: A limit ended the wait; `StartupStalled` if nothing had advanced.
            RuntimeError: The context was left before the wait had ended, or entered in another event loop.
        """
        machine = self._running()
        while machine.outcome is None:
            if self._fault is not None:
                raise self._fault
            if self._left_at is not None:
                raise RuntimeError("the watch was left before its wait had ended")
            await self._change()
        found = self.report()
        if found.outcome != "ready":
            raise error_for(found)
        return found

    async def events(self) -> AsyncIterator[Event]:
        """Every event of this watch, from the first, until the wait has ended or the context is left.

        Raises:
            RuntimeError: The context was entered in another event loop.
        """
        machine, told = self._running(), 0
        while True:
            while told < len(self._events):
                yield self._events[told]
                told += 1
            if machine.outcome is not None or self._left_at is not None:
                return
            if self._fault is not None:
                raise self._fault
            await self._change()

    async def _change(self) -> None:
        """Wait until there is news, which is told in the loop of the watch alone."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(
                "this Startup was entered in another event loop; wait for it there, as with"
                " asyncio.run_coroutine_threadsafe(startup.wait_until_ready(), that_loop)"
            )
        await self._changed.wait()

    @property
    def status(self) -> Status:
        """The state of the wait at this moment."""
        return status(self._running(), self._moment())

    def report(self) -> StartupReport:
        """What has been found out so far; final once the wait has ended."""
        machine = self._running()
        return report(machine, machine.now if machine.outcome else self._moment(), versions=versions())

    def _moment(self) -> float:
        """Now; once the watch has been left, when that was."""
        return self._now() if self._left_at is None else self._left_at

    def _running(self) -> StartupMachine:
        if self._machine is None:
            raise RuntimeError("enter the Startup first: async with Startup(...) as startup")
        return self._machine

    # --- probes --------------------------------------------------------------------------

    async def _drive(self, sampler: Sampler) -> None:
        machine = self._running()
        while machine.outcome is None:
            try:
                seen = await sampler.sample(self._clock.now())
            except StopAsyncIteration:
                return
            self._feed(sampler.name, seen)
            await self._wait_for_turn(sampler)

    async def _wait_for_turn(self, sampler: Sampler) -> None:
        """Sleep until a sample is due that may see something new."""
        machine = self._running()
        interval = sampler.interval_s
        if machine.hurry:
            interval = min(interval, _HURRY_S)
        if interval <= 0:
            await asyncio.sleep(0)
            return
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resting_probes.add(sleeper)
        turn = self._turns.wait(sampler.probe, interval, lambda: _wake({sleeper}))
        try:
            await sleeper
        finally:
            self._turns.cancel(turn)
            self._resting_probes.discard(sleeper)

    async def _rest(self, until: float) -> bool:
        """Let time pass until something is due, or becomes due sooner. Returns whether it is due."""
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resting_time.add(sleeper)
        timer = self._clock.call_at(self._began_at + until, lambda: _wake({sleeper}))
        try:
            await sleeper
            return self._clock.now() >= self._began_at + until
        finally:
            timer.cancel()
            self._resting_time.discard(sleeper)

    # --- the machine ---------------------------------------------------------------------

    async def _pass_time(self) -> None:
        machine = self._running()
        while machine.outcome is None:
            beat = self._now() + _BEAT_S
            deadline = machine.next_deadline
            self._next_tick = beat if deadline is None else min(deadline, beat)
            due = await self._rest(self._next_tick)
            now = self._awake()  # a rounding may make it fall short of what is due
            self._tell(machine.tick(max(now, self._next_tick) if due else now))

    def _feed(self, probe: str, seen: Iterable[Reading]) -> None:
        machine = self._running()
        for reading in seen:
            try:
                self._take(machine, Observation(at=self._awake(), probe=probe, reading=reading))
            except Exception as error:  # noqa: BLE001 - values that make no sense; the others go on
                kind = type(reading).__name__
                _log.debug("reading %s of probe %s", kind, probe, exc_info=True)
                told = ProbeBroken(error=f"its {kind} makes no sense: {described(error)}")
                self._take(machine, Observation(at=self._awake(), probe=probe, reading=told))

    def _take(self, machine: StartupMachine, observation: Observation) -> None:
        hurried = machine.hurry
        self._tell(machine.feed(observation))
        self._record(machine, observation)
        deadline = machine.next_deadline
        if machine.outcome is not None or (machine.hurry and not hurried):
            _wake(self._resting_probes)
        if machine.outcome is not None or (deadline is not None and deadline < self._next_tick):
            _wake(self._resting_time)

    def _record(self, machine: StartupMachine, observation: Observation) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        recorder.write(observation)
        if recorder.error is not None:
            self._recorder = None
            note = ProbeNote(code="recording_failed", text=f"nothing more is recorded: {recorder.error}")
            self._tell(machine.feed(Observation(at=observation.at, probe="recording", reading=note)))

    def _now(self) -> float:
        """Seconds since the watch began, as a recording has them, so that its replay comes to the same."""
        return round(self._clock.now() - self._began_at, 6)

    def _awake(self) -> float:
        """The current time, after telling the machine if the watcher itself had not run for a while."""
        now = self._now()
        gap, self._alive_at = now - self._alive_at, now
        if gap > _BEAT_S + _PAUSED_S:
            paused = WatchPaused(paused_s=gap)
            self._take(self._running(), Observation(at=now, probe="watch", reading=paused))
        return now

    def _tell(self, events: Iterable[Event]) -> None:
        told = False
        for event in events:
            at = self._began_at + event.at
            stamped = attrs.evolve(event, at=at, seq=len(self._events) + 1, ts=self._stamp())
            self._events.append(stamped)
            _log.debug("%s", stamped)
            if self._hook is not None:
                self._hook.put(stamped)
            told = True
        if told:
            self._wake_waiters()

    def _stamp(self) -> str | None:
        wall = self._clock.wall()
        if wall is None:
            return None
        return datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _task(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    return asyncio.create_task(work, name=f"vllm_startup:{name}")


def _wake(resting: set[asyncio.Future[None]]) -> None:
    for sleeper in resting:
        if not sleeper.done():
            sleeper.set_result(None)
