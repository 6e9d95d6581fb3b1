"""Probes that go with the main process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from vllm_startup.probes import ProbeNote, Reading
from vllm_startup.targets import FollowingProbe, MainProcess


class Looking:
    """A probe that says which process it looks at; then waits, as a probe of exits does."""

    name = "looking"
    interval_s = 0.0
    limit_s = None

    def __init__(self, pid: int) -> None:
        if pid == 13:
            raise ValueError("pid 13 does not exist")
        self.pid = pid
        self.looked = 0
        self.closed = False
        self.release = asyncio.Event()

    async def sample(self, now: float) -> Iterable[Reading]:
        self.looked += 1
        if self.looked > 1:
            await self.release.wait()
            raise StopAsyncIteration
        return [ProbeNote(code="found", text=str(self.pid))]

    async def aclose(self) -> None:
        self.closed = True


def texts(readings: Iterable[Reading]) -> list[str]:
    return [reading.text for reading in readings if isinstance(reading, ProbeNote)]


async def test_it_sees_nothing_while_there_is_no_process() -> None:
    probe = FollowingProbe("looking", MainProcess(), Looking)
    assert list(await probe.sample(0.0)) == []
    assert probe.interval_s > 0  # and does not spin
    assert probe.probe is None


async def test_a_new_process_gets_a_new_probe_while_the_old_one_still_waits() -> None:
    main = MainProcess(7)
    probe = FollowingProbe("looking", main, Looking)
    assert texts(await probe.sample(0.0)) == ["7"]
    old = probe.probe
    assert old is not None
    waiting = asyncio.create_task(probe.sample(1.0))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    main.pid = 8
    assert list(await waiting) == []
    assert texts(await probe.sample(2.0)) == ["8"]
    assert old.closed
    await probe.aclose()
    assert probe.probe is None


async def test_a_probe_that_has_seen_all_waits_for_the_next_process() -> None:
    main = MainProcess(7)
    probe = FollowingProbe("looking", main, Looking)
    await probe.sample(0.0)
    assert probe.probe is not None
    probe.probe.release.set()
    assert list(await probe.sample(1.0)) == []
    assert probe.interval_s > 0
    assert list(await probe.sample(2.0)) == []
    assert probe.probe.looked == 2  # it is not asked again
    main.pid = 8
    assert texts(await probe.sample(3.0)) == ["8"]


async def test_a_process_that_ended_before_it_was_looked_at_is_not_seen() -> None:
    main = MainProcess(13)
    probe = FollowingProbe("looking", main, Looking)
    assert list(await probe.sample(0.0)) == []
    main.pid = 8
    assert texts(await probe.sample(1.0)) == ["8"]


async def test_cancelling_a_sample_cancels_the_probes_own() -> None:
    probe = FollowingProbe("looking", MainProcess(7), Looking)
    await probe.sample(0.0)
    before = asyncio.all_tasks()
    waiting = asyncio.create_task(probe.sample(1.0))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() == before
