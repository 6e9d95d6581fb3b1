"""The calls into NVML: one initialisation a process, what the driver lists, how much is in use.

Everything here blocks, for seconds on a sick driver, and belongs in a thread of its own. The module
is `pynvml` from the distribution ``nvidia-ml-py`` (the distribution ``pynvml`` is a redirector).
"""

# ruff: noqa: N802 - the protocols repeat the names of NVML
from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

import attrs

from vllm_startup.probes._gpu_devices import Device, Target

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

Handle: TypeAlias = object

# nvml.h, nvmlReturn_t. Numbers rather than pynvml's classes: which classes there are depends on its version.
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
GPU_NOT_FOUND = 28

NO_NVML = frozenset({DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, GPU_NOT_FOUND})
"""Answers to the first initialisation that mean: no NVIDIA driver or GPU here."""

MEMORY_V2 = 0x02000028
"""nvml.h, nvmlMemory_v2: the size of the struct and the number of its version."""

NO_MEMORY_V2 = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH})


class Memory(Protocol):
    """What `nvmlDeviceGetMemoryInfo` returns."""

    @property
    def used(self) -> int: ...
    @property
    def free(self) -> int: ...
    @property
    def total(self) -> int: ...


class Owner(Protocol):
    """One entry of `nvmlDeviceGetComputeRunningProcesses`."""

    @property
    def pid(self) -> int: ...
    @property
    def usedGpuMemory(self) -> int | None: ...


class Nvml(Protocol):
    """The functions of the module `pynvml` that are used here; tests put a fake in its place.

    The methods have NVML's names and meaning, and raise ``NVMLError`` with its code in ``value``.
    """

    @property
    def NVMLError(self) -> type[Exception]: ...
    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Handle: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str, /) -> Handle: ...
    def nvmlDeviceGetUUID(self, handle: Handle, /) -> str: ...
    def nvmlDeviceGetName(self, handle: Handle, /) -> str: ...
    def nvmlDeviceGetIndex(self, handle: Handle, /) -> int: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: int | None = None, /) -> Memory: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle, /) -> Sequence[Owner]: ...
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle, /) -> int: ...
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int, /) -> Handle: ...
    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Handle, /) -> Handle: ...


class NoNvmlError(RuntimeError):
    """There is no NVIDIA driver here, so that there is nothing to see."""


class DriverError(RuntimeError):
    """A call into the driver failed. It may work again later."""


def import_nvml() -> Nvml:
    """Import `pynvml`.

    Raises:
        NoNvmlError: The driver's library or the module is not there.
    """
    import ctypes

    try:
        # Before the import, which costs 13 to 24 ms and 3 MiB for nothing on a machine without a GPU.
        ctypes.CDLL("libnvidia-ml.so.1")
        import pynvml
    except (ImportError, OSError) as error:
        raise NoNvmlError(str(error)) from error
    return cast("Nvml", pynvml)


def code_of(error: Exception) -> int:
    """Return the error's NVML code; 0 when it carries none."""
    code = getattr(error, "value", 0)
    return code if isinstance(code, int) else 0


class Session:
    """The one initialisation of NVML that this process holds, shared by all its probes.

    NVML counts initialisations, but a driver that went away needs a full shutdown before it can be
    reached again; so there is one, and each renewal of it starts a new epoch: handles of an older
    epoch are void.
    """

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._lock = threading.Lock()
        self._users: set[object] = set()
        self._ready = False
        self._epoch = 0

    def enter(self, user: object) -> int:
        """Initialise unless that is done, and return the epoch.

        Raises:
            NVMLError: It failed.
        """
        with self._lock:
            if not self._ready:
                self._nvml.nvmlInit()
                self._ready = True
                self._epoch += 1
            self._users.add(user)
            return self._epoch

    def leave(self, user: object) -> None:
        """Shut down after the last user. May be called twice, and without `enter`."""
        with self._lock:
            self._users.discard(user)
            if not self._users:
                self._shut_down()

    def renew(self, epoch: int) -> None:
        """End a broken epoch, so that the next `enter` initialises again."""
        with self._lock:
            if epoch == self._epoch:
                self._shut_down()

    def _shut_down(self) -> None:
        if self._ready:
            self._ready = False
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                pass  # a lost driver refuses this too; there is nothing left to release


_sessions: dict[tuple[int, int], Session] = {}


def shared_session(nvml: Nvml) -> Session:
    """Return this process's session of that module.

    Keyed by pid, since a forked child has the parent's objects but not its initialisation (nor,
    perhaps, a lock that is free): it gets a session of its own and never shuts down the parent's.
    """
    return _sessions.setdefault((os.getpid(), id(nvml)), Session(nvml))


def list_devices(nvml: Nvml, slices: Collection[str]) -> list[Device]:
    """Return the GPUs that the driver lists; one that it cannot reach is left out.

    Args:
        nvml: The module, initialised.
        slices: UUIDs of MIG devices that are wanted. Slices are looked for only if there are any.
    """
    devices = [
        device for index in range(nvml.nvmlDeviceGetCount()) if (device := _device(nvml, index, slices))
    ]
    for uuid in slices:
        devices = _with_slice(nvml, devices, uuid)
    return devices


def _device(nvml: Nvml, index: int, slices: Collection[str]) -> Device | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, model = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError as error:
        if code_of(error) in (NO_PERMISSION, GPU_IS_LOST):
            return None
        raise
    return Device(index=index, uuid=uuid, model=model, slices=_slices(nvml, handle) if slices else ())


def _slices(nvml: Nvml, handle: Handle) -> tuple[str, ...]:
    found = []
    try:
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                found.append(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))
            except nvml.NVMLError as error:
                if code_of(error) != NOT_FOUND:
                    raise  # NOT_FOUND is an empty slot
    except nvml.NVMLError:
        pass  # no MIG here, or not for us: what was found serves, and a named slice is asked for by name
    return tuple(found)


def _with_slice(nvml: Nvml, devices: list[Device], uuid: str) -> list[Device]:
    """Add a slice that the driver knows by name, though it does not list it (older ways to write a UUID)."""
    if any(uuid in device.slices for device in devices):
        return devices
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        index = nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
    except nvml.NVMLError:
        return devices  # `choose` tells that it does not exist
    return [attrs.evolve(d, slices=(*d.slices, uuid)) if d.index == index else d for d in devices]


def open_target(nvml: Nvml, target: Target) -> Handle:
    """Return the handle. By UUID: indices move when a GPU falls off the bus."""
    return nvml.nvmlDeviceGetHandleByUUID(target.uuid)


def read_memory(nvml: Nvml, handle: Handle) -> Memory:
    """Return the memory in use and in all, in bytes.

    Version 2 first, which counts like nvidia-smi; version 1 (drivers before 510) adds what the
    driver reserves for itself to what is used.
    """
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, MEMORY_V2)
    except nvml.NVMLError as error:
        if code_of(error) not in NO_MEMORY_V2:
            raise
    return nvml.nvmlDeviceGetMemoryInfo(handle)


def read_owners(nvml: Nvml, handle: Handle) -> Mapping[int, int | None] | None:
    """Return bytes by process; None where the driver does not tell.

    In a container the pids are often the host's, or there are none at all; under MIG and vGPU the
    sizes may be missing.
    """
    try:
        owners = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError as error:
        if code_of(error) in (NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND):
            return None
        raise
    return {owner.pid: owner.usedGpuMemory for owner in owners}
