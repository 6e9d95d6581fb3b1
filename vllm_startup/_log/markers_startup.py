"""Markers from the first line to loaded weights. Data only."""

from __future__ import annotations

from functools import partial

from vllm_startup._log.marker import Marker, Means
from vllm_startup._phases import Phase

_SINCE_EVER = ("<=0.8.5", "0.33.0")

# vLLM's own bar format for shards, which ends in a newline, and tqdm's standard one.
_SHARDS = r":\s{0,8}\d{1,3}% Completed \| (?P<done>\d{1,9})/(?P<total>\d{1,9}) "
_ARGUMENTS = r"(?P<arguments>\{.{0,65536})"


def _marker(
    phase: Phase,
    name: str,
    literal: str,
    versions: tuple[str, str],
    *patterns: str,
    means: Means = Means.ADVANCE,
    progress: str | None = None,
    at_start: bool = True,
) -> Marker:
    return Marker(
        name=name,
        literal=literal,
        means=means,
        phase=phase,
        patterns=patterns,
        progress=progress,
        at_start=at_start,
        versions=versions,
    )


_configuring = partial(_marker, Phase.CONFIGURING)
_initializing = partial(_marker, Phase.INITIALIZING)
_loading = partial(_marker, Phase.LOADING_WEIGHTS)

LAUNCH = (
    _configuring(
        "banner",
        "█  version ",
        ("0.15.1", "0.33.0"),
        r"█  version (?P<vllm_version>\S{1,80})",
        means=Means.START,
        at_start=False,
    ),
    _configuring(
        "version_line",
        "vLLM API server version ",
        ("<=0.8.5", "0.14.1"),
        r"version (?P<vllm_version>\S{1,80})",
        means=Means.START,
    ),
    _configuring(
        "version_without_banner",
        "vLLM server version ",
        ("0.15.1", "0.33.0"),
        r"version (?P<vllm_version>[^\s,]{1,80}), serving model (?P<model>.{1,512})",
        means=Means.START,
    ),
    _configuring(
        "headless_executor",
        "Launching vLLM (v",
        ("0.11.1", "0.33.0"),
        r"\(v(?P<vllm_version>[^)\s]{1,80})\) headless multiproc executor",
        means=Means.START,
    ),
    _configuring("arguments", "non-default args: ", ("0.9.0.1", "0.33.0"), _ARGUMENTS),
    _configuring("all_arguments", "args: Namespace(", ("<=0.8.5", "0.8.5")),
    _configuring(
        "api_server_count",
        "Defaulting api_server_count to data_parallel_size",
        ("0.15.1", "0.33.0"),
        r"\((?P<api_server_count>\d{1,6})\)",
    ),
    _configuring(
        "headless_engines",
        "data parallel engine(s) in headless mode",
        ("0.9.0.1", "0.33.0"),
        r"^Launching \d{1,6} data parallel engine",
        at_start=False,
    ),
    _configuring("dp_supervisor_launches", "Launching vLLM DP Servers", ("0.22.1", "0.33.0")),
    _configuring("grpc_arguments", "vLLM gRPC server args: ", ("0.14.1", "0.33.0")),
)

CONFIG = (
    _configuring(
        "architecture",
        "Resolved architecture: ",
        ("0.10.1.1", "0.33.0"),
        r"architecture: (?P<architecture>\w{1,120})",
    ),
    _configuring(
        "runner", "Resolved `--runner auto` to ", ("0.10.1.1", "0.33.0"), r"`--runner (?P<runner>\w{1,40})`"
    ),
    _configuring(
        "max_model_len", "Using max model len ", ("0.9.2", "0.33.0"), r"len (?P<max_model_len>\d{1,12})"
    ),
    _configuring("chunked_prefill", "Chunked prefill is enabled with max_num_batched_tokens=", _SINCE_EVER),
    _configuring("async_scheduling", "Asynchronous scheduling is ", ("0.14.1", "0.26.0")),
    _configuring(
        "sleep_allocator", "Enabling cumem allocator because sleep mode requires it.", ("0.22.1", "0.33.0")
    ),
)

