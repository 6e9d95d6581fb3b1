"""The pump: probes that misbehave, waiters that come and go, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from vllm_startup import Event, Rule, Startup, StartupError, StartupStalled, StartupTimeout, Timeouts, probes
from vllm_startup._readings import ProcessExited, ProcessFound
from vllm_startup.testing import FakeClock, HungProbe, ScriptedProbe, hung_after, killed_after, ready_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vllm_startup._clock import Timer

OK = probes.Answer(tier="health", ok=True, status=200)
NOTHING: tuple[probes.Reading, ...] = ()


class Own:
    """A probe of the caller's own, to be subclassed."""

    def __init__(self, name: str = "own", *, interval_s: float = 1.0, limit_s: float | None = 5.0) -> None:
        self.name = name
        self.interval_s = interval_s
        self.limit_s = limit_s
        self.sampled: list[float] = []
        self.closed = 0

    async def sample(self, now: float) -> Iterable[probes.Reading]:
        self.sampled.append(now)
        return NOTHING

    async def aclose(self) -> None:
        self.closed += 1


class Raising(Own):
    def __init__(self, *errors: BaseException | None, name: str = "own") -> None:
        super().__init__(name)
        self.errors = list(errors)

    async def sample(self, now: float) -> Iterable[probes.Reading]:
        await super().sample(now)
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return NOTHING


class Closeless:
    """All of a probe but its `aclose`."""

    name = "closeless"
    interval_s = limit_s = 1.0

    async def sample(self, now: float) -> Iterable[probes.Reading]:
        return NOTHING


def ready_at(seconds: float) -> ScriptedProbe:
    return ScriptedProbe("health", [(seconds, OK)])


async def events_of(startup: Startup) -> list[Event]:
    return [event async for event in startup.events()]


def kinds(events: list[Event]) -> list[str]:
    return [event.event for event in events]


def tasks_of_ours() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("vllm_startup:")]


# --- probes that misbehave ----------------------------------------------------------------


async def test_a_hung_probe_stops_nobody() -> None:
    async with Startup([HungProbe(), ready_at(30)], clock=FakeClock()) as startup:
        report = await startup.wait_until_ready()
        told = await events_of(startup)
    assert report.ready_s == 30
    assert kinds(told).count("probe_broken") == 1


async def test_a_probe_that_hangs_without_a_limit_stops_nobody() -> None:
    async with Startup([HungProbe(limit_s=None), ready_at(30)], clock=FakeClock()) as startup:
        assert (await startup.wait_until_ready()).ready_s == 30
    assert tasks_of_ours() == []


async def test_a_probe_that_raises_is_told_once_and_asked_again() -> None:
    probe = Raising(OSError("a"), OSError("b"), None, OSError("c"))
    async with Startup([probe, ready_at(30)], clock=FakeClock()) as startup:
        await startup.wait_until_ready()
        told = await events_of(startup)
    assert [(e.event, e.at) for e in told if e.event.startswith("probe")] == [
        ("probe_broken", 0.0),
        ("probe_recovered", 2.0),
        ("probe_broken", 3.0),
        ("probe_recovered", 4.0),
    ]
    assert len(probe.sampled) == 30


@pytest.mark.parametrize(
    "error", [TimeoutError("mine"), RuntimeError("x"), MemoryError(), AssertionError("y")]
)
async def test_any_error_of_a_probe_is_survived(error: Exception) -> None:
    async with Startup([Raising(error), ready_at(3)], clock=FakeClock()) as startup:
        assert (await startup.wait_until_ready()).outcome == "ready"


async def test_a_probe_whose_methods_are_not_async_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    probe: Any = Own()
    probe.sample = lambda _now: []
    probe.aclose = lambda: None
    async with Startup([probe, ready_at(3)], clock=FakeClock()) as startup:
        report = await startup.wait_until_ready()
    told = [warning.text for warning in report.warnings if warning.code == "probe_broken"]
    assert len(told) == 1
    assert "sample must be async def; it returned []" in told[0]
    assert "aclose must be async def; it returned None" in caplog.text


