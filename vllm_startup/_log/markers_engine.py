"""Markers from memory profiling to a ready engine. Data only."""

from __future__ import annotations

from vllm_startup._log.marker import Marker, Means
from vllm_startup._phases import Phase

_COMPILING = Phase.COMPILING
_KV = Phase.ALLOCATING_KV_CACHE

_SINCE_EVER = ("<=0.8.5", "0.33.0")

_BAR_END = r"[^|]{0,200}:\s{0,8}\d{1,3}%\|[^|]{0,120}\| {0,8}(?P<done>\d{1,9})/(?P<total>\d{1,9}) "
_BAR = f"^{_BAR_END}"
_SECONDS = r"[\d.]{1,20}"


def _compile(
    name: str, literal: str, first: str, last: str, *patterns: str, any_level: bool = False
) -> Marker:
    return Marker(
        name=name,
        literal=literal,
        means=Means.ADVANCE,
        phase=_COMPILING,
        patterns=patterns,
        any_level=any_level,
        versions=(first, last),
    )


def _warm_up(
    name: str,
    literal: str,
    first: str,
    last: str,
    *patterns: str,
    progress: str | None = None,
    any_level: bool = False,
) -> Marker:
    return Marker(
        name=name,
        literal=literal,
        means=Means.COMPILE_OR_WARM_UP,
        patterns=patterns,
        progress=progress,
        any_level=any_level,
        versions=(first, last),
    )


def _kv(name: str, literal: str, first: str, last: str, *patterns: str, at_start: bool = True) -> Marker:
    return Marker(
        name=name,
        literal=literal,
        means=Means.KV_SIZED,
        phase=_KV,
        patterns=patterns,
        at_start=at_start,
        versions=(first, last),
    )


COMPILATION = (
    _compile("encoder_cache", "Encoder cache will be initialized with a budget of ", *_SINCE_EVER),
    _compile("no_encoder_profile", "Skipping memory profiling for multimodal encoder", "0.10.1.1", "0.33.0"),
    _compile("compile_started", "Starting torch.compile", "0.32.0", "0.33.0"),
    _compile("compile_cache", "Using cache directory: ", *_SINCE_EVER, r"for vLLM's torch\.compile"),
    _compile("compile_cache_off", "vLLM's torch.compile cache is disabled.", *_SINCE_EVER),
    _compile("dynamo", "Dynamo bytecode transform time: ", *_SINCE_EVER),
    _compile("graphs_from_cache", "Directly load the compiled graph(s) for ", *_SINCE_EVER),
    _compile("aot_from_cache", "Directly load AOT compilation from path ", "0.11.1", "0.33.0"),
    _compile(
        "compiled_again",
        "Compiling model again due to a load failure from ",
        "0.17.1",
        "0.33.0",
        any_level=True,
    ),
    _compile(
        "graph_cached",
        "Cache the graph ",
        *_SINCE_EVER,
        r"^.{0,60}Cache the graph (?:of|for) .{1,80} for later",
    ),
    _compile("graph_compiled", "Compiling a graph for ", *_SINCE_EVER),
    _compile("aot_saved", "saved AOT compiled function to ", "0.15.1", "0.33.0"),
    _compile(
        "compiled_up_to_0_17",
        "torch.compile takes ",
        "<=0.8.5",
        "0.17.1",
        rf"(?P<compile_s>{_SECONDS}) s in total",
    ),
    _compile("compiled", "torch.compile took ", "0.18.1", "0.33.0", rf"(?P<compile_s>{_SECONDS}) s in total"),
    _compile(
        "compiled_and_profiled",
        "torch.compile and initial profiling/warmup run together took ",
        "0.18.1",
        "0.33.0",
        rf"(?P<compile_s>{_SECONDS}) s in total",
    ),
    _compile("profiled", "Initial profiling/warmup run took ", "0.18.1", "0.33.0"),
    _compile("graph_memory", "Profiling CUDA graph memory: ", "0.18.1", "0.33.0"),
    _compile("graph_memory_estimated", "Estimated CUDA graph memory: ", "0.18.1", "0.33.0"),
    _compile("memory_profiled_v0", "Memory profiling takes ", "<=0.8.5", "0.10.2"),
    _compile("startup_plan", "Applying persisted startup plan", "0.26.0", "0.33.0"),
)

