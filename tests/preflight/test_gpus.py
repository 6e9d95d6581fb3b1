"""GPUs that are not there, or not free: judged on what the driver told."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from installs import Venv, facts

from vllm_startup._preflight import check_gpus
from vllm_startup._preflight.facts import Facts, Once
from vllm_startup._preflight.result import NotCheckedError
from vllm_startup._readings import ProbeNote
from vllm_startup.causes import Cause, GpuMemoryNotFree, NoGpuDetected, NotEnoughGpus
from vllm_startup.probes._gpu_look import GpuLook, GpuState
from vllm_startup.probes._gpu_nvml import DriverError, NoNvmlError

GIB = 1024**3


def gpu(
    index: int, used: float = 0, *, total: float = 80, holders: Mapping[int, int | None] | None = None
) -> GpuState:
    return GpuState(
        index=index,
        uuid=f"GPU-{index}",
        used_bytes=int(used * GIB),
        free_bytes=int((total - used) * GIB),
        holders=holders or {},
    )


def seen(*gpus: GpuState, listed: int | None = None, models: Sequence[str] = (), note: str = "") -> GpuLook:
    count = len(gpus) if listed is None else listed
    notes = (ProbeNote(code=note, text=""),) if note else ()
    return GpuLook(listed=count, models=tuple(models) or ("H200",) * count, gpus=gpus, notes=notes)


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    return Venv.make(tmp_path / "venv")


def asked(
    venv: Venv, look: GpuLook | Exception, *words: str, version: str | None = "0.32.0", **environ: str
) -> Facts:
    if version is not None:
        venv.add("vllm", version)
    found = facts([venv.vllm, "serve", "m", *words], environ)

    def told() -> GpuLook:
        if isinstance(look, Exception):
            raise look
        return look

    found.gpus = Once(told)
    return found


def texts(cause: Cause) -> list[str]:
    return [item.text for item in cause.evidence]


# --- as many as are asked for ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("", 1),
        ("--tensor-parallel-size 8", 8),
        ("-tp 4 -pp 2", 8),
        ("-tp=2 --data-parallel-size 3", 6),
        ("-tp 2 -dp 8 -dpl 2", 4),
        ("-tp 2 --data-parallel-size 4 --data-parallel-rank 1", 2),
        ("--prefill-context-parallel-size 2 -tp 2", 4),
        ("--distributed-executor-backend mp -tp 3", 3),
    ],
)
def test_what_the_parallel_sizes_ask_for_must_be_there(venv: Venv, words: str, needed: int) -> None:
    enough = seen(*(gpu(i) for i in range(needed)))
    venv.add("vllm", "0.32.0")
    assert list(check_gpus.gpus(asked(venv, enough, *words.split(), version=None))) == []
    if needed > 1:
        few = seen(*(gpu(i) for i in range(needed - 1)))
        [found] = check_gpus.gpus(asked(venv, few, *words.split(), version=None))
        assert isinstance(found, NotEnoughGpus)
        assert (found.needed, found.available, found.confidence) == (needed, needed - 1, "certain")


def test_why_they_are_too_few_is_told(venv: Venv) -> None:
    look = seen(gpu(0), gpu(1), listed=8)
    [found] = check_gpus.gpus(asked(venv, look, "-tp", "2", "-pp", "2", CUDA_VISIBLE_DEVICES="0,1"))
    assert found.message == "there are fewer GPUs than the parallel sizes ask for: 4 wanted, 2 there"
    assert found.hint == "keep tensor times pipeline parallel size within 2"
    assert texts(found) == [
        "the driver lists 8 GPUs",
        "CUDA_VISIBLE_DEVICES=0,1",
        "the arguments ask for tensor parallel size 2 times pipeline parallel size 2",
    ]


@pytest.mark.parametrize(
    ("version", "words", "confidence"),
    [
        ("0.13.0", [], "certain"),
        ("0.12.0", [], "likely"),  # it turned to Ray then, which may know other machines
        ("0.12.0", ["--distributed-executor-backend", "mp"], "certain"),
        ("0.1.dev1+gabcdef", [], "likely"),
        (None, [], "likely"),
    ],
)
def test_how_sure_it_is_depends_on_the_release(
    venv: Venv, version: str | None, words: list[str], confidence: str
) -> None:
    [found] = check_gpus.gpus(asked(venv, seen(gpu(0)), "-tp", "2", *words, version=version))
    assert found.confidence == confidence


@pytest.mark.parametrize(
    "words",
    [
        "--nnodes 2 -tp 16",
        "-tp 16 --distributed-executor-backend ray",
        "-tp 16 --distributed-executor-backend external_launcher",
        "-dp 16 --data-parallel-backend ray",
        "-dp 16 --data-parallel-address 10.0.0.1",
        "-tp many",
    ],
)
def test_where_other_machines_may_take_part_nothing_is_claimed(venv: Venv, words: str) -> None:
    with pytest.raises(NotCheckedError):
        list(check_gpus.gpus(asked(venv, seen(gpu(0)), *words.split())))
    with pytest.raises(NotCheckedError):
        list(check_gpus.gpu_memory(asked(venv, seen(gpu(0, 79)), *words.split(), version=None)))


def test_no_gpu_is_left_by_the_environment(venv: Venv) -> None:
    [found] = check_gpus.gpus(asked(venv, seen(listed=8), CUDA_VISIBLE_DEVICES=""))
    assert isinstance(found, NoGpuDetected)
    assert found.confidence == "certain"
    assert texts(found) == ["the driver lists 8 GPUs", "CUDA_VISIBLE_DEVICES="]


def test_how_many_are_visible_is_known_where_which_is_not(venv: Venv) -> None:
    """GPUs of different models in CUDA's own order: all are looked at, two may be used."""
    look = seen(gpu(0), gpu(1), gpu(2), models=("a", "b", "a"), note="gpu_order_unknown")
    [found] = check_gpus.gpus(asked(venv, look, "-tp", "3", CUDA_VISIBLE_DEVICES="0,1"))
    assert found.fields == {"needed": 3, "available": 2}


