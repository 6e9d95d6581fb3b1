"""What the package offers for tests."""

from __future__ import annotations

import asyncio
import re
import textwrap
import time
from typing import Any

import pytest

import vllm_startup
from vllm_startup import Startup, StartupError, StartupStalled, Timeouts, causes, probes
from vllm_startup.testing import (
    ClockStuckError,
    FakeClock,
    HungProbe,
    Observation,
    ScriptedProbe,
    ScriptedWait,
    failed_after,
    hung_after,
    killed_after,
    ready_after,
    replay,
)

NOTE = probes.ProbeNote(code="a", text="a")
OTHER = probes.ProbeNote(code="b", text="b")


# --- the clock ----------------------------------------------------------------------------


async def test_it_jumps_to_the_next_timer_when_everything_waits() -> None:
    clock = FakeClock()
    began = time.monotonic()
    await asyncio.gather(clock.sleep(3600), clock.sleep(7200))
    assert clock.now() == 7200
    assert time.monotonic() - began < 1.0


async def test_timers_fire_in_the_order_of_their_times_then_of_their_making() -> None:
    clock = FakeClock()
    order: list[str] = []
    for at, name in ((2.0, "b"), (1.0, "a"), (2.0, "c")):
        clock.call_at(at, lambda name=name: order.append(name))  # type: ignore[misc]  # a default is no parameter
    await clock.sleep(3)
    assert order == ["a", "b", "c"]


async def test_a_timer_that_was_taken_back_does_not_fire() -> None:
    clock = FakeClock()
    fired: list[str] = []
    timer = clock.call_at(1.0, lambda: fired.append("x"))
    timer.cancel()
    timer.cancel()
    await clock.sleep(2)
    assert fired == []


async def test_it_does_not_jump_while_a_task_does_a_few_awaits() -> None:
    clock = FakeClock()
    seen: list[float] = []

    async def busy() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        seen.append(clock.now())

    task = asyncio.create_task(busy())
    await clock.sleep(100)
    await task
    assert seen == [0.0]


async def test_it_waits_for_threads_where_it_is_told_to() -> None:
    clock = FakeClock(settle_s=0.03)
    seen: list[float] = []

    async def threaded() -> None:
        await asyncio.to_thread(time.sleep, 0.005)
        seen.append(clock.now())

    task = asyncio.create_task(threaded())
    await clock.sleep(100)
    await task
    assert seen == [0.0]


async def test_without_autojump_only_advance_moves_it() -> None:
    clock = FakeClock(autojump=False)
    task = asyncio.create_task(clock.sleep(10))
    await asyncio.sleep(0.01)
    assert clock.now() == 0
    await clock.advance(9.9)
    assert not task.done()
    await clock.advance(0.1)
    assert task.done()


async def test_advance_stops_at_everything_that_is_due_on_the_way() -> None:
    clock = FakeClock(autojump=False)
    seen: list[float] = []

    async def ticking() -> None:
        while True:
            await clock.sleep(3)
            seen.append(clock.now())

    task = asyncio.create_task(ticking())
    await clock.advance(10)
    assert seen == [3, 6, 9]
    assert clock.now() == 10
    task.cancel()