async def test_a_sample_may_be_any_callable_that_gives_an_awaitable() -> None:
    probe: Any = Own()
    probe.sample = partial(probe.sample)
    loop_bound: Any = Own("future")
    loop_bound.sample = lambda now: asyncio.ensure_future(Own.sample(loop_bound, now))
    async with Startup([probe, loop_bound, ready_at(3)], clock=FakeClock()) as startup:
        report = await startup.wait_until_ready()
    assert report.warnings == ()
    assert probe.sampled == loop_bound.sampled == [0.0, 1.0, 2.0]


async def test_a_probe_that_swallows_its_cancellation_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()

    class Stubborn(Own):
        async def sample(self, now: float) -> Iterable[probes.Reading]:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    pass
            return NOTHING

    monkeypatch.setattr("vllm_startup._startup.LEAVE_S", 0.05)
    monkeypatch.setattr("vllm_startup._sampling.LEAVE_S", 0.05)
    try:
        with caplog.at_level(logging.WARNING, "vllm_startup"):
            async with Startup([Stubborn("stubborn"), ready_at(30)], clock=FakeClock()) as startup:
                report = await startup.wait_until_ready()
                told = await events_of(startup)
    finally:
        release.set()
    assert report.ready_s == 30
    assert [(e.event, e.at) for e in told if e.event.startswith("probe")] == [("probe_broken", 5.0)]
    assert "does not end when it is cancelled" in caplog.text
    await asyncio.sleep(0.01)
    assert tasks_of_ours() == []


@pytest.mark.parametrize("lie", ["text", None, 7, object()])
async def test_a_probe_that_gives_no_readings_is_broken(lie: Any) -> None:
    class Lying(Own):
        async def sample(self, now: float) -> Iterable[probes.Reading]:
            await super().sample(now)
            answer: Iterable[probes.Reading] = [lie] if len(self.sampled) == 1 else lie
            return answer

    async with Startup([Lying(), ready_at(30)], clock=FakeClock()) as startup:
        await startup.wait_until_ready()
        told = await events_of(startup)
    assert kinds(told).count("probe_broken") == 1


async def test_a_generator_of_readings_that_raises_is_a_broken_probe() -> None:
    class Lazy(Own):
        async def sample(self, now: float) -> Iterable[probes.Reading]:
            return (1 / 0 for _ in range(3))  # type: ignore[misc]  # that is the test

    async with Startup([Lazy(), ready_at(3)], clock=FakeClock()) as startup:
        await startup.wait_until_ready()
        assert kinds(await events_of(startup)).count("probe_broken") == 1


async def test_a_probe_that_is_finished_is_asked_no_more() -> None:
    probe = Raising(StopAsyncIteration())
    async with Startup([probe, ready_at(30)], clock=FakeClock()) as startup:
        await startup.wait_until_ready()
    assert len(probe.sampled) == 1
    assert probe.closed == 1


async def test_each_probe_keeps_its_own_interval() -> None:
    fast, slow = Own("fast", interval_s=0.5), Own("slow", interval_s=10.0)
    async with Startup([fast, slow, ready_at(30)], clock=FakeClock()) as startup:
        await startup.wait_until_ready()
    assert fast.sampled[:3] == [0.0, 0.5, 1.0]
    assert slow.sampled == [0.0, 10.0, 20.0]


async def test_no_probe_is_asked_before_it_is_due() -> None:
    probe = Own(interval_s=0.5)
    async with Startup([probe, ready_at(30)], clock=FakeClock(start=1234.5678)) as startup:
        await startup.wait_until_ready()
    gaps = [b - a for a, b in pairwise(probe.sampled)]
    assert min(gaps) >= 0.5 - 1e-6
    assert max(gaps) <= 0.55


@pytest.mark.parametrize("interval_s", [0.001, 0.005, 0.01, 0.03])
async def test_a_short_interval_does_not_spin(interval_s: float) -> None:
    probe = Own(interval_s=interval_s)
    async with Startup([probe, ready_at(1)], clock=FakeClock(start=1234.5678)) as startup:
        await startup.wait_until_ready()
    assert 20 <= len(probe.sampled) <= 1 / interval_s + 2


