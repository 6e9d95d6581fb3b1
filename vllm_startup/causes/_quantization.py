"""Quantisation that vLLM cannot run: its own checks of the checkpoint's and of the asked-for method.

The kinds are of several families: the method is not the checkpoint's (LaunchArguments), the
checkpoint is quantised in a way that does not go with the model (Checkpoint) or with any kernel
(Hardware).
"""

from __future__ import annotations

from vllm_startup.causes._arguments import InvalidArguments, QuantizationMismatch
from vllm_startup.causes._base import Cause
from vllm_startup.causes._checkpoint import CheckpointMismatch
from vllm_startup.causes._hardware import DtypeUnsupported, QuantizationUnsupported
from vllm_startup.causes._rules import CauseRule, Found, place_rule


def _unknown(found: Found) -> Cause:
    method = found.word("method")
    return QuantizationMismatch(
        message=f"quantisation {method} is unknown to this vLLM, or not the checkpoint's",
        method=method,
        retryable=False,
    )


def _not_its(found: Found) -> Cause:
    return QuantizationMismatch(message=found.said, confidence="likely", retryable=False)


def _unsupported(found: Found) -> Cause:
    return QuantizationUnsupported(
        message=f"vLLM cannot run this quantisation: {found.said}",
        method=found.word("method"),
        confidence="likely",
        retryable=False,
    )


def _cut_across(found: Found) -> Cause:
    parameter = found.word("parameter")
    return CheckpointMismatch(
        message=f"the checkpoint's quantisation does not go with how vLLM joins the model's layers: "
        f"{found.said}",
        parameter=parameter,
        confidence="likely",
        retryable=False,
    )


def _dtype(found: Found) -> Cause:
    wanted = {"half": "float16", "fp16": "float16"}.get(found.word("wanted") or "", found.word("wanted"))
    return DtypeUnsupported(
        message=found.said,
        hint=f"start with --dtype {wanted}",
        dtype=found.word("dtype"),
        retryable=False,
    )


def _moe_backend(found: Found) -> Cause:
    return InvalidArguments(message=found.said, argument="--moe-backend", retryable=False)


_FAULTS = ("ValueError", "NotImplementedError", "AssertionError", "RuntimeError")

RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="Quantization method specified in the model config",
        pattern=r"model config\s+\((?P<own>[\w.-]{1,60})\) does not match the quantization\s+method "
        r"specified in the "
        r"`?quantization`? argument\s+\((?P<method>[\w.-]{1,60})\)",
        build=lambda found: QuantizationMismatch(
            message=f"the checkpoint is quantised with {found.word('own')}, {found.word('method')} was "
            f"asked for",
            hint="leave --quantization out: vLLM reads it from the checkpoint",
            method=found.word("method"),
            retryable=False,
        ),
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="Unknown quantization method",
        pattern=r"Unknown quantization method: (?P<method>[\w-]{1,60})",
        build=_unknown,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="Cannot find the config file for",
        pattern=r"Cannot find the config file for (?P<method>[\w.-]{1,60})",
        build=_unknown,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="Invalid quantization method: ",
        pattern=r"Invalid quantization method: (?P<method>[\w.-]{1,60})",
        build=_unknown,
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="in the model's quantization config",
        pattern=r"Cannot find any of \[",
        build=_not_its,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="Found static activation scheme for checkpoint that was not serialized fp8",
        build=_not_its,
        versions="0.4 to 0.12",
    ),
    CauseRule(
        literal="no longer supports online quantization",
        build=_not_its,
        versions="0.33",
    ),
    CauseRule(
        literal="loader does not support ",
        pattern=r"BitsAndBytes loader does not support (?P<method>[\w-]{1,60}) quantization",
        build=_not_its,
        versions="0.6 to 0.25",
    ),
    CauseRule(
        literal="are quantized. All shards",
        pattern=r"Detected some but not all shards of (?P<parameter>\S{1,200}) are quantized",
        build=_cut_across,
        versions="0.5 to 0.33",
    ),
    CauseRule(
        literal="Unable to find matching target for ",
        pattern=r"matching target for (?P<parameter>\S{1,200}) in the compressed-tensors config",
        build=_cut_across,
        versions="0.5 to 0.18",
    ),
    CauseRule(
        literal="vLLM requires all to use the same ",
        pattern=r"Found a different quantization \w{1,20} for (?P<parameter>\S{1,200}) in ",
        build=_cut_across,
        versions="0.5 to 0.33",
    ),
    CauseRule(
        literal="does not support BNB quantization for",
        build=_unsupported,
        versions="0.6 to 0.25",
    ),
    CauseRule(
        literal="Only bitsandbytes_nf4 quantization",
        build=_unsupported,
        versions="0.5",
    ),
    CauseRule(
        literal="compatible scheme was found",
        pattern=r"No (?P<method>compressed-tensors|quark) compatible scheme was found",
        build=_unsupported,
        versions="0.5 to 0.33",
    ),
    CauseRule(
        literal="Unsupported FusedMoe scheme",
        build=_unsupported,
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="For Fused MoE layers, only ",
        build=_unsupported,
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="Unsupported quantization config: bits=",
        build=_unsupported,
        versions="0.5 to 0.33",
    ),
    CauseRule(
        literal="weight quantization is supported for",
        pattern=r"Currently, only [^\n]{1,40}-bit weight quantization is supported for (?P<method>\w{1,30})",
        build=_unsupported,
        versions="0.2 to 0.18",
    ),
    CauseRule(
        literal="ModelOpt currently only supports",
        build=_unsupported,
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="Unsupported GGUF quantization type",
        build=_unsupported,
        versions="0.10 to 0.18",
    ),
    CauseRule(
        literal=" is required for ",
        pattern=r"(?P<wanted>float16) is required for (?:marlin24|MoE) compress\w* models",
        build=_dtype,
        versions="0.6 to 0.15",
    ),
    CauseRule(
        literal=" is currently supported by ",
        pattern=r"Only (?P<wanted>half|bfloat16) is currently supported by \w",
        build=_dtype,
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="must be float16",
        pattern=r"params dtype must be (?P<wanted>float16)[^\n]{0,20}, but got torch\.(?P<dtype>\w{1,20})",
        build=_dtype,
        versions="0.4 to 0.15",
    ),
    CauseRule(
        literal="moe_backend='",
        pattern=r"moe_backend='[^'\n]{1,60}' (?:is not supported|does not support|is only supported)"
        r"|requested moe_backend='",
        build=_moe_backend,
        versions="0.18 to 0.33",
    ),
    CauseRule(
        literal="MoE backend",
        pattern=r"MoE backend '?[\w.]{1,60}'? does not support the deployment configuration",
        rank="generic",
        build=_moe_backend,
        versions="0.14 to 0.33",
    ),
    place_rule(
        literal="weight_utils.py",
        pattern=r"/vllm/model_executor/model_loader/weight_utils\.py:get_quant_config$",
        exceptions=("ValueError", "NotImplementedError"),
        build=_not_its,
        versions="0.4 to 0.33",
    ),
    place_rule(
        literal="/quantization/",
        pattern=r"/vllm/model_executor/layers/quantization/\S{1,120}:(?!apply|forward)",
        exceptions=_FAULTS,
        build=_unsupported,
        versions="0.2 to 0.33",
    ),
    place_rule(
        literal="/vllm/model_executor/",
        pattern=r"/vllm/model_executor/(?:layers/fused_moe/oracle/(?!unquantized)|kernels/linear/)\S{1,120}:"
        r"(?!apply|forward)",
        exceptions=_FAULTS,
        build=_unsupported,
        versions="0.14 to 0.33",
    ),
)
