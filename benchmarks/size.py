"""How long does a log of 10 MiB or 1 GiB take to be diagnosed, and how much memory?

    python benchmarks/size.py [--mib 10 1024] [--seed 1] [--quick]

The log of a server that served for long and failed when it was started again: a start, chatter up to the
size, a start that fails. ``vllm-startup diagnose --json`` reads it in a process of its own; ``right`` says
whether it found the cause. The naive baseline, in the same run, is ``grep ERROR``. Processor time is what
the kernel counts for the process, imports included; ``rss_mib`` is the highest that was seen in looks every
10 ms, and the budget is on how much more that is for one size than for another.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from _bench import Json, emit, parser
from _fake import AFTERMATH, ROOT
from flood import START, chatter

BUDGET = {"growth_mib": 8}
CAUSE = "kv_cache_too_small"
BLOCK_LINES = 20_000
MIB = 1024 * 1024
LOOK_S = 0.01
NAIVE = ["grep", "--text", "ERROR"]


def write(path: Path, size: int, block: str) -> int:
    """Write the log; return how many lines it has."""
    begin, end = "\n".join([*START, ""]), "\n".join([*START[:12], *_stamped(ROOT + AFTERMATH)])
    left = size - len(begin.encode()) - len(end.encode())
    data, lines = block.encode(), block.count("\n")
    blocks = max(1, round(left / len(data)))
    with path.open("wb") as log:
        log.write(begin.encode())
        for _ in range(blocks):
            log.write(data)
        log.write(end.encode())
    return begin.count("\n") + blocks * lines + end.count("\n")


def _stamped(text: str) -> list[str]:
    return text.replace("MM-DD HH:MM:SS", "11-30 14:30:00").split("\n")


def cost_of(command: Sequence[str | Path]) -> tuple[Json, bytes]:
    """What a command takes, and what it prints."""
    sizes = [0]
    with tempfile.TemporaryFile() as printed:
        began = time.monotonic()
        process = psutil.Popen(command, stdout=printed)
        while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            sizes.append(process.memory_info().rss)
            time.sleep(LOOK_S)
        wall_s = time.monotonic() - began
        printed.seek(0)
        output = printed.read()
    used = ended[2]
    process.returncode = os.waitstatus_to_exitcode(ended[1])
    cpu_s = used.ru_utime + used.ru_stime
    return {
        "cpu_s": round(cpu_s, 2),
        "wall_s": round(wall_s, 2),
        "rss_mib": round(max(sizes) / MIB, 1),
    }, output


def measure(mib: int, block: str, folder: Path) -> Json:
    log = folder / "vllm.log"
    lines = write(log, mib * MIB, block)
    ours, printed = cost_of([sys.executable, "-m", "vllm_startup", "diagnose", "--json", log])
    naive, _ = cost_of([*NAIVE, log])
    cause = json.loads(printed)["cause"] or {}
    log.unlink()
    ours |= {"lines_per_s": round(lines / ours["cpu_s"]), "right": cause.get("kind") == CAUSE}
    return {"lines": lines, "ours": ours, "grep": naive}


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--mib", type=int, nargs="+", default=[10, 1024], help="sizes of the log")
    options = arguments.parse_args()
    if options.quick:
        options.mib = [1, 2]
    options.lines = BLOCK_LINES if not options.quick else 1000
    block = "\n".join([*chatter(options), ""])
    with tempfile.TemporaryDirectory() as folder:
        measured = {str(mib): measure(mib, block, Path(folder)) for mib in options.mib}
    peaks = [size["ours"]["rss_mib"] for size in measured.values()]
    growth = round(max(peaks) - min(peaks), 1)
    within = growth <= BUDGET["growth_mib"] and all(size["ours"]["right"] for size in measured.values())
    results = {"sizes": measured, "growth_mib": growth}
    emit("what does a large log take to be diagnosed", options, BUDGET, results, within)
    return 0


if __name__ == "__main__":
    sys.exit(main())
