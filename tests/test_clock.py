"""The clock as a seam."""

from __future__ import annotations

import asyncio
import time

import pytest

from vllm_startup import Clock
from vllm_startup._clock import LoopClock


async def test_the_loops_clock_is_the_loops() -> None:
    clock: Clock = LoopClock()
    assert clock.now() == pytest.approx(asyncio.get_running_loop().time(), abs=0.5)
    wall = clock.wall()
    assert wall is not None
    assert wall == pytest.approx(time.time(), abs=0.5)


async def test_the_loops_clock_calls_back() -> None:
    clock = LoopClock()
    called: list[float] = []
    clock.call_at(clock.now() + 0.01, lambda: called.append(clock.now()))
    clock.call_at(clock.now() + 0.01, lambda: called.append(-1.0)).cancel()
    await asyncio.sleep(0.03)
    assert len(called) == 1
    assert called[0] > 0
