"""How long do the ways in which people wait take to tell of readiness and of death, and do they say why?

    python benchmarks/peers.py [--trials 16] [--deaths 8] [--jobs 4] [--seed 1] [--only WAY]... [--quick]
                               [--peers-dir FOLDER] [--no-install]

Each way waits for the same stand-in server (`_fake.py`), started for it alone; every round has one trial of
each way, ``--jobs`` of them at the same time. A way that is a Python library runs in a process of its own
(`_peer.py`), which has imported what it needs before the server starts; one that is a command line starts
with the server. All are at their defaults, other than the time after which they give up.

- ``ready``: from the server's listening to the wait's return. The server prints vLLM's line that says so,
  as two ways look for it, and listens after a time drawn from 0.5 to 5.5 s.
- ``death``: the deaths of ``death.py``. From when the start has failed (its engine's last words where there
  are any, else its end) to ``told``: the first word of a cause or of an end; ours tells the cause by an
  event, before the wait ends. ``raised``: to the end of the wait. A file is read for 0.25 s after an end.
  ``never``: not within ``--give-up`` seconds; a way of which that is so once is not tried again.
- ``named``: whether what was said holds the cause. Of ours, its kind must be right. Of the others, the text
  of the exception, or all that was printed and the exit code, must hold the exit code or signal of a death
  without words, and the engine's message otherwise.

Peers are installed into ``--peers-dir`` (130 MB of download for vLLM's own loops), never into the project's
environment. What cannot be installed stands in ``missing``, with the reason. ``ahead_of_ours`` lists what a
peer tells sooner than one of ours.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
from _bench import FAKE, Json, draws, emit, free_port, latencies, parser
from _peers_env import DEFAULT, PEERS, Environment, MissingError
from death import HOWS, KINDS

BUDGET = {"ready_median_ms": 30, "causes_named": len(HOWS)}
OURS = ("ours", "ours_launch")
READY_S = (0.5, 5.5)  # as wide as the slowest poll's interval, so that its phase is random
DEATH_S = (2.0, 3.0)  # ours watches by then, also on a busy machine: what a log already holds ends no wait
QUICK_S = 2.0
QUICK_GRACE_S = 0.4
GRACE_S = 10.0  # the default
SPARE_S = 60.0  # a way that has not given up this long after it was to has hung
LATER_S = 2.0  # a server that fails is gone this long after --after; and what giving up may take

SAYS = {
    "exit_1": r"(?:code|status)\D{0,12}\b1\b",
    "exit_0": r"(?:code|status)\D{0,12}\b0\b",
    "kill": r"(?:code|status|signal)\W{0,4}(?:-9|9|137)\b|SIGKILL",
    "aftermath": "max seq len",
    "alive": "max seq len",
}
"""What a text must hold to name the cause of a death."""


@attrs.frozen
class Told:
    """What one wait has told: seconds after what it was to tell of."""

    ready: bool
    late_s: float
    raised_s: float
    said: str
    kind: str | None


@attrs.frozen
class Trial:
    """One wait of one way. ``how`` is None for a server that becomes ready."""

    name: str
    how: str | None
    after: float


@attrs.frozen
class Bench:
    environment: Environment
    give_up_s: float
    grace_s: float

    def run(self, trial: Trial) -> Told:
        with tempfile.TemporaryDirectory() as folder:
            place, port = Path(folder), free_port()
            role = ["serve", "--announce"] if trial.how is None else ["die", "--how", trial.how]
            about = ["--port", str(port), "--after", f"{trial.after:.3f}", "--marks", str(place / "marks")]
            server = [sys.executable, "-S", "-E", str(FAKE), *role, *about]
            try:
                result = self._wait(trial, port, server, place)
            finally:
                end((place / "marks").read_text())
            marks = dict(line.split() for line in (place / "marks").read_text().splitlines())
        began = float(marks.get("listening") or marks.get("decisive") or marks["gone"])
        raised_s = result["at"] - began
        told = result.get("told")
        late_s = raised_s if told is None else told - began
        return Told(result["ready"], late_s, raised_s, result["said"], result.get("kind"))

    def _wait(self, trial: Trial, port: int, server: list[str], place: Path) -> Json:
        prefix, extra = self.environment.prepare(trial.name)
        environ = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        give_up = math.ceil(trial.after + self.give_up_s + LATER_S)
        of_line = PEERS[trial.name].command
        if of_line is not None:
            address = f"127.0.0.1:{port}"
            return by_line([*prefix, *of_line(address, f"http://{address}/health", give_up)], server, place)
        asked = ["--port", str(port), "--give-up", str(give_up), "--log", str(place / "log")]
        asked += ["--grace", str(self.grace_s)]
        result = place / "result"
        command = [*prefix, *asked, "--result", str(result), "--", *server]
        with (place / "words").open("w+") as words:  # a pipe would be held open by the server too
            subprocess.run(
                command,
                env=environ | extra,
                stdout=words,
                stderr=words,
                check=False,
                timeout=give_up + SPARE_S,
            )
        if not result.exists():
            raise RuntimeError(f"{trial.name}: {(place / 'words').read_text()}")
        found: Json = json.loads(result.read_text())
        return found


def by_line(command: list[str], server: list[str], place: Path) -> Json:
    """A wait by a command line, begun together with the server."""
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(server, stdout=log)
    waiting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = waiting.communicate(timeout=SPARE_S * 2)
    at = time.monotonic()
    code = waiting.wait()
    threading.Thread(target=process.wait, daemon=True).start()
    text = output.decode(errors="replace").strip()
    return {"at": at, "ready": code == 0, "said": f"{text}\nthe command's own exit: {code}".strip()}


def end(marks: str) -> None:
    """End the server that wrote these marks."""
    for line in marks.splitlines():
        if line.startswith("pid "):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.removeprefix("pid ")), signal.SIGKILL)


def named(how: str, told: Told) -> bool:
    """Whether what was told names the cause."""
    if told.kind is not None:
        return told.kind in KINDS[how]
    return re.search(SAYS[how], told.said) is not None


def ready_of(found: list[Told]) -> Json:
    return latencies([told.late_s for told in found])


def death_of(how: str, found: list[Told], give_up_s: float) -> Json:
    """The figures of one way's trials of one death."""
    for told in found:
        if told.ready:
            raise AssertionError(f"{how}: a server that failed was called ready: {told.said}")
    never = sum(told.late_s >= give_up_s for told in found)
    heard = [told for told in found if told.late_s < give_up_s]
    return {
        "never": never,
        "told": latencies([told.late_s for told in heard]) if heard else None,
        "raised": latencies([told.raised_s for told in heard]) if heard else None,
        "named": bool(heard) and all(named(how, told) for told in heard),
        "said": found[-1].said[:300],
    }