class Glancing(Own):
    """Sees something new every ``news_s``."""

    def __init__(self, name: str, *, news_s: float) -> None:
        super().__init__(name, interval_s=0.1)
        self.news_s, self.glances = news_s, 0

    def glance(self, now: float) -> bool:
        self.glances += 1
        return now - (self.sampled[-1] if self.sampled else 0.0) >= self.news_s - 1e-9


async def test_probes_that_see_nothing_new_share_one_timer_and_are_not_sampled() -> None:
    timers: list[float] = []

    class Counting(FakeClock):
        def call_at(self, at: float, callback: Callable[[], None]) -> Timer:
            timers.append(at)
            return super().call_at(at, callback)

    often, seldom, never = (Glancing(f"every {s} s", news_s=s) for s in (1.0, 5.0, 1e9))
    async with Startup([often, seldom, never, ready_at(9.95)], clock=Counting()) as startup:
        await startup.wait_until_ready()
    assert (len(often.sampled), len(seldom.sampled), len(never.sampled)) == (10, 2, 1)
    assert often.sampled == pytest.approx(range(10))
    assert {probe.glances for probe in (often, seldom, never)} <= {98, 99, 100}
    # A hundred turns, one timer each; the rest are the limits of samples and the watch's own beat.
    assert len(timers) < 150


async def test_a_slow_probe_is_asked_again_at_its_next_turn() -> None:
    clock = FakeClock()

    class Slow(Own):
        async def sample(self, now: float) -> Iterable[probes.Reading]:
            await super().sample(now)
            await clock.sleep(2.5)
            return NOTHING

    probe = Slow(limit_s=None)
    async with Startup([probe, ready_at(9)], clock=clock) as startup:
        await startup.wait_until_ready()
    assert probe.sampled == [0.0, 3.0, 6.0]


async def test_probes_hurry_while_a_death_is_judged() -> None:
    slow = Own("slow", interval_s=60.0)
    log = ScriptedProbe("log", [(0, probes.LogOpened(source="x"))])
    process = ScriptedProbe(
        "process", [(0, ProcessFound(pid=7)), (9, ProcessExited(pid=7, name="vllm", root=True, code=1))]
    )
    async with Startup([slow, log, process], clock=FakeClock()) as startup:
        with pytest.raises(StartupError):
            await startup.wait_until_ready()
    assert len([at for at in slow.sampled if 9 <= at < 9.25]) >= 4


async def test_the_end_is_told_when_it_is_due() -> None:
    """The log is read out 0.25 s after the death; nobody else looks in between."""
    clock = FakeClock()
    seen = [
        ScriptedProbe("log", [(0, probes.LogOpened(source="x"))]),
        ScriptedProbe(
            "process", [(0, ProcessFound(pid=7)), (9, ProcessExited(pid=7, name="vllm", root=True, code=1))]
        ),
        ScriptedProbe("tree", [(9, probes.ProcessTree(root=7, processes=()))]),
    ]
    async with Startup(seen, clock=clock) as startup:
        with pytest.raises(StartupError):
            await startup.wait_until_ready()
        assert clock.now() == 9.25


async def test_a_fault_of_our_own_ends_every_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def tick(_machine: object, now: float) -> list[Event]:
        raise ZeroDivisionError(f"a fault of the machine at {now}")

    async with Startup([Own(), ready_at(30)], clock=FakeClock()) as startup:
        monkeypatch.setattr("vllm_startup._startup.StartupMachine.tick", tick)
        with pytest.raises(ZeroDivisionError, match="a fault of the machine"):
            await startup.wait_until_ready()
        with pytest.raises(ZeroDivisionError):
            await events_of(startup)


