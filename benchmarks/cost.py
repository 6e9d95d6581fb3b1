"""What does it cost to watch one quiet start?

    python benchmarks/cost.py [--seconds 60] [--processes 1 8 64] [--gpus 0 8] [--quick]

A stand-in server with a tree of idle processes never listens. A process of its own watches it: ours with
``url``, ``pid`` and ``log`` at the defaults but for the limit on standing still, so that all probes are on,
or the naive poll of ``/health`` every second. Each number of processes is measured with each number of
GPUs, all at the same time: they mostly sleep. The GPUs are those of the tests' stand-in for NVML
(``tests/probes/nvml_stub.c``, which needs a C compiler); the server holds memory on each. With 0 there is
no NVML, whatever the machine has, and the probe says so once. Processor time is what the kernel counts for
the process, in ticks of 10 ms:

- ``start_cpu_s``: from the interpreter's start until it has settled, imports included; of that,
  ``interpreter_cpu_s`` is what an interpreter costs that does nothing;
- ``pct``: of one core, from then on;
- ``pct_15_min``: of one core over a start of 15 minutes, the beginning included. The budget is on this.

``rss_mib`` is the highest seen, everything in use imported. ``growth_kib`` is what was added in the second
half. ``--seconds 900`` measures the 15 minutes themselves.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from _bench import HERE, Fake, Json, cpu_of, emit, free_port, parser

BUDGET = {"pct_15_min": 1.0, "rss_mib": 60, "growth_kib": 512}
START_S = 900
SETTLED_S = 5.0
MIB, KIB = 1024 * 1024, 1024
GPU_MIB, HELD_MIB = 97_887, 73_731
ARMS: dict[str, list[str]] = {"ours": [], "poll_1s": ["--naive"]}
STUB = HERE.parent / "tests" / "probes" / "nvml_stub.c"


class Meter:
    """One watching process, and what the kernel says of it."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        command = [sys.executable, str(HERE / "_watcher.py"), "one", *arguments]
        self._process = subprocess.Popen(command, env=environment)
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


class Start:
    """One quiet start, and those that watch it."""

    def __init__(self, processes: int, gpus: int, driver: Path) -> None:
        self._processes, self._gpus, self._driver = processes, gpus, driver
        self._meters: dict[str, Meter] = {}

    @contextlib.contextmanager
    def watched(self, settled_s: float) -> Iterator[None]:
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            port, log, machine = free_port(), Path(folder, "vllm.log"), Path(folder, "gpus")
            arguments = ["serve", "--port", str(port), "--after", "1000000"]
            fake = stack.enter_context(Fake(*arguments, "--processes", str(self._processes), log=log))
            while len(psutil.Process(fake.pid).children()) < self._processes - 1:
                time.sleep(0.01)
            machine.write_text("".join(self._held_by(fake.pid)) or "fail nvmlInitWithFlags 9\n")
            environment = {**os.environ, "LD_LIBRARY_PATH": str(self._driver), "NVML_STUB": str(machine)}
            where = ["--port", str(port), "--pid", str(fake.pid), "--log", str(log)]
            for name, flags in ARMS.items():
                self._meters[name] = Meter([*where, *flags], environment)
                stack.callback(self._meters[name].end)
            time.sleep(settled_s)
            for meter in self._meters.values():
                meter.settle()
            yield

    def look(self) -> None:
        for meter in self._meters.values():
            meter.look()

    def result(self) -> Json:
        measured = {name: meter.result() for name, meter in self._meters.items()}
        return {"processes": self._processes, "gpus": self._gpus, **measured}

    def _held_by(self, pid: int) -> Iterator[str]:
        for index in range(self._gpus):
            uuid = f"GPU-{index:08}-aaaa"
            yield f"gpu {uuid} {GPU_MIB * MIB} {HELD_MIB * MIB} Stand-in\n"
            yield f"process {uuid} {pid} {HELD_MIB * MIB}\n"


def driver(folder: Path) -> Path:
    """Compile the stand-in for NVML; return where it lies."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise SystemExit("the stand-in for NVML needs a C compiler (apt-get install gcc), or --gpus 0")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, STUB], check=True)
    return folder


def measure(starts: list[Start], seconds: float, settled_s: float) -> list[Json]:
    with contextlib.ExitStack() as stack:
        for start in starts:
            stack.enter_context(start.watched(settled_s))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(min(1.0, seconds / 4))
            for start in starts:
                start.look()
        return [start.result() for start in starts]


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=60.0, help="measured for each start")
    arguments.add_argument("--processes", type=int, nargs="+", default=[1, 8, 64], help="in the tree")
    arguments.add_argument("--gpus", type=int, nargs="+", default=[0, 8], help="of the machine")
    options = arguments.parse_args()
    settled_s = SETTLED_S
    if options.quick:
        options.seconds, options.processes, options.gpus, settled_s = 1.0, [2], [1], 1.0
    with tempfile.TemporaryDirectory() as folder:
        library = driver(Path(folder)) if any(options.gpus) else Path(folder)
        starts = [Start(count, gpus, library) for gpus in options.gpus for count in options.processes]
        measured = measure(starts, options.seconds, settled_s)
    bare = statistics.median(cpu_of([sys.executable, "-c", "pass"]) for _ in range(5))
    within = all(start["ours"][key] <= limit for start in measured for key, limit in BUDGET.items())
    results = {"interpreter_cpu_s": round(bare, 3), "starts": measured}
    emit("what does it cost to watch one quiet start", options, BUDGET, results, within)
    return 0


if __name__ == "__main__":
    sys.exit(main())
