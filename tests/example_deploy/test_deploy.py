"""The deployment script's own tests: no server, no GPU, and hours pass in milliseconds."""

from __future__ import annotations

from collections.abc import Callable

from deploy import deploy

from vllm_startup import Timeouts, causes
from vllm_startup.testing import FakeClock, ScriptedWait, failed_after, hung_after, killed_after, ready_after

BUSY = causes.GpuMemoryNotFree(message="the old server still holds the GPU", retryable=True)
BAD = causes.InvalidArguments(message="no such argument", retryable=False)

Waits = Callable[..., ScriptedWait]


class FakeService:
    url = "http://127.0.0.1:8000"

    def __init__(self) -> None:
        self.done: list[str] = []

    def start(self) -> int:
        self.done.append("start")
        return 4242

    def stop(self) -> None:
        self.done.append("stop")

    def roll_back(self, why: str) -> None:
        self.done.append("roll back")


async def test_a_good_version_is_deployed_at_once(vllm_startup_wait: Waits) -> None:
    service, wait = FakeService(), vllm_startup_wait(ready_after(95))
    report = await deploy(service, wait=wait)
    assert report is not None
    assert report.ready_s == 95
    assert service.done == ["start"]
    assert wait.calls == [
        {"url": "http://127.0.0.1:8000", "pid": 4242, "timeouts": Timeouts(1800, loading_weights=900)}
    ]


async def test_a_retryable_cause_is_tried_again(
    vllm_startup_wait: Waits, vllm_startup_clock: FakeClock
) -> None:
    service, wait = FakeService(), vllm_startup_wait(failed_after(20, BUSY), ready_after(95))
    report = await deploy(service, wait=wait, sleep=vllm_startup_clock.sleep)
    assert report is not None
    assert report.outcome == "ready"
    assert service.done == ["start", "start"]


async def test_pauses_grow_and_it_gives_up_in_the_end(
    vllm_startup_wait: Waits, vllm_startup_clock: FakeClock
) -> None:
    service, pauses = FakeService(), []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await vllm_startup_clock.sleep(seconds)

    wait = vllm_startup_wait(*[failed_after(20, BUSY)] * 3)
    assert await deploy(service, wait=wait, sleep=sleep) is None
    assert pauses == [30, 60]
    assert service.done == ["start", "start", "start", "roll back"]


async def test_a_cause_that_would_come_again_is_rolled_back(vllm_startup_wait: Waits) -> None:
    service = FakeService()
    assert await deploy(service, wait=vllm_startup_wait(failed_after(5, BAD))) is None
    assert service.done == ["start", "roll back"]


async def test_a_kill_is_rolled_back(vllm_startup_wait: Waits) -> None:
    service = FakeService()
    assert await deploy(service, wait=vllm_startup_wait(killed_after(60))) is None
    assert service.done == ["start", "roll back"]


async def test_a_server_that_hangs_is_stopped_and_rolled_back(
    vllm_startup_wait: Waits, vllm_startup_clock: FakeClock
) -> None:
    service = FakeService()
    assert await deploy(service, wait=vllm_startup_wait(hung_after(60))) is None
    assert service.done == ["start", "stop", "roll back"]
    assert 600 < vllm_startup_clock.now() < 700


async def test_a_start_that_takes_too_long_is_stopped_and_rolled_back(vllm_startup_wait: Waits) -> None:
    service = FakeService()
    assert await deploy(service, wait=vllm_startup_wait(ready_after(4000))) is None
    assert service.done == ["start", "stop", "roll back"]
