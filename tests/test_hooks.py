"""Hooks of the caller's: they may raise, block and be slow without harm to the wait."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from vllm_startup import Event, Startup
from vllm_startup.testing import FakeClock, ready_after


def watching(on_event: object, seconds: float = 60) -> Startup:
    return Startup(ready_after(seconds).probes(), clock=FakeClock(), on_event=on_event)  # type: ignore[arg-type]  # any


async def test_a_hook_sees_every_event_in_order() -> None:
    seen: list[Event] = []
    async with watching(seen.append) as startup:
        await startup.wait_until_ready()
        told = [event async for event in startup.events()]
    assert seen == told


async def test_a_hook_runs_in_a_thread_of_its_own() -> None:
    threads: set[str] = set()
    async with watching(lambda _: threads.add(threading.current_thread().name)) as startup:
        await startup.wait_until_ready()
    assert threads == {"vllm_startup:on_event"}


async def test_a_hook_that_raises_is_called_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def hook(event: Event) -> None:
        seen.append(event.event)
        raise ValueError("mine")

    with caplog.at_level(logging.ERROR, "vllm_startup"):
        async with watching(hook) as startup:
            assert (await startup.wait_until_ready()).outcome == "ready"
    assert seen[-1] == "ended"
    assert len([record for record in caplog.records if "on_event raised" in record.message]) == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
async def test_a_hook_that_wants_to_leave_is_called_all_the_same(error: BaseException) -> None:
    seen: list[str] = []

    def hook(event: Event) -> None:
        seen.append(event.event)
        raise error

    async with watching(hook) as startup:
        await startup.wait_until_ready()
    assert seen[-1] == "ended"


def test_a_coroutine_function_is_no_hook() -> None:
    async def hook(event: Event) -> None:
        raise AssertionError(event)

    with pytest.raises(TypeError, match="on_event must be a plain function"):
        watching(hook)


class AsynchronousHook:
    async def __call__(self, event: Event) -> None:
        raise AssertionError(event)


def test_an_object_with_an_asynchronous_call_is_no_hook() -> None:
    with pytest.raises(TypeError, match="on_event must be a plain function"):
        watching(AsynchronousHook())


async def test_a_hook_that_gives_a_coroutine_is_told_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "vllm_startup"):
        async with watching(lambda event: AsynchronousHook()(event)) as startup:
            assert (await startup.wait_until_ready()).outcome == "ready"
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [str(error)[:31] for error in errors] == ["on_event returned a coroutine, "]


async def test_a_hook_that_blocks_delays_nobody() -> None:
    released = threading.Event()
    began = time.monotonic()
    async with watching(lambda _: released.wait(5)) as startup:
        await startup.wait_until_ready()
        took = time.monotonic() - began
        released.set()
    assert took < 1.0


async def test_a_hook_that_never_returns_does_not_keep_the_caller(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vllm_startup._hooks._DRAIN_S", 0.05)
    released = threading.Event()
    with caplog.at_level(logging.WARNING, "vllm_startup"):
        async with watching(lambda _: released.wait(30)) as startup:
            await startup.wait_until_ready()
    assert "on_event has not returned" in caplog.text
    released.set()


async def test_leaving_does_not_block_the_loop_for_a_slow_hook() -> None:
    """Whoever shares the loop goes on while the hook sees what is left."""
    lags: list[float] = []

    async def ticking() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            lags.append(time.monotonic() - before)

    def slow(event: Event) -> None:
        if event.event == "ended":
            time.sleep(0.25)

    ticker = asyncio.create_task(ticking())
    async with watching(slow) as startup:
        await startup.wait_until_ready()
    ticker.cancel()
    assert max(lags) < 0.2


async def test_no_thread_is_made_where_nothing_is_told() -> None:
    before = set(threading.enumerate())  # that of a test before may still be ending
    startup = watching(lambda _: None)
    made = set(threading.enumerate()) - before
    assert [t for t in made if t.name == "vllm_startup:on_event"] == []
    del startup


async def test_a_hook_without_a_thread_sees_all_once_there_is_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, refusals = threading.Thread.start, 2

    def refuse_twice(thread: threading.Thread) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_twice)
    seen: list[int] = []
    async with watching(lambda event: seen.append(event.seq)) as startup:
        report = await startup.wait_until_ready()
    assert report.outcome == "ready"
    assert refusals == 0
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) > 3
    told = [record.getMessage() for record in caplog.records if "on_event" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("on_event sees nothing yet: no further thread can be started; raise the limit")


async def test_a_hook_that_raises_after_it_had_no_thread_is_told_of_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, refused = threading.Thread.start, []

    def refuse_once(thread: threading.Thread) -> None:
        if not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    def fail(_: Event) -> None:
        raise ValueError("of the hook")

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    async with watching(fail) as startup:
        await startup.wait_until_ready()
    told = [record.getMessage() for record in caplog.records if "on_event" in record.getMessage()]
    assert [text.partition(":")[0].partition(";")[0] for text in told] == [
        "on_event sees nothing yet",
        "on_event raised",
    ]
