"""Driver: the NVIDIA driver does not do what is needed."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._rules import CauseRule, Found


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Driver(Cause):
    """The NVIDIA driver does not do what is needed."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DriverTooOld(Driver):
    """The driver is older than this CUDA needs."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DriverMismatch(Driver):
    """The driver's kernel module and its libraries have different versions."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DriverCallNotPermitted(Driver):
    """The driver refuses a call, as vGPU and container layers do."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class FabricManagerNotRunning(Driver):
    """The GPUs are joined by NVSwitch, whose manager does not run."""


# --- how they are told -------------------------------------------------------------------

# What is raised later when the driver's own error was only a warning.
_NO_GPU = ("no_gpu_detected",)


def _too_old(_: Found) -> Cause:
    return DriverTooOld(
        message="the NVIDIA driver is older than this build's CUDA needs",
        hint="upgrade the host's NVIDIA driver, or use a vLLM build for an older CUDA",
        retryable=False,
    )


def _mismatch(_: Found) -> Cause:
    return DriverMismatch(
        message="the driver's kernel module and its user-space libraries have different versions",
        hint="reboot after the driver's upgrade, and remove CUDA compat libraries from LD_LIBRARY_PATH",
        retryable=False,
    )


def _not_permitted(_: Found) -> Cause:
    return DriverCallNotPermitted(
        message="the driver does not permit a CUDA call, as on vGPUs and under GPU-sharing layers",
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="forward compatibility was attempted on non supported HW",
        where="both",
        explains=_NO_GPU,
        build=_too_old,
        versions="CUDA error 804",
    ),
    CauseRule(
        literal="the provided PTX was compiled with an unsupported toolchain",
        build=_too_old,
        versions="CUDA error 222",
    ),
    CauseRule(
        literal="CUDA driver version is insufficient for CUDA runtime version",
        build=_too_old,
        versions="CUDA error 35",
    ),
    CauseRule(
        literal="The NVIDIA driver on your system is too old",
        where="both",
        explains=_NO_GPU,
        build=_too_old,
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="nvidia-container-cli: requirement error",
        pattern=r"requirement error: unsatisfied condition: (?:cuda|driver)\s?>=",
        where="line",
        ends=True,
        build=_too_old,
        versions="NVIDIA container toolkit 1.x",
    ),
    CauseRule(
        literal="unsupported display driver / cuda driver combination",
        where="both",
        explains=_NO_GPU,
        build=_mismatch,
        versions="CUDA error 803",
    ),
    CauseRule(
        literal="Driver/library version mismatch",
        where="both",
        explains=_NO_GPU,
        build=_mismatch,
        versions="NVML 18",
    ),
    CauseRule(
        literal="nvml error: driver/library version mismatch",
        where="line",
        ends=True,
        build=_mismatch,
        versions="NVIDIA container toolkit 1.x",
    ),
    CauseRule(
        literal="NVML/RM version mismatch",
        where="both",
        explains=_NO_GPU,
        build=_mismatch,
        versions="NVML 18",
    ),
    CauseRule(
        literal="driver is a stub library",
        build=_mismatch,
        versions="CUDA error 34",
    ),
    CauseRule(
        literal="Error 500: named symbol not found",
        build=lambda found: attrs.evolve(_mismatch(found), confidence="likely"),
        versions="CUDA error 500, under WSL and Docker Desktop",
    ),
    CauseRule(
        literal="operation cannot be performed in the present state",
        # "CUDA driver error: ..." is torch's word for a call that came at the wrong time.
        pattern=r"(?:CUDA error|Error 401): the operation cannot",
        build=_not_permitted,
        versions="CUDA error 401",
    ),
    CauseRule(
        literal="operation not permitted",
        # "... when stream is capturing" (900) is no word of the driver's.
        pattern=r"(?:CUDA error|Error 800): operation not permitted(?! when stream)",
        build=_not_permitted,
        versions="CUDA error 800",
    ),
    CauseRule(
        literal="operation not supported",
        pattern=r"(?:CUDA (?:driver )?error|Error 801): operation not supported(?! on global)",
        build=lambda found: attrs.evolve(_not_permitted(found), confidence="likely"),
        versions="CUDA error 801",
    ),
    CauseRule(
        literal="system not yet initialized",
        where="both",
        explains=_NO_GPU,
        build=lambda _: FabricManagerNotRunning(
            message="the GPUs' NVSwitch fabric is not initialised: its manager does not run",
            hint="start nvidia-fabricmanager in the driver's version (systemctl start nvidia-fabricmanager)",
            retryable=False,
        ),
        versions="CUDA error 802",
    ),
    CauseRule(
        literal="API call is not supported in the installed CUDA driver",
        build=_too_old,
        versions="CUDA error 36",
    ),
    CauseRule(
        literal="NVMLError_FunctionNotFound",
        build=lambda found: attrs.evolve(_too_old(found), confidence="likely"),
        versions="NVML 13",
    ),
    CauseRule(
        literal="OS call failed or operation not supported on this OS",
        build=lambda found: attrs.evolve(_not_permitted(found), confidence="likely"),
        versions="CUDA error 304",
    ),
    CauseRule(
        literal="NVMLError_NoPermission",
        build=lambda _: DriverCallNotPermitted(
            message="the driver does not permit this user to ask for the GPUs' state", retryable=False
        ),
        versions="NVML 4",
    ),
    CauseRule(
        literal="NVMLError_NotSupported",
        rank="generic",
        build=lambda found: attrs.evolve(_not_permitted(found), confidence="likely"),
        versions="NVML 3",
    ),
)
