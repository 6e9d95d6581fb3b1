"""LaunchArguments: parallel sizes that the model or the machine does not allow."""

from __future__ import annotations

import attrs

from vllm_startup.causes._arguments import ParallelSizeInvalid
from vllm_startup.causes._base import Cause
from vllm_startup.causes._rules import CauseRule, Found

# Tensor parallel sizes that are worth naming: GPUs of a deployment.
_MAX_SIZE = 64


def _divisors(count: int) -> str:
    return ", ".join(str(n) for n in range(1, min(count, _MAX_SIZE) + 1) if count % n == 0)


def _heads(found: Found) -> Cause:
    heads, size = found.number("count") or 0, found.number("size")
    return ParallelSizeInvalid(
        message=f"{heads} attention heads cannot be divided among {size} tensor parallel ranks",
        hint=f"--tensor-parallel-size must divide {heads}: {_divisors(heads)}" if heads else None,
        what="attention heads",
        size=size,
        allowed=heads,
        retryable=False,
    )


def _indivisible(found: Found) -> ParallelSizeInvalid:
    count, size = found.number("count"), found.number("size")
    what = found.word("what")
    return ParallelSizeInvalid(
        message=f"{what or 'a dimension of the model'} ({count}) does not go with the size {size}",
        hint=f"the size must divide {count}: {_divisors(count)}" if what and count else None,
        confidence="certain" if what else "likely",
        what=what,
        size=size,
        allowed=count,
        retryable=False,
    )


def _context(found: Found) -> ParallelSizeInvalid:
    size, most = found.number("size"), found.number("count")
    return ParallelSizeInvalid(
        message="the decode context parallel size does not go with the tensor parallel size and the model's "
        "KV heads",
        hint=f"start with --decode-context-parallel-size {most} or less" if most else None,
        what="decode context parallel size",
        size=size,
        allowed=most,
        retryable=False,
    )


def _groups_cut(_: Found) -> Cause:
    return ParallelSizeInvalid(
        message="the tensor parallel size cuts the quantised weights at a place that their groups "
        "do not allow",
        what="quantisation group",
        confidence="likely",
        retryable=False,
    )


def _named_indivisible(found: Found) -> Cause:
    return ParallelSizeInvalid(
        message=found.said, what=found.word("what"), confidence="likely", retryable=False
    )


