"""The GPU probe on a real driver, while a CUDA program loads, rests, jumps, frees and dies.

Prints its figures as one line of JSON (``pytest -s -m gpu tests/gpu``). Takes about 20 s.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vllm_startup._readings import GpuMemory, GpuSample
from vllm_startup.probes._gpu import GpuProbe

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 2**20
STEP_MIB, STEPS, JUMP_MIB = 256, 4, 2048
FOLLOWS_S = 2.0  # one interval of the probe, and what the driver takes to notice
DEATH_S = 5.0  # freed memory lags by up to seconds after a death
REST_S = 3.0
SLACK_MIB = 100  # the driver rounds, and keeps small things of its own


def _reason_to_skip() -> str | None:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return "no NVIDIA driver here"
    return None if shutil.which("nvcc") else "no nvcc here (apt-get install cuda-nvcc-*)"


_skip = _reason_to_skip()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_skip is not None, reason=str(_skip))]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("load") / "load"
    source = Path(__file__).with_name("load.cu")
    subprocess.run(
        ["nvcc", "-O1", "-Wno-deprecated-gpu-targets", "-o", program, source], check=True, timeout=120
    )
    return program


class Player:
    """The CUDA program, step by step."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    async def step(self) -> tuple[str, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        async with asyncio.timeout(60):
            word, mib = (await self._process.stdout.readline()).split()
        return word.decode(), int(mib)

    async def die(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        async with asyncio.timeout(30):
            return await self._process.wait()


class Watch:
    """Samples a probe at its own cadence."""

    def __init__(self, probe: GpuProbe) -> None:
        self._probe = probe
        self.costs_s: list[float] = []
        self.samples = 0

    async def one(self) -> GpuSample:
        before, cpu = time.monotonic(), time.process_time()
        [memory] = [r for r in await self._probe.sample(before) if isinstance(r, GpuMemory)]
        self.costs_s.append(time.process_time() - cpu)
        self.samples += 1
        return memory.gpus[0]

    async def until(self, reached: Callable[[GpuSample], bool], limit_s: float) -> float:
        """Return after how many seconds a sample at the probe's own cadence shows it."""
        start = time.monotonic()
        async with asyncio.timeout(limit_s + 10):
            while not reached(await self.one()):
                await asyncio.sleep(self._probe.interval_s)
        took = time.monotonic() - start
        assert took <= limit_s
        return took


async def test_readings_follow_a_real_program(load: Path) -> None:
    figures: dict[str, object] = {"python": sys.version.split()[0]}
    tree: list[int] = []
    probe = GpuProbe([0], tree_pids=lambda: tree)
    watch = Watch(probe)
    baseline = (await watch.one()).used_bytes
    first_cost_s = watch.costs_s.pop()
    process = await asyncio.create_subprocess_exec(
        *(load, "0", str(STEP_MIB), str(STEPS), str(JUMP_MIB)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": (await watch.one()).uuid},
    )
    player = Player(process)
    tree.append(player.pid)
    try:
        assert await player.step() == ("context", 0)
        figures["context_noticed_s"] = await watch.until(lambda s: s.used_bytes > baseline, FOLLOWS_S)
        context = (await watch.one()).used_bytes
        figures["context_mib"] = (context - baseline) // MIB

        def holds(mib: int) -> Callable[[GpuSample], bool]:
            return lambda s: abs((s.used_bytes - context) / MIB - mib) <= SLACK_MIB

        noticed = []
        for number in range(1, STEPS + 1):
            assert await player.step() == ("step", number * STEP_MIB)
            noticed.append(await watch.until(holds(number * STEP_MIB), FOLLOWS_S))
        figures["steps_noticed_s"] = noticed

        still = [(await watch.one()).used_bytes]
        rest_until = time.monotonic() + REST_S
        while time.monotonic() < rest_until:
            await asyncio.sleep(probe.interval_s)
            still.append((await watch.one()).used_bytes)
        figures["rest_spread_mib"] = (max(still) - min(still)) / MIB
        assert max(still) - min(still) <= SLACK_MIB * MIB

        full = STEPS * STEP_MIB + JUMP_MIB
        assert await player.step() == ("jump", full)
        figures["jump_noticed_s"] = await watch.until(holds(full), FOLLOWS_S)
        sample = await watch.one()
        figures["tree_mib"] = None if sample.tree_bytes is None else sample.tree_bytes // MIB
        if sample.tree_bytes is not None:  # None in a container, whose pids the driver does not know
            assert abs(sample.tree_bytes / MIB - full - (context - baseline) / MIB) <= 256

        assert await player.step() == ("freed", 0)
        figures["freed_noticed_s"] = await watch.until(holds(0), FOLLOWS_S)
        assert await player.step() == ("step", STEP_MIB)
        await watch.until(holds(STEP_MIB), FOLLOWS_S)

        assert await player.die() == -6
        figures["death_noticed_s"] = await watch.until(
            lambda s: s.used_bytes <= baseline + SLACK_MIB * MIB, DEATH_S
        )
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await probe.aclose()
    figures |= {
        "first_sample_cpu_ms": first_cost_s * 1000,
        "sample_cpu_ms": sorted(watch.costs_s)[len(watch.costs_s) // 2] * 1000,
        "samples": watch.samples,
        "total_mib": sample.total_bytes // MIB,
        "interval_s": probe.interval_s,
    }
    print(json.dumps(figures))


@pytest.mark.parametrize("tree", [(), (1,)], ids=["memory alone", "memory and processes"])
async def test_watching_costs_less_than_a_hundredth_of_a_core(tree: tuple[int, ...]) -> None:
    probe = GpuProbe(tree_pids=lambda: tree)
    await probe.sample(0)
    before, samples = time.process_time(), 50
    for _ in range(samples):
        readings = await probe.sample(0)
    cost_s = (time.process_time() - before) / samples
    [memory] = readings
    assert isinstance(memory, GpuMemory)
    print(
        json.dumps(
            {
                "gpus": len(memory.gpus),
                "processes": bool(tree),
                "sample_cpu_ms": cost_s * 1000,
                "interval_s": probe.interval_s,
            }
        )
    )
    await probe.aclose()
    assert cost_s / probe.interval_s <= 0.01


async def test_all_gpus_are_listed_with_their_uuids() -> None:
    probe = GpuProbe()
    [memory] = await probe.sample(0)
    await probe.aclose()
    assert isinstance(memory, GpuMemory)
    assert [gpu.index for gpu in memory.gpus] == list(range(len(memory.gpus)))
    assert all(gpu.uuid.startswith("GPU-") and 0 <= gpu.used_bytes < gpu.total_bytes for gpu in memory.gpus)


async def test_a_gpu_that_does_not_exist_is_told_with_those_that_do() -> None:
    probe = GpuProbe([99])
    [note] = await probe.sample(0)
    await probe.aclose()
    assert "gpus names 99, which is no single GPU here; there are: 0 (GPU-" in repr(note)
