"""GPU memory of another machine, as its nvidia-smi tells it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from far import SHELLS, Near

from vllm_startup.probes import GpuMemory, GpuSample, ProbeNote, Reading
from vllm_startup.targets._ssh.connection import ConnectionLostError
from vllm_startup.targets._ssh.gpus import FarGpuProbe, NvidiaSmiError

MIB = 1 << 20
TWO = """\
0, GPU-aaaa, NVIDIA H200, 73731, 97887
1, GPU-bbbb, "NVIDIA RTX, PRO 6000", 512, 97887
"""


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Near]:
    made = Near(tmp_path)
    yield made
    made.close()


def nvidia_smi(near: Near, devices: str, apps: str = "", status: int = 0) -> None:
    near.program(
        "nvidia-smi",
        f"case $1 in --query-gpu=*) printf '%s' '{devices}'; exit {status};; *) printf '%s' '{apps}';; esac",
    )


def probe(near: Near, *, pid: int | None = None, tree: tuple[int, ...] = (), **terms: object) -> FarGpuProbe:
    return FarGpuProbe(near, pid=lambda: pid, tree_pids=lambda: tree, **terms)  # type: ignore[arg-type]


async def looked(looking: FarGpuProbe) -> list[Reading]:
    return list(await looking.sample(0.0))


def sample(index: int, uuid: str, used: int, tree: int | None = None) -> GpuSample:
    return GpuSample(
        index=index, uuid=uuid, used_bytes=used * MIB, total_bytes=97_887 * MIB,
        tree_bytes=None if tree is None else tree * MIB,
    )  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
async def test_memory_is_read_in_mebibytes(tmp_path: Path, shell: str) -> None:
    near = Near(tmp_path, shell)
    nvidia_smi(near, TWO)
    looking = probe(near)
    expected = GpuMemory(gpus=(sample(0, "GPU-aaaa", 73_731), sample(1, "GPU-bbbb", 512)))
    assert await looked(looking) == [expected]
    assert await looked(looking) == [expected]
    await looking.aclose()
    near.close()


async def test_the_trees_share_is_told_where_the_driver_tells_it(near: Near) -> None:
    nvidia_smi(near, TWO, "GPU-aaaa, 41, 70000\nGPU-aaaa, 99, 3000\nGPU-bbbb, 99, [N/A]\n")
    looking = probe(near, tree=(41, 42))
    assert await looked(looking) == [
        GpuMemory(gpus=(sample(0, "GPU-aaaa", 73_731, 70_000), sample(1, "GPU-bbbb", 512, 0)))
    ]
    await looking.aclose()
    strangers = probe(near, tree=(7,))  # pids of another namespace: 0 would be a guess
    assert await looked(strangers) == [
        GpuMemory(gpus=(sample(0, "GPU-aaaa", 73_731), sample(1, "GPU-bbbb", 512)))
    ]
    await strangers.aclose()


async def test_the_servers_own_environment_chooses(near: Near) -> None:
    nvidia_smi(near, TWO)
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    server = subprocess.Popen(["sleep", "60"], env=environ)
    looking = probe(near, pid=server.pid)
    assert await looked(looking) == [GpuMemory(gpus=(sample(1, "GPU-bbbb", 512),))]
    server.kill()
    server.wait()
    assert await looked(looking) == [GpuMemory(gpus=(sample(1, "GPU-bbbb", 512),))]  # what was known
    await looking.aclose()


async def test_the_caller_chooses(near: Near) -> None:
    nvidia_smi(near, TWO)
    looking = probe(near, gpus=["GPU-b", 7])
    note, memory = await looked(looking)
    assert isinstance(note, ProbeNote)
    assert note.code == "gpu_not_found"
    assert memory == GpuMemory(gpus=(sample(1, "GPU-bbbb", 512),))
    assert await looked(looking) == [memory]
    await looking.aclose()


async def test_a_gpu_that_does_not_tell_is_left_out_and_told_once(near: Near) -> None:
    nvidia_smi(near, "0, GPU-aaaa, NVIDIA H200, [N/A], [N/A]\n1, GPU-bbbb, NVIDIA H200, 512, 97887\n")
    looking = probe(near)
    note, memory = await looked(looking)
    assert note == ProbeNote(
        code="gpu_memory_unsupported", text="GPU 0 (GPU-aaaa) does not tell its memory: [N/A]"
    )
    assert memory == GpuMemory(gpus=(sample(1, "GPU-bbbb", 512),))
    assert await looked(looking) == [memory]
    nvidia_smi(near, "1, GPU-bbbb, NVIDIA H200, 512, 97887\n")
    gone, _ = await looked(looking)
    assert isinstance(gone, ProbeNote)
    assert "nvidia-smi lists it no longer" in gone.text
    await looking.aclose()


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        (None, "there is no nvidia-smi on gpubox, so GPU memory is not watched"),
        ("No devices were found\n", "nvidia-smi finds no GPU on gpubox, so GPU memory is not watched"),
    ],
)
async def test_where_there_is_nothing_to_see_that_is_told_once(
    near: Near, devices: str | None, text: str
) -> None:
    if devices is not None:
        nvidia_smi(near, devices, status=6)
    looking = probe(near)
    assert await looked(looking) == [ProbeNote(code="nvml_unavailable", text=text)]
    with pytest.raises(StopAsyncIteration):
        await looked(looking)
    await looking.aclose()


async def test_a_driver_that_fails_is_tried_again(near: Near) -> None:
    nvidia_smi(near, "Failed to initialize NVML: Driver/library version mismatch\n", status=18)
    looking = probe(near)
    with pytest.raises(NvidiaSmiError, match="failed on gpubox: Failed to initialize NVML"):
        await looked(looking)
    nvidia_smi(near, TWO)
    assert len(await looked(looking)) == 1
    await looking.aclose()


async def test_one_that_hangs_is_named_and_not_started_again(
    near: Near, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_startup.targets._ssh.gpus._ANSWER_S", 0.3)
    calls = tmp_path / "calls"
    near.program(
        "nvidia-smi", f"echo x >>{calls}; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo '{TWO}'"
    )
    looking = probe(near)
    for _ in range(2):
        near.heard_at = float("inf")  # others are answered
        with pytest.raises(TimeoutError, match="nvidia-smi on gpubox hangs"):
            await looked(looking)
    assert calls.read_text() == "x\n"
    near.heard_at = float("-inf")  # nobody is: it is not nvidia-smi's fault
    with pytest.raises(ConnectionLostError, match="gpubox gives no answer"):
        await looked(looking)
    (tmp_path / "go").touch()
    monkeypatch.setattr("vllm_startup.targets._ssh.gpus._ANSWER_S", 10.0)
    assert len(await looked(looking)) == 1
    await looking.aclose()


async def test_a_slow_one_is_asked_more_rarely(near: Near) -> None:
    nvidia_smi(near, TWO)
    looking = probe(near)
    await looked(looking)
    assert looking.interval_s == pytest.approx(1.0, abs=0.5)
    near.program("nvidia-smi", f"sleep 0.3; echo '{TWO}'")
    await looked(looking)
    assert 1.5 < looking.interval_s <= 5.0
    await looking.aclose()


def test_nonsense_is_refused(near: Near) -> None:
    with pytest.raises(ValueError, match="gpus must hold indices"):
        probe(near, gpus=["cuda:0"])
