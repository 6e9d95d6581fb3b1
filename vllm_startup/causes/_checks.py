"""LaunchArguments: what vLLM's own checks of its arguments refused, told by where they stand.

There are hundreds of such checks, and each release words some of them anew; where they stand
changes far less.
"""

from __future__ import annotations

import attrs

from vllm_startup.causes._arguments import InvalidArguments
from vllm_startup.causes._base import Cause
from vllm_startup.causes._rules import CauseRule, Found, compiled, place_rule

_REFUSALS = ("ValueError", "AssertionError", "NotImplementedError")


def _named(text: str) -> str | None:
    named = compiled(r"--[a-z](?:[a-z0-9-]{0,60}[a-z0-9])?(?![a-z0-9*-])").search(text)
    return named[0] if named else None


def _field(text: str) -> str | None:
    """The option of the field that a text begins with, as in ``max_cpu_loras (2) must be >= ...``."""
    field = compiled(r"^[a-z]+(?:_[a-z0-9]+){1,6}(?= \(| must | cannot | should )").match(text)
    return "--" + field[0].replace("_", "-") if field else None


def _refused(argument: str | None, found: Found) -> InvalidArguments:
    return InvalidArguments(message=found.plain, argument=argument, retryable=False)


def _check(found: Found) -> Cause | None:
    if found.error is None or not found.error.text:
        return None  # an assertion without words may be about anything
    return _refused(_named(found.text), found)


def _speculative(found: Found) -> Cause:
    return _refused("--speculative-config", found)


def _connector(found: Found) -> Cause:
    argument = _named(found.text) or "--kv-transfer-config"
    return _refused(argument, found)


def _loader(found: Found) -> Cause:
    return _refused(_named(found.text) or "--load-format", found)


_NO_JSON = r"\(char \d{1,12}\)"  # how Python's json ends what it says of a file


def _config_refused(found: Found) -> Cause | None:
    what = found.word("what") or ""
    said = what.partition("[type=")[0].strip()
    if "failed to be inspected" in what or compiled(_NO_JSON).search(what):
        return None  # says nothing of arguments
    return InvalidArguments(
        message=f"{found.word('config')} refused what it was given{said and f': {said}'}",
        confidence="likely",
        argument=_named(what) or _field(what),
        retryable=False,
    )