def test_without_a_driver_a_cuda_build_finds_no_gpu(venv: Venv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_gpus, "_DEVICE_FILES", ("/gone",))
    [found] = check_gpus.gpus(asked(venv, NoNvmlError("libnvidia-ml.so.1")))
    assert isinstance(found, NoGpuDetected)
    assert found.confidence == "likely"


@pytest.mark.parametrize(
    ("version", "files"), [("0.32.0", ("/dev/null",)), (None, ("/gone",)), ("0.32.0+rocm700", ("/gone",))]
)
def test_without_a_driver_other_hardware_may_be_there(
    venv: Venv, monkeypatch: pytest.MonkeyPatch, version: str | None, files: tuple[str, ...]
) -> None:
    monkeypatch.setattr(check_gpus, "_DEVICE_FILES", files)
    with pytest.raises(NotCheckedError):
        list(check_gpus.gpus(asked(venv, NoNvmlError("libnvidia-ml.so.1"), version=version)))


def test_a_driver_in_trouble_is_told_and_nothing_claimed(venv: Venv) -> None:
    for check in (check_gpus.gpus, check_gpus.gpu_memory):
        with pytest.raises(NotCheckedError, match="NVML failed"):
            list(check(asked(venv, DriverError("NVML failed: x (code 999)"), version=None)))


def test_a_plug_in_for_other_hardware_tells_what_it_was_built_for(venv: Venv) -> None:
    venv.add("vllm-ascend", "0.32.0")
    with pytest.raises(NotCheckedError, match="built for ascend"):
        list(check_gpus.gpus(asked(venv, NoNvmlError("x"))))


@pytest.mark.parametrize(
    ("version", "words", "reason"),
    [
        ("0.32.0+cpu", [], "built for cpu"),
        ("0.32.0+empty", [], "built for empty"),
        ("0.9.0", ["--device", "cpu"], "--device cpu"),
    ],
)
def test_a_server_without_gpus_needs_none(venv: Venv, version: str, words: list[str], reason: str) -> None:
    with pytest.raises(NotCheckedError, match=reason):
        list(check_gpus.gpus(asked(venv, seen(), *words, version=version)))


