"""What does it cost to watch one quiet start?

    python benchmarks/cost.py [--seconds 60] [--processes 1 8 64] [--quick]

A stand-in server with a tree of idle processes never listens. A process of its own watches it: ours with
``url``, ``pid`` and ``log`` at the defaults, so that all probes are on (the GPU probe says that it has
nothing to see where there is no NVML), or the naive poll of ``/health`` every second. Both run at the same
time, on the same server. Processor time is what the kernel counts for the process, in ticks of 10 ms:

- ``start_cpu_s``: from the interpreter's start until it has settled, imports included; of that,
  ``interpreter_cpu_s`` is what an interpreter costs that does nothing;
- ``pct``: of one core, from then on;
- ``pct_15_min``: of one core over a start of 15 minutes, the beginning included. The budget is on this.

``rss_mib`` is the highest seen, everything in use imported. ``growth_kib`` is what was added in the second
half. ``--seconds 900`` measures the 15 minutes themselves.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from _bench import HERE, Fake, Json, cpu_of, emit, free_port, parser

BUDGET = {"pct_15_min": 1.0, "rss_mib": 60, "growth_kib": 512}
START_S = 900
SETTLED_S = 5.0
MIB, KIB = 1024 * 1024, 1024
ARMS: dict[str, list[str]] = {"ours": [], "poll_1s": ["--naive"]}


class Meter:
    """One watching process, and what the kernel says of it."""

    def __init__(self, arguments: list[str]) -> None:
        command = [sys.executable, str(HERE / "_watcher.py"), "one", *arguments]
        self._process = subprocess.Popen(command)
        self._facts = psutil.Process(self._process.pid)
        self._sizes: list[int] = []
        self._settled: tuple[float, float] | None = None

    def settle(self) -> None:
        self._settled = time.monotonic(), self._cpu_s()

    def look(self) -> None:
        if self._process.poll() is not None:
            raise AssertionError("the watch ended although the server was quiet")
        self._sizes.append(self._facts.memory_info().rss)

    def result(self) -> Json:
        assert self._settled is not None
        began, start_cpu_s = self._settled
        share = (self._cpu_s() - start_cpu_s) / (time.monotonic() - began)
        return {
            "start_cpu_s": round(start_cpu_s, 2),
            "pct": round(100 * share, 2),
            "pct_15_min": round(100 * (share * (START_S - SETTLED_S) + start_cpu_s) / START_S, 2),
            "rss_mib": round(max(self._sizes) / MIB, 1),
            "growth_kib": (self._sizes[-1] - self._sizes[len(self._sizes) // 2]) // KIB,
            "threads": self._facts.num_threads(),
        }

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _cpu_s(self) -> float:
        times = self._facts.cpu_times()
        return float(times.user + times.system)


def measure(processes: int, seconds: float, settled_s: float, folder: Path) -> Json:
    port, log = free_port(), folder / "vllm.log"
    arguments = ["serve", "--port", str(port), "--after", "1000000", "--processes", str(processes)]
    with Fake(*arguments, log=log) as fake:
        while len(psutil.Process(fake.pid).children()) < processes - 1:
            time.sleep(0.01)
        where = ["--port", str(port), "--pid", str(fake.pid), "--log", str(log)]
        meters = {name: Meter([*where, *flags]) for name, flags in ARMS.items()}
        try:
            time.sleep(settled_s)
            for meter in meters.values():
                meter.settle()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(min(1.0, seconds / 4))
                for meter in meters.values():
                    meter.look()
            return {name: meter.result() for name, meter in meters.items()}
        finally:
            for meter in meters.values():
                meter.end()


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=60.0, help="measured for each tree")
    arguments.add_argument("--processes", type=int, nargs="+", default=[1, 8, 64], help="in the tree")
    options = arguments.parse_args()
    settled_s = SETTLED_S
    if options.quick:
        options.seconds, options.processes, settled_s = 1.0, [2], 1.0
    with tempfile.TemporaryDirectory() as folder:
        trees = {
            str(count): measure(count, options.seconds, settled_s, Path(folder))
            for count in options.processes
        }
    bare = statistics.median(cpu_of([sys.executable, "-c", "pass"]) for _ in range(5))
    results = {"interpreter_cpu_s": round(bare, 3), "processes": trees}
    within = all(tree["ours"][key] <= limit for tree in trees.values() for key, limit in BUDGET.items())
    emit("what does it cost to watch one quiet start", options, BUDGET, results, within)
    return 0


if __name__ == "__main__":
    sys.exit(main())
