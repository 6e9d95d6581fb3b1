"""Whether the GPUs that the server wants are there, and free."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from vllm_startup._orphans import orphans
from vllm_startup._preflight.facts import Facts
from vllm_startup._preflight.holders import described
from vllm_startup._preflight.launch import Asked
from vllm_startup._preflight.parallel import gpus_needed
from vllm_startup._preflight.paths import exists
from vllm_startup._preflight.result import NotCheckedError
from vllm_startup._preflight.vllm_package import Vllm, vllm_of
from vllm_startup.causes._base import Cause, Confidence, Evidence
from vllm_startup.causes._devices import none_visible, not_enough_gpus
from vllm_startup.causes._gpu_memory import GpuMemoryNotFree, room_on_gpu
from vllm_startup.probes._gpu_devices import VISIBLE
from vllm_startup.probes._gpu_look import GpuLook, GpuState
from vllm_startup.probes._gpu_nvml import DriverError, NoNvmlError

_GIB: Final = 1024**3
_DEVICE_FILES: Final = (
    *("/dev/nvidiactl", "/dev/dxg", "/dev/nvmap", "/dev/nvgpu"),
    *("/dev/kfd", "/dev/dri", "/dev/accel", "/dev/davinci_manager"),
)
"""What CUDA opens on a server, under WSL and on Jetson boards; and what other makers' drivers do."""
_CHECKED_SINCE: Final = (0, 9, 1)
"""From then on vLLM refuses to start where less is free than the utilisation asks for."""
_WORLD_CHECKED_SINCE: Final = (0, 13)
"""From then on vLLM refuses more ranks than GPUs; before, it turned to Ray, which may have other machines."""
_LATER_DEFAULT_SINCE: Final = (0, 32)
"""The release in which a default of 0.92 was seen; 0.9 claims less where the change was earlier."""
_MOST_HOLDERS: Final = 3


class _NoDriverError(NotCheckedError):
    """There is no driver, and so perhaps no GPU; or one of another maker."""


def gpus(facts: Facts) -> Iterator[Cause]:
    """Whether there are GPUs, and as many as the parallel sizes ask for."""
    asked = facts.asked()
    vllm = _cuda_build(facts, asked)
    try:
        look = _look(facts)
    except _NoDriverError as error:
        if vllm is None or any(exists(file) for file in _DEVICE_FILES):
            raise
        seen = Evidence(text=f"{error}, and no device file of any GPU")
        yield attrs.evolve(none_visible(), evidence=(seen,), confidence="likely")
        return
    needed, words = gpus_needed(asked)
    visible = _count(look, facts)
    told = (Evidence(text=f"the driver lists {look.listed} GPUs"), *_visible_words(facts))
    if visible == 0:
        yield attrs.evolve(none_visible(), evidence=told)
    elif needed > visible:
        refuses = vllm is not None and vllm.since >= _WORLD_CHECKED_SINCE
        forced = asked.word("--distributed-executor-backend") == "mp"
        yield attrs.evolve(
            not_enough_gpus(needed, visible),
            evidence=(*told, Evidence(text=f"the arguments ask for {words}")),
            confidence="certain" if refuses or forced else "likely",
        )


def gpu_memory(facts: Facts) -> Iterator[Cause]:
    """Whether as much GPU memory is free as ``--gpu-memory-utilization`` asks for."""
    asked = facts.asked()
    vllm = _cuda_build(facts, asked)
    look = _look(facts)
    needed, _ = gpus_needed(asked)
    used = _used_gpus(look, needed, asked)
    share = asked.arguments.gpu_memory_utilization
    if share is None:
        share = 0.92 if vllm is not None and vllm.since >= _LATER_DEFAULT_SINCE else 0.9
    if not 0 < share <= 1:
        raise NotCheckedError(f"a utilisation of {share:g} is none")
    known = [
        (gpu, free, free + taken)
        for gpu in used
        if (free := gpu.free_bytes) is not None and (taken := gpu.used_bytes) is not None
    ]
    full = [(gpu, free, total) for gpu, free, total in known if free < share * total]
    if full:
        sure: Confidence = "certain" if vllm is not None and vllm.since >= _CHECKED_SINCE else "likely"
        yield _not_free(full, share, sure)
    elif len(known) < len(used):
        raise NotCheckedError("not every GPU tells its memory")