async def test_a_watch_that_was_held_up_says_so_and_counts_that_time_for_no_limit() -> None:
    clock = FakeClock(autojump=False)
    async with Startup([Own()], timeouts=Timeouts(20, stall=None), clock=clock) as startup:
        await clock.advance(10)
        clock._now += 3600  # the machine slept: no timer fired meanwhile
        await clock.advance(1)
        assert startup.status.outcome is None
        assert [w.code for w in startup.report().warnings] == ["watch_paused"]


# --- waiters ------------------------------------------------------------------------------


async def test_many_may_wait_for_the_same_end() -> None:
    async with Startup([ready_at(30)], clock=FakeClock()) as startup:
        reports = await asyncio.gather(*(startup.wait_until_ready() for _ in range(20)))
        late = await startup.wait_until_ready()
    assert {report.ready_s for report in [*reports, late]} == {30}


async def test_every_waiter_gets_the_failure() -> None:
    async with Startup(killed_after(5).probes(), clock=FakeClock()) as startup:
        errors = await asyncio.gather(*(startup.wait_until_ready() for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in errors] == [StartupError] * 3
    assert len({id(error) for error in errors}) == 3


async def test_cancelling_one_waiter_cancels_that_waiter_only() -> None:
    clock = FakeClock(autojump=False)
    async with Startup([ready_at(30)], clock=clock) as startup:
        first = asyncio.create_task(startup.wait_until_ready())
        second = asyncio.create_task(startup.wait_until_ready())
        await clock.advance(5)
        first.cancel()
        await clock.advance(30)
        assert first.cancelled()
        assert (await second).ready_s == 30


async def test_a_waiter_may_give_up_after_a_while() -> None:
    async with Startup([ready_at(30)], clock=FakeClock(autojump=False)) as startup:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await startup.wait_until_ready()
        assert startup.status.outcome is None


async def test_a_late_subscriber_misses_nothing() -> None:
    async with Startup(ready_after(60).probes(), clock=FakeClock()) as startup:
        early = asyncio.create_task(events_of(startup))
        await startup.wait_until_ready()
        late = await events_of(startup)
        assert await early == late
    assert [event.seq for event in late] == list(range(1, len(late) + 1))
    assert kinds(late)[0] == "attempt_started"
    assert kinds(late)[-1] == "ended"


async def test_events_come_while_they_happen() -> None:
    clock = FakeClock(autojump=False)
    async with Startup(ready_after(100).probes(), clock=clock) as startup:
        events = startup.events()
        seen = [await anext(events)]
        await clock.advance(1)
        seen.append(await anext(events))
        assert [e.event for e in seen] == ["attempt_started", "phase_entered"]
        await events.aclose()  # type: ignore[attr-defined]  # an async generator underneath


async def test_a_subscriber_that_stops_early_stops_nobody() -> None:
    async with Startup(ready_after(60).probes(), clock=FakeClock()) as startup:
        async for event in startup.events():
            if event.event == "phase_entered":
                break
        assert (await startup.wait_until_ready()).ready_s == 60


async def test_events_are_stamped_with_the_time_of_day() -> None:
    async with Startup([ready_at(30)], clock=FakeClock(wall=0.0)) as startup:
        await startup.wait_until_ready()
        told = await events_of(startup)
    assert told[0].ts == "1970-01-01T00:00:00.000000Z"
    assert told[-1].ts == "1970-01-01T00:00:30.000000Z"


async def test_without_a_time_of_day_nothing_is_stamped() -> None:
    async with Startup([ready_at(1)], clock=FakeClock(wall=None)) as startup:
        report = await startup.wait_until_ready()
        assert {event.ts for event in await events_of(startup)} == {None}
    assert report.started_at is None


# --- status -------------------------------------------------------------------------------


async def test_the_status_is_a_snapshot_in_one_sentence() -> None:
    clock = FakeClock(autojump=False)
    async with Startup(ready_after(100).probes(), timeouts=Timeouts(900), clock=clock) as startup:
        await clock.advance(40.5)
        status = startup.status
        assert (status.phase, status.outcome, status.elapsed_s, status.cause) == (
            "loading_weights",
            None,
            40.5,
            None,
        )
        assert status.summary == "loading weights, last progress 0 s ago"
        assert status.limit == "stall"
        await clock.advance(60)
        assert startup.status.summary == "ready"


async def test_the_status_tells_a_cause_at_once() -> None:
    clock = FakeClock(autojump=False)
    probe = ScriptedProbe(
        "process", [(0, ProcessFound(pid=7)), (9, ProcessExited(pid=7, name="vllm", root=True, signal=9))]
    )
    async with Startup([probe], exit_grace=60, clock=clock) as startup:
        await clock.advance(9.1)
        assert startup.status.cause is not None
        assert startup.status.cause.kind == "process_killed"
        assert "SIGKILL" in startup.status.summary


async def test_a_stall_is_a_timeout_error_too() -> None:
    async with Startup(hung_after(60).probes(), clock=FakeClock()) as startup:
        with pytest.raises(TimeoutError) as caught:
            await startup.wait_until_ready()
    assert isinstance(caught.value, StartupStalled)


async def test_a_limit_of_the_whole_is_a_startup_timeout() -> None:
    async with Startup(ready_after(60).probes(), timeouts=Timeouts(10), clock=FakeClock()) as startup:
        with pytest.raises(StartupTimeout) as caught:
            await startup.wait_until_ready()
    assert not isinstance(caught.value, StartupStalled)
    assert caught.value.cause.kind == "timed_out"


# --- leaving ------------------------------------------------------------------------------


async def test_nothing_is_left_behind() -> None:
    files, threads = open_files(), set(threading.enumerate())
    for _ in range(3):
        async with Startup(ready_after(60).probes(), clock=FakeClock(), on_event=lambda _: None) as startup:
            await startup.wait_until_ready()
    gc.collect()
    assert tasks_of_ours() == []
    assert open_files() == files
    assert set(threading.enumerate()) == threads


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0


async def test_probes_are_closed_once_however_it_ends() -> None:
    for ending in (ready_at(3), killed_after(3).probes()[0]):
        probe = Own()
        async with Startup([probe, ending], timeouts=Timeouts(9), clock=FakeClock()) as startup:
            try:
                await startup.wait_until_ready()
            except StartupError:
                pass
        assert probe.closed == 1


async def test_leaving_early_ends_the_watch() -> None:
    probe = Own()
    async with Startup([probe], clock=FakeClock(autojump=False)):
        await asyncio.sleep(0)
    assert tasks_of_ours() == []
    assert probe.closed == 1


async def test_an_exception_of_the_callers_passes_through() -> None:
    probe = Own()
    with pytest.raises(KeyError, match="mine"):
        async with Startup([probe], clock=FakeClock(autojump=False)):
            raise KeyError("mine")
    assert (tasks_of_ours(), probe.closed) == ([], 1)


async def test_cancelling_the_context_ends_the_watch_and_stays_a_cancellation() -> None:
    probe = Own()

    async def watching() -> None:
        async with Startup([probe], clock=FakeClock(autojump=False)) as startup:
            await startup.wait_until_ready()

    task = asyncio.create_task(watching())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (tasks_of_ours(), probe.closed) == ([], 1)


async def test_cancelling_the_exit_itself_still_closes_the_probes() -> None:
    class Slow(Own):
        async def sample(self, now: float) -> Iterable[probes.Reading]:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.03)
            return NOTHING

    probes_, leaving = [Slow("slow"), Own("other")], asyncio.Event()

    async def watching() -> None:
        async with Startup(probes_, clock=FakeClock(autojump=False)):
            await asyncio.sleep(0.01)
            leaving.set()

    task = asyncio.create_task(watching())
    await leaving.wait()
    await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.05)
    assert tasks_of_ours() == []
    assert [probe.closed for probe in probes_] == [1, 1]