def measure(options: argparse.Namespace, bench: Bench, names: Iterable[str]) -> Json:
    """All rounds: one of every way for readiness, then one of every way and death."""
    names = list(names)
    ready: dict[str, list[Told]] = {name: [] for name in names}
    deaths: dict[tuple[str, str], list[Told]] = {(name, how): [] for name in names for how in HOWS}
    low, high = (QUICK_S, QUICK_S) if options.quick else READY_S
    waiting = draws(options.seed, low, high)
    with ThreadPoolExecutor(options.jobs) as pool:
        for _ in range(options.trials):
            trials = [Trial(name, None, next(waiting)) for name in names]
            for trial, told in zip(trials, pool.map(bench.run, trials), strict=True):
                ready[trial.name].append(told)
        low, high = (QUICK_S, QUICK_S) if options.quick else DEATH_S
        waiting = draws(options.seed, low, high)
        for _ in range(options.deaths):
            going = [
                Trial(name, how, next(waiting))
                for (name, how), found in deaths.items()
                if all(told.late_s < options.give_up for told in found)
            ]
            for trial, told in zip(going, pool.map(bench.run, going), strict=True):
                assert trial.how is not None
                deaths[trial.name, trial.how].append(told)
    return {
        name: {
            "title": PEERS[name].title,
            "version": bench.environment.version(name),
            "ready": ready_of(ready[name]),
            "death": {how: death_of(how, deaths[name, how], options.give_up) for how in HOWS},
        }
        for name in names
    }


def ahead(peers: Json) -> list[Json]:
    """What a peer tells sooner than one of ours."""
    return [
        {"question": question, "way": name, "median_ms": theirs, "ours": mine, "ours_ms": ours}
        for question in ("ready", *HOWS)
        for mine in OURS
        for name in peers
        if name not in OURS
        and (theirs := median(peers[name], question)) < (ours := median(peers[mine], question))
    ]


def median(peer: Json, question: str) -> float:
    told = peer["ready"] if question == "ready" else peer["death"][question]["told"]
    return math.inf if told is None else float(told["median_ms"])


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--trials", type=int, default=16, help="of readiness")
    arguments.add_argument("--deaths", type=int, default=8, help="trials of each death")
    arguments.add_argument("--jobs", type=int, default=4, help="waits at the same time")
    arguments.add_argument("--give-up", type=float, default=12.0, metavar="S")
    arguments.add_argument("--only", choices=[name for name in PEERS if name not in OURS], action="append")
    arguments.add_argument("--peers-dir", type=Path, default=DEFAULT, metavar="FOLDER")
    arguments.add_argument("--no-install", action="store_true", help="measure only the peers that are there")
    options = arguments.parse_args()
    if options.quick:
        options.trials, options.deaths, options.give_up, options.jobs = 1, 1, 2.5, 8
    environment = Environment(options.peers_dir.absolute(), install=not options.no_install)
    there, missing = list(OURS), {}
    for name in options.only or [name for name in PEERS if name not in OURS]:
        try:
            environment.prepare(name)
            there.append(name)
        except MissingError as error:
            missing[name] = str(error)
    peers = measure(
        options, Bench(environment, options.give_up, QUICK_GRACE_S if options.quick else GRACE_S), there
    )
    within = all(
        peers[name]["ready"]["median_ms"] <= BUDGET["ready_median_ms"]
        and all(death["named"] for death in peers[name]["death"].values())
        for name in OURS
    )
    results = {"peers": peers, "missing": missing, "ahead_of_ours": ahead(peers)}
    emit(
        "how late do the ways to wait tell of readiness and death, and why", options, BUDGET, results, within
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
