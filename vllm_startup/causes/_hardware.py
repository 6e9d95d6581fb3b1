"""Hardware: the GPU cannot do what was asked of it."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._rules import CauseRule, Found


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Hardware(Cause):
    """The GPU cannot do what was asked of it."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class GpuArchitectureUnsupported(Hardware):
    """This build has no kernels for the GPU's architecture."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DtypeUnsupported(Hardware):
    """The GPU cannot compute in the data type.

    Attributes:
        dtype: Its name.
    """

    dtype: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class QuantizationUnsupported(Hardware):
    """The quantisation needs a newer GPU.

    Attributes:
        method: Its name.
        needed: Compute capability wanted, times ten.
        capability: Compute capability of the GPU, times ten.
    """

    method: str | None = None
    needed: int | None = None
    capability: int | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class KernelResourceLimit(Hardware):
    """A kernel needs more on-chip memory or registers than the GPU has."""


# --- how they are told -------------------------------------------------------------------


def _quantization(found: Found) -> Cause:
    needed, has = found.number("needed"), found.number("capability")
    method = found.word("method")
    return QuantizationUnsupported(
        message=f"quantisation {method or 'of this checkpoint'} needs compute capability {_dotted(needed)}, "
        f"the GPU has {_dotted(has)}",
        hint="use a checkpoint in another format, or a newer GPU",
        method=method,
        needed=needed,
        capability=has,
        retryable=False,
    )


def _no_kernel_for(found: Found) -> QuantizationUnsupported:
    """No kernel runs the checkpoint's quantisation here: the GPU, the shapes or the build are at fault."""
    method = found.word("method")
    needed = found.word("needed")
    return QuantizationUnsupported(
        message=f"no kernel runs quantisation {method or 'of this kind'} here",
        confidence="likely",
        method=method,
        needed=None if needed is None else int(needed.replace(".", "")),
        retryable=False,
    )


_NEWEST_WITHOUT = 89  # newer GPUs have these kernels, in a build that was made for them


def _not_compiled(found: Found) -> Cause:
    capability = found.number("capability")
    if capability is not None and capability > _NEWEST_WITHOUT:
        return GpuArchitectureUnsupported(
            message=f"this build has no kernel {found.word('method')} for compute capability "
            f"{_dotted(capability)}",
            hint="use a build that was made for this GPU",
            confidence="likely",
            retryable=False,
        )
    return QuantizationUnsupported(
        message=f"this build has no kernel {found.word('method')} for compute capability "
        f"{_dotted(capability)}",
        hint="use a build that was made for this GPU, or a checkpoint in another format",
        capability=capability,
        retryable=False,
    )


def _dtype_of_method(found: Found) -> Cause:
    dtype, method = found.word("dtype"), found.word("method")
    allowed = [each.rpartition(".")[2] for each in found.names("allowed") or ()]
    return DtypeUnsupported(
        message=f"quantisation {method} does not go with {dtype}",
        hint=f"start with --dtype {allowed[0]}" if allowed else None,
        dtype=dtype,
        retryable=False,
    )


def _no_fp8(found: Found) -> Cause:
    return DtypeUnsupported(
        message=f"the GPU cannot compute in {found.word('dtype')}: FP8 needs compute capability 8.9",
        hint="use a checkpoint without FP8, and leave --kv-cache-dtype fp8 out",
        dtype=found.word("dtype"),
        retryable=False,
    )


def _dotted(capability: int | None) -> str:
    return "unknown" if capability is None else f"{capability // 10}.{capability % 10}"


def _resources(_: Found) -> Cause:
    return KernelResourceLimit(
        message="a kernel needs more on-chip memory or registers than the GPU has; /dev/shm and RAM "
        "have no part in it",
        retryable=False,
    )


_DTYPES = {"Half": "float16", "BFloat16": "bfloat16"}


