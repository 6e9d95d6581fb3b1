"""How many seconds are the phases of a start dated wrong?

    python benchmarks/phases.py [--recordings FOLDER]... [--quick]

Recorded bring-ups of real servers are replayed through the machine, in virtual time: those in
``tests/recordings``, and those of other folders, converted ones with an ``expectations.json`` beside them or
raw ones. The reference is the time of the line that first shows a phase, as the recording's own expectations
have it; for ``ready`` the first 200 that the recorder got, 0.3 s more or less. Processes, memory and
``/health`` were looked at twice a second.

- ``all``: every probe that was recorded. The reference's lines are among its evidence, so that this shows
  that nothing else overrules them.
- ``without_log``: processes, the tree, ``/health``. It cannot tell compiling, sizing the KV cache and warming
  up from what is before them: these are ``missed``.
- ``log_alone``: the lines as they came.
- ``health_alone``: the naive alternative, which knows one moment.

For each phase: in how many recordings it is ``due``, in how many of them ``missed``, and the seconds that the
others are off, without their sign. ``--quick`` takes every tenth recording.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
from _bench import HERE, Json, emit, parser, percentile

from vllm_startup import Phase, Timeouts
from vllm_startup._machine.machine import StartupMachine
from vllm_startup._machine.reporting import report
from vllm_startup._machine.terms import Terms
from vllm_startup._recording import replay_lines

RECORDINGS = HERE.parent / "tests" / "recordings"
BUDGET = {"all_max_s": 1.0, "without_log_p95_s": 1.5}
WITHOUT_LOG = ("initializing", "starting_server", "ready")
"""What can be dated without a log: a small model's memory grows by what it compiles, not by its weights."""

PHASES = [phase.value for phase in Phase]
PROBES = frozenset({"log", "process", "tree", "health"})
VIEWS: Mapping[str, frozenset[str]] = {
    "all": PROBES,
    "without_log": PROBES - {"log"},
    "log_alone": frozenset({"log"}),
    "health_alone": frozenset({"health"}),
}
"""What each way to look has: the probes that are not left out of the recording."""

Replay = Callable[[Collection[str]], StartupMachine]


@attrs.frozen
class Recording:
    """A recorded start: how to replay it with some probes, and when its phases began."""

    name: str
    due: dict[str, float]
    replay: Replay


def recordings(folder: Path) -> Iterator[Recording]:
    expected = folder / "expectations.json"
    if expected.exists():
        for name, right in json.loads(expected.read_text("utf-8")).items():
            rows = (folder / f"{name}.jsonl").read_text("utf-8").splitlines()
            yield from _with_phases(name, right, lambda probes, rows=rows: _converted(rows, probes))
        return
    for path in sorted(folder.glob("*.jsonl")):
        raw = _converter().read(path)
        yield from _with_phases(path.stem, raw.head, lambda probes, raw=raw: _raw(raw, probes))


def _with_phases(name: str, right: Json, replay: Replay) -> Iterator[Recording]:
    """The recording, if its phases are known: those of several engines are not."""
    if right["phases"] is not None:
        ready = {} if right["ready_s"] is None else {"ready": right["ready_s"]}
        yield Recording(name, dict(right["phases"]) | ready, replay)


def _converted(rows: list[str], probes: Collection[str]) -> StartupMachine:
    return replay_lines(row for row in rows if json.loads(row).get("probe") in {*probes, None})


def _raw(raw: Any, probes: Collection[str]) -> StartupMachine:
    machine = StartupMachine(
        Terms(timeouts=Timeouts(stall=None)), called_at=0.0, wall=raw.head["started_unix"], utc_offset_s=0.0
    )
    for observation in _converter().observations(raw):
        if observation.probe in probes:
            machine.feed(observation)
    machine.finish(raw.end_s, ended=False)
    return machine


@cache
def _converter() -> ModuleType:
    """What makes this project's recordings of raw ones; it lies beside them."""
    spec = importlib.util.spec_from_file_location("convert", RECORDINGS / "convert.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["convert"] = module
    spec.loader.exec_module(module)
    return module


def judge(found: list[Recording], probes: Collection[str]) -> Json:
    """Per phase, what one way to look makes of all recordings."""
    late: dict[str, dict[str, float | None]] = {}
    for recording in found:
        machine = recording.replay(probes)
        began = {
            span.phase.value: span.started_s for span in report(machine, machine.now, versions={}).phases
        }
        for phase, at in recording.due.items():
            told = began.get(phase)
            late.setdefault(phase, {})[recording.name] = None if told is None else told - at
    return {phase: figures(late[phase]) for phase in sorted(late, key=PHASES.index)}


def figures(seconds: Mapping[str, float | None]) -> Json:
    off = sorted((abs(value), name) for name, value in seconds.items() if value is not None)
    values = [value for value, _ in off]
    return {
        "due": len(seconds),
        "missed": len(seconds) - len(off),
        "median_s": round(statistics.median(values), 2) if off else None,
        "p95_s": round(percentile(values, 95), 2) if off else None,
        "max_s": round(values[-1], 2) if off else None,
        "max_in": off[-1][1] if off else None,
    }


def within(views: Json) -> bool:
    everything, rest = views["all"], views["without_log"]
    return all(
        phase["missed"] == 0 and phase["max_s"] <= BUDGET["all_max_s"] for phase in everything.values()
    ) and all(rest[phase]["p95_s"] <= BUDGET["without_log_p95_s"] for phase in WITHOUT_LOG if phase in rest)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument(
        "--recordings", type=Path, action="append", metavar="FOLDER", help="may be repeated"
    )
    options = arguments.parse_args()
    step = 10 if options.quick else 1
    results: Json = {}
    for folder in [RECORDINGS, *(options.recordings or ())]:
        found = list(recordings(folder))[::step]
        name = "tests/recordings" if folder == RECORDINGS else str(folder)
        views = {view: judge(found, probes) for view, probes in VIEWS.items()}
        results[name] = {"recordings": len(found), "views": views}
    options.recordings = [str(folder) for folder in options.recordings or ()]
    ok = all(result["recordings"] > 0 and within(result["views"]) for result in results.values())
    emit("how many seconds are the phases of a start dated wrong", options, BUDGET, results, ok)
    return 0


if __name__ == "__main__":
    sys.exit(main())
