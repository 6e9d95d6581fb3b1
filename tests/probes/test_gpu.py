"""The GPU probe on a fake NVML; test_gpu_stub.py has the real binding."""

# ruff: noqa: N802 - the fake repeats the names of NVML
from __future__ import annotations

import asyncio
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from vllm_startup._blocking import StillRunningError
from vllm_startup._readings import GpuMemory, ProbeNote, Reading
from vllm_startup.probes._gpu import GpuProbe
from vllm_startup.probes._gpu_nvml import DriverError, Handle, Memory, Owner, Session
from vllm_startup.probes._protocol import Probe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, GPU_IS_LOST, UNKNOWN = 3, 4, 6, 15, 999
INVALID_ARGUMENT = 2


class FakeError(Exception):
    """As pynvml's: the code is in `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakeNvml:
    """A machine with GPUs ``GPU-0``, ``GPU-1`` …; handles are UUIDs."""

    NVMLError = FakeError

    def __init__(self, gpus: int = 2) -> None:
        self.used = {f"GPU-{index}": 0 for index in range(gpus)}
        self.total = 100
        self.models: dict[str, str] = {}
        self.slices: dict[str, str] = {}
        self.owners: dict[str, list[Owner]] = {}
        self.errors: dict[str, int] = {}
        self.calls: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.spin: Callable[[], None] = lambda: None

    def _called(self, name: str, handle: Handle = "") -> None:
        self.calls.append(name)
        for key in (name, f"{name} {handle}"):
            if key in self.errors:
                raise FakeError(self.errors[key])

    def nvmlInit(self) -> None:
        self._called("init")

    def nvmlShutdown(self) -> None:
        self._called("shutdown")

    def nvmlDeviceGetCount(self) -> int:
        self._called("count")
        return len(self.used)

    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Handle:
        self._called("by_index", index)
        return list(self.used)[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str, /) -> Handle:
        self._called("by_uuid", uuid)
        if uuid not in self.used and uuid not in self.slices:
            raise FakeError(NOT_FOUND)
        return uuid

    def nvmlDeviceGetUUID(self, handle: Handle, /) -> str:
        return str(handle)

    def nvmlDeviceGetName(self, handle: Handle, /) -> str:
        return self.models.get(str(handle), "NVIDIA H200")

    def nvmlDeviceGetIndex(self, handle: Handle, /) -> int:
        return list(self.used).index(str(handle))

    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: int | None = None, /) -> Memory:
        assert version in (None, 0x02000028)
        self._called("memory" if version is not None else "memory_v1", handle)
        self.gate.wait(5)
        self.spin()
        return SimpleNamespace(used=self.used.get(str(handle), 1), total=self.total)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle, /) -> Sequence[Owner]:
        self._called("owners", handle)
        return self.owners.get(str(handle), [])

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle, /) -> int:
        self._called("slices", handle)
        return 2

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int, /) -> Handle:
        self._called("slice", index)
        cut = [uuid for uuid, parent in self.slices.items() if parent == handle]
        if index >= len(cut):
            raise FakeError(NOT_FOUND)
        return cut[index]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Handle, /) -> Handle:
        return self.slices[str(handle)]


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml()


@pytest.fixture(autouse=True)
async def _no_thread_is_left() -> AsyncIterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(2)
        assert not thread.is_alive(), thread.name


def used(readings: object) -> dict[str, int]:
    assert isinstance(readings, list)
    [memory] = readings
    assert isinstance(memory, GpuMemory)
    return {gpu.uuid: gpu.used_bytes for gpu in memory.gpus}


def codes(readings: object) -> list[str]:
    assert isinstance(readings, list)
    assert all(isinstance(reading, Reading) for reading in readings)
    return [reading.code for reading in readings if isinstance(reading, ProbeNote)]


def test_is_a_probe(nvml: FakeNvml) -> None:
    probe = GpuProbe(nvml=nvml)
    assert isinstance(probe, Probe)
    assert (probe.name, probe.interval_s, probe.limit_s) == ("gpu", 1.0, 10.0)


async def test_closes_twice_and_unused_without_a_call(nvml: FakeNvml) -> None:
    probe = GpuProbe(nvml=nvml)
    await probe.aclose()
    await probe.aclose()
    assert nvml.calls == []
    with pytest.raises(StopAsyncIteration):
        await probe.sample(0)


async def test_looks_for_devices_once_and_shuts_down_at_the_end(nvml: FakeNvml) -> None:
    probe = GpuProbe([1], nvml=nvml)
    assert used(await probe.sample(0)) == {"GPU-1": 0}
    nvml.used["GPU-1"] = 42
    assert used(await probe.sample(1)) == {"GPU-1": 42}
    await probe.aclose()
    assert nvml.calls == ["init", "count", "by_index", "by_index", "by_uuid", "memory", "memory", "shutdown"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"pid": 0}, "pid must be positive, got 0"),
        ({"pid": -4}, "pid must be positive, got -4"),
        ({"interval_s": 0.0}, "interval_s must be a positive number"),
        ({"interval_s": float("nan")}, "interval_s must be a positive number"),
        ({"limit_s": -1.0}, "limit_s must be a positive number"),
        ({"limit_s": float("inf")}, "limit_s must be a positive number"),
        ({"gpus": []}, "gpus is empty"),
    ],
)
def test_refuses_arguments_out_of_range(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        GpuProbe(**arguments)  # type: ignore[arg-type]  # a table of wrong values


async def test_watches_what_the_server_may_use_by_its_own_environment(nvml: FakeNvml) -> None:
    script = "import time; print(flush=True); time.sleep(60)"
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script), env={"CUDA_VISIBLE_DEVICES": "1"}, stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    await server.stdout.readline()
    probe = GpuProbe(pid=server.pid, nvml=nvml)
    assert used(await probe.sample(0)) == {"GPU-1": 0}
    server.kill()
    await server.communicate()
    assert used(await probe.sample(1)) == {"GPU-1": 0}  # its environment is gone, and remembered
    await probe.aclose()


async def test_follows_the_environment_when_a_launcher_becomes_the_server(nvml: FakeNvml) -> None:
    environ: dict[str, str] = {}
    probe = GpuProbe(environ=lambda: environ, nvml=nvml)
    assert used(await probe.sample(0)) == {"GPU-0": 0, "GPU-1": 0}
    environ |= {"CUDA_VISIBLE_DEVICES": "0", "HOME": "/root"}
    assert used(await probe.sample(1)) == {"GPU-0": 0}
    environ["CUDA_VISIBLE_DEVICES"] = "-1"
    assert codes(await probe.sample(2)) == ["gpu_none_visible"]
    assert await probe.sample(3) == []
    environ["CUDA_VISIBLE_DEVICES"] = "1"
    assert used(await probe.sample(4)) == {"GPU-1": 0}
    await probe.aclose()


async def test_asked_gpus_win_over_the_environment_which_is_not_read(nvml: FakeNvml) -> None:
    def environ() -> Mapping[str, str]:
        raise AssertionError("it was read")

    probe = GpuProbe(["GPU-0"], environ=environ, nvml=nvml)
    assert used(await probe.sample(0)) == {"GPU-0": 0}
    await probe.aclose()


async def test_watches_all_and_says_so_once_when_cuda_may_count_otherwise(nvml: FakeNvml) -> None:
    nvml.models["GPU-1"] = "NVIDIA T400"
    probe = GpuProbe(environ=lambda: {"CUDA_VISIBLE_DEVICES": "0"}, nvml=nvml)
    readings = await probe.sample(0)
    assert codes(readings) == ["gpu_order_unknown"]
    assert used(await probe.sample(1)) == {"GPU-0": 0, "GPU-1": 0}
    await probe.aclose()


async def test_a_machine_without_gpus_has_nothing_to_see() -> None:
    nvml = FakeNvml(gpus=0)
    probe = GpuProbe(nvml=nvml)
    assert codes(await probe.sample(0)) == ["gpu_none_found"]
    with pytest.raises(StopAsyncIteration):
        await probe.sample(1)
    assert nvml.calls == ["init", "count", "shutdown"]


@pytest.mark.parametrize("code", [9, 12, 28])
async def test_no_driver_at_first_ends_the_probe_with_a_note(nvml: FakeNvml, code: int) -> None:
    nvml.errors["init"] = code
    probe = GpuProbe(nvml=nvml)
    assert codes(await probe.sample(0)) == ["nvml_unavailable"]
    with pytest.raises(StopAsyncIteration):
        await probe.sample(1)


async def test_waits_longer_and_longer_for_a_driver_that_is_away(nvml: FakeNvml) -> None:
    nvml.errors["init"] = UNKNOWN
    probe = GpuProbe(nvml=nvml)
    tried_at = []
    for now in range(100):
        before = len(nvml.calls)
        with pytest.raises(DriverError, match="NVML failed: error 999"):
            await probe.sample(now)
        if len(nvml.calls) > before:
            tried_at.append(now)
    assert tried_at == [0, 1, 3, 7, 15, 31, 61, 91]
    del nvml.errors["init"]
    assert used(await probe.sample(121)) == {"GPU-0": 0, "GPU-1": 0}
    nvml.errors["memory"] = UNKNOWN
    for now in (122, 123):  # after a success the first wait is short again
        with pytest.raises(DriverError):
            await probe.sample(now)
    assert nvml.calls.count("init") == 8 + 1 + 1
    await probe.aclose()


async def test_a_failed_renewal_of_one_probe_renews_the_handles_of_another(nvml: FakeNvml) -> None:
    first, second = GpuProbe([0], nvml=nvml), GpuProbe([1], nvml=nvml)
    await first.sample(0)
    await second.sample(0)
    nvml.errors["memory GPU-0"] = UNKNOWN
    with pytest.raises(DriverError):
        await first.sample(1)
    nvml.calls.clear()
    assert used(await second.sample(1)) == {"GPU-1": 0}
    assert nvml.calls == ["init", "by_uuid", "memory"]
    nvml.errors.clear()
    assert used(await first.sample(2)) == {"GPU-0": 0}
    assert nvml.calls == ["init", "by_uuid", "memory", "by_uuid", "memory"]
    await first.aclose()
    assert "shutdown" not in nvml.calls
    await second.aclose()
    assert nvml.calls[-1] == "shutdown"


async def test_a_shutdown_that_fails_is_no_failure(nvml: FakeNvml) -> None:
    probe = GpuProbe(nvml=nvml)
    await probe.sample(0)
    nvml.errors["shutdown"] = UNKNOWN
    await probe.aclose()
    assert nvml.calls[-1] == "shutdown"


async def test_listing_skips_a_gpu_that_cannot_be_reached(nvml: FakeNvml) -> None:
    nvml.errors["by_index 0"] = NO_PERMISSION
    probe = GpuProbe(nvml=nvml)
    assert used(await probe.sample(0)) == {"GPU-1": 0}
    await probe.aclose()


async def test_a_listing_that_fails_is_done_again(nvml: FakeNvml) -> None:
    nvml.errors["by_index 0"] = UNKNOWN
    probe = GpuProbe(nvml=nvml)
    with pytest.raises(DriverError):
        await probe.sample(0)
    nvml.errors.clear()
    assert used(await probe.sample(1)) == {"GPU-0": 0, "GPU-1": 0}
    await probe.aclose()


async def test_memory_of_no_size_is_unsupported_and_not_zero(nvml: FakeNvml) -> None:
    nvml.total = 0
    probe = GpuProbe([0], nvml=nvml)
    assert codes(await probe.sample(0)) == ["gpu_memory_unsupported"]


@pytest.mark.parametrize("code", [3, 13, 25])
async def test_a_driver_without_the_newer_memory_call_is_asked_by_the_older(
    nvml: FakeNvml, code: int
) -> None:
    nvml.errors["memory"] = code
    probe = GpuProbe(nvml=nvml)
    assert used(await probe.sample(0)) == {"GPU-0": 0, "GPU-1": 0}
    assert nvml.calls.count("memory_v1") == 2
    await probe.aclose()


async def test_a_gpu_that_cannot_be_opened_again_is_left_out(nvml: FakeNvml) -> None:
    probe = GpuProbe(nvml=nvml)
    await probe.sample(0)
    nvml.errors |= {"memory GPU-0": UNKNOWN, "by_uuid GPU-0": GPU_IS_LOST}
    for now in (1, 2):
        with pytest.raises(DriverError):
            await probe.sample(now)
    readings = await probe.sample(4)
    assert codes(readings) == ["gpu_lost"]
    assert used(await probe.sample(5)) == {"GPU-1": 0}
    nvml.errors = {"memory GPU-1": UNKNOWN}  # the next initialisation brings it back
    with pytest.raises(DriverError):
        await probe.sample(6)
    nvml.errors.clear()
    assert used(await probe.sample(7)) == {"GPU-0": 0, "GPU-1": 0}
    nvml.errors["memory GPU-0"] = GPU_IS_LOST
    with pytest.raises(DriverError):  # lost anew, so that it is looked for anew
        await probe.sample(8)
    await probe.aclose()


async def test_a_lost_gpu_is_forgotten_when_the_server_does_not_use_it(nvml: FakeNvml) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0"}
    probe = GpuProbe(environ=lambda: environ, nvml=nvml)
    await probe.sample(0)
    nvml.errors["memory GPU-0"] = GPU_IS_LOST
    with pytest.raises(DriverError):
        await probe.sample(1)
    environ["CUDA_VISIBLE_DEVICES"] = ""
    assert codes(await probe.sample(2)) == ["gpu_none_visible"]
    await probe.aclose()


def test_renewing_an_epoch_that_has_passed_does_nothing(nvml: FakeNvml) -> None:
    session = Session(nvml)
    first = session.enter("a")
    session.renew(first)
    second = session.enter("b")
    session.renew(first)
    assert session.enter("a") == second
    session.leave("a")
    assert nvml.calls == ["init", "shutdown", "init"]
    session.leave("b")
    session.leave("b")
    assert nvml.calls == ["init", "shutdown", "init", "shutdown"]


async def test_says_why_a_driver_that_was_replaced_does_not_answer(nvml: FakeNvml) -> None:
    nvml.errors["init"] = 18
    with pytest.raises(DriverError, match=r"NVML failed: error 18 .code 18.; the driver was replaced"):
        await (probe := GpuProbe(nvml=nvml)).sample(0)
    await probe.aclose()


async def test_all_gpus_lost_is_a_failure_and_not_silence(nvml: FakeNvml) -> None:
    probe = GpuProbe([0], nvml=nvml)
    await probe.sample(0)
    nvml.errors["memory GPU-0"] = GPU_IS_LOST
    with pytest.raises(DriverError, match="error 15"):
        await probe.sample(1)
    for now in (2, 4):
        with pytest.raises(DriverError, match="error 15"):
            await probe.sample(now)
    nvml.errors.clear()
    readings = await probe.sample(8)
    assert codes(readings) == ["gpu_lost"]
    assert used(readings[1:]) == {"GPU-0": 0}  # type: ignore[index]  # a list
    await probe.aclose()


async def test_a_slice_that_is_not_listed_is_found_by_its_name(nvml: FakeNvml) -> None:
    nvml.slices = {"MIG-GPU-1/1/0": "GPU-1"}
    nvml.errors["slices"] = INVALID_ARGUMENT  # as for a GPU without MIG
    probe = GpuProbe(["MIG-GPU-1/1/0"], nvml=nvml)
    [memory] = await probe.sample(0)
    assert isinstance(memory, GpuMemory)
    assert [(gpu.index, gpu.uuid) for gpu in memory.gpus] == [(1, "MIG-GPU-1/1/0")]
    await probe.aclose()


async def test_a_listed_slice_may_be_abbreviated(nvml: FakeNvml) -> None:
    nvml.slices = {"MIG-aa": "GPU-0", "MIG-bb": "GPU-0", "MIG-cc": "GPU-1"}
    probe = GpuProbe(["MIG-b", "MIG-c"], nvml=nvml)
    assert used(await probe.sample(0)) == {"MIG-bb": 1, "MIG-cc": 1}
    await probe.aclose()


@pytest.mark.parametrize("broken", ["slices", "slice"])
async def test_a_slice_that_does_not_exist_is_told(nvml: FakeNvml, broken: str) -> None:
    nvml.errors[broken] = UNKNOWN
    assert codes(await GpuProbe(["MIG-x"], nvml=nvml).sample(0)) == ["gpu_not_found"]


@pytest.mark.parametrize(
    ("tree", "owners", "expected"),
    [
        pytest.param((), {"GPU-0": [(7, 5)]}, [None, None], id="no tree"),
        pytest.param(None, {"GPU-0": [(7, 5)]}, [None, None], id="tree not known"),
        pytest.param((7, 8), {}, [None, None], id="no process named: a container"),
        pytest.param(
            (7, 8), {"GPU-0": [(1, 5)]}, [None, None], id="only others': a container, or nothing yet"
        ),
        pytest.param((7, 8), {"GPU-0": [(7, 5), (8, 6), (1, 9)]}, [11, 0], id="ours on one GPU"),
        pytest.param((7, 8), {"GPU-0": [(7, 5)], "GPU-1": [(8, 6)]}, [5, 6], id="ours on both"),
        pytest.param((7, 8), {"GPU-0": [(7, 5), (8, None)]}, [None, 0], id="a size is not told"),
        pytest.param((7, 8), {"GPU-0": [(7, 5), (1, None)]}, [5, 0], id="another's size is not told"),
    ],
)
async def test_tells_what_the_tree_holds(
    nvml: FakeNvml,
    tree: tuple[int, ...] | None,
    owners: dict[str, list[tuple[int, int | None]]],
    expected: list[int | None],
) -> None:
    for uuid, held in owners.items():
        nvml.owners[uuid] = [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in held]
    probe = GpuProbe(tree_pids=lambda: tree, nvml=nvml)
    [memory] = await probe.sample(0)
    assert isinstance(memory, GpuMemory)
    assert [gpu.tree_bytes for gpu in memory.gpus] == expected
    assert ("owners" in nvml.calls) is bool(tree)
    await probe.aclose()


async def test_processes_that_may_not_be_listed_are_not_told(nvml: FakeNvml) -> None:
    nvml.errors["owners"] = NO_PERMISSION
    probe = GpuProbe(tree_pids=lambda: [7], nvml=nvml)
    [memory] = await probe.sample(0)
    assert isinstance(memory, GpuMemory)
    assert [gpu.tree_bytes for gpu in memory.gpus] == [None, None]
    nvml.errors["owners"] = UNKNOWN
    with pytest.raises(DriverError):
        await probe.sample(1)
    await probe.aclose()


async def test_a_cancelled_sample_leaves_the_next_one_free(nvml: FakeNvml) -> None:
    nvml.gate.clear()
    probe = GpuProbe(nvml=nvml)
    task = asyncio.create_task(probe.sample(0))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(StillRunningError):
        await probe.sample(1)
    nvml.gate.set()
    await _settled(probe)
    assert used(await probe.sample(2)) == {"GPU-0": 0, "GPU-1": 0}
    await probe.aclose()


async def test_closing_during_a_call_returns_at_once_and_the_call_releases(nvml: FakeNvml) -> None:
    nvml.gate.clear()
    probe = GpuProbe(nvml=nvml)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await probe.sample(0)
    async with asyncio.timeout(0.2):
        await probe.aclose()
    assert "shutdown" not in nvml.calls
    nvml.gate.set()
    await _settled(probe)
    assert nvml.calls[-1] == "shutdown"


async def _settled(probe: GpuProbe) -> None:
    async with asyncio.timeout(5):
        while probe._runner.busy:
            await asyncio.sleep(0.001)


async def test_looks_less_often_where_the_driver_is_dear(nvml: FakeNvml) -> None:
    nvml.spin = lambda: _burn(0.004)
    probe = GpuProbe(nvml=nvml)
    await probe.sample(0)
    assert 2.0 <= probe.interval_s <= 5.0  # 8 ms a sample at 0.4 % of a core: each 2 s
    nvml.spin = lambda: _burn(0.02)
    await probe.sample(1)
    assert probe.interval_s == 5.0
    nvml.spin = lambda: None
    await probe.sample(2)
    assert probe.interval_s == 1.0
    await probe.aclose()


def _burn(seconds: float) -> None:
    import time

    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_an_interval_that_was_asked_for_stays(nvml: FakeNvml) -> None:
    nvml.spin = lambda: _burn(0.004)
    probe = GpuProbe(interval_s=0.5, limit_s=None, nvml=nvml)
    await probe.sample(0)
    assert (probe.interval_s, probe.limit_s) == (0.5, None)
    await probe.aclose()


async def test_an_environment_that_raises_is_told_and_read_again(nvml: FakeNvml) -> None:
    answers: list[Mapping[str, str] | Exception] = [ValueError("no"), {"CUDA_VISIBLE_DEVICES": "1"}]

    def environ() -> Mapping[str, str]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    probe = GpuProbe(environ=environ, nvml=nvml)
    with pytest.raises(ValueError, match="no"):
        await probe.sample(0)
    assert used(await probe.sample(1)) == {"GPU-1": 0}
    await probe.aclose()