async def test_an_exit_that_is_cancelled_again_and_again_is_complete_when_it_returns(tmp_path: Path) -> None:
    """As anyio cancels, whose scopes do so in every turn of the loop."""

    class Slow(Own):
        async def aclose(self) -> None:
            await asyncio.sleep(0.03)
            await super().aclose()

    probe, recording = Slow("slow"), tmp_path / "start.jsonl"

    async def watching() -> None:
        async with Startup([probe], record=recording, clock=FakeClock(autojump=False)) as startup:
            await startup.wait_until_ready()

    task = asyncio.create_task(watching())
    await asyncio.sleep(0.01)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (tasks_of_ours(), probe.closed) == ([], 1)
    assert json.loads(recording.read_text(encoding="utf-8").splitlines()[-1])["end"]


async def test_a_probe_that_fails_to_close_does_not_hide_the_others() -> None:
    class Sticky(Own):
        async def aclose(self) -> None:
            await super().aclose()
            raise OSError("sticky")

    first, second = Sticky("first"), Own("second")
    async with Startup([first, second], clock=FakeClock(autojump=False)):
        pass
    assert (first.closed, second.closed) == (1, 1)


async def test_probes_that_hang_while_they_close_are_left_after_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Hanging(Own):
        async def aclose(self) -> None:
            await super().aclose()
            await asyncio.sleep(60)

    monkeypatch.setattr("vllm_startup._startup.LEAVE_S", 0.05)
    monkeypatch.setattr("vllm_startup._sampling.LEAVE_S", 0.05)
    probes_ = [Hanging(f"p{i}") for i in range(8)]
    began = time.monotonic()
    async with Startup(probes_, clock=FakeClock(autojump=False)):
        pass
    assert time.monotonic() - began < 0.3
    assert [probe.closed for probe in probes_] == [1] * 8


