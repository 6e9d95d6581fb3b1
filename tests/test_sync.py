"""The synchronous twin, with and without a loop that runs already."""

from __future__ import annotations

import asyncio
import inspect
import threading

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
