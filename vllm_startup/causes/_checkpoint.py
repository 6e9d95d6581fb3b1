"""Checkpoint: the weights are not what they should be."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._rules import CauseRule, Found, place_rule


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Checkpoint(Cause):
    """The weights are not what they should be."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CheckpointCorrupt(Checkpoint):
    """A file of weights is damaged or is none.

    Attributes:
        file: Which.
    """

    file: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CheckpointMismatch(Checkpoint):
    """Names or shapes of tensors are not those of the model.

    Attributes:
        parameter: The tensor or parameter.
    """

    parameter: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class WeightsMissing(Checkpoint):
    """Files of weights, or parameters in them, are missing.

    Attributes:
        model: The model's name or path.
        files: What is missing.
    """

    model: str | None = None
    files: tuple[str, ...] | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AdapterInvalid(Checkpoint):
    """A LoRA or prompt adapter cannot be loaded.

    Attributes:
        adapter: Its name or path.
    """

    adapter: str | None = None


# --- how they are told -------------------------------------------------------------------


def _corrupt(found: Found) -> Cause:
    said = found.error.text if found.error is not None else found.text
    return CheckpointCorrupt(
        message=f"a file of weights is damaged: {said}",
        hint="compare the files' sizes with the hub's, and download the damaged one again",
        retryable=False,
    )


def _mismatch(found: Found) -> Cause:
    parameter = found.word("parameter")
    said = found.error.text if found.error is not None else found.text
    return CheckpointMismatch(
        message=f"the model has no place for {parameter}"
        if parameter
        else f"a tensor does not fit the model{f': {said}' if said else ''}",
        confidence="certain" if said else "likely",
        parameter=parameter,
        retryable=False,
    )


def _missing(found: Found) -> Cause:
    model, files = found.word("model"), found.names("names")
    return WeightsMissing(
        message="weights are missing: " + (", ".join(files[:3]) if files else f"none found in {model}"),
        hint="check that the download is complete, and --load-format" if model else None,
        model=model,
        files=files,
        retryable=False,
    )


# Functions that take a checkpoint's tensors in (0.2 to 0.33).
_LOADING = (
    r"/vllm/(?:model_executor/(?:models|layers|parameter|model_loader)|models/)\S{0,120}:"
    r"(?:load_weights?|load_\w+_weights?|_load_\w+|\w*weight_loader\w*|load_\w+_proj\w*|track_weights_loading"
    r"|validate_shard_id|adjust_\w+_shard\w*|_?reshape_\w*weight\w*|_remap_\w+|shard_id_as_int)$"
)


