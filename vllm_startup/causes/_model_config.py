"""ModelSupport: vLLM's own checks of what a model's directory says of the model.

Its configuration, its tokenizer and its multimodal processor; what transformers and others say of
them stands in `_model_support`.
"""

from __future__ import annotations

from vllm_startup.causes._base import Cause
from vllm_startup.causes._model_support import (
    ArchitectureUnsupported,
    ModelConfigInvalid,
    MultimodalProcessorFailed,
    TokenizerInvalid,
    type_unknown,
)
from vllm_startup.causes._rules import CauseRule, Found, place_rule


def _config(found: Found) -> Cause:
    said = found.plain
    if found.error is not None and found.error.name == "KeyError":  # which says the key, and nothing more
        said = f"the model's configuration has no {said}"
    return ModelConfigInvalid(message=said, confidence="likely", retryable=False)


def _tokenizer(found: Found) -> Cause:
    return TokenizerInvalid(
        message=f"the tokenizer cannot be loaded: {found.said}", confidence="likely", retryable=False
    )


def _tokenizer_json(found: Found) -> Cause:
    return TokenizerInvalid(
        message=f"one of the tokenizer's JSON files cannot be read: {found.said}",
        hint="compare tokenizer.json and tokenizer_config.json with the model's own: a download broke off",
        confidence="likely",
        retryable=False,
    )


def _processor(found: Found) -> Cause:
    return MultimodalProcessorFailed(
        message=f"the multimodal processor failed: {found.said}", confidence="likely", retryable=False
    )


def _type_unknown(found: Found) -> Cause | None:
    location = found.error.location if found.error is not None else None
    if location is None or not location[0].endswith("configuration_auto.py"):
        return None
    return type_unknown(found.word("type"))


# The fields of compressed-tensors' own classes, whose errors come under vLLM's name.
_QUANTIZED = (
    "scale_dtype|zp_dtype|num_bits|type|symmetric|group_size|strategy|block_structure|dynamic|actorder|"
    "observer|"
    "observer_kwargs|targets|weights|input_activations|output_activations|format|config_groups|"
    "kv_cache_scheme|"
    "global_compression_ratio|ignore|quantization_status|sparsity_config|transform_config"
)

_FAULTS = ("ValueError", "AssertionError", "NotImplementedError", "TypeError", "KeyError", "AttributeError")

