"""ModelSupport: this vLLM, or what it stands on, cannot serve this model."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._rules import CauseRule, Found


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ModelSupport(Cause):
    """This vLLM, or what it stands on, cannot serve this model."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ArchitectureUnsupported(ModelSupport):
    """vLLM has no implementation of the architecture.

    Attributes:
        architectures: Their names.
    """

    architectures: tuple[str, ...] | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ModelTypeUnknown(ModelSupport):
    """Transformers does not know the model's type.

    Attributes:
        model_type: Its name.
    """

    model_type: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ModelConfigInvalid(ModelSupport):
    """The model's configuration cannot be read or contradicts itself.

    Attributes:
        path: The file, or the model's directory.
    """

    path: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TokenizerInvalid(ModelSupport):
    """The tokenizer cannot be loaded."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ChatTemplateInvalid(ModelSupport):
    """The chat template cannot be used."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class MultimodalProcessorFailed(ModelSupport):
    """The processor of images, audio or video failed."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class AttentionBackendUnsupported(ModelSupport):
    """No attention backend, or not the forced one, fits model and GPU."""


# --- how they are told -------------------------------------------------------------------


def _architecture(found: Found) -> Cause:
    names = found.names("names")
    until = found.word("until")
    return ArchitectureUnsupported(
        message=f"this vLLM does not implement {', '.join(names or ('the architecture',))}",
        hint=f"use vLLM {until} or older"
        if until
        else "upgrade vLLM, or try --model-impl transformers (0.7 and newer)",
        architectures=names,
        retryable=False,
    )


def _config(found: Found) -> Cause:
    path = found.word("path")
    said = found.error.text if found.error is not None else found.text
    return ModelConfigInvalid(
        message=f"the configuration {path} cannot be used" if path else said,
        path=path,
        retryable=False,
    )


def _tokenizer(found: Found) -> Cause:
    said = found.error.text if found.error is not None else found.text
    return TokenizerInvalid(message=f"the tokenizer cannot be loaded: {said}", retryable=False)


def _template(found: Found) -> Cause:
    said = found.error.text if found.error is not None else found.text
    return ChatTemplateInvalid(message=f"the chat template cannot be used: {said}", retryable=False)


def _processor(found: Found) -> Cause:
    name = found.word("name")
    return MultimodalProcessorFailed(
        message=f"the multimodal processor {name or ''} failed on vLLM's dummy input".replace("  ", " "),
        confidence="certain" if found.match is not None else "likely",
        retryable=False,
    )


def type_unknown(name: str | None) -> Cause:
    """The installed transformers does not know a model type."""
    return ModelTypeUnknown(
        message=f"the installed transformers does not know the model type {name}",
        hint="upgrade transformers to a release that this vLLM allows, or vLLM itself",
        model_type=name,
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="are not supported for now",
        pattern=r"Model architectures (?P<names>\[[^\]]{0,300}\]) are not supported for now",
        build=_architecture,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="is not supported anymore",
        pattern=r"Model architecture (?P<names>\w{1,100}) was supported in vLLM until v"
        r"(?P<until>[\w.]{1,20}), and is not",
        build=_architecture,
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="is not supported in-tree anymore",
        pattern=r"Model architecture (?P<names>\w{1,100}) is not supported in-tree anymore",
        build=_architecture,
        versions="0.14 to 0.33",
    ),
    CauseRule(
        literal="has no vLLM implementation",
        pattern=r"(?P<names>\w{1,100}) has no vLLM implementation",
        build=_architecture,
        versions="0.7 to 0.12",
    ),
    CauseRule(
        literal="GGUF model with architecture",
        pattern=r"GGUF model with architecture (?P<names>[\w-]{1,60}) is not supported",
        build=_architecture,
        versions="transformers 4.42 to 5.x",
    ),
    CauseRule(
        literal="Architecture ",
        pattern=r"^ValueError: Architecture (?P<names>[\w-]{1,60}) not supported$",
        build=_architecture,
        versions="transformers 4.41 to 4.46, GGUF",
    ),
    CauseRule(
        literal="Unknown gguf model_type",
        pattern=r"Unknown gguf model_type: (?P<names>[\w.-]{1,60})",
        build=lambda found: attrs.evolve(_architecture(found), confidence="likely"),
        versions="0.6 to 0.14, vllm-gguf-plugin",
    ),
    CauseRule(
        literal="is not supported by ROCm for now",
        pattern=r"Model architecture '(?P<names>\w{1,100})' is not supported by ROCm for now",
        build=_architecture,
        versions="0.4 to 0.33, ROCm",
    ),
    CauseRule(
        literal="Cannot find model module.",
        pattern=r"Cannot find model module\. '(?P<names>\w{1,100})'",
        build=_architecture,
        versions="0.9 to 0.33",
    ),
    CauseRule(
        literal="The Transformers implementation of",
        pattern=r"The Transformers implementation of '(?P<names>\w{1,100})'\s+is not compatible with vLLM",
        build=_architecture,
        versions="0.8 to 0.33",
    ),
    CauseRule(
        literal="but Transformers does not recognize this architecture",
        pattern=r"model type `?(?P<type>[^`\s]{1,100})`? but Transformers",
        build=lambda found: type_unknown(found.word("type")),
        versions="transformers 4.20 to 5.x",
    ),
    CauseRule(
        literal="is not a valid JSON file",
        pattern=r"at '(?P<path>[^']{1,400})' is not a valid JSON file",
        build=_config,
        versions="transformers 4.20 to 5.x",
    ),
    CauseRule(
        literal="JSONDecodeError", rank="weak", frame="_dict_from_json_file", build=_config, versions="Python"
    ),
    CauseRule(
        literal="validation error for ModelConfig",
        # What Python's json says of a file that it cannot read; which file, it does not say.
        pattern=r"ModelConfig\n {1,4}Value error, [^\n]{1,120}: line \d+ column \d+ \(char \d+\)",
        rank="generic",
        build=lambda _: ModelConfigInvalid(
            message="one of the model's JSON files cannot be read",
            confidence="likely",
            retryable=False,
        ),
        versions="0.9 to 0.33, pydantic 2",
    ),
    CauseRule(
        literal="Unrecognized model in",
        pattern=r"Unrecognized model in (?P<path>\S{1,400})\. Should have a "
        r"`?model_type`? key",
        build=_config,
        versions="transformers 4.20 to 5.x",
    ),
    CauseRule(literal="No model architectures are specified", build=_config, versions="0.9 to 0.33"),
    CauseRule(
        literal="Failed to load mistral",
        pattern=r"Failed to load mistral '[\w.]{1,60}' config for model (?P<path>\S{1,400})\. Please check",
        build=_config,
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="rope_scaling",
        pattern=r"`?rope_scaling`?(?:'s \w+ field)? (?:must be|must have|should have|has)",
        exceptions=("ValueError", "KeyError", "ValidationError"),
        rank="generic",
        build=_config,
        versions="0.4 to 0.33, transformers",
    ),
    CauseRule(
        literal="does not exist or is not currently imported",
        pattern=r"Tokenizer class (?P<name>\w{1,100}) does not exist",
        build=lambda found: TokenizerInvalid(
            message=f"the installed transformers has no tokenizer class {found.word('name')}",
            hint="upgrade transformers to a release that has it, or correct tokenizer_class in "
            "tokenizer_config.json",
            retryable=False,
        ),
        versions="transformers 4.20 to 5.x",
    ),
    CauseRule(
        literal="invalid tiktoken vocab file",
        build=_tokenizer,
        versions="openai-harmony 0.0.x",
    ),
    CauseRule(
        literal="get_tokenizer",
        pattern=r"Repo id must (?:be in the form|use) [^\n]{1,300}?: '(?P<path>[^'\n]{1,400})'"
        r"|(?<!\S)(?P<name>\S{1,400}) is not a local folder and is not a valid model identifier",
        frame="get_tokenizer",
        build=lambda found: TokenizerInvalid(
            message=f"there is no tokenizer {found.word('path') or found.word('name')}",
            hint="correct --tokenizer, or leave it out where the model brings its own",
            confidence="likely",
            retryable=False,
        ),
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="Couldn't instantiate the backend tokenizer", build=_tokenizer, versions="transformers 4 to 5"
    ),
    CauseRule(literal="Can't load tokenizer for", build=_tokenizer, versions="transformers 4 to 5"),
    CauseRule(
        literal="Unable to load vocabulary from file", build=_tokenizer, versions="transformers 4 to 5"
    ),
    CauseRule(literal="could not parse ModelProto", build=_tokenizer, versions="sentencepiece 0.1 to 0.2"),
    CauseRule(
        literal="Converting from ",
        pattern=r"Converting from (?:SentencePiece and )?Tiktoken failed",
        build=_tokenizer,
        versions="transformers 4.45 to 5.x",
    ),
    CauseRule(literal="untagged enum", build=_tokenizer, versions="tokenizers 0.13 to 0.22"),
    CauseRule(literal="to build an AutoTokenizer", build=_tokenizer, versions="transformers 4 to 5"),
    CauseRule(
        literal="TypeError: not a string", frame="LoadFromFile", build=_tokenizer, versions="sentencepiece"
    ),
    CauseRule(
        literal="chat template",
        pattern=r"[Tt]he supplied chat template",
        build=_template,
        versions="0.4 to 0.33",
    ),
    CauseRule(literal="jinja2.exceptions.", build=_template, versions="jinja2 3"),
    CauseRule(literal="ChatTemplateResolutionError", build=_template, versions="0.13 to 0.33"),
    CauseRule(
        literal="Failed to apply",
        pattern=r"Failed to apply (?P<name>\w{1,100}) on data=",
        build=_processor,
        versions="0.6.5 to 0.33",
    ),
    CauseRule(
        literal=" for argument ",
        pattern=r"Received an? (?P<given>\w{1,100}) for argument (?P<name>\w{0,60}processor), but an? "
        r"\(?'?(?P<wanted>\w{1,100})",
        build=lambda found: MultimodalProcessorFailed(
            message=f"the model's processor got a {found.word('given')} as its {found.word('name')}: "
            f"transformers is not the release that the model's files are for",
            confidence="likely",
            retryable=False,
        ),
        versions="transformers 4.45 to 5.x",
    ),
    CauseRule(
        literal="Chunked MM input disabled but",
        pattern=r"max_tokens_per_mm_item \((?P<needed>\d+)\) is larger than max_num_batched_tokens "
        r"\((?P<given>\d+)\)",
        build=lambda found: MultimodalProcessorFailed(
            message=f"one image or video takes {found.word('needed')} tokens, a batch holds "
            f"{found.word('given')}",
            hint=f"start with --max-num-batched-tokens {found.word('needed')} or more",
            retryable=False,
        ),
        versions="0.8 to 0.33",
    ),
    CauseRule(
        literal="does not appear to have a file named",
        pattern=r"does not appear to have a file named (?P<name>(?:pre|video_pre)?processor_config)\.json",
        build=lambda _: MultimodalProcessorFailed(
            message="the model's directory lacks the configuration of its multimodal processor",
            hint="copy the processor's files (preprocessor_config.json and the like) from the base model",
            retryable=False,
        ),
        versions="transformers 4.20 to 5.x",
    ),
    CauseRule(
        literal="Can't load ",
        pattern=r"Can't load (?P<name>(?:fast )?(?:image|video) processor|feature extractor|processor) for",
        build=_processor,
        versions="transformers 4.20 to 5.x",
    ),
    CauseRule(
        literal="Unrecognized ",
        pattern=r"Unrecognized (?P<name>(?:image|video) processor|feature extractor|processing class) in",
        build=_processor,
        versions="transformers 4.20 to 5.x",
    ),
    CauseRule(literal="Failed to apply prompt replacement", build=_processor, versions="0.7 to 0.33"),
    CauseRule(
        literal="number of multi-modal placeholders",
        build=_processor,
        rank="generic",
        versions="0.6 to 0.10",
    ),
    *(
        CauseRule(literal=function, frame=function, rank="weak", build=_processor, versions="0.8 to 0.33")
        for function in (
            "compute_encoder_budget",
            "compute_mm_encoder_budget",
            "get_dummy_mm_inputs",
            "call_hf_processor",
        )
    ),
)
