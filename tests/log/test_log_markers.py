# ruff: noqa: E501 - lines of logs stay whole
from __future__ import annotations

import json
from collections import Counter

import pytest

from vllm_startup._log.lines import Line, LineReader
from vllm_startup._log.marker import FACTS
from vllm_startup._log.markers import MARKERS, Means, Sighting, is_vllm_record, sight
from vllm_startup._phases import Phase

GIB = 1024**3


def line_of(text: str) -> Line:
    (line,) = LineReader().read(text)
    return line


def seen(text: str) -> list[str]:
    return [sighting.marker.name for sighting in sight(line_of(text))]


def only(text: str) -> Sighting:
    (sighting,) = sight(line_of(text))
    return sighting


# Lines as vLLM prints them: from recordings of 0.17.1 and 0.32.0, from public reports, and the
# templates of 0.8.5 to 0.33.0 filled in.
API = "(APIServer pid=1) INFO 11-30 14:20:40 [entry.py:136] "
CORE = "(EngineCore pid=2) INFO 11-30 14:20:52 [core.py:133] "
WORKER = "(Worker_TP0 pid=3) INFO 11-30 14:20:57 [gpu_worker.py:82] "
OLD = "INFO 09-03 02:15:42 model_runner.py:879] "
JOURNAL = "Nov 30 23:37:50 host systemd[1]: "

