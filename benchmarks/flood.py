# ruff: noqa: E501 - lines of logs stay whole
"""How fast are lines of a log dispatched: those that mean nothing, and those of a real start?

    python benchmarks/flood.py [--lines 200000] [--seed 1] [--repeat 3] [--log FILE]

Prints one JSON object. The naive baseline, in the same run: one ``re.search`` of all literals as
alternatives on every line, and nothing else. ``--log`` takes the lines of a start from a file
instead of the ones below.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from vllm_startup._log.lines import LineReader
from vllm_startup._log.markers import MARKERS, sight
from vllm_startup._log.triggers import LineFilter
from vllm_startup.causes._rules import built_in_rules

BUDGET_UNINTERESTING = 300_000
BUDGET_START = 100_000
BUDGET_LINE_MS = 50
LONG = 65_536

# A finished request, statistics, a library's chatter: what a server's log is full of.
CHATTER = (
    "(APIServer pid={n}) INFO 11-30 14:25:{s:02} [loggers.py:257] Engine 000: Avg prompt throughput: {n}.3 tokens/s, "
    "Avg generation throughput: {n}.1 tokens/s, Running: {s} reqs, Waiting: 0 reqs, GPU KV cache usage: {s}.1%",
    "(APIServer pid={n}) INFO 11-30 14:25:{s:02} [logger.py:42] Received request chatcmpl-{n}: prompt: None, params: {n}",
    "(EngineCore pid={n}) DEBUG 11-30 14:25:{s:02} [v1/engine/core.py:1584] EngineCore loop active.",
    "[Gloo] Rank {s} is connected to {s} peer ranks. Expected number of connected peer ranks is : {s}",
    "host:{n}:{n} [{s}] NCCL INFO Channel 00/0 : {s}[{s}] -> 1[1] via P2P/CUMEM/read",
    '/opt/vllm/lib/python3.11/site-packages/x.py:{n}: FutureWarning: `f` is deprecated, please use `g` instead',
    " - leaked instance 0x7f135cb{n} of type \"triton._C.libtriton.ir.attribute\"",
    "",
)  # fmt: skip

START = (
    "Triton is installed, but doesn't include CPU backend. Disabling Triton.",
    "(APIServer pid=1) INFO 11-30 14:20:40 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0\r",
    "(APIServer pid=1) INFO 11-30 14:20:40 [api_utils.py:286] non-default args: {'model_tag': 'm', 'port': 8150, 'model': 'm'}",
    "(APIServer pid=1) INFO 11-30 14:20:46 [model.py:733] Resolved architecture: LlamaForCausalLM",
    "(APIServer pid=1) INFO 11-30 14:20:46 [model.py:2152] Using max model len 2048",
    "(APIServer pid=1) INFO 11-30 14:20:46 [kernel.py:467] Final IR op priority after setting platform defaults: X",
    "(APIServer pid=1) WARNING 11-30 14:20:46 [vllm.py:725] Model Runner V2 requires Triton; using the V1 model runner.",
    "(EngineCore pid=2) INFO 11-30 14:20:52 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m', "
    + ", ".join(f"option_{i}={i}" for i in range(200)),
    "(EngineCore pid=2) INFO 11-30 14:20:52 [ompmultiprocessing.py:185] \treserved_cpus=[1]",
    "(Worker_TP0 pid=3) INFO 11-30 14:20:57 [parallel_state.py:1906] world_size=2 rank=0 local_rank=0 backend=nccl",
    "(Worker_TP0 pid=3) INFO 11-30 14:20:57 [cpu_model_runner.py:68] Starting to load model m...",
    *(
        f"\rLoading safetensors checkpoint shards: {i:3}% Completed | {i}/100 [00:00<00:00,  6.66it/s]"
        for i in range(0, 100, 10)
    ),
    "(Worker_TP0 pid=3) INFO 11-30 14:20:57 [default_loader.py:501] Loading weights took 15.93 seconds",
    "(Worker_TP0 pid=3) INFO 11-30 14:20:58 [backends.py:1] Dynamo bytecode transform time: 5.24 s",
    "(EngineCore pid=2) INFO 11-30 14:21:14 [kv_cache_utils.py:2327] GPU KV cache size: 2,097,152 tokens",
    "(EngineCore pid=2) INFO 11-30 14:21:15 [core.py:402] init engine (profile, create kv cache, warmup model) took 16.93 s",
    "(APIServer pid=1) INFO 11-30 14:21:16 [entry.py:140] Starting vLLM server on http://0.0.0.0:8150",
    *(f"(APIServer pid=1) INFO 11-30 14:21:16 [launcher.py:195] Route: /v1/r{i}, Methods: POST" for i in range(30)),
    "INFO:     Started server process [1]",
    "INFO:     Application startup complete.",
)  # fmt: skip

HOSTILE = (
    "(",
    "(a pid=1) ",
    "INFO 11-30 14:20:57 [a:",
    "\x1b[",
    "\r",
    "a\r",
    " ",
    "0: ",
    '{"a":',
    "█",
    "Error: ",
)


def literals() -> list[str]:
    found = [*(marker.literal for marker in MARKERS), *(rule.literal for rule in built_in_rules())]
    return list(dict.fromkeys(literal for literal in found if literal))


def pipeline(lines: Sequence[str], known: Sequence[str]) -> Callable[[], int]:
    wants = LineFilter(known).wants

    def run() -> int:
        reader, sightings = LineReader(), 0
        for text in lines:
            if wants(text):
                for line in reader.read(text):
                    sightings += len(sight(line))
            else:
                reader.skip()
        return sightings

    return run


def baseline(lines: Sequence[str], known: Sequence[str]) -> Callable[[], int]:
    search = re.compile("|".join(re.escape(literal) for literal in known)).search
    return lambda: sum(search(text) is not None for text in lines)


def rate(run: Callable[[], int], lines: int, repeat: int) -> int:
    """Lines a second, the best of several runs: others share the machine."""
    best = min(_seconds(run) for _ in range(repeat))
    return round(lines / best)


def _seconds(run: Callable[[], int]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def slowest_line_ms(repeat: int) -> dict[str, float]:
    slowest = {}
    for piece in HOSTILE:
        run = functools.partial(take_apart, piece * (LONG // len(piece)))
        slowest[piece] = round(min(_seconds(run) for _ in range(repeat)) * 1000, 2)
    return slowest


def take_apart(text: str) -> int:
    return sum(len(sight(line)) for line in LineReader().read(text))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()

    draw = random.Random(options.seed)
    chatter = [
        draw.choice(CHATTER).format(n=draw.randrange(1000, 9999), s=draw.randrange(60))
        for _ in range(options.lines)
    ]
    start = options.log.read_text(errors="replace").split("\n") if options.log else list(START)
    start = (start * (options.lines // len(start) + 1))[: options.lines]
    known = literals()
    uninteresting = rate(pipeline(chatter, known), options.lines, options.repeat)
    real = rate(pipeline(start, known), options.lines, options.repeat)
    hostile = slowest_line_ms(options.repeat)
    print(
        json.dumps(
            {
                "question": "lines dispatched a second",
                "lines": options.lines,
                "seed": options.seed,
                "repeat": options.repeat,
                "literals": len(known),
                "uninteresting_per_s": uninteresting,
                "uninteresting_naive_per_s": rate(baseline(chatter, known), options.lines, 1),
                "start_per_s": real,
                "start_naive_per_s": rate(baseline(start, known), options.lines, 1),
                "long_line_ms": hostile,
                "within_budget": uninteresting >= BUDGET_UNINTERESTING
                and real >= BUDGET_START
                and max(hostile.values()) <= BUDGET_LINE_MS,
                "python": platform.python_version(),
                "machine": platform.machine(),
            },
            indent=2,
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
