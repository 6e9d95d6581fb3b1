"""Blocking calls in a thread of their own."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref

import pytest

from vllm_startup._blocking import BlockingRunner, NoThreadError, StillRunningError


def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def wait_until_gone(name: str) -> None:
    for thread in threads_named(name):
        thread.join(2)
    assert threads_named(name) == []


async def test_the_result_of_the_call_comes_back() -> None:
    runner = BlockingRunner("result")
    assert await runner.run(lambda: 42) == 42
    runner.close()


async def test_an_error_of_the_call_is_raised_where_it_is_awaited() -> None:
    runner = BlockingRunner("error")
    with pytest.raises(ZeroDivisionError):
        await runner.run(lambda: 1 // 0)
    assert await runner.run(lambda: "still usable") == "still usable"
    runner.close()


def end_iteration() -> None:
    raise StopIteration


def exit_interpreter() -> None:
    raise SystemExit(3)


async def test_stop_iteration_does_not_hang_the_caller() -> None:
    runner = BlockingRunner("stop-iteration")
    async with asyncio.timeout(2):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await runner.run(end_iteration)
    runner.close()


async def test_system_exit_in_the_call_does_not_end_the_thread() -> None:
    runner = BlockingRunner("system-exit")
    try:
        await runner.run(exit_interpreter)
    except SystemExit as error:
        assert error.code == 3  # noqa: PT017 - pytest.raises would let asyncio's own handling interfere
    assert await runner.run(lambda: 1) == 1
    runner.close()


async def test_all_calls_are_made_in_one_daemon_thread() -> None:
    runner = BlockingRunner("one-thread")
    first = await runner.run(threading.current_thread)
    second = await runner.run(threading.current_thread)
    assert first is second
    assert first.daemon
    assert first.name == "one-thread"
    runner.close()


async def test_the_loop_runs_on_while_the_call_blocks() -> None:
    runner = BlockingRunner("blocks")
    release = threading.Event()
    call = asyncio.create_task(runner.run(lambda: release.wait(5)))
    await asyncio.sleep(0)
    assert runner.busy
    release.set()
    assert await call is True
    assert not runner.busy
    runner.close()


async def test_a_second_call_is_refused_while_the_first_runs() -> None:
    runner = BlockingRunner("second")
    release = threading.Event()
    call = asyncio.create_task(runner.run(lambda: release.wait(5)))
    await asyncio.sleep(0)
    with pytest.raises(StillRunningError, match="'second' has not returned"):
        await runner.run(lambda: None)
    release.set()
    await call
    runner.close()


async def test_a_cancelled_caller_leaves_at_once_and_the_late_result_is_dropped() -> None:
    runner = BlockingRunner("cancelled")
    release = threading.Event()
    call = asyncio.create_task(runner.run(lambda: release.wait(5)))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert runner.busy
    release.set()
    async with asyncio.timeout(2):
        while runner.busy:
            await asyncio.sleep(0.001)
    assert await runner.run(lambda: "next") == "next"
    runner.close()


def test_a_stuck_call_does_not_keep_its_loop_from_closing() -> None:
    runner = BlockingRunner("stuck")
    release = threading.Event()

    async def leave() -> None:
        async with asyncio.timeout(0.02):
            await runner.run(lambda: release.wait(5))

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(leave())
    assert time.monotonic() - began < 1
    runner.close()
    release.set()  # the result comes back to a closed loop
    wait_until_gone("stuck")


def test_one_runner_serves_several_loops() -> None:
    runner = BlockingRunner("loops")
    assert asyncio.run(runner.run(lambda: 1)) == 1
    assert asyncio.run(runner.run(lambda: 2)) == 2
    runner.close()


async def test_close_ends_the_thread_and_may_be_called_twice() -> None:
    runner = BlockingRunner("closed")
    await runner.run(lambda: None)
    runner.close()
    runner.close()
    wait_until_gone("closed")
    with pytest.raises(RuntimeError, match="runner 'closed' is closed"):
        await runner.run(lambda: None)


def test_a_runner_that_was_never_used_has_no_thread() -> None:
    runner = BlockingRunner("unused")
    assert threads_named("unused") == []
    runner.close()


async def test_an_idle_runner_keeps_no_result_alive() -> None:
    class Big:
        pass

    runner = BlockingRunner("idle")
    big = await runner.run(Big)
    seen = weakref.ref(big)
    del big
    await asyncio.sleep(0.01)
    gc.collect()
    assert seen() is None
    runner.close()


async def test_a_thread_that_cannot_be_started_is_told_with_the_fix_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a container or a unit may have no more threads."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    runner = BlockingRunner("runner refused")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(NoThreadError, match="TasksMax= of a unit"):
            await runner.run(lambda: 1)
        assert not runner.busy
    assert await runner.run(lambda: 2) == 2
    runner.close()
