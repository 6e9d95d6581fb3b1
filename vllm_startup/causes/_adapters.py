"""Checkpoint: LoRA and prompt adapters that cannot be loaded, and models that take none."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._checkpoint import AdapterInvalid
from vllm_startup.causes._rules import CauseRule, Found, place_rule

# What --max-lora-rank accepts (vllm/config/lora.py, 0.5 to 0.33).
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def _rank(rank: int | None) -> int | None:
    return next((each for each in _RANKS if rank is not None and each >= rank), rank)


def _adapter(found: Found) -> Cause:
    adapter = found.word("adapter")
    said = found.error.text if found.error is not None else found.text
    return AdapterInvalid(
        message=f"the adapter {adapter} cannot be loaded" if adapter else said,
        adapter=adapter,
        retryable=False,
    )


def _no_lora(found: Found) -> Cause:
    return AdapterInvalid(
        message=f"vLLM does not support LoRA for {found.word('model')}",
        hint="start without --enable-lora, or merge the adapter into the weights",
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="is greater than max_lora_rank",
        pattern=r"LoRA rank (?P<rank>\d+) is greater than max_lora_rank\s+(?P<most>\d+)",
        build=lambda found: AdapterInvalid(
            message=f"the adapter's LoRA rank {found.word('rank')} exceeds --max-lora-rank "
            f"{found.word('most')}",
            hint=f"start with --max-lora-rank {_rank(found.number('rank'))}",
            retryable=False,
        ),
        versions="0.3 to 0.33",
    ),
    CauseRule(
        literal="No adapter found for",
        pattern=r"No adapter found for (?P<adapter>\S{1,400})",
        build=_adapter,
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="Loading lora",
        pattern=r"Loading lora (?P<adapter>\S{1,400}) failed",
        build=_adapter,
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="adapter_config.json",
        pattern=r"'(?P<adapter>[^']{1,400})/adapter_config\.json'",
        build=_adapter,
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="does not support LoRA yet",
        pattern=r"^ValueError: (?P<model>\w{1,100}) does not support LoRA yet",
        build=_no_lora,
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="LoRA is not supported for ",
        pattern=r"LoRA is not supported for (?P<model>\S{1,200})",
        build=_no_lora,
        versions="0.33",
    ),
    CauseRule(literal="is unsupported LoRA weight", build=_adapter, versions="0.3 to 0.33"),
    CauseRule(literal="expected target modules in", build=_adapter, versions="0.4 to 0.33"),
    CauseRule(
        literal="ValueError: vLLM ",
        pattern=r"^ValueError: vLLM (?:only supports modules_to_save being None"
        r"|does not yet support (?:(?:RS|Do)(?:LoRA|RA)\b|bias))",
        build=_adapter,
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="Adapter bias cannot be used without",
        build=_adapter,
        versions="0.6 to 0.9",
    ),
    CauseRule(
        literal="required configuration fields",
        pattern=r"Missing required configuration fields: ",
        frame="from_local_dir",
        build=_adapter,
        versions="0.7 to 0.33",
    ),
    CauseRule(literal="LoRA rank `r` must be", build=_adapter, versions="0.33"),
    CauseRule(
        literal="doesn't contain tensors",
        pattern=r"ValueError: (?P<adapter>\S{1,400}) doesn't contain tensors",
        build=_adapter,
        versions="0.3 to 0.33",
    ),
    CauseRule(
        literal="Call to add_lora method failed",
        pattern=r"Call to add_lora method failed: ",
        rank="vague",
        build=lambda found: attrs.evolve(_adapter(found), confidence="likely"),
        versions="0.8 to 0.33",
    ),
    CauseRule(
        literal="does not support LoRA",
        pattern=r"(?:Model |: )(?P<model>\w{1,100}) does not support LoRA(?:, but LoRA is enabled|\.|$)",
        build=_no_lora,
        versions="0.3 to 0.8, and MoE layers since 0.12",
    ),
    CauseRule(
        literal="is not supported for LoRA",
        pattern=r"Model [^\n]{1,200} is not supported for LoRA",
        build=_adapter,
        versions="0.3 to 0.33",
    ),
    CauseRule(
        literal="No supported LoRA modules found in",
        pattern=r"modules found in\s+(?P<model>\w{1,100})",
        build=_no_lora,
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="When using LoRA, vocab size must be",
        build=_adapter,
        versions="0.3 to 0.33",
    ),
    CauseRule(
        literal="Cannot find adapter config file in",
        pattern=r"config file in (?P<adapter>\S{1,400})",
        build=_adapter,
        versions="0.5, QLoRA",
    ),
    place_rule(
        literal="/vllm/lora/",
        pattern=r"/vllm/lora/(?!ops)\S{1,80}:(?!forward|apply|_apply_adapters|set_mapping|get_resolver)",
        exceptions=("ValueError", "AssertionError", "NotImplementedError", "RuntimeError", "KeyError"),
        build=lambda found: attrs.evolve(_adapter(found), message=found.said),
        versions="0.3 to 0.33",
    ),
)