async def test_a_probe_whose_own_task_was_cancelled_closes_like_any_other() -> None:
    class Cancelling(Own):
        async def aclose(self) -> None:
            await super().aclose()
            task = asyncio.create_task(asyncio.sleep(60))
            task.cancel()
            await task

    probe = Cancelling()
    async with Startup([probe, ready_at(3)], clock=FakeClock()) as startup:
        assert (await startup.wait_until_ready()).outcome == "ready"
    assert probe.closed == 1


async def test_a_probe_that_swallows_its_cancellation_while_it_closes_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = asyncio.Event()

    class Stubborn(Own):
        async def aclose(self) -> None:
            while not released.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await released.wait()

    monkeypatch.setattr("vllm_startup._startup.LEAVE_S", 0.05)
    monkeypatch.setattr("vllm_startup._sampling.LEAVE_S", 0.05)
    async with asyncio.timeout(5), Startup([Stubborn()], clock=FakeClock(autojump=False)):
        pass
    assert "swallows its cancellation" in caplog.text
    released.set()


@pytest.mark.parametrize("attribute", ["interval_s", "limit_s"])
async def test_a_probe_whose_cadence_raises_stops_nobody(attribute: str) -> None:
    class Moody(Own):
        moody = False

        def __getattribute__(self, name: str) -> Any:
            if name == attribute and Moody.moody:
                raise LookupError("mine")
            return super().__getattribute__(name)

    async with Startup([Moody(), ready_at(30)], clock=FakeClock()) as startup:
        Moody.moody = True
        report = await startup.wait_until_ready()
    told = [warning.text for warning in report.warnings if warning.code == "probe_broken"]
    assert len(told) == 1
    assert "LookupError('mine')" in told[0]