def _no_kernel_in(found: Found) -> Cause:
    said = found.word("dtype") or ""
    dtype = _DTYPES.get(said, said.lower())
    return DtypeUnsupported(message=f"there is no kernel for {dtype} here", dtype=dtype, retryable=False)


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="Bfloat16 is only supported on GPUs with compute capability",
        build=lambda _: DtypeUnsupported(
            message="the GPU cannot compute in bfloat16",
            hint="start with --dtype half",
            dtype="bfloat16",
            retryable=False,
        ),
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="not supported in this architecture",
        pattern=r"type (?P<dtype>fp8\w{1,12}) not supported in this architecture",
        build=_no_fp8,
        versions="triton 2.1 to 3.6",
    ),
    CauseRule(
        literal="KV cache is not supported ",
        pattern=r"(?P<dtype>FP8|bfloat16) KV cache is not supported [^\n]{0,200}?\(compute capability "
        r"[^\n]{0,200}?--kv-cache-dtype (?P<instead>\w{1,20})",
        build=lambda found: DtypeUnsupported(
            message=f"the GPU cannot hold the KV cache in {found.word('dtype')}",
            hint=f"start with --kv-cache-dtype {found.word('instead')}",
            dtype=found.word("dtype"),
            retryable=False,
        ),
        versions="0.32 to 0.33",
    ),
    CauseRule(
        literal="is not supported for quantization method",
        pattern=r"torch\.(?P<dtype>\w{1,30}) is not supported for quantization method "
        r"(?P<method>[\w-]{1,60})(?:\. Supported dtypes: \[(?P<allowed>[^\]]{1,200})\])?",
        build=_dtype_of_method,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="is not supported for the current GPU",
        pattern=r"quantization method (?P<method>[\w.-]{1,60}) is not supported for the current GPU\. "
        r"Minimum "
        r"capability: (?P<needed>\d+)\.\s+Current capability: (?P<capability>\d+)",
        build=_quantization,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="Quantization scheme is not supported for",
        pattern=r"(?:Min|Required) capability: (?P<needed>\d+)\D{1,12}Current capability: "
        r"(?P<capability>\d+)",
        build=_quantization,
        versions="0.5 to 0.33",
    ),
    CauseRule(
        literal="MoE backend",
        pattern=r"(?i)\bNo (?!unquantized)(?P<method>\w{2,20}(?: Int8)?) MoE backends? "
        r"(?:\([^)\n]{0,80}\) ?)?"
        r"(?:supports the deployment|available)",
        exceptions=("NotImplementedError", "ValueError", "AssertionError"),
        build=_no_kernel_for,
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="No compiled ",
        pattern=r"No compiled (?P<method>\w{1,60})[^\n]{0,120}? CUDA device capability: (?P<capability>\d+)",
        build=_not_compiled,
        versions="0.4 to 0.33, csrc",
    ),
    CauseRule(
        literal="No compiled nvfp4",
        pattern=r"No compiled (?P<method>nvfp4) (?:\w+ ){1,3}kernel",
        build=_no_kernel_for,
        versions="0.8 to 0.33, csrc",
    ),
    CauseRule(
        literal="Failed to find a kernel that can implement the",
        pattern=r"can implement the (?P<method>\w{1,30}) linear layer",
        build=_no_kernel_for,
        versions="0.6 to 0.14",
    ),
    CauseRule(
        literal="GEMM backend found",
        pattern=r"No valid (?P<method>\w{1,20}) GEMM backend found",
        build=_no_kernel_for,
        versions="0.14",
    ),
    CauseRule(
        literal="quantization is currently not supported in",
        pattern=r"(?P<method>[\w-]{1,60}) quantization is currently not supported in \w",
        build=lambda found: attrs.evolve(_no_kernel_for(found), confidence="certain"),
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="quantization is not supported on",
        pattern=r"(?P<method>[\w-]{1,60}) quantization is not supported on (?:gfx|sm)\w",
        build=lambda found: attrs.evolve(_no_kernel_for(found), confidence="certain"),
        versions="AITER 0.1",
    ),
    CauseRule(
        literal="requires GPU compute capability",
        pattern=r"(?P<method>torchao FP8)[^\n]{0,300}? requires GPU compute capability >= "
        r"(?P<needed>\d+\.\d)",
        build=lambda found: attrs.evolve(_no_kernel_for(found), confidence="certain"),
        versions="0.33",
    ),
    CauseRule(
        literal="BitsAndBytes",
        pattern=r"does not support (?P<method>BitsAndBytes) quantization|Prequant BitsAndBytes 8bit models",
        build=lambda found: attrs.evolve(_no_kernel_for(found), method="bitsandbytes"),
        versions="0.6 to 0.14",
    ),
    CauseRule(
        literal="does not support float16",
        pattern=r"The model type '?(?P<type>[\w-]{1,60})'? does not support float16",
        build=lambda found: DtypeUnsupported(
            message=f"models of type {found.word('type')} cannot be computed in float16",
            hint="start with --dtype bfloat16, or --dtype float32 on GPUs without it",
            dtype="float16",
            retryable=False,
        ),
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="punica LoRA kernels require compute capability",
        build=lambda _: GpuArchitectureUnsupported(
            message="LoRA needs compute capability 8.0 in this vLLM",
            hint="start without --enable-lora, or upgrade vLLM",
            retryable=False,
        ),
        versions="0.3 to 0.4",
    ),
    *(
        CauseRule(
            literal=literal,
            pattern=rf"^ValueError: (?P<what>[\w.='-]{{1,60}}){literal}",
            build=lambda found: GpuArchitectureUnsupported(
                message=f"{found.word('what')} needs another kind of GPU: {found.said}", retryable=False
            ),
            versions="0.30 to 0.33",
        )
        for literal in (" requires an SM", " requires Blackwell ")
    ),
    CauseRule(literal="out of resource: ", build=_resources, versions="triton 2.1 to 3.5"),
    CauseRule(literal="too many resources requested for launch", build=_resources, versions="CUDA error 7"),
    CauseRule(literal="uses too much shared data", where="both", build=_resources, versions="ptxas"),
    CauseRule(
        literal=" not implemented for '",
        pattern=r"\"[\w:]{1,100}\" not implemented for "
        r"'(?P<dtype>Half|BFloat16|Float8_\w{1,12}|Float4_\w{1,12})'",
        build=_no_kernel_in,
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="torch._scaled_mm is only supported on",
        build=lambda _: DtypeUnsupported(
            message="the GPU cannot compute in FP8",
            hint="use a checkpoint without FP8",
            dtype="float8",
            retryable=False,
        ),
        versions="torch 2.1 to 2.9",
    ),
    CauseRule(literal="too many blocks in cooperative launch", build=_resources, versions="CUDA error 720"),
    CauseRule(
        literal="bfloat16 accuracy known issue",
        build=lambda _: DtypeUnsupported(
            message="the GPU does not compute in bfloat16 as it should",
            hint="start with --dtype float16",
            dtype="bfloat16",
            retryable=False,
        ),
        versions="0.7 to 0.33, XPU",
    ),
    CauseRule(
        literal="quantization is supported only on ",
        pattern=r"(?P<method>[\w-]{1,60}) quantization is supported only on \w",
        build=lambda found: attrs.evolve(_no_kernel_for(found), confidence="certain"),
        versions="0.7 to 0.18",
    ),
)
