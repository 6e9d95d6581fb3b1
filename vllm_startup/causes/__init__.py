"""Why starts fail: one frozen class a kind, grouped into families.

``except StartupError as error: match error.cause: case causes.KvCacheTooSmall(fits_len=int(n)): ...``;
a family is a base class, so ``case causes.GpuMemory():`` matches every kind of it.

The families are imported when one of their names is first used: compiling some hundred classes
takes longer than everything else that ``import vllm_startup`` does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from vllm_startup.causes._base import Cause, Confidence, Evidence

if TYPE_CHECKING:
    from vllm_startup.causes._arguments import (
        CudaForkReinit,
        EngineConfigMismatch,
        FileMissing,
        InvalidArguments,
        LaunchArguments,
        MaxModelLenTooLarge,
        ParallelSizeInvalid,
        QuantizationMismatch,
        ServiceEnvironmentClash,
    )
    from vllm_startup.causes._checkpoint import (
        AdapterInvalid,
        Checkpoint,
        CheckpointCorrupt,
        CheckpointMismatch,
        WeightsMissing,
    )
    from vllm_startup.causes._compile import Compile, CompilerMissing, JitBuildFailed
    from vllm_startup.causes._crash import (
        Crash,
        GpuHardwareFault,
        IllegalMemoryAccess,
        ProcessCrashed,
        ProcessKilled,
        ProcessVanished,
    )
    from vllm_startup.causes._devices import (
        DeviceIdUnsupported,
        Devices,
        GpuBusy,
        InvalidDevice,
        NoGpuDetected,
        NotEnoughGpus,
    )
    from vllm_startup.causes._distributed import (
        Distributed,
        EngineReadyTimeout,
        FrontendDied,
        GlooFailed,
        HandshakeTimedOut,
        NcclFailed,
        PlacementGroupPending,
        RendezvousTimedOut,
    )
    from vllm_startup.causes._driver import (
        Driver,
        DriverCallNotPermitted,
        DriverMismatch,
        DriverTooOld,
        FabricManagerNotRunning,
    )
    from vllm_startup.causes._gpu_memory import (
        GpuMemory,
        GpuMemoryChanged,
        GpuMemoryNotFree,
        GpuOutOfMemory,
        KvCacheTooSmall,
        NoKvCacheMemory,
    )
    from vllm_startup.causes._hardware import (
        DtypeUnsupported,
        GpuArchitectureUnsupported,
        Hardware,
        KernelResourceLimit,
        QuantizationUnsupported,
    )
    from vllm_startup.causes._host import (
        CpuResourceInsufficient,
        DiskFull,
        HostOutOfMemory,
        HostResource,
        PathNotReadable,
        PathNotWritable,
        PortInUse,
        SharedMemoryTooSmall,
        TooManyOpenFiles,
        UserNotFound,
    )
    from vllm_startup.causes._install import (
        BinaryIncompatible,
        ComponentMissing,
        DependencyApiMismatch,
        DependencyVersionMismatch,
        Install,
        ModelInspectionFailed,
        ModuleMissing,
        PlatformUnsupported,
        ProgramMissing,
        SharedLibraryMissing,
    )
    from vllm_startup.causes._limit import Limit, PhaseTimedOut, Stalled, TimedOut
    from vllm_startup.causes._model_access import (
        HubUnreachable,
        ModelAccess,
        ModelAccessDenied,
        ModelNotCached,
        ModelNotFound,
        RemoteCodeNotTrusted,
    )
    from vllm_startup.causes._model_support import (
        ArchitectureUnsupported,
        AttentionBackendUnsupported,
        ChatTemplateInvalid,
        ModelConfigInvalid,
        ModelSupport,
        ModelTypeUnknown,
        MultimodalProcessorFailed,
        TokenizerInvalid,
    )
    from vllm_startup.causes._server import ForeignServer, RestartLoop, Server, ShutdownRequested, Unhealthy
    from vllm_startup.causes._unknown import ProcessExited, UnclassifiedError, Unknown

__all__ = [
    "AdapterInvalid",
    "ArchitectureUnsupported",
    "AttentionBackendUnsupported",
    "BinaryIncompatible",
    "Cause",
    "ChatTemplateInvalid",
    "Checkpoint",
    "CheckpointCorrupt",
    "CheckpointMismatch",
    "Compile",
    "CompilerMissing",
    "ComponentMissing",
    "Confidence",
    "CpuResourceInsufficient",
    "Crash",
    "CudaForkReinit",
    "DependencyApiMismatch",
    "DependencyVersionMismatch",
    "DeviceIdUnsupported",
    "Devices",
    "DiskFull",
    "Distributed",
    "Driver",
    "DriverCallNotPermitted",
    "DriverMismatch",
    "DriverTooOld",
    "DtypeUnsupported",
    "EngineConfigMismatch",
    "EngineReadyTimeout",
    "Evidence",
    "FabricManagerNotRunning",
    "FileMissing",
    "ForeignServer",
    "FrontendDied",
    "GlooFailed",
    "GpuArchitectureUnsupported",
    "GpuBusy",
    "GpuHardwareFault",
    "GpuMemory",
    "GpuMemoryChanged",
    "GpuMemoryNotFree",
    "GpuOutOfMemory",
    "HandshakeTimedOut",
    "Hardware",
    "HostOutOfMemory",
    "HostResource",
    "HubUnreachable",
    "IllegalMemoryAccess",
    "Install",
    "InvalidArguments",
    "InvalidDevice",
    "JitBuildFailed",
    "KernelResourceLimit",
    "KvCacheTooSmall",
    "LaunchArguments",
    "Limit",
    "MaxModelLenTooLarge",
    "ModelAccess",
    "ModelAccessDenied",
    "ModelConfigInvalid",
    "ModelInspectionFailed",
    "ModelNotCached",
    "ModelNotFound",
    "ModelSupport",
    "ModelTypeUnknown",
    "ModuleMissing",
    "MultimodalProcessorFailed",
    "NcclFailed",
    "NoGpuDetected",
    "NoKvCacheMemory",
    "NotEnoughGpus",
    "ParallelSizeInvalid",
    "PathNotReadable",
    "PathNotWritable",
    "PhaseTimedOut",
    "PlacementGroupPending",
    "PlatformUnsupported",
    "PortInUse",
    "ProcessCrashed",
    "ProcessExited",
    "ProcessKilled",
    "ProcessVanished",
    "ProgramMissing",
    "QuantizationMismatch",
    "QuantizationUnsupported",
    "RemoteCodeNotTrusted",
    "RendezvousTimedOut",
    "RestartLoop",
    "Server",
    "ServiceEnvironmentClash",
    "SharedLibraryMissing",
    "SharedMemoryTooSmall",
    "ShutdownRequested",
    "Stalled",
    "TimedOut",
    "TokenizerInvalid",
    "TooManyOpenFiles",
    "UnclassifiedError",
    "Unhealthy",
    "Unknown",
    "UserNotFound",
    "WeightsMissing",
]

_FAMILIES = {
    "_arguments": (
        "CudaForkReinit",
        "EngineConfigMismatch",
        "FileMissing",
        "InvalidArguments",
        "LaunchArguments",
        "MaxModelLenTooLarge",
        "ParallelSizeInvalid",
        "QuantizationMismatch",
        "ServiceEnvironmentClash",
    ),
    "_checkpoint": (
        "AdapterInvalid",
        "Checkpoint",
        "CheckpointCorrupt",
        "CheckpointMismatch",
        "WeightsMissing",
    ),
    "_compile": ("Compile", "CompilerMissing", "JitBuildFailed"),
    "_crash": (
        "Crash",
        "GpuHardwareFault",
        "IllegalMemoryAccess",
        "ProcessCrashed",
        "ProcessKilled",
        "ProcessVanished",
    ),
    "_devices": (
        "DeviceIdUnsupported",
        "Devices",
        "GpuBusy",
        "InvalidDevice",
        "NoGpuDetected",
        "NotEnoughGpus",
    ),
    "_distributed": (
        "Distributed",
        "EngineReadyTimeout",
        "FrontendDied",
        "GlooFailed",
        "HandshakeTimedOut",
        "NcclFailed",
        "PlacementGroupPending",
        "RendezvousTimedOut",
    ),
    "_driver": (
        "Driver",
        "DriverCallNotPermitted",
        "DriverMismatch",
        "DriverTooOld",
        "FabricManagerNotRunning",
    ),
    "_gpu_memory": (
        "GpuMemory",
        "GpuMemoryChanged",
        "GpuMemoryNotFree",
        "GpuOutOfMemory",
        "KvCacheTooSmall",
        "NoKvCacheMemory",
    ),
    "_hardware": (
        "DtypeUnsupported",
        "GpuArchitectureUnsupported",
        "Hardware",
        "KernelResourceLimit",
        "QuantizationUnsupported",
    ),
    "_host": (
        "CpuResourceInsufficient",
        "DiskFull",
        "HostOutOfMemory",
        "HostResource",
        "PathNotReadable",
        "PathNotWritable",
        "PortInUse",
        "SharedMemoryTooSmall",
        "TooManyOpenFiles",
        "UserNotFound",
    ),
    "_install": (
        "BinaryIncompatible",
        "ComponentMissing",
        "DependencyApiMismatch",
        "DependencyVersionMismatch",
        "Install",
        "ModelInspectionFailed",
        "ModuleMissing",
        "PlatformUnsupported",
        "ProgramMissing",
        "SharedLibraryMissing",
    ),
    "_limit": ("Limit", "PhaseTimedOut", "Stalled", "TimedOut"),
    "_model_access": (
        "HubUnreachable",
        "ModelAccess",
        "ModelAccessDenied",
        "ModelNotCached",
        "ModelNotFound",
        "RemoteCodeNotTrusted",
    ),
    "_model_support": (
        "ArchitectureUnsupported",
        "AttentionBackendUnsupported",
        "ChatTemplateInvalid",
        "ModelConfigInvalid",
        "ModelSupport",
        "ModelTypeUnknown",
        "MultimodalProcessorFailed",
        "TokenizerInvalid",
    ),
    "_server": ("ForeignServer", "RestartLoop", "Server", "ShutdownRequested", "Unhealthy"),
    "_unknown": ("ProcessExited", "UnclassifiedError", "Unknown"),
}

_HOME = {name: module for module, names in _FAMILIES.items() for name in names}


def __getattr__(name: str) -> type[Cause]:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOME[name]}")
    globals().update({each: getattr(module, each) for each in _FAMILIES[_HOME[name]]})
    found: type[Cause] = globals()[name]
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
