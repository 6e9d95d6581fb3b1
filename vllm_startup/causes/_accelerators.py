"""What the runtimes of other makers' accelerators say: ROCm, XPU, TPU and Gaudi."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._crash import GpuHardwareFault, IllegalMemoryAccess
from vllm_startup.causes._devices import GpuBusy, NoGpuDetected
from vllm_startup.causes._gpu_memory import GpuOutOfMemory
from vllm_startup.causes._rules import CauseRule, Found


def _out_of_memory(_: Found) -> Cause:
    return GpuOutOfMemory(message="the accelerator's memory ran out", retryable=False)


def _none_found(_: Found) -> Cause:
    return NoGpuDetected(message="the runtime finds no accelerator", retryable=False)


def _busy(found: Found) -> Cause:
    pid = found.word("pid")
    return GpuBusy(
        message=f"another process{f' ({pid})' if pid else ''} holds the accelerator",
        hint=f"end process {pid}" if pid else "end the process that uses it",
        retryable=True,
    )


def _fault(_: Found) -> Cause:
    return GpuHardwareFault(
        message="the GPU's queue was lost: the GPU, its driver or a kernel is at fault",
        confidence="likely",
        retryable=None,
    )


def _illegal(_: Found) -> Cause:
    return IllegalMemoryAccess(
        message="a GPU kernel touched memory that is not its own",
        hint="start once with AMD_SERIALIZE_KERNEL=3: the traceback then names the kernel",
        retryable=None,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="Memory access fault by GPU node",
        pattern=r"^Memory access fault by GPU node-\d+",
        where="line",
        ends=True,
        build=_illegal,
        versions="ROCm 4 to 7",
    ),
    CauseRule(
        literal="HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        where="both",
        ends=True,
        build=lambda found: attrs.evolve(_out_of_memory(found), confidence="likely"),
        versions="ROCm 4 to 7",
    ),
    CauseRule(
        literal="HSA_STATUS_ERROR_EXCEPTION", where="both", ends=True, build=_fault, versions="ROCm 4 to 7"
    ),
    *(
        CauseRule(literal=status, where="both", ends=True, build=_illegal, versions="ROCm 4 to 7")
        for status in ("HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION", "HSA_STATUS_ERROR_MEMORY_FAULT")
    ),
    CauseRule(
        literal="Unable to open /dev/kfd ",
        pattern=r"^(?:\w{1,40}Error: )?Unable to open /dev/kfd read-write: No such file or directory",
        where="both",
        build=lambda _: NoGpuDetected(
            message="ROCm's device /dev/kfd is not there",
            hint="load the amdgpu driver, or give the container --device /dev/kfd --device /dev/dri",
            retryable=False,
        ),
        versions="ROCm 5 to 7",
    ),
    CauseRule(
        literal="AMDSMI_STATUS_DRIVER_NOT_LOADED", build=_none_found, rank="generic", versions="ROCm 6 to 7"
    ),
    *(
        CauseRule(literal=status, build=_out_of_memory, versions="oneAPI 2024 to 2025")
        for status in (
            "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
            "UR_RESULT_ERROR_OUT_OF_RESOURCES",
            "PI_ERROR_OUT_OF_RESOURCES",
            "ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        )
    ),
    *(
        CauseRule(literal=status, build=_none_found, versions="oneAPI 2023 to 2025")
        for status in (
            "PI_ERROR_DEVICE_NOT_FOUND",
            "UR_RESULT_ERROR_DEVICE_NOT_FOUND",
            "No device of requested type available",
        )
    ),
    *(
        CauseRule(literal=status, build=_fault, versions="oneAPI 2024 to 2025")
        for status in ("UR_RESULT_ERROR_DEVICE_LOST", "ZE_RESULT_ERROR_DEVICE_LOST")
    ),
    CauseRule(
        literal="RESOURCE_EXHAUSTED: ",
        pattern=r"RESOURCE_EXHAUSTED: .{0,300}?(?:\bmemory\b|\b[Aa]llocat)",
        build=_out_of_memory,
        versions="XLA: JAX, torch_xla",
    ),
    CauseRule(
        literal="The TPU is already in use by",
        pattern=r"The TPU is already in use by (?:process with pid (?P<pid>\d+)|another process)",
        build=_busy,
        versions="libtpu",
    ),
    CauseRule(
        literal="Unable to initialize backend 'tpu'",
        rank="generic",
        build=lambda found: attrs.evolve(_none_found(found), confidence="likely"),
        versions="JAX 0.4 to 0.8",
    ),
    CauseRule(
        literal="Device acquire failed",
        build=lambda found: attrs.evolve(_busy(found), confidence="likely"),
        versions="Gaudi SynapseAI 1.1x",
    ),
)
