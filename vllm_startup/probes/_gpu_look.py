"""One look at the GPUs that a process with a given environment may use: memory, and who holds it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from vllm_startup._readings import ProbeNote
from vllm_startup.probes._gpu_devices import Selection, Target, choose, named_slices
from vllm_startup.probes._gpu_nvml import (
    NO_NVML,
    DriverError,
    NoNvmlError,
    Nvml,
    code_of,
    import_nvml,
    list_devices,
    open_target,
    read_memory,
    read_owners,
    shared_session,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


@attrs.frozen(kw_only=True)
class GpuState:
    """One GPU or MIG slice.

    Attributes:
        index: NVML's, as nvidia-smi shows it.
        free_bytes: What is neither used nor kept by the driver for itself; None where it is not told.
        holders: Bytes by process, None where they are not told. In a container it is mostly empty, or has
            the host's pids.
    """

    index: int
    uuid: str
    used_bytes: int | None
    free_bytes: int | None
    holders: Mapping[int, int | None]


@attrs.frozen(kw_only=True)
class GpuLook:
    """What the driver told.

    Attributes:
        listed: How many GPUs the machine or container has.
        models: Their model names, one for each.
        gpus: Those that the environment leaves, in its order.
        notes: What has to be said about the choice.
    """

    listed: int
    models: tuple[str, ...]
    gpus: tuple[GpuState, ...]
    notes: tuple[ProbeNote, ...]


def look(environ: Mapping[str, str], *, nvml: Nvml | None = None) -> GpuLook:
    """Ask the driver once. It blocks, for seconds on a sick driver.

    Args:
        environ: What may hold ``CUDA_VISIBLE_DEVICES``.
        nvml: What to use in place of `pynvml`.

    Raises:
        NoNvmlError: There is no NVIDIA driver.
        DriverError: The driver failed.
    """
    module = nvml if nvml is not None else import_nvml()
    selection = Selection.of(environ)
    try:
        with _session(module):
            devices = list_devices(module, named_slices(None, selection))
            choice = choose(devices, None, selection)
            return GpuLook(
                listed=len(devices),
                models=tuple(device.model for device in devices),
                gpus=tuple(_state(module, target) for target in choice.targets),
                notes=choice.notes,
            )
    except module.NVMLError as error:
        if code_of(error) in NO_NVML:
            raise NoNvmlError(str(error)) from error
        raise DriverError(f"NVML failed: {error} (code {code_of(error)})") from error


@contextmanager
def _session(nvml: Nvml) -> Iterator[None]:
    session, user = shared_session(nvml), object()
    session.enter(user)
    try:
        yield
    finally:
        session.leave(user)


def _state(nvml: Nvml, target: Target) -> GpuState:
    used = free = None
    holders: Mapping[int, int | None] = {}
    try:
        handle = open_target(nvml, target)
        memory = read_memory(nvml, handle)
        used, free = (memory.used, memory.free) if memory.total else (None, None)
        holders = read_owners(nvml, handle) or {}
    except nvml.NVMLError:
        pass  # lost, forbidden, or memory that is the host's: one GPU tells nothing, the others do
    return GpuState(index=target.index, uuid=target.uuid, used_bytes=used, free_bytes=free, holders=holders)