def _did_not_load(found: Found) -> Cause | None:
    if any(word in found.said for word in ("CUDA", "HIP ", "NCCL", "XPU ")):
        return None  # it is only where the device's or a peer's fault was noticed
    return CheckpointMismatch(
        message=f"the checkpoint's tensors do not fit the model: {found.said}",
        confidence="likely",
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(literal="Error while deserializing header", build=_corrupt, versions="safetensors 0.3 to 0.7"),
    CauseRule(literal="SafetensorError", rank="generic", build=_corrupt, versions="safetensors 0.3 to 0.7"),
    CauseRule(
        literal="Consistency check failed: file should be of size",
        pattern=r"file should be of size \d+ but has size \d+(?: \((?P<file>[^()\n]{1,200})\))?",
        build=lambda found: CheckpointCorrupt(
            message=f"the download of {found.word('file') or 'a file'} has the wrong size",
            hint="start it again; if that fails too, remove the model's .incomplete files from the cache, "
            "and look whether the disk is full",
            file=found.word("file"),
            retryable=True,
        ),
        versions="huggingface_hub 0.16 to 1.x",
    ),
    CauseRule(
        literal="invalid load key, 'v'",
        build=lambda _: CheckpointCorrupt(
            message="a file of weights is a Git LFS pointer, not the weights",
            hint="fetch the files themselves: git lfs pull, or download with the hf command",
            retryable=False,
        ),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="Unable to load weights from pytorch checkpoint file",
        build=_corrupt,
        versions="transformers 4 to 5",
    ),
    CauseRule(
        literal="Unable to load weights from checkpoint file", build=_corrupt, versions="transformers 4.5x"
    ),
    CauseRule(literal="PytorchStreamReader failed", build=_corrupt, versions="torch 1.6 to 2.9"),
    CauseRule(literal="UnpicklingError", rank="generic", build=_corrupt, versions="torch 1.x to 2.9"),
    CauseRule(
        literal="KeyError: '",
        pattern=r"^KeyError: '(?P<parameter>[\w]+(?:\.[\w]+)+)'",
        frame="load_weights",
        build=_mismatch,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="KeyError: '",
        pattern=r"^KeyError: '(?P<parameter>[\w]+(?:\.[\w]+)*\.(?:weight|bias|qweight|qzeros|scales"
        r"|g_idx|weight_scale"
        r"|weight_scale_inv|input_scale|absmax|weight_packed|k_scale|v_scale))'",
        build=_mismatch,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="There is no module or parameter named",
        pattern=r"There is no module or parameter named '(?P<parameter>[^']{1,300})'",
        build=_mismatch,
        versions="0.6 to 0.33",
    ),
    CauseRule(literal="Attempted to load weight", build=_mismatch, versions="0.5 to 0.33"),
    CauseRule(
        literal="Failed to map GGUF parameters",
        build=_mismatch,
        versions="0.14",
    ),
    CauseRule(literal="in loaded state!", pattern=r"Missing keys ", build=_mismatch, versions="0.6 to 0.33"),
    CauseRule(
        literal="size mismatch for",
        pattern=r"size mismatch for (?P<parameter>[\w.]{1,200}): copying a param",
        build=_mismatch,
        versions="torch",
    ),
    CauseRule(
        literal="must match the size of tensor",
        frame="load_weights",
        build=_mismatch,
        rank="generic",
        versions="torch",
    ),
    CauseRule(
        literal="exceeds dimension size",
        frame="load_weights",
        build=_mismatch,
        rank="generic",
        versions="torch",
    ),
    CauseRule(
        literal="weight_loader", frame="weight_loader", build=_mismatch, rank="weak", versions="0.2 to 0.33"
    ),
    CauseRule(
        literal="Cannot find any ",
        pattern=r"Cannot find any (?:safetensors )?model weights with [`']?(?P<model>[^`'\s]{1,400})",
        build=_missing,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="No model weights found in",
        pattern=r"No model weights found in: `?(?P<model>[^`\s]{1,400})",
        build=_missing,
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="Weight files referenced in index but missing",
        pattern=r"referenced in index but missing: (?P<names>[\[{(][^\]})]{0,600})",
        build=_missing,
        versions="0.33",
    ),
    CauseRule(
        literal="Could not find checkpoint files",
        pattern=r"Could not find checkpoint files '(?P<names>[^']{1,400})'",
        build=_missing,
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="Downloaded GGUF files not found in",
        pattern=r"Downloaded GGUF files not found in (?P<model>\S{1,400}) for",
        build=_missing,
        versions="0.14",
    ),
    CauseRule(
        literal="weights were not initialized from checkpoint",
        pattern=r"weights were not initialized from checkpoint: (?P<names>\{[^}]{0,600}\}?)",
        build=_missing,
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="No such file or directory",
        pattern=r"No such file or directory:? '?\"?(?P<names>[^'\"\n]{0,400}\."
        r"(?:safetensors|bin|pt|pth|gguf))",
        build=_missing,
        versions="Python, safetensors",
    ),
    CauseRule(
        literal="does not appear to have",
        pattern=r"(?<!\S)(?P<model>\S{1,400}) does not appear to have (?:a file|files) named "
        r"\(?(?P<names>[^)\n]{0,300}?"
        r"(?:safetensors|bin|index\.json))",
        build=_missing,
        versions="transformers 4 to 5",
    ),
    CauseRule(
        literal=" is not a file.",
        pattern=r"^ValueError: (?P<model>\S{1,400}) is not a file\.$",
        build=_missing,
        versions="0.5 to 0.8, GGUF",
    ),
    CauseRule(
        literal="Could not find ",
        pattern=r"Could not find (?:GGUF file for repo|mm_proj file for)",
        build=lambda found: WeightsMissing(message=found.said, retryable=False),
        versions="0.12 to 0.18",
    ),
    CauseRule(
        literal="Weight files referenced in index but missing: ",
        pattern=r"referenced in index but missing: (?P<names>[^\n]{1,400})",
        build=_missing,
        versions="0.31 to 0.33",
    ),
    CauseRule(
        literal="No model weights found in ",
        pattern=r"No model weights found in (?P<model>\S{1,400}) \(expected ",
        build=_missing,
        versions="0.15 to 0.33",
    ),
    CauseRule(
        literal="filter removed all weight files for ",
        pattern=r"filter removed all weight files for `(?P<model>[^`\n]{1,400})`",
        build=_missing,
        versions="0.33",
    ),
    CauseRule(
        literal="kv_b_proj_weight.shape=",
        pattern=r"AssertionError: (?P<parameter>kv_b_proj_weight)\.shape=",
        build=lambda found: attrs.evolve(_mismatch(found), confidence="likely"),
        versions="0.7 to 0.29, MLA",
    ),
    CauseRule(
        literal="not found in the model",
        pattern=r"Parameter (?P<parameter>\S{1,300}) not found in the model\.",
        build=_mismatch,
        versions="0.5 to 0.25, bitsandbytes",
    ),
    # Whatever goes wrong where a model's code takes tensors in: names, shapes, a missing attribute.
    place_rule(
        literal="/vllm/model",
        pattern=_LOADING,
        exceptions=(
            "ValueError",
            "AssertionError",
            "KeyError",
            "IndexError",
            "AttributeError",
            "RuntimeError",
        ),
        build=_did_not_load,
        versions="0.2 to 0.33",
    ),
    # Packing anew what was loaded: an assertion there says nothing, or speaks of shapes.
    place_rule(
        literal="process_weights_after_loading",
        pattern=r"/vllm/\S{1,160}:process_weights_after_loading$",
        exceptions=("AssertionError", "RuntimeError", "AttributeError"),
        build=_did_not_load,
        versions="0.4 to 0.33",
    ),
)