# --- misuse -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"probes": []}, ValueError, "probes must hold at least one probe"),
        ({"probes": [Own("a"), Own("a")]}, ValueError, "'a' is there twice"),
        ({"probes": [Closeless()]}, TypeError, r"not <.*Closeless.*>: it has no aclose$"),
        ({"probes": ["health"]}, TypeError, "it has no name, interval_s, limit_s, sample, aclose$"),
        ({"probes": [Own("a\x1b[31m")]}, TypeError, "a probe's name must be printable text"),
        ({"probes": [Own(interval_s=float("nan"))]}, TypeError, "interval_s of probe 'own' must be a number"),
        ({"probes": [Own(limit_s="5")]}, TypeError, "limit_s of probe 'own' must be a number"),
        ({"restarts": 1}, ValueError, "restarts needs a target"),
        ({"restarts": -1}, ValueError, "restarts must not be negative"),
        ({"until": "soon"}, ValueError, "until must be one of 'engine', 'health', 'model', 'inference'"),
        ({"stable_for": -1}, ValueError, "stable_for must be a finite number of seconds from 0"),
        ({"stable_for": "5"}, TypeError, "stable_for must be a number of seconds"),
        ({"exit_grace": float("nan")}, ValueError, "exit_grace must be a finite number"),
        ({"timeouts": 60}, TypeError, "timeouts"),
        ({"clock": 5}, TypeError, r"clock must have now\(\), wall\(\) and call_at\(\)"),
        ({"rules": ["x"]}, TypeError, "rules must hold vllm_startup.Rule objects"),
        ({"on_event": 7}, TypeError, "on_event must be callable with one event"),
        ({"record": "/nowhere/at/all.jsonl"}, OSError, "nowhere"),
        ({"baseline": "/nowhere/report.json"}, OSError, "nowhere"),
        ({"baseline": {"no": "report"}}, ValueError, "baseline must be a report"),
    ],
)
def test_misuse_is_refused_at_construction(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Startup(**{"probes": [Own()], **arguments})


def test_a_refused_watch_leaves_no_file_behind(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    with pytest.raises(ValueError, match="until"):
        Startup([Own()], until="soon", record=path)  # type: ignore[arg-type]  # that is the test
    assert not path.exists()


async def test_a_watch_is_entered_once() -> None:
    startup = Startup([Own()], clock=FakeClock(autojump=False))
    with pytest.raises(RuntimeError, match="enter the Startup first"):
        _ = startup.status
    async with startup:
        pass
    with pytest.raises(RuntimeError, match="can be entered once"):
        await startup.__aenter__()


@pytest.mark.parametrize("asked", ["report", "events"])
async def test_a_watch_is_waited_for_in_its_own_event_loop(asked: str) -> None:
    async with Startup([Own()], clock=FakeClock(autojump=False)) as startup:

        async def ask() -> None:
            if asked == "report":
                await startup.wait_until_ready()
            async for _ in startup.events():
                pass

        with pytest.raises(RuntimeError, match="entered in another event loop"):
            await asyncio.to_thread(asyncio.run, ask())


async def test_a_watch_with_restarts_takes_a_probe_that_follows_them() -> None:
    probe = ScriptedProbe("process", [(0, ProcessFound(pid=7))], follows_restarts=True)
    async with Startup([probe, ready_at(5)], restarts=2, clock=FakeClock()) as startup:
        assert (await startup.wait_until_ready()).outcome == "ready"


async def test_readings_of_the_callers_own_reach_its_rules() -> None:
    seen: list[str] = []
    rule = Rule(None, lambda reading: seen.append(type(reading).__name__), name="mine")
    async with Startup([ready_at(1)], rules=[rule], clock=FakeClock()) as startup:
        await startup.wait_until_ready()
    assert seen == ["Answer"]


async def test_the_pump_logs_through_its_own_logger_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with Startup([Raising(OSError("x")), ready_at(3)], clock=FakeClock()) as startup:
            await startup.wait_until_ready()
    assert {record.name for record in caplog.records} <= {"vllm_startup", "transitions.core"}
    assert all(record.levelno < logging.WARNING for record in caplog.records)


def test_environment_variables_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    assert Startup([Own()]).__class__ is Startup


async def test_a_watch_may_go_on_with_a_wait() -> None:
    clock = FakeClock()
    startup = Startup(
        [ScriptedProbe("process", [(0, ProcessFound(pid=7))])], timeouts=Timeouts(10), clock=clock
    )
    with pytest.raises(ValueError, match="waited_s must be a finite number of seconds from 0"):
        startup.already_waited(-1)
    startup.already_waited(8)
    async with startup:
        with pytest.raises(StartupTimeout, match="not ready after 10 s"):
            await startup.wait_until_ready()
        assert startup.report().elapsed_s == 2.0
        with pytest.raises(RuntimeError, match="before the watch is entered"):
            startup.already_waited(1)
