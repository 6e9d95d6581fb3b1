"""What does importing cost?

    python benchmarks/imports.py [--trials 20] [--quick]

Fresh interpreters, the subjects in turn so that the machine's moods meet all of them alike. Processor time
(user and system) from start to end, the median of all trials; ``bare`` is an interpreter that imports
nothing and is part of every other figure. ``net`` is without it. The budget is on the net figures: the
package at most twice `attrs` and `transitions` together. `from vllm_startup import wait_until_ready` is
there for honesty: names are imported when they are asked for. The naive poll needs `urllib.request` or,
more often, `httpx`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

from _bench import Json, cpu_of, emit, parser

BUDGET = {"times_attrs_and_transitions": 2.0, "heavy_modules": []}
SUBJECTS = {
    "bare": "pass",
    "attrs_and_transitions": "import attrs, transitions",
    "vllm_startup": "import vllm_startup",
    "wait_until_ready": "from vllm_startup import wait_until_ready",
    "every_name": "from vllm_startup import *",
    "urllib": "import urllib.request",
    "httpx": "import httpx",
}
HEAVY = ("httpx", "pynvml", "psutil", "tenacity", "rich", "transitions", "asyncio", "ssl")
LATE = ("httpx", "pynvml", "psutil")
"""What the budget forbids before it is needed."""

NAMES = f"import sys, json; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"


def heavy(statement: str) -> list[str]:
    """The heavy modules that a statement loads."""
    ran = subprocess.run([sys.executable, "-c", f"{statement}; {NAMES}"], check=True, capture_output=True)
    found: list[str] = json.loads(ran.stdout)
    return found


def measure(options: argparse.Namespace) -> Json:
    commands = {name: [sys.executable, "-c", statement] for name, statement in SUBJECTS.items()}
    for command in commands.values():
        cpu_of(command)  # the files' first read, and their compilation
    trials: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    for _ in range(options.trials):
        for name, command in commands.items():
            trials[name].append(1000 * cpu_of(command))
    bare_ms = statistics.median(trials["bare"])
    return {
        name: {
            "median_ms": round(statistics.median(found), 1),
            "net_ms": round(statistics.median(found) - bare_ms, 1),
            "heavy": heavy(SUBJECTS[name]),
        }
        for name, found in trials.items()
    }


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--trials", type=int, default=20)
    options = arguments.parse_args()
    if options.quick:
        options.trials = 1
    results = measure(options)
    reference = results["attrs_and_transitions"]["net_ms"]
    for name in ("vllm_startup", "wait_until_ready"):
        results[name]["times_attrs_and_transitions"] = round(results[name]["net_ms"] / reference, 2)
    package = results["vllm_startup"]
    within = package["times_attrs_and_transitions"] <= 2 and not set(package["heavy"]) & set(LATE)
    emit("what does importing cost", options, BUDGET, results, within)
    return 0


if __name__ == "__main__":
    sys.exit(main())
