"""How long after a server listens is that noticed?

    python benchmarks/ready.py [--trials 100] [--seed 1] [--quick]

A stand-in server on loopback writes one line, is quiet for a time that is drawn at random, then listens and
answers ``/health``. Ours is `wait_until_ready` at its defaults with ``url``, ``pid`` and ``log``, so that all
probes are on. The naive baselines ask ``/health`` every second and every 0.1 s. Each trial starts one server
for each of them in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _bench import Fake, draws, emit, free_port, latencies, parser, poll_health

import vllm_startup

BUDGET = {"median_ms": 30, "p95_ms": 150}
LOW_S, HIGH_S = 0.5, 1.5  # as long as the slow poll's interval, so that its phase is random

Wait = Callable[[str, int, Path], float]


def ours(url: str, pid: int, log: Path) -> float:
    asyncio.run(vllm_startup.wait_until_ready(url, pid=pid, log=log))
    return time.monotonic()


def poll(every_s: float) -> Wait:
    def wait(url: str, pid: int, log: Path) -> float:
        noticed = poll_health(url, every_s=every_s)
        assert noticed is not None, "the stand-in server never listened"
        return noticed

    return wait


WAITS: dict[str, Wait] = {"ours": ours, "poll_1s": poll(1.0), "poll_0.1s": poll(0.1)}


def late(wait: Wait, after: float, folder: Path) -> float:
    """Seconds from the server's listening to the return of one wait."""
    port, log = free_port(), folder / "vllm.log"
    with Fake("serve", "--port", str(port), "--after", f"{after:.3f}", log=log) as fake:
        noticed = wait(f"http://127.0.0.1:{port}", fake.pid, log)
        return noticed - fake.at("listening")


def run(options: argparse.Namespace) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in WAITS}
    waiting = draws(options.seed, LOW_S, HIGH_S)
    with tempfile.TemporaryDirectory() as folder:
        for _, after in zip(range(options.trials), waiting, strict=False):
            for name, wait in WAITS.items():
                found[name].append(late(wait, after, Path(folder)))
    return found


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--trials", type=int, default=100)
    options = arguments.parse_args()
    if options.quick:
        options.trials = 1
    results = {name: latencies(found) for name, found in run(options).items()}
    within = all(results["ours"][key] <= limit for key, limit in BUDGET.items())
    emit("how long after a server listens is ready noticed", options, BUDGET, results, within)
    return 0


if __name__ == "__main__":
    sys.exit(main())