KV_CACHE = (
    _kv(
        "kv_memory",
        "Available KV cache memory: ",
        "0.9.1",
        "0.33.0",
        r"memory: (?P<kv_cache_gib>-?[\d.]{1,20}) GiB",
    ),
    _kv(
        "kv_memory_given",
        "and skipped memory profiling",
        "0.10.2",
        "0.33.0",
        r"^Initial free memory [\d.]{1,20} ?GiB, reserved (?P<kv_cache_gib>[\d.]{1,20}) ?GiB memory",
        at_start=False,
    ),
    _kv(
        "kv_memory_cpu",
        "GiB for KV cache on node",
        "0.20.2",
        "0.33.0",
        r"^(?:Auto|Explicitly) set \((?P<kv_cache_gib>[\d.]{1,20})/[\d.]{1,20}\) GiB for KV cache",
        at_start=False,
    ),
    _kv(
        "kv_size",
        "KV cache size: ",
        *_SINCE_EVER,
        r"^[^:]{1,60} KV cache size: (?P<kv_cache_tokens>[\d,]{1,24}) tokens",
        r"Maximum concurrency for [\d,]{1,24} tokens per request: (?P<max_concurrency>[\d.]{1,20})x",
        at_start=False,
    ),
    _kv(
        "max_concurrency",
        "Maximum concurrency for ",
        "<=0.8.5",
        "0.27.1",
        r"tokens per request: (?P<max_concurrency>[\d.]{1,20})x",
    ),
    _kv(
        "kv_blocks_v0",
        ", # CPU blocks: ",
        "<=0.8.5",
        "0.10.2",
        r"^# \w{1,10} blocks: \d{1,12}, # CPU blocks: ",
        at_start=False,
    ),
    Marker(
        name="auto_fit",
        literal="Auto-fit max_model_len: ",
        means=Means.ADVANCE,
        phase=_KV,
        # No fact: "Using max model len" stays what was asked for.
        versions=("0.14.1", "0.33.0"),
    ),
    Marker(
        name="blocks_overridden",
        literal="Overriding num_gpu_blocks=",
        means=Means.ADVANCE,
        phase=_KV,
        versions=_SINCE_EVER,
    ),
    # Up to 0.10 connectors are created with the device, later with the cache: no phase.
    Marker(
        name="kv_connector",
        literal="Creating v1 connector with name: ",
        means=Means.FACT,
        patterns=(r"name: (?P<kv_connector>\w{1,80})",),
        versions=_SINCE_EVER,
    ),
    Marker(
        name="kv_registered",
        literal="Registering KV_Caches",
        means=Means.ADVANCE,
        phase=_KV,
        versions=("0.9.0.1", "0.33.0"),
    ),
    Marker(
        name="kv_offload_tensors",
        literal=" CPU tensors...",
        means=Means.ADVANCE,
        phase=_KV,
        patterns=(r"^Allocating \d{1,9} CPU tensors\.\.\.",),
        at_start=False,
        versions=("0.11.0.post2", "0.33.0"),
    ),
    Marker(
        name="kv_offload_file",
        literal="Created mmap file ",
        means=Means.ADVANCE,
        phase=_KV,
        versions=("0.20.2", "0.33.0"),
    ),
)