RULES: tuple[CauseRule, ...] = (
    CauseRule(literal="Unknown RoPE scaling type", build=_config, versions="0.2 to 0.33"),
    CauseRule(literal="should have a 'rope_type' key", build=_config, versions="0.6 to 0.18"),
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
    CauseRule(
        literal="does not support EAGLE3 interface",
        build=lambda found: ArchitectureUnsupported(
            message="vLLM cannot draft for this model with EAGLE-3: its implementation has no such interface",
            hint="leave --speculative-config out, or choose another method",
            confidence="likely",
            retryable=False,
        ),
        versions="0.8 to 0.33",
    ),
    CauseRule(
        literal="for this kind of AutoModel",
        pattern=r"Unrecognized configuration class (?:<class ')?(?P<names>[\w.]{1,200})",
        build=lambda found: ArchitectureUnsupported(
            message=f"transformers has no model class for the configuration {found.word('names')}",
            confidence="likely",
            retryable=False,
        ),
        versions="transformers 4.20 to 5.x",
    ),
    CauseRule(
        literal="KeyError: '",
        pattern=r"^KeyError: '(?P<type>[a-z][a-z0-9_-]{1,60})'$",
        frame="from_pretrained",
        rank="vague",
        build=_type_unknown,
        versions="transformers 4.0 to 4.40",
    ),
    CauseRule(
        literal="TokenizerException: ",
        build=_tokenizer,
        versions="mistral_common 1.5 to 1.9",
    ),
    CauseRule(
        literal="Unable to load tokenizer model from SPM",
        build=_tokenizer,
        versions="transformers 4.45 to 5.x",
    ),
    CauseRule(
        literal='Not found: "',
        pattern=r"Not found: \"[^\"\n]{0,400}\.model\": No such file",
        build=_tokenizer,
        versions="sentencepiece 0.1 to 0.2",
    ),
    CauseRule(
        literal="Cannot instantiate ",
        pattern=r"Cannot instantiate \w{1,80}Processor: missing ",
        build=_processor,
        versions="transformers 5.x",
    ),
    CauseRule(
        literal="multiple of the number of attention heads",
        pattern=r"hidden size \(\d{1,9}\) is not a multiple of the number of attention heads",
        build=_config,
        versions="transformers 4.20 to 5.x",
    ),
    CauseRule(
        literal="Either model_file or model_proto must be specified",
        build=_tokenizer,
        versions="transformers 4.57, sentencepiece 0.2: a tokenizer without files",
    ),
    CauseRule(
        literal="No tokenizer file found in directory: ",
        build=_tokenizer,
        versions="transformers 5.x",
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
        literal="JSONDecodeError",
        rank="weak",
        frame="get_tokenizer",
        build=_tokenizer_json,
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="validation error",
        pattern=r"validation errors? for (?:VllmConfig|Quantization\w{1,20})\n"
        rf"(?:[\w.]{{0,80}}\.)?(?:{_QUANTIZED})\n {{1,4}}",
        build=lambda _: ModelConfigInvalid(
            message="the checkpoint's quantization has fields or values that this compressed-tensors does"
            " not know",
            hint="upgrade vLLM together with compressed-tensors: pip install -U vllm",
            confidence="likely",
            retryable=False,
        ),
        versions="compressed-tensors 0.12 to 0.13, pydantic 2",
    ),
    CauseRule(
        literal="Invalid type of HuggingFace processor",
        build=_processor,
        versions="0.7 to 0.33",
    ),
    place_rule(
        literal="/vllm/transformers_utils/config",
        pattern=r"/vllm/transformers_utils/(?:configs/\S{1,80}|config\.py):",
        exceptions=_FAULTS,
        build=_config,
        versions="0.4 to 0.33",
    ),
    place_rule(
        literal="/vllm/",
        pattern=r"/vllm/(?:config(?:/\w+)?\.py:(?:get_num_layers\w*|get_total_num\w*"
        r"|from_layers)|model_executor/models/config\.py:verify_and_update_model_config"
        r"|transformers_utils/model_arch_config_convertor\.py:\w+"
        r"|model_executor/layers/rotary_embedding\S{0,60}:(?:get_rope|__init__|_compute_inv_freq))$",
        exceptions=_FAULTS,
        build=_config,
        versions="0.2 to 0.33",
    ),
    place_rule(
        literal="/vllm/config",
        pattern=r":_get_and_verify_max_len$",
        exceptions=("KeyError",),
        build=_config,
        versions="0.2 to 0.12",
    ),
    place_rule(
        literal="/vllm/",
        pattern=r"/vllm/(?:transformers_utils/)?tokenizers?(?:_base|_group)?(?:/\w+)?\.py:"
        r"(?:__init__|from_pretrained|get_tokenizer|find_tokenizer_file|load_tokenizer\w*|_download_\w+)$",
        exceptions=(*_FAULTS, "OSError"),
        build=_tokenizer,
        versions="0.4 to 0.33",
    ),
    place_rule(
        literal="/vllm/transformers_utils/processor",
        pattern=r"/vllm/transformers_utils/processors?(?:/\w+)?\.py:",
        exceptions=(*_FAULTS, "RuntimeError"),
        build=_processor,
        versions="0.6 to 0.33",
    ),
    place_rule(
        literal="/vllm/",
        pattern=r"/vllm/(?:multimodal/(?:processing|profiling|registry|budget|encoder_budget)\S{0,60}:"
        r"|model_executor/models/\w+\.py:(?:_?get_dummy\w*|_get_prompt_updates|_call_hf_processor"
        r"|_get_mm_fields_config|get_hf_processor|get_num_\w+|input_processor_for\w*|dummy_data_for\w*)$)",
        exceptions=(*_FAULTS, "RuntimeError"),
        build=_processor,
        versions="0.5 to 0.33",
    ),
    # What a model's configuration asks for and vLLM's implementation of it does not do.
    place_rule(
        literal="/vllm/model",
        pattern=r"/vllm/(?:model_executor/models|models)/\S{1,100}:(?:__init__|__new__)$"
        r"|/vllm/model_executor/layers/(?:activation|fused_moe/layer|conv)\.py:(?:__init__|get_act\w*)$",
        exceptions=("ValueError", "NotImplementedError"),
        build=_config,
        versions="0.4 to 0.33",
    ),
)