INITIALIZATION = (
    _initializing("dp_coordinator_started", "Started DP Coordinator process (PID: ", ("0.9.1", "0.33.0")),
    _initializing(
        "api_servers_started",
        " API server processes",
        ("0.9.1", "0.33.0"),
        r"^Started (?P<api_server_count>\d{1,6}) API server processes",
        at_start=False,
    ),
    _initializing("rust_frontend_launched", "Launching Rust frontend: ", ("0.22.1", "0.33.0")),
    _initializing("engine_waits_for_init", "Waiting for init message from front-end.", ("0.9.0.1", "0.33.0")),
    _initializing(
        "engine_init",
        "Initializing a V1 LLM engine (v",
        _SINCE_EVER,
        r"\(v(?P<vllm_version>[^)\s]{1,80})\) with config: (?:model='(?P<model>[^']{1,512})')?",
        r"tensor_parallel_size=(?P<tensor_parallel_size>\d{1,6}), "
        r"pipeline_parallel_size=(?P<pipeline_parallel_size>\d{1,6})",
    ),
    _initializing(
        "engine_init_v0",
        "Initializing a V0 LLM engine (v",
        ("<=0.8.5", "0.10.2"),
        r"\(v(?P<vllm_version>[^)\s]{1,80})\)",
    ),
    _initializing(
        "engine_init_before_v1",
        "Initializing an LLM engine (v",
        ("<=0.8.5", "<=0.8.5"),
        r"\(v(?P<vllm_version>[^)\s]{1,80})\)",
    ),
    _initializing(
        "dp_group_leader",
        "DP group leader: node_rank=",
        ("0.17.1", "0.33.0"),
        r" world_size=(?P<world_size>\d{1,6})",
    ),
    _initializing(
        "distributed_init",
        "world_size=",
        _SINCE_EVER,
        r"^world_size=(?P<world_size>\d{1,6}) rank=\d{1,6} local_rank=",
        means=Means.DIST_INIT,
    ),
    _initializing(
        "nccl",
        "vLLM is using nccl==",
        _SINCE_EVER,
        r"nccl==(?P<nccl_version>[\w.]{1,40})",
        means=Means.DIST_INIT,
    ),
    _initializing(
        "rank_assigned",
        "is assigned as DP rank ",
        _SINCE_EVER,
        r"^rank \d{1,6} in world size (?P<world_size>\d{1,6}) is assigned as DP rank ",
        at_start=False,
    ),
    _initializing("model_runner_v2", "Using V2 Model Runner", ("0.16.0", "0.33.0")),
    _initializing(
        "placement_group_created",
        "No current placement group found. Creating a new placement group.",
        _SINCE_EVER,
    ),
    _initializing(
        "placement_groups_for_dp", "Creating placement groups for data parallel", ("0.9.1", "0.33.0")
    ),
    _initializing(
        "engine_says_hello",
        "HELLO from ",
        ("0.9.0.1", "0.33.0"),
        r"^HELLO from (?:local|remote) core engine process",
    ),
)

