"""A simulated engine core: ``VLLM::EngineCore``."""

from __future__ import annotations

import signal
import sys
import time
from typing import Final

import attrs

from vllm_startup._demo.printing import Printer
from vllm_startup._demo.processes import Child, Orders, all_done, set_title
from vllm_startup._demo.settings import WORKERS, Settings

_HEARTBEAT_S: Final = 2.0  # 60 in vLLM, which says so
_HEARTBEAT: Final = (
    "No available shared memory broadcast block found in 60 seconds. This typically happens when some"
    " processes are hanging or doing some time-consuming work (e.g. compilation, weight/kv cache"
    " quantization)."
)
_AFTERMATH: Final = (
    "Exception: WorkerProc initialization failed due to an exception in a background process."
    " See stack trace for root cause."
)
_FRAMES: Final = (
    "v1/engine/core.py|1482|run_engine_core|engine_core = EngineCoreProc(*args, **kwargs)",
    "v1/engine/core.py|144|__init__|self.model_executor = executor_class(vllm_config)",
    "v1/executor/multiproc_executor.py|215|_init_executor|self.workers = WorkerProc.wait_for_ready(unready)",
    "v1/executor/multiproc_executor.py|815|wait_for_ready|raise e from None",
)


def run(settings: Settings) -> None:
    """Be an engine core until there is no server any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the whole group
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as vLLM's, while it initialises; later its server ends it
    set_title("VLLM::EngineCore")
    orders = Orders(settings)
    _Engine(settings).start()
    orders.done()
    while True:
        orders.next()


class _Engine:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._old = settings.version < "0.31"
        self._name = "EngineCore_DP0" if self._old else "EngineCore"
        self._printer = Printer(self._name, settings.version)

    def start(self) -> None:
        """Bring the workers up, or fail with them."""
        settings, printer = self._settings, self._printer
        settings.rest(0.6)
        printer.record(
            "core.py:101" if self._old else "core.py:133",
            f"Initializing a V1 LLM engine (v{settings.version}) with config: model='{settings.model}',"
            f" speculative_config=None, tokenizer='{settings.model}', dtype=torch.bfloat16,"
            " max_seq_len=40960,"
            f" tensor_parallel_size={WORKERS}, pipeline_parallel_size=1, data_parallel_size=1, seed=0",
        )
        printer.record(
            "multiproc_executor.py:153",
            "DP group leader: node_rank=0, node_rank_within_dp=0, master_addr=127.0.0.1,"
            f" mq_connect_ip=127.0.0.1 (local), world_size={WORKERS}, local_world_size={WORKERS}",
        )
        began = time.monotonic()
        workers = [Child(attrs.evolve(settings, role="worker", rank=rank)) for rank in range(WORKERS)]
        for step in ("init", "load", "profile"):
            self._do(step, workers)
        self._tell_cache()
        self._do("warm", workers)
        self._tell_ready(time.monotonic() - began)

    def _do(self, step: str, workers: list[Child]) -> None:
        for worker in workers:
            worker.order(step)
        if self._settings.scenario == "hang" and step == "init":
            while True:
                time.sleep(_HEARTBEAT_S)
                self._printer.record("shm_broadcast.py:542", _HEARTBEAT)
        if not all_done(workers):
            self._fail(workers)

    def _tell_cache(self) -> None:
        size, most = (
            "GPU KV cache size: 85,312 tokens",
            "Maximum concurrency for 40,960 tokens per request: 2.08x",
        )
        if self._old:
            self._printer.record("kv_cache_utils.py:1314", size)
            self._printer.record("kv_cache_utils.py:1319", most)
        else:
            self._printer.record("kv_cache_utils.py:2327", f"{size}, {most}")

    def _tell_ready(self, seconds: float) -> None:
        took = f"{seconds:.2f} seconds" if self._old else f"{seconds:.2f} s (compilation: 2.30 s)"
        place = "core.py:282" if self._old else "core.py:402"
        self._printer.record(place, f"init engine (profile, create kv cache, warmup model) took {took}")

    def _fail(self, workers: list[Child]) -> None:
        """What every failure of a worker ends in: the aftermath, not the cause."""
        for worker in workers:
            worker.let_go()
        for worker in workers:
            worker.process.wait()
        self._printer.traceback("core.py:1510", "EngineCore failed to start.", _AFTERMATH, *_FRAMES)
        self._printer.traceback(None, f"Process {self._name}:", _AFTERMATH, *_FRAMES)
        sys.exit(1)