# All of these are seen before the KV cache is sized too: Model Runner V2 captures its graphs
# twice (0.30 and newer), the CPU build warms up while it profiles.
WARM_UP = (
    _warm_up("cpu_warm_up", "Warming up model for the compilation...", "0.9.1", "0.33.0"),
    _warm_up("cpu_warm_up_done", "Warming up done.", "0.9.1", "0.33.0"),
    _warm_up("size_compiled", "Compile and warming up model for size ", *_SINCE_EVER),
    _warm_up("jit_warm_up", "JIT kernel warmup starting.", "0.29.0", "0.33.0"),
    _warm_up("jit_warm_up_done", "JIT kernel warmup finished in ", "0.29.0", "0.33.0"),
    _warm_up("jit_keys", "JIT kernel warmup (", "0.29.0", "0.33.0", _BAR, progress="JIT kernels"),
    _warm_up("deep_gemm", "DeepGEMM warmup", "0.14.1", "0.33.0", _BAR, progress="DeepGEMM kernels"),
    _warm_up("deep_gemm_up_to_0_13", "DeepGemm(", "0.10.1.1", "0.13.0", _BAR, progress="DeepGEMM kernels"),
    _warm_up("cutedsl", "Compiling CuTeDSL kernels", "0.26.0", "0.33.0", _BAR, progress="CuTeDSL kernels"),
    _warm_up("flashinfer_autotune", "Running FlashInfer autotune with ", "0.29.0", "0.33.0"),
    _warm_up(
        "flashinfer_cache",
        "Using FlashInfer ",
        "0.22.1",
        "0.33.0",
        r"^Using FlashInfer (?:managed )?autotune cache",
    ),
    _warm_up(
        "flashinfer_autotune_off", "Skipping FlashInfer autotune because it is disabled.", "0.16.0", "0.33.0"
    ),
    _warm_up("flashinfer_attention", "Warming up FlashInfer attention.", "0.10.2", "0.33.0"),
    Marker(
        name="autotuner",
        literal="[Autotuner]: Autotuning process ",
        means=Means.COMPILE_OR_WARM_UP,
        patterns=(r"^(?:flashinfer\.jit: )?\[Autotuner\]: Autotuning process (?:starts|ends)",),
        at_start=False,
    ),
    _warm_up("jit_monitor", "Kernel JIT monitor activated", "0.21.0", "0.33.0"),
    _warm_up(
        "graphs_up_to_0_10", "Capturing CUDA graph shapes", "<=0.8.5", "0.10.2", _BAR, progress="CUDA graphs"
    ),
    _warm_up("graphs", "Capturing CUDA graphs", "0.10.1.1", "0.33.0", _BAR, progress="CUDA graphs"),
    Marker(
        name="draft_graphs",
        literal=" CUDA graphs",
        means=Means.COMPILE_OR_WARM_UP,
        patterns=(r"^Capturing (?!CUDA)\w{1,20} CUDA graphs" + _BAR_END,),
        progress="CUDA graphs",
        at_start=False,
        versions=("0.12.0", "0.33.0"),
    ),
    _warm_up("graphs_v0", "Capturing the model for CUDA graphs.", "<=0.8.5", "<=0.8.5"),
    _warm_up("graphs_v0_later", "Capturing cudagraphs for decoding.", "<=0.8.5", "0.10.2"),
    _warm_up("speculator_graphs", "Capturing model for ", "0.12.0", "0.33.0", r"speculator"),
    _warm_up("graphs_skipped", "Skipping CUDA graph capture.", *_SINCE_EVER, any_level=True),
    _warm_up(
        "all_graphs_skipped",
        "Skipping encoder and decoder CUDA graph capture.",
        "0.28.0",
        "0.33.0",
        any_level=True,
    ),
    _warm_up(
        "graphs_captured",
        "Graph capturing finished in ",
        *_SINCE_EVER,
        r"in (?P<graph_capture_s>[\d.]{1,20}) secs(?:, took (?P<graph_gib>-?[\d.]{1,20}) GiB)?",
    ),
    _warm_up("encoder_graphs_captured", "Encoder graph capturing finished in ", "0.31.0", "0.33.0"),
    _warm_up("graph_pool", "CUDA graph pool memory: ", "0.18.1", "0.33.0"),
)

READY = (
    Marker(
        name="engine_ready",
        literal="init engine (profile, create kv cache, warmup model) took ",
        means=Means.ENGINE_READY,
        patterns=(
            rf"took (?P<engine_init_s>{_SECONDS}) s",
            rf"\(compilation: (?P<compile_s>{_SECONDS}) s",
        ),
        versions=_SINCE_EVER,
    ),
    Marker(
        name="weight_daemon_ready",
        literal="Weight cache daemon READY: node ",
        means=Means.ENGINE_READY,
        patterns=(r"^=* ?Weight cache daemon READY: node ",),
        at_start=False,
        versions=("0.30.0", "0.33.0"),
    ),
)

ENGINE = (*COMPILATION, *KV_CACHE, *WARM_UP, *READY)
