# ruff: noqa: E501 - lines of logs stay whole
"""How fast are lines of a log read: those that mean nothing, and those of a real start?

    python benchmarks/flood.py [--lines 200000] [--seed 1] [--repeat 3] [--log FILE] [--quick]

Three stages, each with all rules on:

- ``triggers``: lines in, sightings out, without a machine: what the choice of literals costs;
- ``machine``: batches of lines in, as the log probe gives them, events out; the budget is on this;
- ``file``: from a file, through the log probe and the pump of a whole watch, until the last line is told.

The naive baseline, in the same run: one ``re.search`` of all literals as alternatives on every line, and
nothing else. All times are processor time, since others may share the machine. ``--log`` takes the lines of a start from a file instead of the ones below. The time of a hostile
line of 64 KiB is the worst of several, each the best of ``--repeat``. ``growth_kib`` is what the machine holds
more after the second half of the flood than after the first. ``starts_per_s`` is for lines of which every 58 are
a start of their own, which has no budget: what is known of a start is kept for the report.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import random
import re
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

from _bench import Json, emit, parser

import vllm_startup
from vllm_startup._log.lines import LineReader
from vllm_startup._log.markers import MARKERS, Means, sight
from vllm_startup._log.triggers import Triggers, searchable
from vllm_startup._machine.machine import StartupMachine
from vllm_startup._machine.terms import Terms
from vllm_startup._readings import LogOpened, Observation
from vllm_startup.causes._rules import built_in_rules
from vllm_startup.probes import LogFileProbe
from vllm_startup.probes._log import batches

BUDGET = {"uninteresting_per_s": 300_000, "start_per_s": 100_000, "line_ms": 50, "growth_kib": 256}
LONG = 65_536
KIB = 1024

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
    rules = (rule.literal for rule in built_in_rules() if rule.where != "place")  # those are no text
    found = [*(marker.literal for marker in MARKERS), *rules]
    return list(dict.fromkeys(literal for literal in found if literal))


def pipeline(lines: Sequence[str], known: Sequence[str]) -> Callable[[], int]:
    find = Triggers((literal, None) for literal in known).find

    def run() -> int:
        reader, sightings = LineReader(), 0
        for text in lines:
            if find(searchable(text)):
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
    started = time.process_time()
    run()
    return time.process_time() - started


def machine() -> StartupMachine:
    """A machine that has a log to follow."""
    made = StartupMachine(Terms())
    made.feed(Observation(at=0.0, probe="log", reading=LogOpened(source="vllm.log")))
    return made


def feed(made: StartupMachine, lines: Sequence[str], at: float = 1.0) -> int:
    readings = batches(list(lines))
    return sum(len(made.feed(Observation(at=at, probe="log", reading=reading))) for reading in readings)


def whole(lines: Sequence[str]) -> Callable[[], int]:
    return lambda: feed(machine(), lines)


def slowest_line_ms(repeat: int) -> dict[str, float]:
    slowest = {}
    for piece in HOSTILE:
        text = piece * (LONG // len(piece))
        run = functools.partial(take_apart, text)
        slowest[piece] = round(min(_seconds(run) for _ in range(repeat)) * 1000, 2)
    return slowest


def take_apart(text: str) -> int:
    """Through the machine, and by all markers even where no literal is in it."""
    return feed(machine(), [text]) + sum(len(sight(line)) for line in LineReader().read(text))


def growth_kib(lines: Sequence[str]) -> int:
    """What one machine keeps of a second flood after a first."""
    made, half = machine(), len(lines) // 2
    tracemalloc.start()
    feed(made, lines[:half])
    before, _ = tracemalloc.get_traced_memory()
    feed(made, lines[half:])
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) // KIB


def from_file_per_s(lines: Sequence[str]) -> int:
    """Lines a second through a whole watch; a rule of our own tells when the last one has arrived."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vllm.log"
        path.write_text("\n".join([*lines, LAST]) + "\n", encoding="utf-8", newline="")
        return round(len(lines) / asyncio.run(_followed_s(path)))


LAST = "vllm_startup-benchmark: the last line"


async def _followed_s(path: Path) -> float:
    last = vllm_startup.Rule(literal=LAST, match=lambda _line: vllm_startup.Progress("the last line"))
    began = time.process_time()
    async with vllm_startup.Startup([LogFileProbe(path)], rules=[last]) as startup:
        async for event in startup.events():
            if isinstance(event, vllm_startup.ProgressSeen) and event.what == "the last line":
                return time.process_time() - began
    raise AssertionError("the watch ended before the last line")


def flood(lines: Sequence[str], known: Sequence[str], repeat: int) -> Json:
    count = len(lines)
    return {
        "machine_per_s": rate(whole(lines), count, repeat),
        "file_per_s": max(from_file_per_s(lines) for _ in range(repeat)),
        "triggers_per_s": rate(pipeline(lines, known), count, repeat),
        "naive_per_s": rate(baseline(lines, known), count, 1),
        "growth_kib": growth_kib(lines),
    }


def chatter(options: argparse.Namespace) -> list[str]:
    draw = random.Random(options.seed)
    return [
        draw.choice(CHATTER).format(n=draw.randrange(1000, 9999), s=draw.randrange(60))
        for _ in range(options.lines)
    ]


def starts(options: argparse.Namespace) -> list[str]:
    """One start after another."""
    log: Path | None = options.log
    lines = log.read_text(errors="replace").split("\n") if log else list(START)
    count: int = options.lines
    return (lines * (count // len(lines) + 1))[:count]


def start(options: argparse.Namespace) -> list[str]:
    """The lines of one start, over and over: of those that begin one, only the first."""
    lines = starts(options)
    begins = {line for line in dict.fromkeys(lines) if _begins(line)}
    return [line for at, line in enumerate(lines) if line not in begins or at == lines.index(line)]


def _begins(text: str) -> bool:
    return any(seen.means is Means.START for line in LineReader().read(text) for seen in sight(line))


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--lines", type=int, default=200_000)
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--log", type=Path)
    options = arguments.parse_args()
    if options.quick:
        options.lines, options.repeat = 5000, 1
    known = literals()
    results: Json = {
        "literals": len(known),
        "uninteresting": flood(chatter(options), known, options.repeat),
        "start": flood(start(options), known, options.repeat),
        "starts_per_s": rate(whole(starts(options)), options.lines, options.repeat),
        "long_line_ms": slowest_line_ms(options.repeat),
    }
    within = (
        results["uninteresting"]["machine_per_s"] >= BUDGET["uninteresting_per_s"]
        and results["start"]["machine_per_s"] >= BUDGET["start_per_s"]
        and max(results["long_line_ms"].values()) <= BUDGET["line_ms"]
        and max(results[lines]["growth_kib"] for lines in ("uninteresting", "start")) <= BUDGET["growth_kib"]
    )
    emit("how fast are lines of a log read", options, BUDGET, results, within)
    return 0


if __name__ == "__main__":
    sys.exit(main())
