"""LaunchArguments: what was asked for on the command line or in the environment cannot be done."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._rules import CauseRule, Found


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LaunchArguments(Cause):
    """What was asked for on the command line or in the environment cannot be done."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class InvalidArguments(LaunchArguments):
    """The command line was refused.

    Attributes:
        argument: The argument that was refused.
    """

    argument: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ParallelSizeInvalid(LaunchArguments):
    """A parallel size does not fit the model or the machine.

    Attributes:
        what: What is divided or counted, in vLLM's words.
        size: The size that was asked for.
        allowed: The count that it must divide or stay within.
    """

    what: str | None = None
    size: int | None = None
    allowed: int | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class MaxModelLenTooLarge(LaunchArguments):
    """The length asked for is beyond what the model was made for.

    Attributes:
        requested: ``--max-model-len``, in tokens.
        allowed: The model's own limit, in tokens.
    """

    requested: int | None = None
    allowed: int | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class QuantizationMismatch(LaunchArguments):
    """The quantisation asked for is unknown or is not the checkpoint's.

    Attributes:
        method: The one asked for.
    """

    method: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class FileMissing(LaunchArguments):
    """A file that an argument names does not exist.

    Attributes:
        path: Which.
    """

    path: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ServiceEnvironmentClash(LaunchArguments):
    """Kubernetes put a service's address into a variable that vLLM reads.

    Attributes:
        variable: Its name.
    """

    variable: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class EngineConfigMismatch(LaunchArguments):
    """Engines of one deployment were started with different settings."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CudaForkReinit(LaunchArguments):
    """CUDA was used before the workers were forked."""


# --- how they are told -------------------------------------------------------------------


def _refused(found: Found) -> Cause | None:
    program = found.word("program") or ""
    if not (program.startswith(("vllm", "api_server", "-m", "__main__")) or program.endswith(".py")):
        return None
    said = (
        found.word("unknown") or found.word("argument") or found.word("required") or found.word("ambiguous")
    )
    # "-q/--quantization" and "--quantization/-q": the long name.
    argument = max(said.split("/"), key=len).strip() if said and said.startswith("-") else said
    return InvalidArguments(
        message=found.text.partition(": error: ")[2] or found.text,
        hint="compare with `vllm serve --help` of the installed version" if found.word("unknown") else None,
        argument=argument,
        retryable=False,
    )


def _argument(argument: str | None, found: Found) -> Cause:
    return InvalidArguments(message=found.plain, argument=argument, retryable=False)


def _of_pydantic(found: Found) -> Cause:
    cause = _argument(found.word("argument"), found)
    # What is too much may stand in a file of the model's as well.
    return attrs.evolve(cause, confidence="likely") if found.word("what") == "Extra inputs" else cause


def _too_long(found: Found) -> Cause:
    requested, allowed = found.number("requested"), found.number("allowed")
    return MaxModelLenTooLarge(
        message=f"--max-model-len {requested} is beyond the model's own limit of {allowed}",
        hint=f"start with --max-model-len {allowed} or less" if allowed else None,
        requested=requested,
        allowed=allowed,
        retryable=False,
    )


def _missing(found: Found) -> Cause:
    return attrs.evolve(file_missing(found.word("path") or ""), confidence="likely")


def file_missing(path: str) -> FileMissing:
    """A file that an argument names does not exist."""
    return FileMissing(message=f"there is no {path}", path=path, retryable=False)


def _service(found: Found) -> Cause:
    return service_environment_clash(found.word("variable") or "VLLM_PORT")


def service_environment_clash(variable: str) -> ServiceEnvironmentClash:
    """A variable that vLLM reads holds the address of a Kubernetes service."""
    return ServiceEnvironmentClash(
        message="a Kubernetes service named vllm puts its address into VLLM_PORT, which vLLM reads as a port",
        hint="rename the service, or set enableServiceLinks: false in the pod",
        variable=variable,
        retryable=False,
    )


def _engines(found: Found) -> Cause:
    said = found.error.text if found.error is not None else found.text
    return EngineConfigMismatch(message=said, retryable=False)


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="Unsupported speculative method",
        build=lambda found: _argument("--speculative-config", found),
        versions="0.8 to 0.33",
    ),
    CauseRule(
        literal=": error: ",
        pattern=r"^(?P<program>[\w.-]{1,40}(?: [\w-]{1,20}){0,3}): error: (?P<what>unrecognized arguments: "
        r"(?P<unknown>\S{1,200})|argument (?P<argument>[^:]{1,80}): |the following arguments are required: "
        r"(?P<required>.{1,200})|ambiguous option: (?P<ambiguous>\S{1,80})|expected |invalid |.{1,400}$)",
        where="line",
        ends=True,  # argparse exits at once
        build=_refused,
        versions="argparse, all",
    ),
    CauseRule(
        literal="requires --tool-call-parser",
        build=lambda found: _argument("--enable-auto-tool-choice", found),
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="invalid tool call parser",
        build=lambda found: _argument("--tool-call-parser", found),
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="invalid reasoning parser",
        build=lambda found: _argument("--reasoning-parser", found),
        versions="0.7 to 0.33",
    ),
    CauseRule(
        literal="Reasoning parser '",
        pattern=r"Reasoning parser '[^'\n]{1,100}' not found",
        build=lambda found: _argument("--reasoning-parser", found),
        versions="0.12 to 0.33",
    ),
    CauseRule(
        literal="Unknown level: '",
        rank="weak",
        exceptions=("ValueError",),
        build=lambda found: attrs.evolve(_argument("VLLM_LOGGING_LEVEL", found), confidence="likely"),
        versions="0.5 to 0.33, Python's logging",
    ),
    CauseRule(
        literal="yaml.",
        pattern=r"^yaml\..{1,2000}?in \"(?P<path>[^\"\n]{1,400})\", line (?P<line>\d{1,9})",
        exceptions=("ScannerError", "ParserError", "ComposerError", "ConstructorError", "ReaderError"),
        build=lambda found: InvalidArguments(
            message=f"{found.word('path')} is no YAML, in line {found.word('line')}: "
            + found.said.partition("\n")[0],
            argument="--config",
            confidence="likely",
            retryable=False,
        ),
        versions="PyYAML 5 to 6",
    ),
    CauseRule(
        literal="has not been registered",
        pattern=r"tool_parser:'|reasoning_parser_name='",
        exceptions=("TypeError",),
        build=lambda found: _argument(
            "--tool-call-parser" if "tool_parser" in found.text else "--reasoning-parser", found
        ),
        versions="0.12 to 0.33",
    ),
    CauseRule(
        literal="No model specified! Please specify model",
        build=lambda found: _argument("model", found),
        versions="0.9 to 0.33",
    ),
    CauseRule(
        literal="Invalid value '",
        pattern=r"Invalid value '[^'\n]{0,200}' (?:for|in) (?P<argument>VLLM_\w{1,80})\. Valid options",
        build=lambda found: _argument(found.word("argument"), found),
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="must be a valid integer",
        pattern=r"(?P<argument>VLLM_PORT) '[^'\n]{0,200}' must be a valid integer",
        build=lambda found: _argument(found.word("argument"), found),
        versions="0.8.5 to 0.33",
    ),
    CauseRule(
        literal="must be divisible by n_predict",
        build=lambda found: _argument("--speculative-config", found),
        versions="0.9 to 0.33",
    ),
    CauseRule(
        literal="got an unexpected keyword argument",
        pattern=r"(?:EngineArgs|Config)\.?\w*(?:\.__init__)?\(\) got an unexpected keyword argument '"
        r"(?P<argument>\w{1,80})'",
        build=lambda found: _argument(found.word("argument"), found),
        versions="all",
    ),
    CauseRule(
        literal="validation error",
        pattern=r"validation errors? for \w*(?:Config|Args)\n"
        r"(?P<argument>(?!scale_dtype|zp_dtype)[\w.]{1,80})\n  "
        r"(?P<what>Input should be|Unexpected keyword|Extra inputs|Field required)",
        rank="generic",  # a field may be the model's own configuration's
        build=_of_pydantic,
        versions="0.9 to 0.33, pydantic 2",
    ),
    CauseRule(
        literal="max_num_batched_tokens (",
        pattern=r"max_num_batched_tokens \(\d+\) (?:is smaller than|must be greater than)",
        build=lambda found: _argument("--max-num-batched-tokens", found),
        versions="0.3 to 0.33",
    ),
    CauseRule(
        literal="Unknown vLLM environment variable",
        pattern=r"Unknown vLLM environment variable detected: (?P<argument>\w{1,100})",
        build=lambda found: _argument(found.word("argument"), found),
        versions="0.12 to 0.33",
    ),
    CauseRule(
        literal="Cannot use more than one data parallel load balancing mode",
        build=lambda found: _argument(None, found),
        versions="0.22 to 0.33",
    ),
    CauseRule(
        literal="is greater than the derived max_model_len",
        pattern=r"max_model_len \((?P<requested>[\d.]+)\) is greater than the derived max_model_len "
        r"\([^)]{0,80}?=(?P<allowed>[\d.]+)",
        build=_too_long,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="Could not load logging config. File does not exist: ",
        # Raised with its arguments as logging takes them, until 0.33: ('... exist: %s', '/path').
        pattern=r"File does not exist: (?:%s',? ')?(?P<path>[^\s']{1,400})",
        build=lambda found: file_missing(found.word("path") or ""),
        versions="0.3 to 0.33",
    ),
    *(
        CauseRule(
            literal=literal,
            pattern=pattern,
            build=lambda found: file_missing(found.word("path") or ""),
            versions="0.20 to 0.33",
        )
        for literal, pattern in (
            ("FP8 scale ", r"FP8 scale (?:file|save path) not found: (?P<path>\S{1,400})"),
            ("the vllm-rs binary was not found", r"binary was not found at (?P<path>\S{1,400})\. "),
        )
    ),
    CauseRule(
        literal=" exceeds numa_bind_",
        pattern=r"exceeds (?P<argument>numa_bind_\w{1,20}) size",
        build=lambda found: _argument(f"--{(found.word('argument') or '').replace('_', '-')}", found),
        versions="0.20 to 0.33",
    ),
    CauseRule(
        literal="NUMA binding was requested, but vLLM could not detect",
        build=lambda found: _argument("--numa-bind", found),
        versions="0.20 to 0.33",
    ),
    CauseRule(
        literal="--disable-hybrid-kv-cache-manager",
        pattern=r"only works without hybrid kv cache manager",
        build=lambda found: _argument("--kv-transfer-config", found),
        versions="0.12 to 0.33",
    ),
    CauseRule(
        literal="Connector name is not set in KVTransferConfig",
        build=lambda found: _argument("--kv-transfer-config", found),
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="Invalid environment variable VLLM_",
        pattern=r"Invalid environment variable (?P<argument>VLLM_\w{1,80})",
        build=lambda found: _argument(found.word("argument"), found),
        versions="0.4 to 0.8, CPU",
    ),
    CauseRule(
        literal="Full CUDAGraph not supported for ",
        build=lambda found: _argument("--compilation-config", found),
        versions="0.8 to 0.10",
    ),
    CauseRule(
        literal="Attention block size should be increased",
        build=lambda found: _argument("--block-size", found),
        versions="0.9 to 0.10",
    ),
    CauseRule(
        literal="Unsupported connector type: ",
        build=lambda found: _argument("--kv-transfer-config", found),
        versions="0.8 to 0.33",
    ),
    CauseRule(
        literal="No such file or directory: ",
        pattern=r"No such file or directory: b?'(?P<path>[^']{1,400})'",
        exceptions=("FileNotFoundError", "OSError"),
        rank="generic",
        build=_missing,
        versions="Python",
    ),
    CauseRule(
        literal="appears to be a URI",
        pattern=r"(?P<variable>VLLM_PORT) '",
        build=_service,
        versions="0.8.5 to 0.33",
    ),
    CauseRule(
        literal="invalid literal for int() with base 10: ",
        pattern=r"base 10: '(?P<value>tcp://[^']{0,100})",
        build=_service,
        versions="0.4 to 0.8",
    ),
    CauseRule(
        literal="Configuration mismatch detected for engine",
        build=lambda found: _engines(found),
        versions="0.11.1 to 0.33",
    ),
    CauseRule(
        literal="use --headless",
        pattern=r"Remote engine \d+ must (?:not )?use\s+--headless",
        build=lambda found: _engines(found),
        versions="0.9 to 0.33",
    ),
    CauseRule(
        literal="Cannot re-initialize ",
        pattern=r"Cannot re-initialize (?P<device>CUDA|NPU|XPU|HPU|MUSA|GCU) in forked subprocess",
        build=lambda found: CudaForkReinit(
            message=f"{found.word('device')} was used before the workers were forked",
            hint=f"set VLLM_WORKER_MULTIPROC_METHOD=spawn, and use no {found.word('device')} before the "
            "engine is made",
            retryable=False,
        ),
        versions="torch 1.x to 2.9",
    ),
)
