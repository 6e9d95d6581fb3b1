"""ModelSupport: no attention backend fits the model and the GPU."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._model_support import AttentionBackendUnsupported
from vllm_startup.causes._rules import CauseRule, Found


def _attention(found: Found) -> Cause:
    said = found.error.text if found.error is not None else found.text
    return AttentionBackendUnsupported(message=said, retryable=False)


def _xformers(_: Found) -> Cause:
    return AttentionBackendUnsupported(
        message="no attention operator of xformers fits the GPU, the data type and the head size",
        confidence="likely",
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(literal="No valid attention backend", build=_attention, versions="0.11.1 to 0.33"),
    CauseRule(literal="Sinks are only supported in", build=_attention, versions="0.10.1 to 0.33"),
    CauseRule(
        literal=" is not valid for this configuration",
        pattern=r"Selected (?:MLA prefill )?backend \S{1,80} is not valid for",
        build=_attention,
        versions="0.11.1 to 0.33",
    ),
    CauseRule(
        literal="is not supported by",
        pattern=r"[Hh]ead size \d+ is not supported by",
        build=_attention,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="No operator found for `memory_efficient_attention",
        build=_xformers,
        versions="xformers 0.0.16 to 0.0.30",
    ),
    CauseRule(
        literal="FlashAttention only support",
        pattern=r"FlashAttention only supports? \w",
        build=lambda found: attrs.evolve(_attention(found), confidence="likely"),
        versions="flash-attn 2",
    ),
    CauseRule(
        literal="This flash attention build does not support", build=_attention, versions="flash-attn 2"
    ),
    CauseRule(
        literal="kv-cache on this device",
        pattern=r"FlashAttention does not support \S{1,20} kv-cache on this device",
        build=_attention,
        versions="0.8 to 0.10",
    ),
    CauseRule(
        literal="MLA prefill backend found",
        pattern=r"No valid (?:CPU )?MLA prefill backend found",
        build=_attention,
        versions="0.33",
    ),
    CauseRule(
        literal="is not supported for vit attention",
        build=_attention,
        versions="0.14 to 0.33",
    ),
    CauseRule(
        literal="is not supported on ROCm",
        pattern=r"Attention backend \S{1,60} is not supported on ROCm",
        build=_attention,
        versions="0.14",
    ),
    CauseRule(
        literal="is only supported on gfx9 architectures",
        build=_attention,
        versions="0.14",
    ),
    CauseRule(literal="Invalid attention backend", build=_attention, versions="0.4 to 0.33"),
    CauseRule(
        literal="Valid options are: ",
        pattern=r"Unknown (?:attention|MLA prefill) backend: '",
        build=_attention,
        versions="0.12 to 0.33",
    ),
)