def _place(literal: str, pattern: str, versions: str, exceptions: tuple[str, ...] = _REFUSALS) -> CauseRule:
    return place_rule(
        literal=literal,
        pattern=pattern,
        exceptions=exceptions,
        build=_check,
        versions=versions,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="validation error",
        pattern=r"validation errors? for (?P<config>\w{1,60}(?:Config|Args))\n {1,4}"
        r"(?:Value error|Assertion failed), (?P<what>[^\n]{1,600})",
        rank="vague",
        build=_config_refused,
        versions="0.9 to 0.33, pydantic 2",
    ),
    # What these read of the model's configuration is told by _model_support.
    _place(
        "/vllm/config",
        r"/vllm/config(?:\.py|/\w+\.py):(?!get_num_layers|get_total_num|from_layers)",
        "0.4 to 0.33",
    ),
    _place("/vllm/engine/arg_utils.py", r"/vllm/engine/arg_utils\.py:", "0.4 to 0.33"),
    _place(
        "/vllm/entrypoints/",
        r"/\w*cli_args\.py:|/cli/\w+\.py:(?:validate\w*|run_headless|run_multi_api_server|cmd)$",
        "0.5 to 0.33",
        exceptions=(*_REFUSALS, "TypeError"),
    ),
    _place("/vllm/entrypoints/", r"/launchers/\w+\.py:(?:validate_\w+|_build_device_ids)$", "0.25 to 0.33"),
    _place(
        "/vllm/utils",
        r"/vllm/utils(?:\.py|/__init__\.py|/argparse_utils\.py):"
        r"(?:parse_args|_pull_args_from_config|_?load_config_file)$",
        "0.5 to 0.33",
    ),
    _place(
        "/vllm/platforms/",
        r":(?:check_and_update_config|pre_register_and_update|validate_environ|_sync_hip_cuda_env_vars)$",
        "0.6 to 0.33",
        exceptions=(*_REFUSALS, "RuntimeError"),
    ),
    _place(
        "/vllm/logger.py",
        r":_configure_vllm_root_logger$",
        "0.3 to 0.33",
        exceptions=(*_REFUSALS, "RuntimeError"),
    ),
    _place("/models/config.py", r"/vllm/model_executor/models/config\.py:verify_and_update_config$", "0.10"),
    _place(
        "/vllm/",
        r"/vllm/(?:v1/)?(?:engine/\w*llm_engine\.py:_get_executor_cls"
        r"|executor/\w+\.py:(?:get_class|_check_executor_parameters))$",
        "0.4 to 0.33",
    ),
    # Settings that do not go together, noticed only by the worker.
    _place(
        "/worker/",
        r"/vllm/(?:v1/)?worker/(?!\S*spec_decode)\S{1,80}:(?:__init__|get_kv_cache_spec|validate_config"
        r"|initialize_cudagraph_capture|_check_and_update_cudagraph_mode|init_model_state)$",
        "0.6 to 0.33",
    ),
    _place(
        "/vllm/model_executor/layers/",
        r":get_kv_cache_spec$",
        "0.9 to 0.15",
    ),
    place_rule(
        literal="/vllm/",
        pattern=r"/vllm/(?:v1/)?(?:worker/gpu/)?spec_decode/\S{1,80}:(?:__init__|<module>|create_\w+|init_\w+"
        r"|load_\w+|set_eagle3_\w+|_validate_\w+|verify_\w+)$",
        exceptions=(*_REFUSALS, "RuntimeError"),
        build=_speculative,
        versions="0.4 to 0.33",
    ),
    place_rule(
        literal="_transfer/",
        pattern=r"/vllm/distributed/(?:kv|ec)_transfer/\S{1,120}:(?:__init__|__post_init__|create_connector\w*"
        r"|get_connector_class\w*|_init_\w+|from_\w+|validate_\w+)$",
        exceptions=_REFUSALS,
        build=_connector,
        versions="0.6 to 0.33",
    ),
    place_rule(
        literal="/model_loader/",
        pattern=r"/vllm/model_executor/model_loader/\S{1,80}:(?:__init__|__post_init__|get_model_loader"
        r"|validate_\w+|verify_with_\w+|deserialize_\w+|_check_tensors\w*)$",
        exceptions=_REFUSALS,
        build=_loader,
        versions="0.4 to 0.33",
    ),
    # What excerpts show without the traceback.
    CauseRule(
        literal="you should provide the model as a positional argument",
        build=lambda found: _refused("model", found),
        versions="0.5 to 0.10",
    ),
    CauseRule(
        literal="should be provided as the first positional argument when using `vllm serve`",
        build=lambda found: _refused("model", found),
        versions="0.11 to 0.33",
    ),
    CauseRule(
        literal=" in headless mode",
        pattern=r": (?P<what>\w{1,60}) (?:can't be set|is not applicable|must be > 0) in headless mode",
        build=lambda found: _refused(f"--{(found.word('what') or '').replace('_', '-')}", found),
        versions="0.9 to 0.33",
    ),
    CauseRule(
        literal="SSLError: [SSL",
        pattern=r"\[SSL(?:: KEY_VALUES_MISMATCH\] |\] PEM lib)",
        build=lambda found: _refused("--ssl-certfile", found),
        versions="OpenSSL 1.1 to 3; Python 3.8 to 3.14",
    ),
    CauseRule(
        literal="NotImplementedError: EPLB ",
        pattern=r"EPLB (?:is )?(?:not|only) supported for ",
        build=lambda found: _refused("--enable-eplb", found),
        versions="0.9 to 0.33",
    ),
    CauseRule(
        literal="Expert Parallelism ",
        pattern=r"Expert Parallelism (?:/ expert_map )?is (?:currently )?not supported for ",
        build=lambda found: _refused("--enable-expert-parallel", found),
        versions="0.8 to 0.12",
    ),
    CauseRule(
        literal="CUDAGraphMode.",
        pattern=r"CUDAGraphMode\.\w{1,40} is not supported with ",
        build=lambda found: _refused("--compilation-config", found),
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="only supports decode-only full CUDAGraph capture",
        build=lambda found: _refused("--compilation-config", found),
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="Hybrid KV cache manager is disabled but failed to convert",
        build=lambda found: attrs.evolve(_connector(found), confidence="likely"),
        versions="0.10 to 0.25",
    ),
    CauseRule(
        literal="does not support HMA but HMA is enabled",
        build=_connector,
        versions="0.11 to 0.33",
    ),
    CauseRule(
        literal=" currently does not support ",
        pattern=r"\w currently does not support (?:'all' )?(?P<what>prefix caching|chunked prefill)",
        build=lambda found: _refused("--enable-" + (found.word("what") or "").replace(" ", "-"), found),
        versions="0.5 to 0.29",
    ),
    CauseRule(
        literal="kv-cache is not supported with fp8 checkpoints",
        build=lambda found: _refused("--kv-cache-dtype", found),
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="MOONCAKE_CONFIG_PATH",
        pattern=r"MOONCAKE_CONFIG_PATH(?:' is not set|=/path/to)",
        build=lambda found: _refused("MOONCAKE_CONFIG_PATH", found),
        versions="0.7 to 0.33",
    ),
    CauseRule(
        literal="Expandable segments are not compatible with memory pool",
        build=lambda found: _refused("PYTORCH_CUDA_ALLOC_CONF", found),
        versions="0.8 to 0.20",
    ),
    CauseRule(
        literal="GPU visibility env vars",
        pattern=r"Inconsistent GPU visibility env vars: (?P<argument>\w{1,60})=",
        build=lambda found: _refused(found.word("argument"), found),
        versions="0.18 to 0.33, ROCm",
    ),
    CauseRule(
        # More memory for the cache would do as well.
        literal="exceeds available Mamba cache blocks",
        build=lambda found: attrs.evolve(_refused("--max-num-seqs", found), confidence="likely"),
        versions="0.19 to 0.33",
    ),
    CauseRule(
        literal="Too large swap space",
        build=lambda found: _refused("--swap-space", found),
        versions="0.2 to 0.14",
    ),
    CauseRule(
        literal=" was requested but no ",
        pattern=r"(?P<argument>--linear-backend)=\S{1,60} was requested but no ",
        build=lambda found: _refused(found.word("argument"), found),
        versions="0.20 to 0.33",
    ),
    CauseRule(
        literal="Load format `",
        pattern=r"Load format `[^`\n]{1,80}` is not supported",
        build=lambda found: _refused("--load-format", found),
        versions="0.9 to 0.33",
    ),
    CauseRule(
        literal="Unknown load_format: ",
        build=lambda found: _refused("--load-format", found),
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="Unknown ",
        pattern=r"Unknown (?:all2all|distributed executor) backend: ",
        build=lambda found: _refused(
            "--all2all-backend" if "all2all" in found.text else "--distributed-executor-backend", found
        ),
        versions="0.8 to 0.33",
    ),
    CauseRule(
        literal="Cannot use the fast tokenizer in slow tokenizer mode",
        build=lambda found: _refused("--tokenizer-mode", found),
        versions="0.2 to 0.29",
    ),
    CauseRule(
        literal="No tokenizer registered for tokenizer_mode=",
        build=lambda found: _refused("--tokenizer-mode", found),
        versions="0.12 to 0.33",
    ),
    CauseRule(
        literal="get_pp_indices",
        frame="get_pp_indices",
        exceptions=("ValueError",),
        build=lambda found: _refused("VLLM_PP_LAYER_PARTITION", found),
        versions="0.5 to 0.33",
    ),
    CauseRule(
        literal="Neither 127.0.0.1 nor ::1 are bound to a local interface",
        build=lambda found: _refused("VLLM_LOOPBACK_IP", found),
        versions="0.9 to 0.33",
    ),
)
