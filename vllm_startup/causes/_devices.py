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


def _not_enough(found: Found) -> Cause:
    return not_enough_gpus(found.number("needed"), found.number("available"))


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


def _device_id(found: Found) -> Cause:
    return DeviceIdUnsupported(
        message=f"this vLLM cannot read the device id {found.word('value')} in CUDA_VISIBLE_DEVICES",
        hint="name the device by its index (a MIG slice inside its container is 0)",
        value=found.word("value"),
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
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
    CauseRule(literal="Device string must not be empty", build=_none_visible, versions="0.8 to 0.11"),
    CauseRule(literal="Current node has no GPU available", build=_none_visible, versions="0.6 to 0.33, Ray"),
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
        literal="is larger than the number of available GPUs",
        pattern=r"World size \((?P<needed>\d+)\) is larger than the number of available GPUs "
        r"\((?P<available>\d+)\)",
        build=_not_enough,
        versions="0.13 to 0.33",
    ),
    CauseRule(
        literal="exceeds the total number of available",
        pattern=r"The number of required \w+ exceeds the total number of available \w+"
        r"(?:.{0,80}?Required number of devices: (?P<needed>\d+)\. Total number of devices: "
        r"(?P<available>\d+))?",
        build=_not_enough,
        versions="0.2 to 0.33, Ray",
    ),
    CauseRule(
        literal="less than max local gpu count",
        pattern=r"tensor_parallel_size \((?P<needed>\d+)\) to less than max local gpu count "
        r"\((?P<available>\d+)\)",
        build=_not_enough,
        versions="0.4 to 0.6",
    ),
    CauseRule(
        literal="less than than max local gpu count",
        pattern=r"world_size \((?P<needed>\d+)\) is less than than max local gpu count "
        r"\((?P<available>\d+)\)",
        build=_not_enough,
        versions="0.6 to 0.10",
    ),
    CauseRule(
        literal="is not included in a placement group",
        pattern=r"You don't have enough GPUs available in a current node",
        build=lambda found: attrs.evolve(_not_enough(found), confidence="likely"),
        versions="0.6 to 0.33, Ray",
    ),
    CauseRule(
        literal="Ray does not allocate any GPUs on the driver node",
        build=lambda found: attrs.evolve(_not_enough(found), confidence="likely"),
        versions="0.4 to 0.8",
    ),
    CauseRule(
        literal="Not enough resources to allocate ",
        pattern=r"Not enough resources to allocate (?P<needed>\d+) (?:DP ranks on DP master node "
        r"[^\n,]{1,64}, possible to fit (?P<available>\d+)|(?:DP )?(?:placement groups|ranks))",
        build=_not_enough,
        versions="0.9 to 0.33, Ray",
    ),
    CauseRule(
        literal="local range: [",
        pattern=r"Error (?:computing|setting) \w[\w ]{0,60}: local range: \[",
        build=lambda found: attrs.evolve(_not_enough(found), confidence="likely"),
        versions="0.9 to 0.33, data parallel",
    ),
    CauseRule(
        literal="exceeds the number of visible ",
        pattern=r"replica size \((?P<needed>\d+)\) exceeds the number of visible \w+ devices "
        r"\((?P<available>\d+)\)",
        build=_not_enough,
        versions="0.33, XPU",
    ),
    CauseRule(
        literal="--device-ids",
        pattern=r"--device-ids (?:index (?P<device>\d+) is out of range|provides \d+ devices, but DP rank)",
        build=lambda found: InvalidDevice(
            message=found.error.text if found.error is not None else found.text,
            device=found.number("device"),
            retryable=False,
        ),
        versions="0.32 to 0.33",
    ),
    CauseRule(
        literal="invalid device ordinal",
        build=lambda _: InvalidDevice(
            message="a rank was given a GPU that its process cannot see",
            hint="keep tensor times pipeline parallel size within the visible GPUs; check "
            "CUDA_VISIBLE_DEVICES",
            retryable=False,
        ),
        versions="CUDA error 101",
    ),
    CauseRule(
        literal="DP adjusted local rank",
        pattern=r"DP adjusted local rank (?P<device>\d+) is out of bounds(?: for (?P<available>\d+) "
        r"devices)?",
        build=lambda found: InvalidDevice(
            message=f"local rank {found.word('device')} has no GPU"
            + (f": only {found.word('available')} are visible" if found.word("available") else ""),
            device=found.number("device"),
            retryable=False,
        ),
        versions="0.11.1 to 0.33",
    ),
    CauseRule(
        literal="invalid literal for int() with base 10: ",
        pattern=r"base 10: '(?P<value>(?:MIG|GPU)-[^']{0,200})'?",
        build=_device_id,
        versions="0.6 to 0.20",
    ),
    CauseRule(
        literal="Non-integer device ID",
        pattern=r"Non-integer device ID '(?P<value>[^']{1,200})'",
        build=_device_id,
        versions="0.32 to 0.33",
    ),
    CauseRule(
        literal="busy or unavailable",
        pattern=r"CUDA-capable device(?:\(s\) is/are|s are) busy or unavailable",
        build=lambda _: GpuBusy(
            message="the GPU is in exclusive use by another process, or unavailable",
            hint="end the process that uses the GPU, or set its compute mode to default (nvidia-smi -c 0)",
            retryable=True,
        ),
        versions="CUDA error 46",
    ),
)
