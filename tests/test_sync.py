"""The synchronous twin, with and without a loop that runs already."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from contextlib import closing

import pytest

import vllm_startup
from vllm_startup._sync import in_own_loop
from vllm_startup.testing import ScriptedWait, killed_after, ready_after


async def twice(value: int) -> int:
    await asyncio.sleep(0)
    return value * 2


async def failing() -> None:
    raise LookupError("mine")


def test_it_runs_without_a_loop() -> None:
    assert in_own_loop(twice)(21) == 42


async def test_it_runs_inside_a_running_loop() -> None:
    assert in_own_loop(twice)(21) == 42


def test_errors_pass_through() -> None:
    with pytest.raises(LookupError, match="mine"):
        in_own_loop(failing)()


async def test_errors_pass_through_out_of_a_running_loop() -> None:
    with pytest.raises(LookupError, match="mine"):
        in_own_loop(failing)()


def test_an_interrupt_ends_the_work_in_its_thread() -> None:
    ended = threading.Event()

    async def waiting() -> None:
        main = threading.main_thread().ident or 0
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    async def cell() -> None:
        in_own_loop(waiting)()

    with pytest.raises(KeyboardInterrupt), closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(cell())  # as a notebook does, and not asyncio.run: it takes the signal
    assert ended.is_set()


async def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    in_own_loop(twice)(1)
    assert set(threading.enumerate()) == before


def test_the_twin_has_the_arguments_of_the_original() -> None:
    original = inspect.signature(vllm_startup.wait_until_ready)
    twin = inspect.signature(vllm_startup.wait_until_ready_sync)
    assert list(twin.parameters) == list(original.parameters)
    assert vllm_startup.wait_until_ready_sync.__name__ == "wait_until_ready_sync"


def test_the_twin_refuses_misuse_as_the_original_does() -> None:
    with pytest.raises(ValueError, match="scheme"):
        vllm_startup.wait_until_ready_sync("127.0.0.1:8000")


async def test_a_watch_in_a_running_loop() -> None:
    assert ScriptedWait(ready_after(30)).sync().ready_s == 30
    with pytest.raises(vllm_startup.StartupError):
        ScriptedWait(killed_after(30)).sync()
