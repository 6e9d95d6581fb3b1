"""GpuMemory: GPU memory did not suffice, or was not there when it was needed."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._rules import CauseRule, Found


@attrs.frozen(kw_only=True, eq=False, repr=False)
class GpuMemory(Cause):
    """GPU memory did not suffice, or was not there when it was needed."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class GpuOutOfMemory(GpuMemory):
    """An allocation on a GPU failed.

    Attributes:
        device: Index of the GPU as the process numbers it.
        tried_bytes: What was asked for.
        free_bytes: What was free.
        total_bytes: The GPU's memory.
    """

    device: int | None = None
    tried_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class GpuMemoryNotFree(GpuMemory):
    """Less memory was free at the start than the utilisation asks for.

    Attributes:
        device: Index of the GPU as the process numbers it.
        free_bytes: What was free.
        total_bytes: The GPU's memory.
        wanted_bytes: What the utilisation asks for.
        utilization: ``--gpu-memory-utilization``, 0 to 1.
    """

    device: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    wanted_bytes: int | None = None
    utilization: float | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class GpuMemoryChanged(GpuMemory):
    """Another process released or took GPU memory while vLLM measured it."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class NoKvCacheMemory(GpuMemory):
    """Weights and activations leave nothing for the KV cache."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class KvCacheTooSmall(GpuMemory):
    """The KV cache cannot hold one request of the full length.

    Attributes:
        max_model_len: The length, in tokens.
        needed_bytes: What one such request needs.
        available_bytes: What there is.
        fits_len: The longest length that fits, in tokens.
    """

    max_model_len: int | None = None
    needed_bytes: int | None = None
    available_bytes: int | None = None
    fits_len: int | None = None


# --- how they are told -------------------------------------------------------------------

# Which function ran, and what makes room there (vLLM 0.8 to 0.33; the innermost that matches counts).
_ROOM = (
    (
        "capture_model",
        "lower --gpu-memory-utilization, capture fewer graph sizes, or start with --enforce-eager",
    ),
    ("_allocate_kv_cache", "lower --gpu-memory-utilization"),  # until 0.10, V0
    ("initialize_kv_cache", "lower --gpu-memory-utilization"),
    ("_dummy_sampler_run", "lower --max-num-seqs first, then --gpu-memory-utilization"),
    ("profile_run", "lower --max-num-batched-tokens or --max-num-seqs"),
    ("load_model", "use more GPUs (--tensor-parallel-size), a quantised checkpoint, or --cpu-offload-gb"),
)


def _out_of_memory(found: Found) -> Cause:
    tried = found.size("tried")
    free = found.size("free" if found.word("free") else "free2")
    device = found.number("device")
    where = "a GPU" if device is None else f"GPU {device}"
    functions = found.error.functions if found.error is not None else ()
    return GpuOutOfMemory(
        message=f"{where} ran out of memory"
        + (f" when {found.word('tried')} were asked for" if tried else ""),
        hint=next((hint for function, hint in _ROOM if function in functions), None),
        device=device,
        tried_bytes=tried,
        free_bytes=free,
        total_bytes=found.size("total") or found.size("total2"),
        retryable=False,
    )


def _not_free(found: Found) -> Cause:
    free, total = found.decimal("free"), found.decimal("total")
    return GpuMemoryNotFree(
        message=f"only {found.word('free')} of {found.word('total')} GiB of GPU memory were free at the "
        f"start",
        hint=room_on_gpu(free or 0, total or 0),
        device=found.number("device"),
        free_bytes=found.size("free"),
        total_bytes=found.size("total"),
        wanted_bytes=found.size("wanted"),
        utilization=found.decimal("utilization"),
        retryable=None,
    )


def room_on_gpu(free: float, total: float) -> str:
    """What to do where ``free`` of ``total`` are too little."""
    hint = "end the process that holds the GPU's memory"
    if total and (fits := int(free / total * 100) / 100) >= _LEAST_UTILIZATION:
        hint += f", or start with --gpu-memory-utilization {fits:.2f} or less"
    return hint


# Below this a lower utilisation is no advice: hardly any model fits.
_LEAST_UTILIZATION = 0.3


# Tokens of a KV block, at most (vLLM 0.2 to 0.33 on GPUs: 16 to 128).
_BLOCK_TOKENS = 128


def _shorter(length: int | None, fits: int | None, needed: int | None, available: int | None) -> str | None:
    """The length that fits: as vLLM tells it, else in proportion (before 0.8.5 it does not tell)."""
    if fits:
        return f"start with --max-model-len {fits} or less, or raise --gpu-memory-utilization"
    if not length or not needed or not available or available <= 0:
        return None
    about = int(length * available / needed) // _BLOCK_TOKENS * _BLOCK_TOKENS
    if about <= 0:
        return None
    return f"start with --max-model-len of about {about}, or raise --gpu-memory-utilization"


def _no_cache(_: Found) -> Cause:
    return NoKvCacheMemory(
        message="weights and activations leave no GPU memory for the KV cache",
        hint="raise --gpu-memory-utilization, lower --max-num-batched-tokens, or use more GPUs or "
        "smaller weights",
        retryable=False,
    )