LOADING = (
    _loading(
        "load_started",
        "Starting to load model ",
        _SINCE_EVER,
        r"^Starting to load model (?P<model>.{1,512}?)\.\.\.$",
    ),
    _loading("load_from_scratch", "Loading model from scratch...", ("0.9.1", "0.33.0")),
    Marker(
        name="attention_backend",
        literal=" attention backend",
        means=Means.FACT,
        patterns=(r"^Using (?P<attention_backend>\w{1,60}) attention backend",),
        at_start=False,
        versions=("0.12.0", "0.33.0"),
    ),
    Marker(
        name="attention_backend_on_v1",
        literal=" backend on V1 engine",
        means=Means.FACT,
        patterns=(r"^Using (?P<attention_backend>[\w ]{1,60}?) backend on V1 engine",),
        at_start=False,
        versions=("<=0.8.5", "0.11.0.post2"),
    ),
    _loading("model_constructed", "Initializing model took ", ("0.32.0", "0.33.0")),
    _loading(
        "checkpoint_size",
        "Filesystem type for checkpoints: ",
        ("0.20.2", "0.33.0"),
        r"checkpoints: (?P<filesystem>[^\s.]{1,40})\. Checkpoint size: (?P<weights_gib>[\d.]{1,20}) GiB",
    ),
    _loading(
        "prefetch",
        "Prefetching checkpoint files: ",
        ("0.18.1", "0.33.0"),
        r"files: \d{1,3}% \((?P<done>\d{1,9})/(?P<total>\d{1,9})\)",
        progress="prefetched files",
    ),
    _loading(
        "prefetch_finished", "Prefetching checkpoint files into page cache finished in ", ("0.18.1", "0.33.0")
    ),
    _loading(
        "downloaded",
        "Time spent downloading weights for ",
        _SINCE_EVER,
        r": (?P<download_s>[\d.]{1,20}) seconds",
    ),
    *(
        _loading(name, literal, versions, _SHARDS, progress=progress)
        for name, literal, progress, versions in (
            ("shards", "Loading safetensors checkpoint shards", "checkpoint shards", _SINCE_EVER),
            ("shards_threads", "Multi-thread loading shards", "checkpoint shards", ("0.10.2", "0.33.0")),
            ("pt_shards", "Loading pt checkpoint shards", "checkpoint shards", _SINCE_EVER),
            (
                "pt_threads",
                "Multi-thread loading pt checkpoint shards",
                "checkpoint shards",
                ("0.10.2", "0.33.0"),
            ),
            ("np_cache", "Loading np_cache checkpoint shards", "checkpoint shards", _SINCE_EVER),
            ("runai", "Loading safetensors using Runai Model Streamer", "tensors", _SINCE_EVER),
            (
                "fastsafetensors",
                "Loading safetensors using Fastsafetensor loader",
                "tensors",
                ("<=0.8.5", "0.23.0"),
            ),
            (
                "instanttensor",
                "Loading safetensors using InstantTensor loader",
                "tensors",
                ("0.18.1", "0.33.0"),
            ),
        )
    ),
    Marker(
        name="hub_files",
        literal="Fetching ",
        means=Means.ADVANCE,
        patterns=(
            r"^Fetching \d{1,6} files:\s{0,8}\d{1,3}%\|[^|]{0,80}\| (?P<done>\d{1,9})/(?P<total>\d{1,9}) ",
        ),
        progress="downloaded files",
    ),
    _loading("bitsandbytes", "Loading weights with BitsAndBytes quantization.", ("<=0.8.5", "0.27.1")),
    _loading(
        "tensorizer", "Deserialized ", _SINCE_EVER, r"^Deserialized .{1,40}? in (?P<load_s>[\d.]{1,20})s, "
    ),
    _loading(
        "weight_cache_mapped",
        " tensors from the weight cache daemon",
        ("0.30.0", "0.33.0"),
        r"^Mapped \d{1,9} tensors from the weight cache daemon",
        at_start=False,
    ),
    _loading(
        "weight_cache_awaited",
        "Waiting up to ",
        ("0.31.0", "0.33.0"),
        r"^Waiting up to [\d.]{1,20}s for the weight cache daemon",
    ),
    _loading("weights_loaded", "Loading weights took ", _SINCE_EVER, r"took (?P<load_s>[\d.]{1,20}) seconds"),
    _loading("drafter", "Loading drafter model...", _SINCE_EVER),
    _loading("draft_shares_weights", "Sharing target model ", ("0.11.1", "0.33.0")),
    _loading(
        "online_quantization", "Online quantization as part of model loading took ", ("0.32.0", "0.33.0")
    ),
    _loading(
        "model_loaded",
        "Model loading took ",
        _SINCE_EVER,
        r"took (?P<model_gib>[\d.]{1,20}) GiB(?: memory)? and (?P<load_s>[\d.]{1,20}) seconds",
    ),
    _loading(
        "model_loaded_v0",
        "Loading model weights took ",
        ("<=0.8.5", "0.10.2"),
        r"took (?P<model_gib>[\d.]{1,20}) G",
    ),
    _loading("model_structure", "vLLM model structure:", ("0.14.1", "0.33.0")),
)

STARTUP = (*LAUNCH, *CONFIG, *INITIALIZATION, *LOADING)
