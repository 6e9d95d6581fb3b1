"""A watch over a target: any object that can be located."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable

import pytest

import vllm_startup
from vllm_startup.probes import Answer, ProcessFound
from vllm_startup.targets import Site, TargetError
from vllm_startup.testing import FakeClock, ScriptedProbe


class Unit:
    """A target as a user may write it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.asked: list[Iterable[int | str] | None] = []
        self.threads: list[int] = []

    def locate(self, *, gpus: Iterable[int | str] | None = None) -> Site:
        self.asked.append(gpus)
        self.threads.append(threading.get_ident())
        return self.site


def site() -> Site:
    process = ScriptedProbe("process", [(0, ProcessFound(pid=7))], follows_restarts=True)
    answer = ScriptedProbe("answers", [(5, Answer(tier="health", ok=True, status=200))])
    return Site(name="unit vllm.service", probes=[process, answer], url=lambda: "http://127.0.0.1:1")


async def test_a_target_brings_its_probes_and_its_address() -> None:
    unit = Unit(site())
    report = await vllm_startup.wait_until_ready(target=unit, gpus=[0], restarts=1, clock=FakeClock())
    assert report.outcome == "ready"
    assert report.url == "http://127.0.0.1:1"
    assert unit.asked == [[0]]
    assert unit.threads != [threading.get_ident()]  # asking may take seconds


async def test_an_address_that_the_caller_gives_wins() -> None:
    async with vllm_startup.watch("http://127.0.0.1:2", target=Unit(site())) as startup:
        assert startup.report().url == "http://127.0.0.1:2"


async def test_a_target_that_hangs_can_be_cancelled() -> None:
    release = threading.Event()

    class Hanging:
        def locate(self, *, gpus: Iterable[int | str] | None = None) -> Site:
            release.wait(10)
            return site()

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await vllm_startup.wait_until_ready(target=Hanging())
    assert time.monotonic() - began < 2
    release.set()


async def test_a_target_that_cannot_be_watched_says_so_before_anything_starts() -> None:
    class Missing:
        def locate(self, *, gpus: Iterable[int | str] | None = None) -> Site:
            raise TargetError("unit vlm.service does not exist; did you mean vllm.service?")

    with pytest.raises(ValueError, match="did you mean vllm"):
        await vllm_startup.wait_until_ready(target=Missing())


@pytest.mark.parametrize("other", [{"pid": 1}, {"log": "vllm.log"}])
async def test_a_target_finds_its_own_process_and_log(other: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="either target= or"):
        vllm_startup.watch(target=Unit(site()), **other)  # type: ignore[arg-type]


async def test_what_is_no_target_is_refused_by_its_name() -> None:
    with pytest.raises(TypeError, match=r"target must be one of vllm_startup\.targets"):
        await vllm_startup.wait_until_ready(target="vllm.service")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"target must be one of vllm_startup\.targets"):
        vllm_startup.watch(target="vllm.service")  # type: ignore[arg-type]