def _not_free(full: Sequence[tuple[GpuState, int, int]], share: float, sure: Confidence) -> Cause:
    """One cause for all of them, by the GPU with the least: eight alike would hide it."""
    gpu, free, total = min(full, key=lambda each: each[1] / each[2])
    others = f", and too little on {len(full) - 1} more" if len(full) > 1 else ""
    holders = {pid: size for each, *_ in full for pid, size in each.holders.items()}
    hint = room_on_gpu(free, total)
    if not holders.keys().isdisjoint(orphan.pid for orphan in orphans()):
        hint = f"vllm-startup cleanup shows engines of dead servers, and ends them with --kill; or {hint}"
    return GpuMemoryNotFree(
        message=f"only {free / _GIB:.2f} of {total / _GIB:.2f} GiB of memory are free on GPU"
        f" {gpu.index}{others}",
        hint=hint,
        evidence=(
            Evidence(text=f"a utilisation of {share:g} asks for {share * total / _GIB:.2f} GiB"),
            *_held(full),
        ),
        confidence=sure,
        device=gpu.index,
        free_bytes=free,
        total_bytes=total,
        wanted_bytes=math.ceil(share * total),
        utilization=share,
    )


def _held(full: Sequence[tuple[GpuState, int, int]]) -> Iterator[Evidence]:
    sizes: dict[int, int] = {}
    for gpu, *_ in full:
        for pid, size in gpu.holders.items():
            sizes[pid] = sizes.get(pid, 0) + (size or 0)
    for pid in sorted(sizes, key=lambda each: -sizes[each])[:_MOST_HOLDERS]:
        held = f"{sizes[pid] / _GIB:.2f} GiB" if sizes[pid] else "memory"
        yield Evidence(text=f"{described(pid)} holds {held}")
    if len(sizes) > _MOST_HOLDERS:
        yield Evidence(text=f"and {len(sizes) - _MOST_HOLDERS} more processes")
    if not sizes:
        yield Evidence(text="the driver names no process that holds it: look outside this container")


def _cuda_build(facts: Facts, asked: Asked) -> Vllm | None:
    """The installed vLLM; None where it is not known.

    Raises:
        NotCheckedError: It uses no NVIDIA GPUs.
    """
    try:
        vllm = vllm_of(facts.installation().packages)
    except NotCheckedError:
        vllm = None
    if vllm is not None and vllm.hardware is not None:
        raise NotCheckedError(f"this vLLM was built for {vllm.hardware}")
    if asked.word("--device") not in (None, "auto", "cuda"):
        raise NotCheckedError(f"--device {asked.word('--device')} uses other hardware")
    return vllm


def _look(facts: Facts) -> GpuLook:
    try:
        return facts.gpus()
    except NoNvmlError as error:
        raise _NoDriverError(f"there is no NVIDIA driver to ask ({error})") from error
    except DriverError as error:
        raise NotCheckedError(str(error)) from error


def _count(look: GpuLook, facts: Facts) -> int:
    """How many the server sees. Which they are cannot always be told, how many can."""
    if any(note.code == "gpu_order_unknown" for note in look.notes):
        return len((facts.server().environ.get(VISIBLE) or "").split(","))
    return len(look.gpus)


def _visible_words(facts: Facts) -> tuple[Evidence, ...]:
    value = facts.server().environ.get(VISIBLE)
    return () if value is None else (Evidence(text=f"{VISIBLE}={value[:200]}"),)


def _used_gpus(look: GpuLook, needed: int, asked: Asked) -> tuple[GpuState, ...]:
    """Those that the ranks take: the first ones, where it is known which come first."""
    if asked.has("--device-ids"):
        raise NotCheckedError("--device-ids chooses among the GPUs")
    if needed >= len(look.gpus):
        return look.gpus
    if len(set(look.models)) > 1 or any(note.code == "gpu_order_unknown" for note in look.notes):
        raise NotCheckedError("the GPUs are of different models, and CUDA's order of them is not known")
    return look.gpus[:needed]
