"""How long after a start has failed is that told?

    python benchmarks/death.py [--trials 20] [--seed 1] [--quick]

A stand-in server is quiet for a time that is drawn at random, then

- ``exit_1``, ``exit_0``, ``kill``: it ends without a word, by itself or by SIGKILL;
- ``aftermath``: its engine prints a root exception and ends, it prints the aftermath, and ends 1 s later;
- ``alive``: the same, but it never ends.

Its output goes to a file or to a pipe, and ours is `watch` with ``pid`` and ``log``. Two delays are
measured:

- ``cause_found``: from the decisive lines; where there are none, from when the death and the silence of the
  log are all that there will be. A pipe is drained when its writers are gone. A file is drained when it has
  not grown for 0.25 s after the death, which is the contract and no delay of ours; ``from_death`` includes
  it.
- ``raised``: from when the tree is gone and the output drained; from the end of the grace for one that
  lives on.

The naive baseline asks ``/health`` every second and is given up after ``--give-up`` seconds: it never
notices.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _bench import Fake, Json, draws, emit, free_port, latencies, parser, poll_health

import vllm_startup

BUDGET = {"cause_found_ms": 50, "raised_ms": 50}
HOWS = ("exit_1", "exit_0", "kill", "aftermath", "alive")
KINDS = {
    "exit_1": ("process_exited",),
    "exit_0": ("process_exited",),
    "kill": ("process_killed",),
    "aftermath": ("kv_cache_too_small",),
    "alive": ("kv_cache_too_small",),
}
FILE_QUIET_S = 0.25  # design, section 6: a file is complete when it is unchanged for 250 ms
GRACE_S = {"alive": 1.0}  # instead of 10 s, so that a trial with a server that lives on is short
LOW_S, HIGH_S = 0.8, 1.3  # the watch has found the engine by then, as in any real start
QUICK_S = 0.3


async def watched(url: str, fake: Fake, log: Path | None, grace_s: float) -> tuple[float, float, str]:
    """When the cause was told, when the error was raised, and the cause's kind."""
    source: Any = log if log is not None else fake.process.stdout
    async with vllm_startup.watch(url, pid=fake.pid, log=source, exit_grace=grace_s) as startup:
        told = asyncio.create_task(cause_told(startup))
        try:
            await startup.wait_until_ready()
        except vllm_startup.StartupError as error:
            raised = time.monotonic()
            kind = error.cause.kind if error.cause is not None else "none"
            return await told, raised, kind
    raise AssertionError("a server that failed was called ready")


async def cause_told(startup: vllm_startup.Startup) -> float:
    async for event in startup.events():
        if isinstance(event, vllm_startup.CauseFound):
            return time.monotonic()
    raise AssertionError("the watch ended without a cause")


def trial(how: str, after: float, log: Path | None) -> dict[str, float]:
    port = free_port()
    with Fake("die", "--how", how, "--port", str(port), "--after", f"{after:.3f}", log=log) as fake:
        grace_s = GRACE_S.get(how, 10.0)
        told, raised, kind = asyncio.run(watched(f"http://127.0.0.1:{port}", fake, log, grace_s))
        if kind not in KINDS[how]:
            raise AssertionError(f"{how}: the cause is {kind}, not {' or '.join(KINDS[how])}")
        quiet_s = FILE_QUIET_S if log is not None else 0.0
        if how == "alive":
            decisive = fake.at("decisive")
            return {"cause_found": told - decisive, "raised": raised - told - grace_s}
        marks = {name: float(value) for name, value in fake.marks()}
        drained = marks["gone"] + quiet_s
        return {
            "cause_found": told - marks.get("decisive", drained),
            "raised": raised - drained,
            "from_death": raised - marks["gone"],
        }


def naive(how: str, give_up_s: float, log: Path) -> Json:
    port = free_port()
    with Fake("die", "--how", how, "--port", str(port), "--after", "0.1", log=log):
        noticed = poll_health(f"http://127.0.0.1:{port}", every_s=1.0, give_up_s=give_up_s)
    return {"noticed": noticed is not None, "given_up_after_s": give_up_s}


def measure(options: argparse.Namespace, how: str, folder: Path, waiting: Iterator[float]) -> Json:
    measured: Json = {}
    for output in ("file", "pipe"):
        log = folder / f"{how}.log" if output == "file" else None
        trials = [trial(how, next(waiting), log) for _ in range(options.trials)]
        measured[output] = {key: latencies([found[key] for found in trials]) for key in trials[0]}
    measured["poll_1s"] = naive(how, options.give_up, folder / "naive.log")
    return measured


def within(results: Json) -> bool:
    """Whether the medians hold: one late trial of many is the machine's."""
    outputs = [measured[output] for measured in results.values() for output in ("file", "pipe")]
    return all(
        output["cause_found"]["median_ms"] <= BUDGET["cause_found_ms"]
        and output["raised"]["median_ms"] <= BUDGET["raised_ms"]
        for output in outputs
    )


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--trials", type=int, default=20)
    arguments.add_argument("--give-up", type=float, default=5.0, metavar="S", help="for the naive poll")
    arguments.add_argument("--how", choices=HOWS, action="append", help="only this one; may be repeated")
    options = arguments.parse_args()
    low_s, high_s = LOW_S, HIGH_S
    if options.quick:
        options.trials, options.give_up, low_s, high_s = 1, 0.2, QUICK_S, QUICK_S
    waiting = draws(options.seed, low_s, high_s)
    with tempfile.TemporaryDirectory() as folder:
        results = {how: measure(options, how, Path(folder), waiting) for how in options.how or HOWS}
    emit("how long after a start has failed is that told", options, BUDGET, results, within(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