async def test_advance_works_beside_autojump() -> None:
    clock = FakeClock()
    await clock.advance(5)
    assert clock.now() == 5


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
async def test_advance_refuses_what_is_no_duration(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds must be a finite number from 0"):
        await FakeClock().advance(seconds)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"settle_s": -1.0}, "settle_s must be"), ({"horizon_s": 0.0}, "horizon_s must be")],
)
def test_a_clock_refuses_what_makes_no_sense(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FakeClock(**arguments)  # type: ignore[arg-type]  # floats by name


def test_the_time_of_day_goes_with_it() -> None:
    clock = FakeClock(start=100.0, wall=5000.0)
    assert (clock.now(), clock.wall()) == (100.0, 5000.0)
    asyncio.run(clock.sleep(7))
    assert (clock.now(), clock.wall()) == (107.0, 5007.0)
    assert FakeClock(wall=None).wall() is None


async def test_a_wait_that_nothing_ends_raises_instead_of_hanging() -> None:
    clock = FakeClock(horizon_s=300)
    with pytest.raises(ClockStuckError, match="nothing has ended the wait within 300 s"):
        async with Startup([HungProbe()], timeouts=Timeouts(stall=None), clock=clock) as startup:
            await startup.wait_until_ready()


async def test_a_task_that_polls_without_waiting_raises_instead_of_hanging() -> None:
    clock = FakeClock()

    async def polling() -> None:
        while clock.now() < 10:
            await asyncio.sleep(0)

    clock.call_at(10.0, lambda: None)
    with pytest.raises(ClockStuckError, match="something still runs without waiting for the clock"):
        await polling()


async def test_a_stuck_clock_stays_stuck() -> None:
    clock = FakeClock(horizon_s=1)
    with pytest.raises(ClockStuckError):
        await clock.sleep(5)
    with pytest.raises(ClockStuckError):
        clock.call_at(1.0, lambda: None)


def test_it_may_be_used_in_one_loop_after_another() -> None:
    clock = FakeClock()

    async def leave_something_behind() -> None:
        clock.call_at(50.0, lambda: pytest.fail("of another loop"))
        await clock.sleep(1)

    asyncio.run(leave_something_behind())
    asyncio.run(clock.sleep(100))
    assert clock.now() == 101


# --- scripted probes ----------------------------------------------------------------------


async def test_a_script_is_seen_at_its_times() -> None:
    clock = FakeClock()
    probe = ScriptedProbe("p", [(0, NOTE), (2.5, [OTHER, probes.Connection(state="refused")])])
    async with Startup([probe], clock=clock) as startup:
        await clock.advance(2.4)
        assert [e.code for e in _warned(startup)] == ["a"]
        await clock.advance(0.1)
        assert [(e.code, e.at) for e in _warned(startup)] == [("a", 0.0), ("b", 2.5)]
    assert probe.closed


def _warned(startup: Startup) -> list[vllm_startup.Warned]:
    """What the notes of a script have become so far."""
    return [e for e in startup._events if isinstance(e, vllm_startup.Warned) and e.code in {"a", "b"}]


async def test_times_count_from_the_first_sample() -> None:
    clock = FakeClock(start=1000.0)
    probe = ScriptedProbe("p", [(5, NOTE)])
    async with Startup([probe], clock=clock) as startup:
        await clock.advance(5)
        assert [e.at for e in _warned(startup)] == [1005.0]


async def test_a_probe_that_polls_sees_things_at_its_next_sample() -> None:
    clock = FakeClock()
    probe = ScriptedProbe("p", [(2.5, NOTE)], interval_s=1.0)
    async with Startup([probe], clock=clock) as startup:
        await clock.advance(10)
        assert [e.at for e in _warned(startup)] == [3.0]


async def test_an_exception_in_a_script_is_raised_and_the_rest_follows() -> None:
    clock = FakeClock()
    probe = ScriptedProbe("p", [(1, NOTE), (1, OSError("gone")), (2, OTHER)])
    async with Startup([probe], clock=clock) as startup:
        await clock.advance(3)
        told = [(e.event, e.at) for e in startup._events if e.event != "attempt_started" and e.at < 3]
    assert told == [("warning", 1.0), ("probe_broken", 1.0), ("probe_recovered", 2.0), ("warning", 2.0)]


async def test_a_script_may_end_the_probe() -> None:
    probe = ScriptedProbe("p", [(0, NOTE)], after="end")
    assert list(await probe.sample(0.0)) == [NOTE]
    with pytest.raises(StopAsyncIteration):
        await probe.sample(1.0)


async def test_a_script_may_repeat_its_last_readings() -> None:
    probe = ScriptedProbe("p", [(0, NOTE), (1, OTHER)], after="repeat")
    seen = [list(await probe.sample(now)) for now in (0.0, 1.0, 2.0, 3.0)]
    assert seen == [[NOTE], [OTHER], [OTHER], [OTHER]]
    assert probe.interval_s == 1.0


async def test_a_script_is_followed_by_silence() -> None:
    probe = ScriptedProbe("p", [(0, NOTE)])
    await probe.sample(0.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(probe.sample(1.0), 0.01)


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ([(1, NOTE), (0.5, NOTE)], ValueError, "do not go back"),
        ([(-1, NOTE)], ValueError, "do not go back"),
        ([(float("nan"), NOTE)], ValueError, "do not go back"),
        ([(0, "a line")], TypeError, "must hold readings"),
        ([(0, [NOTE, 7])], TypeError, "must hold readings"),
    ],
)
def test_a_script_that_makes_no_sense_is_refused(script: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ScriptedProbe("p", script)


def test_scripted_and_hung_probes_are_probes() -> None:
    assert isinstance(ScriptedProbe("p", []), probes.Probe)
    assert isinstance(HungProbe(), probes.Probe)
    assert repr(ScriptedProbe("p", [(0, NOTE)])) == "<ScriptedProbe 'p', 1 steps to come>"
    assert repr(HungProbe("h")) == "<HungProbe 'h'>"


async def test_a_hung_probe_breaks_at_its_limit_and_is_asked_again() -> None:
    clock = FakeClock()
    probe = HungProbe(limit_s=5.0)
    async with Startup([probe], clock=clock) as startup:
        await clock.advance(20)
        broken = [e for e in startup._events if e.event == "probe_broken"]
    assert [(e.at, e.error) for e in broken if isinstance(e, vllm_startup.ProbeBroke)] == [
        (5.0, "no answer within 5 s")
    ]
    assert probe.samples > 2
    assert probe.closed


# --- scenarios ----------------------------------------------------------------------------


async def test_a_healthy_scenario_passes_every_phase() -> None:
    report = await ScriptedWait(ready_after(100))("http://127.0.0.1:8000")
    assert report.ready_s == 100
    assert [span.phase for span in report.phases] == list(vllm_startup.Phase)
    assert report.url == "http://127.0.0.1:8000"
    assert report.warnings == ()


async def test_a_healthy_scenario_without_a_log() -> None:
    report = await ScriptedWait(ready_after(100, log=False))()
    assert [span.phase for span in report.phases] == ["launching", "initializing", "starting_server", "ready"]


async def test_a_scenario_that_fails_with_a_cause() -> None:
    cause = causes.PortInUse(message="taken", address="0.0.0.0:8000", retryable=True)
    with pytest.raises(StartupError) as caught:
        await ScriptedWait(failed_after(20, cause))()
    assert caught.value.cause == cause
    assert caught.value.report.exit is not None
    assert caught.value.report.exit.code == 1


async def test_a_scenario_that_fails_with_lines() -> None:
    line = "ValueError: the number of heads must be divisible"
    with pytest.raises(StartupError) as caught:
        await ScriptedWait(failed_after(20, lines=[line], code=3))()
    assert caught.value.cause.kind == "unclassified_error"
    assert caught.value.report.exit is not None
    assert caught.value.report.exit.code == 3


async def test_a_scenario_that_is_killed() -> None:
    with pytest.raises(StartupError) as caught:
        await ScriptedWait(killed_after(20))()
    assert isinstance(caught.value.cause, causes.ProcessKilled)


async def test_a_scenario_that_hangs_is_ended_by_a_limit() -> None:
    with pytest.raises(StartupStalled) as caught:
        await ScriptedWait(hung_after(60))()
    assert caught.value.report.elapsed_s == pytest.approx(660, abs=2)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf")])
def test_a_scenario_refuses_what_is_no_duration(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds must be a positive, finite number"):
        ready_after(seconds)


def test_a_scenario_makes_fresh_probes_each_time() -> None:
    scenario = ready_after(60)
    assert {p.name for p in scenario.probes()} == {"log", "process", "tree", "health"}
    assert scenario.probes()[0] is not scenario.probes()[0]


# --- the stand-in for wait_until_ready ----------------------------------------------------


async def test_each_call_watches_the_next_scenario_and_is_noted() -> None:
    wait = ScriptedWait(killed_after(5), ready_after(10))
    with pytest.raises(StartupError):
        await wait("http://a:1", pid=7)
    await wait(url="http://a:2", timeouts=Timeouts(60))
    assert wait.calls == [{"url": "http://a:1", "pid": 7}, {"url": "http://a:2", "timeouts": Timeouts(60)}]


async def test_limits_and_hooks_of_the_call_mean_the_same() -> None:
    told: list[vllm_startup.Event] = []
    wait = ScriptedWait(ready_after(100))
    with pytest.raises(vllm_startup.StartupTimeout):
        await wait(timeouts=Timeouts(50), on_event=told.append)
    assert told[-1].event == "ended"


async def test_rules_of_the_call_are_asked_beside_the_scenarios() -> None:
    asked: list[str] = []
    rule = vllm_startup.Rule("Loading weights took", lambda line: asked.append(line.message))
    await ScriptedWait(ready_after(100))(rules=[rule])
    assert len(asked) == 1


async def test_an_argument_that_the_real_one_lacks_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'timeout'"):
        await ScriptedWait(ready_after(1))(timeout=5)


async def test_more_calls_than_scenarios_are_a_failure_of_the_test() -> None:
    with pytest.raises(AssertionError, match="call 1 of a ScriptedWait that holds 0 scenarios"):
        await ScriptedWait()()


def test_it_stands_in_for_the_synchronous_one_too() -> None:
    assert ScriptedWait(ready_after(30)).sync("http://a:1").ready_s == 30


async def test_its_clock_can_be_slept_on_between_calls() -> None:
    clock = FakeClock()
    wait = ScriptedWait(ready_after(10), ready_after(10), clock=clock)
    await wait()
    await clock.sleep(30)
    await wait()
    assert clock.now() == 50


# --- replay -------------------------------------------------------------------------------


def test_observations_replay_to_a_report() -> None:
    seen = [
        Observation(at=0.0, probe="process", reading=probes.ProcessFound(pid=7, age_s=0.0)),
        Observation(at=9.0, probe="health", reading=probes.Answer(tier="health", ok=True, status=200)),
    ]
    assert replay(seen, url="http://a:1").ready_s == 9.0
    assert replay(seen[:1]).outcome == "unfinished"
    assert replay(seen[:1], timeouts=Timeouts(5), end_at=60).outcome == "timed_out"
    assert replay(seen, wall=0.0).started_at == "1970-01-01T00:00:00.000Z"


def test_a_replay_takes_a_baseline() -> None:
    earlier = {"gpus": (), "phases": ()}
    assert replay([], baseline=earlier).outcome == "unfinished"


def test_a_replay_refuses_what_is_no_observation() -> None:
    with pytest.raises(TypeError, match="must be a path or hold"):
        replay([NOTE])  # type: ignore[list-item]  # that is the test


# --- the example in the documentation -----------------------------------------------------


class FakeService:
    url = "http://127.0.0.1:8000"

    def __init__(self) -> None:
        self.starts = 0
        self.rolled_back = False

    def start(self) -> int:
        self.starts += 1
        return 4242

    def roll_back(self) -> None:
        self.rolled_back = True


def documented() -> dict[str, Any]:
    """What the example in the package's docstring defines."""
    from vllm_startup import testing

    assert testing.__doc__ is not None
    blocks = re.findall(r"((?:    .*\n|\n)+)", testing.__doc__)
    script, tests = (textwrap.dedent(block) for block in blocks if ".py\n" in block)
    names: dict[str, Any] = {"FakeService": FakeService}
    exec(compile(script, "deploy.py", "exec"), names)
    exec(compile(tests, "test_deploy.py", "exec"), names)
    return names


@pytest.mark.parametrize("name", sorted(name for name in documented() if name.startswith("test_")))
async def test_the_documented_example_runs(name: str) -> None:
    await documented()[name]()


def test_the_documented_example_has_its_tests() -> None:
    assert len([name for name in documented() if name.startswith("test_")]) == 2
