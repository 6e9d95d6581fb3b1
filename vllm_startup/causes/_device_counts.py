"""Devices: ranks that have no GPU, or not one that they can see."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._devices import DeviceIdUnsupported, InvalidDevice, NoGpuDetected, not_enough_gpus
from vllm_startup.causes._rules import CauseRule, Found


def _not_enough(found: Found) -> Cause:
    return not_enough_gpus(found.number("needed"), found.number("available"))


def _device_id(found: Found) -> Cause:
    return DeviceIdUnsupported(
        message=f"this vLLM cannot read the device id {found.word('value')} in CUDA_VISIBLE_DEVICES",
        hint="name the device by its index (a MIG slice inside its container is 0)",
        value=found.word("value"),
        retryable=False,
    )


def _not_visible(found: Found) -> Cause:
    return InvalidDevice(
        message="a rank was given a GPU that its process cannot see",
        confidence="likely",
        device=found.number("device"),
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
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
        literal="set ASCEND_RT_VISIBLE_DEVICES:",
        pattern=r"set ASCEND_RT_VISIBLE_DEVICES:(?P<devices>[\d,]{1,100}) error, input data rang\w{0,2} ?"
        r"\[0-(?P<available>\d{1,4})\)",
        where="both",
        build=lambda found: InvalidDevice(
            message=f"ASCEND_RT_VISIBLE_DEVICES={found.word('devices')} names a device that is not here: "
            f"only {found.word('available')} are",
            hint="number the devices as they are visible inside the container, from 0 on",
            retryable=False,
        ),
        versions="CANN 8",
    ),
    CauseRule(
        literal="Set visible device failed, invalid device=",
        pattern=r"invalid device=(?P<device>\d{1,6}), input visible devices:",
        where="both",
        build=lambda found: InvalidDevice(
            message=f"device {found.word('device')} is not among those that ASCEND_RT_VISIBLE_DEVICES names",
            device=found.number("device"),
            retryable=False,
        ),
        versions="CANN 8",
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
        literal="Attempting to deserialize object on ",
        pattern=r"on \w{1,10} device (?P<device>\d+) but torch\.\w{1,10}\.device_count\(\) is",
        build=_not_visible,
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="is not visible (",
        pattern=r"^RuntimeError: device (?:cuda:)?(?P<device>\d+) is not visible \(",
        build=_not_visible,
        versions="torch 2.x",
    ),
    CauseRule(
        literal="Invalid device id",
        exceptions=("AssertionError",),
        build=_not_visible,
        versions="torch 1",
    ),
    *(
        CauseRule(literal=name, rank="generic", build=_not_visible, versions="NVML 2 and 6")
        for name in ("NVMLError_InvalidArgument", "NVMLError_NotFound")
    ),
    CauseRule(
        literal="nvidia-container-cli: device error",
        pattern=r"device error: (?:(?P<device>\d{1,3})|[\w-]{1,80}): unknown device",
        where="line",
        ends=True,
        build=lambda found: InvalidDevice(
            message=f"the container asks for GPU {found.word('device') or 'ids'} that the host does not have",
            hint="correct --gpus, NVIDIA_VISIBLE_DEVICES or device_ids; nvidia-smi -L lists what there is",
            device=found.number("device"),
            retryable=False,
        ),
        versions="NVIDIA container toolkit 1.x",
    ),
    CauseRule(
        literal="Tensor parallel size ",
        pattern=r"Tensor parallel size \((?P<needed>\d+)\) cannot be larger than the number of "
        r"available GPUs \((?P<available>\d+)\)",
        build=_not_enough,
        versions="0.10 to 0.14",
    ),
    CauseRule(
        literal="Not enough total available nodes",
        pattern=r"satisfy required world size (?P<needed>\d+)",
        build=_not_enough,
        versions="0.12 to 0.33",
    ),
    CauseRule(
        literal="is out of bounds for assigned_physical_gpu_ids",
        pattern=r"local_rank (?P<device>\d+) is out of bounds",
        build=_not_visible,
        versions="0.32 to 0.33",
    ),
    CauseRule(
        literal="must be less than or equal to the number of visible devices",
        pattern=r"local_world_size \((?P<needed>\d+)\) must be less than or equal to the number of visible "
        r"devices \((?P<available>\d+)\)",
        build=_not_enough,
        versions="0.11 to 0.33, Ascend's plugin",
    ),
    CauseRule(
        literal="exceeds assigned_physical_gpu_ids",
        pattern=r"local_world_size \((?P<needed>\d+)\)",
        build=_not_enough,
        versions="0.32 to 0.33",
    ),
    CauseRule(
        literal=" device type: ",
        pattern=r"(?:Not support|Unsupported) device type: \w",
        build=lambda _: NoGpuDetected(
            message="vLLM took the machine for another platform than its build is for",
            hint="give the process its GPUs, or install the build for this machine",
            confidence="likely",
            retryable=False,
        ),
        versions="0.4 to 0.33",
    ),
)