# --- memory ---------------------------------------------------------------------------------------


def memory(venv: Venv, look: GpuLook, *words: str, **further: str) -> list[Cause]:
    return list(check_gpus.gpu_memory(asked(venv, look, *words, **further)))


def test_memory_that_is_held_by_somebody_else(venv: Venv) -> None:
    look = seen(gpu(0, 70.5, holders={os.getpid(): int(70.2 * GIB)}))
    [found] = memory(venv, look, "--gpu-memory-utilization", "0.85")
    assert isinstance(found, GpuMemoryNotFree)
    assert found.fields == {
        "device": 0,
        "free_bytes": int(9.5 * GIB),
        "total_bytes": 80 * GIB,
        "wanted_bytes": 68 * GIB,
        "utilization": 0.85,
    }
    assert found.message == "only 9.50 of 80.00 GiB of memory are free on GPU 0"
    assert found.hint == "end the process that holds the GPU's memory"
    assert texts(found)[0] == "a utilisation of 0.85 asks for 68.00 GiB"
    assert texts(found)[1].startswith(f"process {os.getpid()} (")
    assert texts(found)[1].endswith("holds 70.20 GiB")
    assert found.confidence == "certain"


def test_a_lower_utilisation_is_advised_where_it_may_do(venv: Venv) -> None:
    [found] = memory(venv, seen(gpu(0, 20.0)))
    assert found.hint == (
        "end the process that holds the GPU's memory, or start with --gpu-memory-utilization 0.75 or less"
    )
    assert texts(found)[1] == "the driver names no process that holds it: look outside this container"


@pytest.mark.parametrize(
    ("version", "used", "found"),
    [
        ("0.32.0", 6.3, False),
        ("0.32.0", 6.5, True),  # 0.92
        ("0.20.0", 6.5, False),  # 0.9, as far as is known
        ("0.20.0", 8.1, True),
        (None, 7.9, False),
        (None, 8.1, True),
    ],
)
def test_the_default_is_that_of_the_release(
    venv: Venv, version: str | None, used: float, found: bool
) -> None:
    assert bool(list(check_gpus.gpu_memory(asked(venv, seen(gpu(0, used)), version=version)))) is found


def test_eight_full_gpus_are_one_fault(venv: Venv) -> None:
    look = seen(*(gpu(i, 70 + i / 10, holders={900_000 + i: 70 * GIB}) for i in range(8)))
    [found] = memory(venv, look, "-tp", "8")
    assert found.message == "only 9.30 of 80.00 GiB of memory are free on GPU 7, and too little on 7 more"
    assert texts(found)[1:] == [
        "process 900000 holds 70.00 GiB",
        "process 900001 holds 70.00 GiB",
        "process 900002 holds 70.00 GiB",
        "and 5 more processes",
    ]


def test_gpus_that_the_server_does_not_use_may_be_full(venv: Venv) -> None:
    assert memory(venv, seen(gpu(0), gpu(1, 79)), "-tp", "1") == []


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (seen(gpu(0), gpu(1, 79), models=("a", "b")), ["-tp", "1"]),
        (seen(gpu(0), gpu(1, 79), note="gpu_order_unknown"), ["-tp", "1"]),
        (seen(gpu(0), gpu(1, 79)), ["--device-ids", "1"]),
        (seen(gpu(0, 79)), ["--gpu-memory-utilization", "9"]),
    ],
)
def test_what_cannot_be_told_is_not_claimed(venv: Venv, look: GpuLook, words: list[str]) -> None:
    with pytest.raises(NotCheckedError):
        memory(venv, look, *words)


def test_memory_that_is_shared_with_the_host_is_not_judged(venv: Venv) -> None:
    unified = GpuState(index=0, uuid="GPU-0", used_bytes=None, free_bytes=None, holders={})
    with pytest.raises(NotCheckedError, match="not every GPU tells"):
        memory(venv, seen(unified))


def test_a_process_whose_share_is_not_told_is_named_all_the_same(venv: Venv) -> None:
    [found] = memory(venv, seen(gpu(0, 70, holders={900_000: None})))
    assert texts(found)[1] == "process 900000 holds memory"
