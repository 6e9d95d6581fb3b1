"""A simulated worker: ``VLLM::Worker_TP0``."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Final

from vllm_startup._demo.printing import Printer
from vllm_startup._demo.processes import Orders, compute, set_title
from vllm_startup._demo.settings import SHARD_BYTES, SHARDS, WORKERS, Settings

_UNLUCKY: Final = WORKERS - 1  # the rank that meets the scenario's fate
_FATE_AT: Final = 5  # shards
_GRAPHS: Final = 6
_OUT_OF_MEMORY: Final = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU {rank} has a total capacity"
    " of 23.53 GiB of which 612.38 MiB is free. Process {pid} has 22.92 GiB memory in use. Of the allocated"
    " memory 22.44 GiB is allocated by PyTorch, and 34.21 MiB is reserved by PyTorch but unallocated."
)


def run(settings: Settings) -> None:
    """Be a worker until there is no engine any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the whole group
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # its engine ends it
    set_title(f"VLLM::Worker_TP{settings.rank}")
    worker = _Worker(settings)
    orders = Orders(settings)
    while True:
        match orders.next():
            case "init":
                worker.join()
            case "load":
                worker.load()
            case "profile":
                worker.profile()
            case "warm":
                worker.warm_up()
        orders.done()


class _Worker:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._printer = Printer("Worker", settings.version)
        self._first = settings.rank == 0
        self._weights: list[bytes] = []

    def join(self) -> None:
        """Meet the other ranks."""
        settings = self._settings
        settings.rest(0.3)
        place = "parallel_state.py:1393" if self._printer.wrapped else "parallel_state.py:1906"
        self._printer.record(
            place,
            f"world_size={WORKERS} rank={settings.rank} local_rank={settings.rank}"
            " distributed_init_method=tcp://127.0.0.1:55927 backend=nccl",
        )
        self._printer = Printer(f"Worker_TP{settings.rank}", settings.version)
        if self._first:
            self._printer.record("pynccl.py:111", "vLLM is using nccl==2.27.5")
        if settings.scenario == "hang":
            while True:
                time.sleep(3600)
        settings.rest(0.4)

    def load(self) -> None:
        """Read the shards, and keep them in memory."""
        settings = self._settings
        if self._printer.wrapped:
            text = f"Starting to load model {settings.model}..."
        else:
            text = "Loading model from scratch..."
        if self._first or self._printer.wrapped:
            self._printer.record("gpu_model_runner.py:4255", text)
        settings.rest(0.3)
        began = time.monotonic()
        for shard in range(SHARDS):
            if self._first:
                self._printer.shards(shard, SHARDS, time.monotonic() - began)
            self._read(shard)
            settings.rest(0.35)
            if settings.rank == _UNLUCKY and shard + 1 == _FATE_AT:
                self._meet_fate()
        if self._first:
            self._tell_loaded(time.monotonic() - began)

    def _tell_loaded(self, seconds: float) -> None:
        self._printer.shards(SHARDS, SHARDS, seconds)
        self._printer.plain("")
        self._printer.record("default_loader.py:293", f"Loading weights took {seconds:.2f} seconds")
        self._printer.record(
            "gpu_model_runner.py:4338", f"Model loading took 7.64 GiB memory and {seconds + 0.31:.6f} seconds"
        )

    def _read(self, shard: int) -> None:
        fd, at = self._settings.weights, shard * SHARD_BYTES
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, at, SHARD_BYTES, os.POSIX_FADV_DONTNEED)  # read it from storage
        self._weights.append(os.pread(fd, SHARD_BYTES, at))

    def _meet_fate(self) -> None:
        if self._settings.scenario == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._settings.scenario == "out-of-memory":
            self._printer.traceback(
                "multiproc_executor.py:953",
                "WorkerProc failed to start.",
                _OUT_OF_MEMORY.format(rank=self._settings.rank, pid=os.getpid()),
                "v1/executor/multiproc_executor.py|920|worker_main|worker = WorkerProc(*args, **kwargs)",
                "v1/worker/gpu_worker.py|380|load_model|self.model_runner.load_model()",
                "model_executor/layers/linear.py|412|create_weights|weight = Parameter(torch.empty(",
            )
            sys.exit(0)

    def profile(self) -> None:
        """Compile, and see what memory is left."""
        printer, settings = self._printer, self._settings
        if not self._first:
            compute(settings, 2.6)
            return
        cache = "/data/.cache/vllm/torch_compile_cache/9a0c5d6c1e/rank_0_0/backbone"
        printer.record("backends.py:976", f"Using cache directory: {cache} for vLLM's torch.compile")
        compute(settings, 0.9)
        printer.record("backends.py:1035", "Dynamo bytecode transform time: 0.90 s")
        compute(settings, 1.4)
        printer.record("backends.py:389", "Compiling a graph for compile range (1, 8192) takes 1.40 s")
        took = "takes" if printer.wrapped else "took"
        printer.record("monitor.py:48", f"torch.compile {took} 2.30 s in total")
        compute(settings, 0.3)
        if not printer.wrapped:
            self._capture("PIECEWISE")  # to estimate; Model Runner V2 captures twice
        printer.record("gpu_worker.py:456", "Available KV cache memory: 11.72 GiB")

    def warm_up(self) -> None:
        """Capture CUDA graphs."""
        if self._first:
            self._capture("mixed prefill-decode, PIECEWISE" if self._printer.wrapped else "PIECEWISE")
            self._capture("decode, FULL" if self._printer.wrapped else "FULL")
        else:
            compute(self._settings, 0.6)

    def _capture(self, mode: str) -> None:
        began = time.monotonic()
        for graph in range(_GRAPHS):
            self._printer.graphs(mode, graph, _GRAPHS, time.monotonic() - began)
            compute(self._settings, 0.1)
        seconds = time.monotonic() - began
        self._printer.graphs(mode, _GRAPHS, _GRAPHS, seconds)
        self._printer.record(
            "gpu_model_runner.py:5246", f"Graph capturing finished in {seconds:.0f} secs, took 0.61 GiB"
        )
