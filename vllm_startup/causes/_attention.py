"""ModelSupport: no attention backend fits the model and the GPU."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._model_support import AttentionBackendUnsupported
from vllm_startup.causes._rules import CauseRule, Found, place_rule


def _attention(found: Found) -> Cause:
    said = found.error.text if found.error is not None else found.text
    return AttentionBackendUnsupported(message=said, retryable=False)


def _xformers(_: Found) -> Cause:
    return AttentionBackendUnsupported(
        message="no attention operator of xformers fits the GPU, the data type and the head size",
        confidence="likely",
        retryable=False,
    )


def _likely(found: Found) -> Cause:
    return AttentionBackendUnsupported(message=found.said, confidence="likely", retryable=False)


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
        literal="does not support attention logits soft cap",
        build=_attention,
        versions="0.5 to 0.12",
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
    CauseRule(
        literal=" backend now",
        pattern=r"does not support \S{1,60} backend now",
        build=_attention,
        versions="0.8 to 0.12",
    ),
    CauseRule(
        literal="does not support one of the following: alibi_slopes",
        build=_attention,
        versions="0.7 to 0.33",
    ),
    CauseRule(
        literal="Window left is not the same for all layers",
        build=_attention,
        versions="0.8 to 0.33",
    ),
    CauseRule(
        literal="FlashInfer backend currently ",
        pattern=r"FlashInfer backend currently (?:only supports|does not support)",
        build=_attention,
        versions="0.7 to 0.33",
    ),
    CauseRule(
        literal="requires attention impl",
        pattern=r"(?:DCP|PCP|\(DCP\)) requires attention impl",
        build=_likely,
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="No common block size for ",
        build=_likely,
        versions="0.11 to 0.33",
    ),
    CauseRule(
        literal="require an attention backend with kv_cache_shape=",
        build=_attention,
        versions="0.9 to 0.10",
    ),
    CauseRule(
        literal="with FP8 KV cache not yet supported",
        build=_attention,
        versions="0.8 to 0.10",
    ),
    # Checks of an attention backend, and of the choice of one, in whatever words.
    place_rule(
        literal="/vllm/",
        pattern=r"/vllm/(?:(?:v1/)?|model_executor/layers/)attention/\S{1,120}:(?:__init__|__post_init__|build|get_\w+|_cached_get_\w+"
        r"|infer_global_hyperparameters|validate_\w+|customize_spec|is_attn_backend_supported"
        r"|resolve_kv_cache_layout|register)$|/vllm/platforms/\w+\.py:get_(?:vit_)?attn_backend\w*$"
        r"|/vllm/(?:v1/)?worker/\S{1,60}:(?:check_attention_cp_compatibility|select_common_block_size)$"
        r"|/vllm/platforms/\w+\.py:(?:_preferred_block_size_for_backends|_check_aligned_block_size)$",
        exceptions=("ValueError", "NotImplementedError", "AssertionError", "RuntimeError"),
        build=_likely,
        versions="0.4 to 0.33",
    ),
    place_rule(
        literal="/attention/",
        pattern=r"/vllm/(?:v1/)?attention/(?:backends|layer)\S{0,80}:forward",
        exceptions=("NotImplementedError",),
        build=_likely,
        versions="0.4 to 0.33",
    ),
)