def _no_stages() -> Cause:
    return ParallelSizeInvalid(
        message="the model cannot be split into pipeline stages",
        hint="leave --pipeline-parallel-size out, and raise --tensor-parallel-size instead",
        what="pipeline parallel size",
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="Total number of attention heads",
        pattern=r"Total number of attention heads \((?P<count>\d+)\) must be divisible by tensor "
        r"parallel size "
        r"\((?P<size>\d+)\)",
        build=_heads,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="must be divisible by",
        pattern=r"(?P<what>Number of experts|(?!num_speculative)[Nn]um(?:ber of)? ?_?\w+|tp_size|world_size"
        r"|nnodes|[Aa]ttention sink heads)[^\n]{0,60}?\(?=?(?P<count>\d+)\)?"
        r"[^\n]{0,40}? must be divisible by ?[^\n]{0,60}?(?P<size>\d+)",
        rank="generic",
        build=_indivisible,
        versions="0.5 to 0.33",
    ),
    CauseRule(
        literal="Tensor parallel size ",
        pattern=r"Tensor parallel size (?P<size>\d+) is greater than the number of experts (?P<count>\d+)",
        build=_indivisible,
        versions="0.3 to 0.33",
    ),
    CauseRule(
        literal=" is not divisible by ",
        pattern=r"AssertionError: (?P<count>\d+) is not divisible by (?P<size>\d+)",
        rank="generic",
        build=_indivisible,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="is not divisible by",
        pattern=r"\b(?:in|out)put_\w{1,40}[^=\n]{0,60}= ?\d+[^\n]{0,60}?\s+is\s+not\s+divisible\s+by\s+"
        r"(?:min_\w|group_size|pack_factor|weight\s+quantization\s+block_\w)",
        rank="generic",
        build=_groups_cut,
        versions="0.3 to 0.33",
    ),
    CauseRule(
        literal="is not aligned with the quantized",
        pattern=r"The (?:in|out)put size is not aligned with the quantized\s+weight\s+shape",
        build=_groups_cut,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="quantized models",
        pattern=r"Tensor parallel currently (?:not )?supported for quantized models",
        build=_groups_cut,
        versions="0.8 to 0.14",
    ),
    CauseRule(
        literal="parallel world size",
        pattern=r"ensor parallel world size (?:must|does not) divide (?P<what>[\w ]{1,40})",
        build=lambda found: ParallelSizeInvalid(
            message=f"the tensor parallel size does not divide the model's {found.word('what')}",
            what=(found.word("what") or "").rstrip("."),
            retryable=False,
        ),
        versions="0.8 to 0.33",
    ),
    CauseRule(
        literal="must evenly divide the total world size",
        pattern=r"--nnodes (?P<size>\d+)`? must evenly divide the total world size \((?P<count>\d+)\)",
        build=lambda found: attrs.evolve(
            _indivisible(found),
            message=f"--nnodes {found.word('size')} does not divide the world size {found.word('count')}",
            what="world size",
            confidence="certain",
        ),
        versions="0.33",
    ),
    CauseRule(
        literal="BitsAndBytes models with tensor parallelism is not supported",
        build=lambda _: ParallelSizeInvalid(
            message="weights that were quantised with bitsandbytes cannot be split among ranks",
            hint="start with --tensor-parallel-size 1 (and --pipeline-parallel-size for more GPUs)",
            what="tensor parallel size",
            retryable=False,
        ),
        versions="0.6 to 0.8",
    ),
    CauseRule(
        literal="Online transforms with tensor parallelism",
        build=lambda _: ParallelSizeInvalid(
            message="weights that are transformed while they are loaded cannot be split among ranks",
            hint="start with --tensor-parallel-size 1",
            what="tensor parallel size",
            retryable=False,
        ),
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="decode-context-parallel-size` (",
        pattern=r"`--decode-context-parallel-size` \((?P<size>\d+)\) exceeds the maximum supported value "
        r"\((?P<count>\d+)\)",
        build=_context,
        versions="0.32 to 0.33",
    ),
    CauseRule(
        literal="Decode context parallelism for GQA/MQA requires",
        build=lambda found: attrs.evolve(_context(found), confidence="likely"),
        versions="0.32 to 0.33",
    ),
    CauseRule(
        literal="Pipeline parallelism is not supported for this model",
        build=lambda _: _no_stages(),
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="divisible by ",
        pattern=r"(?:per partition|per_partition|per tensor-parallel partition)[^\n]{0,60}? (?:must|to) be "
        r"divisible by (?:group|packed|the|\d)",
        rank="generic",
        build=_groups_cut,
        versions="0.8 to 0.33",
    ),
    CauseRule(
        literal="must be divisible by tensor",
        pattern=r"(?P<what>[\w ]{1,60}?) must be divisible by tensor[ _]parallel",
        rank="generic",
        build=_named_indivisible,
        versions="0.5 to 0.33",
    ),
    CauseRule(
        literal="Try adjusting tensor_parallel_size value",
        pattern=r"Provided (?P<count>\d+) number of heads",
        build=lambda found: ParallelSizeInvalid(
            message=f"the attention backend has no kernel for {found.word('count')} heads a rank",
            what="attention heads",
            allowed=None,
            retryable=False,
        ),
        versions="0.10 to 0.29, ROCm",
    ),
    CauseRule(
        literal="world_size (",
        pattern=r"world_size \((?P<size>\d+)\) (?:is not|must be) equal to (?:the )?tensor_",
        build=lambda found: ParallelSizeInvalid(
            message=f"the world size {found.word('size')} is not the product of the parallel sizes",
            what="world size",
            size=found.number("size"),
            retryable=False,
        ),
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="decode context parallel",
        pattern=r"must be greater than total num kv heads \d+ when enable decode context parallel"
        r"|decode context parallel size must less than or equal to",
        build=lambda found: attrs.evolve(_context(found), confidence="likely"),
        versions="0.11 to 0.25",
    ),
    CauseRule(
        literal="EPLB currently only supports even distribution of experts across ranks",
        build=lambda _: ParallelSizeInvalid(
            message="the experts, with the redundant ones, cannot be spread evenly over the ranks",
            hint="choose --eplb-config's num_redundant_experts so that the ranks divide all experts",
            what="experts",
            retryable=False,
        ),
        versions="0.9 to 0.33",
    ),
    CauseRule(
        literal=" has no experts assigned to it",
        pattern=r"Rank \d+ has no experts assigned to it",
        build=lambda _: ParallelSizeInvalid(
            message="there are more tensor parallel ranks than experts", what="experts", retryable=False
        ),
        versions="0.3 to 0.8",
    ),
    CauseRule(
        literal=" does not support pipeline parallel",
        pattern=r"(?:ForCausalLM|ForConditionalGeneration|Model|MTP) does not support"
        r"|support pipeline parallel(?!ism)",
        build=lambda _: _no_stages(),
        versions="0.8 to 0.33",
    ),
    CauseRule(
        literal=" does not support tensor parallel",
        pattern=r"^ValueError: [^\n]{1,400}? does not support tensor parallel(?!ism)",
        build=lambda _: ParallelSizeInvalid(
            message="the Transformers implementation of the model has no plan for tensor parallelism",
            hint="start with --tensor-parallel-size 1",
            what="tensor parallel size",
            retryable=False,
        ),
        versions="0.8 to 0.18, transformers backend",
    ),
    CauseRule(
        literal="must be divisible by ",
        pattern=r"(?P<what>\w{1,60})= ?(?P<count>\d+) must be divisible by (?:ep|tp)_size= ?(?P<size>\d+)",
        build=_indivisible,
        versions="0.25 to 0.33",
    ),
    CauseRule(
        literal="is not divisible by tp_size",
        pattern=r"(?P<what>\w{1,60}) (?P<count>\d+) is not divisible by tp_size (?P<size>\d+)",
        build=_indivisible,
        versions="0.11 to 0.33",
    ),
)