REAL: list[tuple[str, str]] = [
    ("banner", "(APIServer pid=30178) INFO 11-30 14:20:40 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0\r"),
    ("version_line", "INFO 05-01 10:00:00 [api_server.py:1043] vLLM API server version 0.8.5"),
    ("version_without_banner", f"{API}vLLM server version 0.32.0, serving model /models/tiny"),
    ("headless_executor", f"{API}Launching vLLM (v0.11.1) headless multiproc executor, with head node address 10.0.0.1:29501 for torch.distributed process group."),
    ("arguments", f"{API}non-default args: {{'model_tag': '/models/tiny', 'port': 8150, 'model': '/models/tiny'}}"),
    ("all_arguments", "INFO 05-01 10:00:00 [api_server.py:1044] args: Namespace(host=None, port=8000, model='m')"),
    ("api_server_count", "INFO 11-30 14:45:48 [serve.py:100] Defaulting api_server_count to data_parallel_size (2)."),
    ("headless_engines", f"{API}Launching 2 data parallel engine(s) in headless mode, with head node address tcp://10.0.0.1:13345."),
    ("dp_supervisor_launches", "(DPSupervisor pid=1) INFO 11-30 14:20:40 [dp_supervisor.py:399] Launching vLLM DP Servers"),
    ("grpc_arguments", f"{API}vLLM gRPC server args: Namespace(port=50051)"),
    ("architecture", f"{API}Resolved architecture: LlamaForCausalLM"),
    ("runner", f"{API}Resolved `--runner auto` to `--runner pooling`. Pass the value explicitly to silence this message."),
    ("max_model_len", f"{API}Using max model len 2048"),
    ("chunked_prefill", f"{API}Chunked prefill is enabled with max_num_batched_tokens=2048."),
    ("async_scheduling", f"{API}Asynchronous scheduling is enabled."),
    ("sleep_allocator", f"{API}Enabling cumem allocator because sleep mode requires it."),
    ("dp_coordinator_started", "(MainProcess pid=444) INFO 11-30 14:23:19 [utils.py:1245] Started DP Coordinator process (PID: 514)"),
    ("api_servers_started", "(MainProcess pid=444) INFO 11-30 14:23:20 [utils.py:261] Started 2 API server processes"),
    ("rust_frontend_launched", f"{API}Launching Rust frontend: /opt/vllm/bin/vllm-rs frontend --model m"),
    ("engine_waits_for_init", "(EngineCore pid=2350) DEBUG 11-30 14:25:06 [v1/engine/core.py:1371] Waiting for init message from front-end."),
    ("engine_init", f"{CORE}Initializing a V1 LLM engine (v0.32.0) with config: model='/models/tiny', speculative_config=None, tensor_parallel_size=2, pipeline_parallel_size=1"),
    ("engine_init_v0", "INFO 05-01 10:00:00 [llm_engine.py:243] Initializing a V0 LLM engine (v0.8.5) with config: model='m'"),
    ("engine_init_before_v1", "INFO 09-03 02:15:20 llm_engine.py:184] Initializing an LLM engine (v0.5.5) with config: model='m'"),
    ("dp_group_leader", f"{CORE}DP group leader: node_rank=0, node_rank_within_dp=0, master_addr=127.0.0.1, mq_connect_ip=192.0.2.2 (local), world_size=1, local_world_size=1"),
    ("distributed_init", f"{WORKER}world_size=2 rank=1 local_rank=1 distributed_init_method=tcp://127.0.0.1:55927 backend=nccl"),
    ("nccl", f"{WORKER}vLLM is using nccl==2.27.3"),
    ("rank_assigned", f"{WORKER}rank 0 in world size 2 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0, EP rank N/A, EPLB rank N/A"),
    ("rank_assigned", f"{WORKER}rank 0 in world size 1 is assigned as DP rank 0, PP rank 0, TP rank 0"),
    ("model_runner_v2", f"{WORKER}Using V2 Model Runner"),
    ("placement_group_created", f"{CORE}No current placement group found. Creating a new placement group."),
    ("placement_groups_for_dp", f"{API}Creating placement groups for data parallel"),
    ("engine_says_hello", "(APIServer pid=2336) DEBUG 11-30 14:25:06 [v1/engine/utils.py:1525] HELLO from local core engine process 0."),
    ("load_started", f"{WORKER}Starting to load model /models/tiny..."),
    ("load_started", f"{OLD}Starting to load model facebook/opt-125m..."),
    ("load_from_scratch", f"{WORKER}Loading model from scratch..."),
    ("attention_backend", f"{WORKER}Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER']"),
    ("attention_backend_on_v1", f"{WORKER}Using Flash Attention backend on V1 engine."),
    ("model_constructed", f"{WORKER}Initializing model took 0.085901 seconds"),
    ("checkpoint_size", f"{WORKER}Filesystem type for checkpoints: EXT4. Checkpoint size: 14.19 GiB. Available RAM: 21.72 GiB."),
    ("prefetch", f"{WORKER}Prefetching checkpoint files: 30% (3/10)"),
    ("prefetch_finished", f"{WORKER}Prefetching checkpoint files into page cache finished in 12.34s"),
    ("downloaded", f"{WORKER}Time spent downloading weights for Qwen/Qwen3-8B: 61.250000 seconds"),
    ("shards", "\rLoading safetensors checkpoint shards:  61% Completed | 41/67 [00:15<00:10,  2.58it/s]"),
    ("shards", "(Worker_TP0 pid=123) \rLoading safetensors checkpoint shards:  33% Completed | 1/3 [00:00<00:00,  6.66it/s]"),
    ("shards", "\rLoading safetensors checkpoint shards (eager):   0% Completed | 0/3 [00:00<?, ?it/s]"),
    ("shards_threads", "\rMulti-thread loading shards:  61% Completed | 41/67 [00:15<00:10,  2.58it/s]"),
    ("pt_shards", "\rLoading pt checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.00s/it]"),
    ("pt_threads", "\rMulti-thread loading pt checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.00s/it]"),
    ("np_cache", "\rLoading np_cache checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.00s/it]"),
    ("runai", "\rLoading safetensors using Runai Model Streamer:  19% Completed | 56/291 [00:01<00:03, 60.00it/s]"),
    ("fastsafetensors", "\rLoading safetensors using Fastsafetensor loader:  50% Completed | 1/2 [00:01<00:01,  1.00s/it]"),
    ("instanttensor", "\rLoading safetensors using InstantTensor loader:  50% Completed | 1/2 [00:01<00:01,  1.00s/it]"),
    ("hub_files", "\rFetching 8 files:  50%|█████     | 4/8 [00:02<00:02,  1.60it/s]"),
    ("bitsandbytes", f"{WORKER}Loading weights with BitsAndBytes quantization. May take a while ..."),
    ("tensorizer", f"{WORKER}Deserialized 13.5 GB in 4.21s, 3.2 GB/s"),
    ("weight_cache_mapped", f"{WORKER}Mapped 291 tensors from the weight cache daemon (ipc mode)"),
    ("weight_cache_awaited", f"{WORKER}Waiting up to 600.0s for the weight cache daemon to start"),
    ("weights_loaded", f"{WORKER}Loading weights took 15.93 seconds"),
    ("drafter", f"{WORKER}Loading drafter model..."),
    ("draft_shares_weights", f"{WORKER}Sharing target model embedding weights with the draft model."),
    ("online_quantization", f"{WORKER}Online quantization as part of model loading took 3.20 seconds"),
    ("model_loaded", f"{WORKER}Model loading took 14.9888 GiB and 16.234567 seconds"),
    ("model_loaded", f"{WORKER}Model loading took 15.26 GiB memory and 16.234567 seconds"),
    ("model_loaded_v0", f"{OLD}Loading model weights took 14.9888 GB"),
    ("model_structure", f"{WORKER}vLLM model structure:\r"),
    ("encoder_cache", f"{WORKER}Encoder cache will be initialized with a budget of 16384 tokens, and profiled with 1 image items of the maximum feature size."),
    ("no_encoder_profile", f"{WORKER}Skipping memory profiling for multimodal encoder and encoder cache."),
    ("compile_started", f"{WORKER}[backbone] Starting torch.compile"),
    ("compile_cache", f"{WORKER}Using cache directory: /data/.cache/vllm/torch_compile_cache/1b/rank_0_0/backbone for vLLM's torch.compile"),
    ("compile_cache_off", f"{WORKER}vLLM's torch.compile cache is disabled."),
    ("dynamo", f"{WORKER}Dynamo bytecode transform time: 5.24 s"),
    ("dynamo", f"{WORKER}[eagle_head] Dynamo bytecode transform time: 0.40 s"),
    ("graphs_from_cache", f"{WORKER}Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 1.204 s"),
    ("graphs_from_cache", f"{WORKER}Directly load the compiled graph(s) for dynamic shape from the cache, took 4.1 s"),
    ("aot_from_cache", f"{WORKER}Directly load AOT compilation from path /data/.cache/vllm/torch_aot_compile/27f/rank_0_0/model"),
    ("compiled_again", "(Worker pid=3) WARNING 11-30 14:20:57 [decorators.py:1] Compiling model again due to a load failure from /c, reason: stale"),
    ("graph_cached", f"{WORKER}Cache the graph for dynamic shape for later use"),
    ("graph_cached", f"{WORKER}[backbone] Cache the graph of compile range (1, 8192) for later use"),
    ("graph_compiled", f"{WORKER}Compiling a graph for compile range (1, 8192) takes 12.81 s"),
    ("aot_saved", "(Worker pid=30220) INFO 11-30 14:21:14 [decorators.py:743] [backbone] saved AOT compiled function to /c/27f8"),
    ("compiled_up_to_0_17", f"{WORKER}torch.compile takes 18.05 s in total"),
    ("compiled", f"{WORKER}torch.compile took 18.05 s in total"),
    ("compiled_and_profiled", f"{WORKER}torch.compile and initial profiling/warmup run together took 20.11 s in total"),
    ("profiled", "(Worker pid=30220) INFO 11-30 14:21:14 [monitor.py:91] [backbone] Initial profiling/warmup run took 0.01 s"),
    ("graph_memory", f"{WORKER}Profiling CUDA graph memory: PIECEWISE=51 (largest=512), FULL=35 (largest=256)"),
    ("graph_memory_estimated", f"{WORKER}Estimated CUDA graph memory: 0.53 GiB total"),
    ("memory_profiled_v0", "INFO 05-01 10:00:00 [worker.py:267] Memory profiling takes 3.20 seconds"),
    ("startup_plan", f"{WORKER}Applying persisted startup plan (fingerprint abc): kv_cache_memory_bytes=1234"),
    ("kv_memory", f"{WORKER}Available KV cache memory: 12.5 GiB"),
    ("kv_memory", f"{WORKER}Available KV cache memory: -1.25 GiB"),
    ("kv_memory_given", f"{WORKER}Initial free memory 78.5 GiB, reserved 20.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes config and skipped memory profiling."),
    ("kv_memory_cpu", "(Worker pid=30220) INFO 11-30 14:21:14 [cpu_worker.py:260] Explicitly set (1.0/23.54) GiB for KV cache on node 0."),
    ("kv_size", f"{CORE}GPU KV cache size: 2,097,152 tokens"),
    ("max_concurrency", f"{CORE}Maximum concurrency for 2,048 tokens per request: 1024.00x"),
    ("kv_size", f"{CORE}CPU KV cache size: 2,097,152 tokens, Maximum concurrency for 2,048 tokens per request: 1024.00x"),
    ("kv_blocks_v0", "INFO 05-01 10:00:00 [executor_base.py:112] # cuda blocks: 27486, # CPU blocks: 2048"),
    ("auto_fit", f"{CORE}Auto-fit max_model_len: reduced from 131072 to 40960 to fit in available KV cache memory (12.5 GiB)"),
    ("blocks_overridden", f"{CORE}Overriding num_gpu_blocks=1000 with num_gpu_blocks_override=512"),
    ("kv_connector", f"{WORKER}Creating v1 connector with name: NixlConnector and engine_id: 1b2c"),
    ("kv_registered", f"{WORKER}Registering KV_Caches. use_mla: False"),
    ("kv_offload_tensors", f"{WORKER}Allocating 64 CPU tensors..."),
    ("kv_offload_file", f"{WORKER}Created mmap file /dev/shm/vllm_kv (32.00 GB)"),
    ("cpu_warm_up", "(Worker pid=30220) INFO 11-30 14:20:58 [cpu_model_runner.py:87] Warming up model for the compilation..."),
    ("cpu_warm_up_done", "(Worker pid=30220) INFO 11-30 14:21:14 [cpu_model_runner.py:91] Warming up done."),
    ("size_compiled", f"{WORKER}Compile and warming up model for size 8"),
    ("jit_warm_up", f"{WORKER}JIT kernel warmup starting."),
    ("jit_warm_up_done", f"{WORKER}JIT kernel warmup finished in 12.34s."),
    ("jit_keys", "\rJIT kernel warmup (12 compile keys):  25%|██▌       | 3/12 [00:03<00:09,  1.00s/it]"),
    ("deep_gemm", "\rDeepGEMM warmup:  25%|██▌       | 3/12 [00:03<00:09,  1.00s/it]"),
    ("deep_gemm_up_to_0_13", "\rDeepGemm(fp8_gemm_nt) warmup (W=torch.Size([7168, 2048])):  25%|██▌       | 3/12 [00:03<00:09,  1.00s/it]"),
    ("cutedsl", "\rCompiling CuTeDSL kernels:  25%|██▌       | 3/12 [00:03<00:09,  1.00s/it]"),
    ("flashinfer_autotune", f"{WORKER}Running FlashInfer autotune with 8192 tokens and token buckets [1, 2]."),
    ("flashinfer_cache", f"{WORKER}Using FlashInfer autotune cache file: /data/.cache/x.json"),
    ("flashinfer_autotune_off", f"{WORKER}Skipping FlashInfer autotune because it is disabled."),
    ("flashinfer_attention", f"{WORKER}Warming up FlashInfer attention."),
    ("autotuner", "2026-07-04 17:55:05,895 - INFO - autotuner.py:641 - flashinfer.jit: [Autotuner]: Autotuning process ends"),
    ("jit_monitor", f"{WORKER}Kernel JIT monitor activated"),
    ("graphs_up_to_0_10", "\rCapturing CUDA graph shapes:  97%|█████████▋| 65/67 [00:15<00:00,  4.58it/s]"),
    ("graphs", "\rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE):  25%|██▌       | 1/4 [00:00<00:00,  8.33it/s]"),
    ("graphs", "\rCapturing CUDA graphs (FULL):  25%|██▌       | 1/4 [00:00<00:00,  8.33it/s]"),
    ("draft_graphs", "\rCapturing prefill CUDA graphs (FULL):  25%|██▌       | 1/4 [00:00<00:00,  8.33it/s]"),
    ("graphs_v0", f"{OLD}Capturing the model for CUDA graphs. This may lead to unexpected consequences if the model is not static."),
    ("graphs_v0_later", "INFO 05-01 10:00:00 [model_runner.py:1442] Capturing cudagraphs for decoding. This may lead to unexpected consequences"),
    ("speculator_graphs", f"{WORKER}Capturing model for EAGLE speculator..."),
    ("graphs_skipped", "(Worker pid=3) WARNING 11-30 14:20:57 [gpu_model_runner.py:1] Skipping CUDA graph capture. To turn on CUDA graph capture, ensure"),
    ("all_graphs_skipped", "(Worker pid=3) WARNING 11-30 14:20:57 [model_runner.py:1] Skipping encoder and decoder CUDA graph capture. To enable"),
    ("graphs_captured", f"{WORKER}Graph capturing finished in 12 secs, took 0.53 GiB"),
    ("graphs_captured", f"{OLD}Graph capturing finished in 12 secs."),
    ("encoder_graphs_captured", f"{WORKER}Encoder graph capturing finished in 3 secs"),
    ("graph_pool", f"{WORKER}CUDA graph pool memory: 0.5 GiB (actual), 0.6 GiB (estimated), difference: 0.1 GiB (16.0%)."),
    ("engine_ready", f"{CORE}init engine (profile, create kv cache, warmup model) took 31.06 seconds"),
    ("engine_ready", f"{CORE}init engine (profile, create kv cache, warmup model) took 12.34 s (compilation: 8.90 s)"),
    ("weight_daemon_ready", f"{API}===== Weight cache daemon READY: node 0/1 serving 8 local rank(s) x 1 role(s) in 61.0s ====="),
    ("supported_tasks", f"{API}Supported tasks: ['generate']"),
    ("supported_tasks_up_to_0_11", "(APIServer pid=1) INFO 10-02 10:00:00 [api_server.py:1680] Supported_tasks: ['generate']"),
    ("server_starts_up_to_0_17", f"{API}Starting vLLM API server 0 on http://0.0.0.0:8250"),
    ("server_starts_up_to_0_17", "INFO 05-01 10:00:00 [api_server.py:1090] Starting vLLM API server on http://0.0.0.0:8000"),
    ("server_starts", f"{API}Starting vLLM server on http://0.0.0.0:8150"),
    ("rust_server_starts", "(RustFrontend pid=9) INFO 11-30 14:06:44 [lib.rs:120] starting vLLM server model=m"),
    ("routes", f"{API}Available routes are:"),
    ("lora_loaded", f"{API}Loaded new LoRA adapter: name 'a', path '/models/a'"),
    ("api_servers_complete", "(MainProcess pid=1827) INFO 11-30 14:24:25 [utils.py:551] Waiting for API servers to complete ..."),
    ("uvicorn_process", "INFO:     Started server process [11741]"),
    ("uvicorn_waits", "(APIServer pid=15355) INFO:     Waiting for application startup."),
    ("uvicorn_started", "(APIServer pid=15355) INFO:     Application startup complete."),
    ("uvicorn_runs", "INFO:     Uvicorn running on http://0.0.0.0:9256 (Press CTRL+C to quit)"),
    ("request_served", 'INFO:     127.0.0.1:40106 - "GET /health HTTP/1.1" 200 OK'),
    ("request_served", '(APIServer pid=1) INFO:     127.0.0.1:40106 - "POST /v1/chat/completions HTTP/1.1" 200 OK'),
    ("rust_ready", "(RustFrontend pid=9) INFO 11-30 14:06:44 [lib.rs:150] OpenAI server is ready to accept requests"),
    ("rust_grpc_ready", "(RustFrontend pid=9) INFO 11-30 14:06:44 [lib.rs:160] gRPC server is ready to accept requests addr=0.0.0.0:50051"),
    ("grpc_started", f"{API}vLLM gRPC server started on 0.0.0.0:50051"),
    ("grpc_ready", f"{API}Server is ready to accept requests"),
    ("dp_supervisor_ready", "(DPSupervisor pid=1) INFO 11-30 14:20:40 [dp_supervisor.py:363] Started DPSupervisor on 0.0.0.0:9256"),
    ("shm_waits", f"{CORE}No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are hanging"),
    ("engines_awaited", "(APIServer pid=1) DEBUG 11-30 14:25:16 [v1/engine/utils.py:1490] Waiting for 1 local, 0 remote core engine proc(s) to start."),
    ("coordinator_awaited", f"{CORE}Waiting for READY message from DP Coordinator..."),
    ("placement_group_awaited", f"{CORE}Waiting for creating a placement group of specs for 40 seconds. specs=[{{'GPU': 1.0}}]. Check `ray status`"),
    ("dp_servers_awaited", "(DPSupervisor pid=1) INFO 11-30 14:20:40 [dp_supervisor.py:372] Waiting for vLLM DP Servers to become ready."),
    ("api_shutdown", "(APIServer pid=1) INFO 11-30 14:35:23 [launcher.py:254] [shutdown] API server: shutdown triggered"),
    ("engine_shutdown", "(EngineCore pid=2) INFO 11-30 14:35:23 [core.py:1454] [shutdown] EngineCore: trigger received signal=SIGTERM"),
    ("api_shutdown_up_to_0_22", "(APIServer pid=1) INFO 11-30 14:43:23 [launcher.py:122] Shutting down FastAPI HTTP server."),
    ("dp_supervisor_shutdown", "(DPSupervisor pid=1) INFO 11-30 14:20:40 [dp_supervisor.py:390] DPSupervisor received SIGTERM, shutting down."),
    ("grpc_shutdown", f"{API}Shutting down vLLM gRPC server..."),
    ("uvicorn_stops", "INFO:     Shutting down"),
    ("uvicorn_waits_to_stop", "INFO:     Waiting for application shutdown."),
    ("uvicorn_stopped", "INFO:     Application shutdown complete."),
    ("uvicorn_finished", "INFO:     Finished server process [11741]"),
    ("interrupted", "KeyboardInterrupt: terminated"),
    ("systemd_stops", f"{JOURNAL}Stopping vllm.service - vLLM server..."),
    ("systemd_starting", f"{JOURNAL}Starting vllm.service - vLLM server..."),
    ("systemd_started", f"{JOURNAL}Started vllm.service - vLLM server."),
    ("systemd_started", f"{JOURNAL}Started vLLM server."),
    ("systemd_restarts", f"{JOURNAL}vllm.service: Scheduled restart job, restart counter is at 1."),
    ("systemd_exited", f"{JOURNAL}vllm.service: Main process exited, code=exited, status=1/FAILURE"),
    ("systemd_succeeded", f"{JOURNAL}vllm.service: Deactivated successfully."),
    ("compose_exited", "vllm-1 exited with code 137"),
    ("supervisord_spawned", "2026-11-30 14:06:44,123 INFO spawned: 'vllm' with pid 123"),
    ("supervisord_exited", "2026-11-30 14:06:44,123 WARN exited: vllm (exit status 1; not expected)"),
    ("slurm_exited", "srun: error: node01: task 0: Exited with exit code 1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), REAL, ids=[f"{name}-{i}" for i, (name, _) in enumerate(REAL)])
def test_a_real_line_is_this_marker_and_no_other(name: str, text: str) -> None:
    assert seen(text) == [name]


def test_every_marker_has_a_real_line_and_a_name_of_its_own() -> None:
    assert {marker.name for marker in MARKERS} == {name for name, _ in REAL}
    assert Counter(marker.name for marker in MARKERS).most_common(1)[0][1] == 1


def test_every_group_of_the_patterns_is_used() -> None:
    import re

    known = {*FACTS, "done", "total", "exit_code", "exit_signal", "arguments"}
    groups = {group for marker in MARKERS for p in marker.patterns for group in re.compile(p).groupindex}
    assert groups <= known


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            f"{CORE}Something with config: model='m', x='Starting to load model m...', Loading weights took 3 seconds",
            id="inside a message",
        ),
        pytest.param('    logger.info("Starting to load model %s...", self.model_config.model)', id="source echo"),
        pytest.param(
            "(Worker pid=3) ERROR 11-30 14:29:59 [multiproc_executor.py:953]     "
            'logger.info("Loading weights took %.2f seconds", t)',
            id="source echo in a prefixed traceback",
        ),
        pytest.param("(Worker pid=3) ERROR 11-30 14:29:59 [a.py:1] Loading weights took 3.00 seconds", id="level ERROR"),
        pytest.param("(Worker pid=3) WARNING 11-30 14:29:59 [a.py:1] Starting to load model m...", id="level WARNING"),
        pytest.param(f"{API}Loading model: the weights took a while", id="other words"),
        pytest.param("\rLoading safetensors checkpoint shards: starting", id="a bar without counts"),
        pytest.param(f"{WORKER}local_world_size=1 rank=0 local_rank=0", id="a longer word"),
        pytest.param('INFO:     127.0.0.1:40106 - "GET /health HTTP/1.1" 503 Service Unavailable', id="503"),
        pytest.param('INFO:     127.0.0.1:40106 - "GET /v1/models HTTP/1.1" 401 Unauthorized', id="401"),
        pytest.param('172.18.0.3 - - [30/Nov/2026] "GET /health HTTP/1.1" 200 2', id="a proxy's access log"),
        pytest.param("Started vLLM server.", id="systemd's words without systemd"),
        pytest.param(f"{JOURNAL}Started Session 3 of User root.", id="a session"),
        pytest.param(f"{JOURNAL}Starting to load model m...", id="vLLM's words from systemd"),
        pytest.param("(Worker pid=3) INFO 11-30 14:29:59 [utils.py:1] [shutdown] Executor: waiting for worker exit count=1", id="aftermath"),
        pytest.param(f"{WORKER}Free memory on device cuda:0 (78.5/79.1 GiB) on startup.", id="memory"),
        pytest.param("INFO 11-30 14:42:41 [importing.py:68] Triton not installed or not compatible", id="import"),
        pytest.param("Shutting down the heater", id="prose"),
        pytest.param("the job exited with code 1", id="prose about an exit"),
        pytest.param("", id="empty"),
    ],
)  # fmt: skip
def test_what_only_looks_like_a_marker_is_none(text: str) -> None:
    assert seen(text) == []