def _too_small(found: Found) -> Cause:
    length, fits = found.number("length"), found.number("fits")
    needed, available = found.size("needed"), found.size("available")
    return KvCacheTooSmall(
        message=f"the KV cache cannot hold one request of {length} tokens",
        hint=_shorter(length, fits, needed, available),
        max_model_len=length,
        needed_bytes=needed,
        available_bytes=available,
        fits_len=fits,
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="out of memory occurred when warming up",
        pattern=r"when warming up (?P<what>sampler|pooler)(?: \([^)\n]{1,80}\))? with (?P<count>\d+)",
        build=lambda found: GpuOutOfMemory(
            message=f"GPU memory ran out while the {found.word('what')} was warmed up with "
            f"{found.word('count')} requests",
            hint="lower --max-num-seqs first, then --gpu-memory-utilization",
            retryable=False,
        ),
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="out of memory. Tried to allocate",
        pattern=r"Tried to allocate (?P<tried>[\d.]+ \w+)(?:[. ]+\(?GPU (?P<device>\d+)(?: has a total "
        r"capac\w* of "
        r"(?P<total>[\d.]+ \w+) of which (?P<free>[\d.]+ \w+) (?:is|are) free|; (?P<total2>[\d.]+ \w+) total "
        r"capacity;"
        r"[^;]{0,60}; (?P<free2>[\d.]+ \w+) free))?",
        build=_out_of_memory,
        versions="torch 1.12 to 2.9",
    ),
    CauseRule(
        literal="out of memory",
        pattern=r"(?:(?:CUDA|HIP|XPU)(?: driver)? (?:[Ee]rror: )?|Error 2: )out of memory",
        build=_out_of_memory,
        versions="torch 1.12 to 2.9",
    ),
    CauseRule(
        literal="CUDA_ERROR_OUT_OF_MEMORY", build=_out_of_memory, versions="CUDA driver API; triton, cupy"
    ),
    CauseRule(
        literal="Cuda failure",
        pattern=r"NCCL WARN .{0,120}Cuda failure (?:\d+ )?'out of memory'",
        where="line",
        explains=("nccl_failed",),
        build=_out_of_memory,
        versions="NCCL 2.18 to 2.27",
    ),
    CauseRule(
        literal="CUBLAS_STATUS_ALLOC_FAILED",
        rank="generic",
        build=lambda _: GpuOutOfMemory(
            message="cuBLAS could not allocate GPU memory", confidence="likely", retryable=False
        ),
        versions="torch 1.12 to 2.9",
    ),
    CauseRule(
        literal="Free memory on device",
        pattern=r"Free memory on device(?: \w+:(?P<device>\d+))? \((?P<free>[\d.]+)/(?P<total>[\d.]+) "
        r"GiB\) on startup "
        r"is less than (?:desired GPU memory utilization \((?P<utilization>[\d.]+), (?P<wanted>[\d.]+) GiB\)"
        r"|the engine's budget)",
        build=_not_free,
        versions="0.9.1 to 0.33",
    ),
    CauseRule(
        literal="Externally held weights on device",
        pattern=r"Externally held weights on device(?: \w+:(?P<device>\d+))? \((?P<free>[\d.]+)/"
        r"(?P<total>[\d.]+) GiB\) "
        r"exceed the desired GPU memory utilization \((?P<utilization>[\d.]+), (?P<wanted>[\d.]+) GiB\)",
        build=lambda found: GpuMemoryNotFree(
            message="weights that another process holds exceed the memory that the utilisation allows",
            device=found.number("device"),
            total_bytes=found.size("total"),
            wanted_bytes=found.size("wanted"),
            utilization=found.decimal("utilization"),
            retryable=False,
        ),
        versions="0.32 to 0.33",
    ),
    CauseRule(
        literal="Error in memory profiling",
        build=lambda _: GpuMemoryChanged(
            message="GPU memory was freed or taken by another process while vLLM measured it",
            hint="start it again, one instance on a GPU at a time",
            retryable=True,
        ),
        versions="0.5 to 0.33",
    ),
    CauseRule(
        literal="No available memory for the cache blocks",
        build=_no_cache,
        versions="0.2 to 0.33",
    ),
    CauseRule(literal="Cannot auto-fit max_model_len", build=_no_cache, versions="0.14 to 0.33"),
    CauseRule(
        literal="To serve at least one request with the model",
        pattern=r"max seq len \((?P<length>[\d,]+)\), \(?(?P<needed>[\d.]+) GiB KV cache is needed"
        r"(?:, which is larger than the available KV cache memory \((?P<available>-?[\d.]+) GiB\))?"
        r"(?:.{0,200}?estimated maximum model length is (?P<fits>[\d,]+))?",
        build=_too_small,
        versions="0.8.3 to 0.33 (models's until 0.21)",
    ),
    CauseRule(
        literal="larger than the maximum number of tokens that can be stored in KV cache",
        pattern=r"max seq len \((?P<length>[\d,]+)\) is larger than the maximum number of tokens that "
        r"can be stored in "
        r"KV cache \((?P<fits>[\d,]+)\)",
        build=_too_small,
        versions="0.2 to 0.10",
    ),
    CauseRule(
        literal="the model is too large for the current device's HBM memory",
        build=lambda _: GpuOutOfMemory(
            message="the model does not fit into the device's memory", confidence="likely", retryable=False
        ),
        versions="0.9 to 0.12, TPU",
    ),
)
