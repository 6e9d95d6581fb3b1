"""ModelSupport: vLLM's own checks of what a model's directory says of the model.

Its configuration, its tokenizer and its multimodal processor; what transformers and others say of
them stands in `_model_support`.
"""

from __future__ import annotations

from vllm_startup.causes._base import Cause
from vllm_startup.causes._model_support import (
    ModelConfigInvalid,
    MultimodalProcessorFailed,
    TokenizerInvalid,
)
from vllm_startup.causes._rules import CauseRule, Found


def _config(found: Found) -> Cause:
    return ModelConfigInvalid(message=found.said, confidence="likely", retryable=False)


def _tokenizer(found: Found) -> Cause:
    return TokenizerInvalid(
        message=f"the tokenizer cannot be loaded: {found.said}", confidence="likely", retryable=False
    )


def _processor(found: Found) -> Cause:
    return MultimodalProcessorFailed(
        message=f"the multimodal processor failed: {found.said}", confidence="likely", retryable=False
    )


_FAULTS = ("ValueError", "AssertionError", "NotImplementedError", "TypeError", "KeyError", "AttributeError")

RULES: tuple[CauseRule, ...] = (
    CauseRule(literal="Unknown RoPE scaling type", build=_config, versions="0.2 to 0.33"),
    CauseRule(literal="should have a 'rope_type' key", build=_config, versions="0.12 to 0.33"),
    CauseRule(
        literal="Found conflicts between 'rope_type=",
        build=_config,
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="does not have `num_attention_heads` attribute",
        build=_config,
        versions="0.11 to 0.33",
    ),
    CauseRule(
        literal="determine ",
        pattern=r"Could(?:n't| not) determine (?:the )?number of (?:kv|key-value)",
        build=_config,
        versions="0.8 to 0.33",
    ),
    CauseRule(
        literal="The model is an hybrid without a",
        build=_config,
        versions="0.6 to 0.33",
    ),
    CauseRule(literal="Unsupported activation: ", build=_config, versions="0.2 to 0.33"),
    CauseRule(
        literal="Activation function ",
        pattern=r"Activation function '?[\w.]{1,60}'? is not supported",
        build=_config,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="position_embedding_type is supported",
        build=_config,
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="Invalid type of HuggingFace processor",
        build=_processor,
        versions="0.7 to 0.33",
    ),
    CauseRule(
        literal="/vllm/transformers_utils/config",
        pattern=r"/vllm/transformers_utils/(?:configs/\S{1,80}|config\.py):",
        where="place",
        exceptions=_FAULTS,
        rank="vague",
        build=_config,
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="/vllm/",
        pattern=r"/vllm/(?:config(?:/\w+)?\.py:(?:get_num_layers\w*|get_total_num\w*"
        r"|from_layers)|model_executor/models/config\.py:verify_and_update_model_config"
        r"|transformers_utils/model_arch_config_convertor\.py:\w+"
        r"|model_executor/layers/rotary_embedding\S{0,60}:(?:get_rope|__init__|_compute_inv_freq))$",
        where="place",
        exceptions=_FAULTS,
        rank="vague",
        build=_config,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="/vllm/config",
        pattern=r":_get_and_verify_max_len$",
        where="place",
        exceptions=("KeyError",),
        rank="vague",
        build=_config,
        versions="0.2 to 0.12",
    ),
    CauseRule(
        literal="/vllm/",
        pattern=r"/vllm/(?:transformers_utils/)?tokenizers?(?:_base|_group)?(?:/\w+)?\.py:"
        r"(?:__init__|from_pretrained|get_tokenizer|find_tokenizer_file|load_tokenizer\w*|_download_\w+)$",
        where="place",
        exceptions=(*_FAULTS, "OSError"),
        rank="vague",
        build=_tokenizer,
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="/vllm/transformers_utils/processor",
        pattern=r"/vllm/transformers_utils/processors?(?:/\w+)?\.py:",
        where="place",
        exceptions=(*_FAULTS, "RuntimeError"),
        rank="vague",
        build=_processor,
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="/vllm/",
        pattern=r"/vllm/(?:multimodal/(?:processing|profiling|registry|budget|encoder_budget)\S{0,60}:"
        r"|model_executor/models/\w+\.py:(?:_?get_dummy\w*|_get_prompt_updates|_call_hf_processor"
        r"|_get_mm_fields_config|get_hf_processor|get_num_\w+|input_processor_for\w*|dummy_data_for\w*)$)",
        where="place",
        exceptions=(*_FAULTS, "RuntimeError"),
        rank="vague",
        build=_processor,
        versions="0.5 to 0.33",
    ),
    # What a model's configuration asks for and vLLM's implementation of it does not do.
    CauseRule(
        literal="/vllm/model",
        pattern=r"/vllm/(?:model_executor/models|models)/\S{1,100}:(?:__init__|__new__)$"
        r"|/vllm/model_executor/layers/(?:activation|fused_moe/layer|conv)\.py:(?:__init__|get_act\w*)$",
        where="place",
        exceptions=("ValueError", "NotImplementedError"),
        rank="vague",
        build=_config,
        versions="0.4 to 0.33",
    ),
)