def test_the_config_dump_counts_only_by_its_beginning() -> None:
    dump = (
        f"{CORE}Initializing a V1 LLM engine (v0.32.0) with config: model='/m', tensor_parallel_size=8, "
        "pipeline_parallel_size=2, hf_overrides={'x': 'GPU KV cache size: 12 tokens, rank 0 in world size 1 is "
        'assigned as DP rank 0, 1.2.3.4:1 - "GET / HTTP/1.1" 200 OK\'}'
    )
    sighting = only(dump)
    assert sighting.marker.name == "engine_init"
    assert sighting.facts == {
        "vllm_version": "0.32.0",
        "model": "/m",
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 2,
    }


def test_the_arguments_give_only_facts() -> None:
    text = (
        f"{API}non-default args: {{'model_tag': 'Qwen/Qwen3-8B', 'host': '0.0.0.0', 'port': 8150, 'api_key': ['s3cret'], "
        "'model': 'Qwen/Qwen3-8B', 'max_model_len': 4096, 'served_model_name': ['q'], 'tensor_parallel_size': 8, "
        "'gpu_memory_utilization': 0.75, 'chat_template': '█  version 9.9. Application startup complete. KV cache size: 3 tokens'}"
    )
    sighting = only(text)
    assert sighting.facts == {
        "model": "Qwen/Qwen3-8B",
        "served_model_name": "q",
        "host": "0.0.0.0",
        "port": 8150,
        "max_model_len": 4096,
        "tensor_parallel_size": 8,
        "gpu_memory_utilization": 0.75,
    }
    assert "s3cret" not in repr(sighting.facts)


