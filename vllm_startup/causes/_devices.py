"""Devices: the GPUs asked for are not there or cannot be used."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._rules import CauseRule, Found


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Devices(Cause):
    """The GPUs asked for are not there or cannot be used."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class NoGpuDetected(Devices):
    """No GPU, or none that this process may use."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class NotEnoughGpus(Devices):
    """Fewer GPUs than the parallel sizes ask for.

    Attributes:
        needed: How many are wanted.
        available: How many there are.
    """

    needed: int | None = None
    available: int | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class InvalidDevice(Devices):
    """A rank was given a GPU that is not visible to it.

    Attributes:
        device: Its index.
    """

    device: int | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DeviceIdUnsupported(Devices):
    """``CUDA_VISIBLE_DEVICES`` names devices in a form that this vLLM cannot read.

    Attributes:
        value: What it holds.
    """

    value: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class GpuBusy(Devices):
    """The GPU is in exclusive use by another process, or unavailable."""


# --- how they are told -------------------------------------------------------------------


def none_visible() -> NoGpuDetected:
    """No GPU may be used by the process."""
    return NoGpuDetected(
        message="no GPU is visible to the process",
        hint="check CUDA_VISIBLE_DEVICES, and that the container or Ray worker was given GPUs",
        retryable=False,
    )


def _none_visible(_: Found) -> Cause:
    return none_visible()


def not_enough_gpus(needed: int | None, available: int | None) -> NotEnoughGpus:
    """Fewer GPUs than the parallel sizes ask for."""
    told = f": {needed} wanted, {available} there" if needed is not None and available is not None else ""
    return NotEnoughGpus(
        message=f"there are fewer GPUs than the parallel sizes ask for{told}",
        hint=f"keep tensor times pipeline parallel size within {available}" if available else None,
        needed=needed,
        available=available,
        retryable=False,
    )


def _no_access(_: Found) -> Cause:
    return NoGpuDetected(
        message="the process cannot reach the GPUs any more",
        hint="restart the container: a reload of systemd on the host takes its devices away",
        confidence="likely",
    )


def _not_given(_: Found) -> Cause:
    return NoGpuDetected(
        message="the container runtime cannot give the container a GPU",
        hint="check nvidia-smi on the host, and install and configure the NVIDIA container toolkit there",
        retryable=False,
    )


def _without_gpus(_: Found) -> Cause:
    return NoGpuDetected(
        message="the installed torch was built without GPUs",
        hint="install vLLM and torch together, from the index that has them for this GPU",
        confidence="likely",
        retryable=False,
    )


def _busy(_: Found) -> Cause:
    return GpuBusy(
        message="the GPU is in exclusive use by another process, or unavailable",
        hint="end the process that uses the GPU, or set its compute mode to default (nvidia-smi -c 0)",
        retryable=True,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="No platform detected, vLLM is running on UnspecifiedPlatform",
        where="line",
        rank="weak",
        build=lambda _: attrs.evolve(none_visible(), confidence="likely"),
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="Failed to infer device type",
        build=lambda _: NoGpuDetected(
            message="vLLM found no accelerator that it can use",
            hint="give the process its GPUs (container: --gpus all or a device plugin), and check "
            "nvidia-smi there",
            retryable=False,
        ),
        versions="0.5 to 0.33",
    ),
    CauseRule(
        literal="GPUs are available",
        pattern=r"No (?:CUDA|HIP|XPU) GPUs are available",
        build=_none_visible,
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="CUDA unknown error - this may be due to an incorrectly set up environment",
        rank="generic",
        build=lambda _: attrs.evolve(none_visible(), confidence="likely", hint=None),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="-capable device is detected",
        pattern=r"no (?:CUDA|ROCm)-capable device is detected",
        build=_none_visible,
        versions="CUDA and HIP error 100",
    ),
    CauseRule(
        literal="Found no NVIDIA driver on your system", build=_none_visible, versions="torch 1.x to 2.9"
    ),
    CauseRule(
        literal="NVMLError_DriverNotLoaded",
        build=lambda _: NoGpuDetected(
            message="the NVIDIA driver's kernel module is not loaded",
            hint="load it (modprobe nvidia), or reinstall the driver for the running kernel",
            retryable=False,
        ),
        versions="NVML 9",
    ),
    CauseRule(
        literal="No supported device detected",
        build=_none_visible,
        versions="0.5.1 to 0.5.5",
    ),
    CauseRule(literal="Device string must not be empty", build=_none_visible, versions="0.8 to 0.11"),
    CauseRule(
        literal="Current node has no ",
        pattern=r"Current node has no [A-Z]{2,8} available",
        build=_none_visible,
        versions="0.6 to 0.33, Ray",
    ),
    CauseRule(
        literal="CUDA driver initialization failed, you might not have a CUDA gpu",
        build=lambda found: attrs.evolve(_none_visible(found), confidence="likely"),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="could not select device driver",
        where="line",
        build=lambda _: NoGpuDetected(
            message="Docker cannot give the container a GPU",
            hint="install the NVIDIA container toolkit, and run nvidia-ctk runtime configure",
            retryable=False,
        ),
        versions="Docker 19.03 to 28",
    ),
    CauseRule(
        literal="busy or unavailable",
        pattern=r"CUDA-capable device(?:\(s\) is/are|s are) busy or unavailable",
        build=_busy,
        versions="CUDA error 46",
    ),
    CauseRule(literal="exclusive-thread device already in use", build=_busy, versions="CUDA error 216"),
    CauseRule(
        literal=" MPS server",
        pattern=r"(?:CUDA error|Error 80\d): [^\n]{0,80} MPS server",
        build=lambda _: GpuBusy(
            message="the GPU is shared through MPS, whose server does not answer",
            hint="start nvidia-cuda-mps-control, or let the container reach its pipe directory",
            confidence="likely",
        ),
        versions="CUDA errors 805 to 807",
    ),
    CauseRule(
        literal="active drivers (",
        pattern=r"0 active drivers \(\[\]\)",
        rank="generic",
        build=lambda _: attrs.evolve(none_visible(), confidence="likely"),
        versions="triton 3",
    ),
    CauseRule(
        literal="Torch not compiled with ",
        pattern=r"Torch not compiled with (?:CUDA|XPU) enabled",
        rank="generic",
        build=_without_gpus,
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="PyTorch was compiled without ",
        pattern=r"PyTorch was compiled without (?:CUDA|XPU) support",
        rank="generic",
        build=_without_gpus,
        versions="torch 2.x",
    ),
    CauseRule(
        literal="A GPU is needed for quantization", build=_none_visible, versions="transformers 4, accelerate"
    ),
    CauseRule(
        literal="Attempting to deserialize object on ",
        pattern=r"on a \w{1,10} device but torch\.\w{1,10}\.is_available\(\) is False",
        build=lambda _: attrs.evolve(none_visible(), confidence="likely"),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(literal="NVMLError_Unknown", rank="generic", build=_no_access, versions="NVML 999"),
    CauseRule(
        literal="Failed to initialize NVML: Unknown Error",
        where="both",
        rank="weak",
        build=_no_access,
        versions="NVIDIA driver",
    ),
    CauseRule(
        literal="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
        where="line",
        rank="weak",
        build=lambda _: NoGpuDetected(
            message="the NVIDIA driver does not answer",
            hint="load it (modprobe nvidia), or reinstall the driver for the running kernel",
            confidence="likely",
            retryable=False,
        ),
        versions="NVIDIA driver",
    ),
    CauseRule(
        literal="nvidia-container-cli: initialization error",
        pattern=r"initialization error: (?:nvml error: driver not loaded|load library failed: libnvidia-ml"
        r"|driver (?:rpc )?error|cuda error)",
        where="line",
        ends=True,
        build=_not_given,
        versions="NVIDIA container toolkit 1.x",
    ),
    CauseRule(
        literal="runtime name: nvidia",
        pattern=r"unknown or invalid runtime name: nvidia",
        where="line",
        ends=True,
        build=_not_given,
        versions="Docker 20 to 28",
    ),
    CauseRule(
        literal="unresolvable CDI devices ",
        pattern=r"unresolvable CDI devices \S{0,40}(?:nvidia|amd)\.com/gpu",
        where="both",
        ends=True,
        build=_not_given,
        versions="Docker 25 to 28, Podman 4 to 5",
    ),
)