def test_arguments_that_are_no_literal_are_read_key_by_key() -> None:
    text = f"{API}non-default args: {{'model': 'm', 'port': 81, 'compilation_config': CompilationConfig(level=3)}}"
    assert only(text).facts == {"model": "m", "port": 81}


def test_a_password_in_a_url_is_no_fact() -> None:
    text = f"{API}Starting vLLM server on http://user:s3cret@0.0.0.0:8150"
    assert only(text).facts == {"listen_address": "http://0.0.0.0:8150"}


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("(APIServer pid=1) INFO 11-30 14:20:40 [u.py:1]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0", {"vllm_version": "0.32.0"}),
        (f"{API}Resolved architecture: LlamaForCausalLM", {"architecture": "LlamaForCausalLM"}),
        (f"{API}Using max model len 2048", {"max_model_len": 2048}),
        (
            f"{WORKER}Filesystem type for checkpoints: NFS. Checkpoint size: 14.25 GiB. Available RAM: 21.72 GiB.",
            {"weights_filesystem": "NFS", "weights_bytes": 14 * GIB + GIB // 4},
        ),
        (f"{WORKER}Model loading took 15.5 GiB memory and 16.25 seconds", {"model_bytes": 31 * GIB // 2, "load_s": 16.25}),
        (f"{WORKER}Available KV cache memory: -0.5 GiB", {"kv_cache_bytes": -GIB // 2}),
        (
            f"{CORE}GPU + host KV cache size: 2,097,152 tokens, Maximum concurrency for 2,048 tokens per request: 1024.00x",
            {"kv_cache_tokens": 2_097_152, "max_concurrency": 1024.0},
        ),
        (f"{CORE}Maximum concurrency for 2,048 tokens per request: 7.06x", {"max_concurrency": 7.06}),
        (f"{WORKER}torch.compile takes 18.05 s in total", {"compile_s": 18.05}),
        (f"{WORKER}Graph capturing finished in 12 secs, took 0.5 GiB", {"graph_capture_s": 12.0, "graph_bytes": GIB // 2}),
        (f"{WORKER}Graph capturing finished in 12 secs.", {"graph_capture_s": 12.0}),
        (
            f"{CORE}init engine (profile, create kv cache, warmup model) took 12.34 s (compilation: 8.90 s)",
            {"engine_init_s": 12.34, "compile_s": 8.9},
        ),
        (f"{CORE}init engine (profile, create kv cache, warmup model) took 31.06 seconds", {"engine_init_s": 31.06}),
        (f"{WORKER}world_size=2 rank=1 local_rank=1 distributed_init_method=tcp://127.0.0.1:1 backend=nccl", {"world_size": 2}),
        (f"{WORKER}vLLM is using nccl==2.27.3", {"nccl_version": "2.27.3"}),
        (f"{WORKER}Using FLASH_ATTN attention backend out of potential backends: []", {"attention_backend": "FLASH_ATTN"}),
        (f"{WORKER}Using Flash Attention backend on V1 engine.", {"attention_backend": "Flash Attention"}),
        (f"{API}Starting vLLM API server 0 on http://0.0.0.0:8250", {"listen_address": "http://0.0.0.0:8250"}),
    ],
)  # fmt: skip
def test_facts_are_typed(text: str, facts: dict[str, object]) -> None:
    found = only(text).facts
    assert found == facts
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in facts.items()
    }


@pytest.mark.parametrize(
    ("text", "progress", "done", "total"),
    [
        ("\rLoading safetensors checkpoint shards:  61% Completed | 41/67 [00:15<00:10,  2.58it/s]", "checkpoint shards", 41, 67),
        ("\rCapturing CUDA graphs (decode, FULL): 100%|██████████| 4/4 [00:00<00:00,  8.31it/s]", "CUDA graphs", 4, 4),
        (f"{WORKER}Prefetching checkpoint files: 30% (3/10)", "prefetched files", 3, 10),
        ("\rJIT kernel warmup (12 compile keys):  25%|██▌       | 3/12 [00:03<00:09,  1.00s/it]", "JIT kernels", 3, 12),
    ],
)  # fmt: skip
def test_bars_count(text: str, progress: str, done: float, total: float) -> None:
    sighting = only(text)
    assert (sighting.progress, sighting.done, sighting.total) == (progress, done, total)


def test_heartbeats_are_no_progress_and_no_phase() -> None:
    beats = [
        only(text) for name, text in REAL if name in {"shm_waits", "engines_awaited", "coordinator_awaited"}
    ]
    assert [(beat.means, beat.phase, beat.progress) for beat in beats] == [(Means.HEARTBEAT, None, None)] * 3


@pytest.mark.parametrize(
    ("text", "code", "signal"),
    [
        (f"{JOURNAL}v.service: Main process exited, code=exited, status=1/FAILURE", 1, None),
        (f"{JOURNAL}v.service: Main process exited, code=killed, status=9/KILL", None, "KILL"),
        (f"{JOURNAL}v.service: Main process exited, code=dumped, status=6/ABRT", None, "ABRT"),
        ("vllm-1 exited with code 0", 0, None),
        ("2026-11-30 14:06:44,123 WARN exited: vllm (terminated by SIGKILL; not expected)", None, "KILL"),
    ],
)
def test_a_supervisor_tells_how_the_process_ended(text: str, code: int | None, signal: str | None) -> None:
    sighting = only(text)
    assert (sighting.means, sighting.exit_code, sighting.exit_signal) == (Means.EXIT, code, signal)


def test_a_stop_tells_its_signal() -> None:
    sighting = only(
        "(EngineCore pid=2) INFO 11-30 14:35:23 [core.py:1454] [shutdown] EngineCore: trigger received signal=SIGTERM"
    )
    assert (sighting.means, sighting.exit_signal) == (Means.SHUTDOWN, "TERM")


def test_the_banner_of_a_rank_under_a_dp_supervisor_is_no_new_start() -> None:
    banner = "INFO 11-30 14:20:40 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0"
    assert only(f"(APIServer pid=1) {banner}").means is Means.START
    assert only(f"(APIServer_DP1 pid=2) {banner}").means is Means.ADVANCE


@pytest.mark.parametrize(
    ("name", "means", "phase"),
    [
        ("banner", Means.START, Phase.CONFIGURING),
        ("engine_init", Means.ADVANCE, Phase.INITIALIZING),
        ("distributed_init", Means.DIST_INIT, Phase.INITIALIZING),
        ("load_started", Means.ADVANCE, Phase.LOADING_WEIGHTS),
        ("load_from_scratch", Means.ADVANCE, Phase.LOADING_WEIGHTS),
        ("shards", Means.ADVANCE, Phase.LOADING_WEIGHTS),
        ("dynamo", Means.ADVANCE, Phase.COMPILING),
        ("kv_memory", Means.KV_SIZED, Phase.ALLOCATING_KV_CACHE),
        ("kv_size", Means.KV_SIZED, Phase.ALLOCATING_KV_CACHE),
        ("cpu_warm_up", Means.COMPILE_OR_WARM_UP, None),
        ("graphs", Means.COMPILE_OR_WARM_UP, None),
        ("engine_ready", Means.ENGINE_READY, None),
        ("supported_tasks", Means.SERVER_STARTING, Phase.STARTING_SERVER),
        ("uvicorn_started", Means.SERVED, Phase.STARTING_SERVER),
        ("request_served", Means.SERVED, Phase.STARTING_SERVER),
        ("attention_backend", Means.FACT, None),
    ],
)
def test_what_the_milestones_mean(name: str, means: Means, phase: Phase | None) -> None:
    (marker,) = [marker for marker in MARKERS if marker.name == name]
    assert (marker.means, marker.phase) == (means, phase)


def test_a_marker_in_a_json_log() -> None:
    text = json.dumps(
        {"levelname": "INFO", "name": "vllm.v1.engine.core", "message": "Loading weights took 3.00 seconds"}
    )
    assert seen(text) == ["weights_loaded"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{API}hello", True),
        ("(APIServer pid=17248) WARNING 11-30 14:47:14 [vllm.py:781] Enforce eager set", True),
        ('{"levelname": "INFO", "name": "vllm.config.model", "message": "hello"}', True),
        ('{"levelname": "INFO", "name": "httpx", "message": "hello"}', False),
        ("INFO 11-30 14:42:41 [importing.py:44] Triton is installed but 0 active driver(s) found", False),
        ("INFO 05-01 10:00:00 [__init__.py:239] Automatically detected platform cuda.", False),
        ("Triton is installed, but doesn't include CPU backend. Disabling Triton.", False),
        ("INFO:     Started server process [1]", False),
        ("Traceback (most recent call last):", False),
    ],
)
def test_import_time_lines_are_no_records_that_count(text: str, expected: bool) -> None:
    assert is_vllm_record(line_of(text)) is expected


def test_no_pattern_is_slow_on_a_long_line() -> None:
    import time

    for marker in MARKERS:
        for filling in (marker.literal, ": ", "|", "a", "1/1 ", "took "):
            text = f"{marker.literal}{filling * (65_536 // len(filling))}"
            line = Line(text=text, message=text, process=next(iter(marker.speakers or {"APIServer"})))
            started = time.process_time()
            sight(line)
            # 3 ms are measured at most; the budget for a whole line is 50.
            assert time.process_time() - started < 0.05, marker.name
