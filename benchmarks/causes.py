"""Is the cause of a failed start found in its log?

    python benchmarks/causes.py [--cases FOLDER]... [--quick]

Logs of failed starts of which the cause is known: the cases of ``tests/cases`` (a first line of JSON with the
``kind``, then the log) or of other folders like it, and the failed ones of the recordings in
``tests/recordings``. Ours is what ``vllm-startup diagnose`` says to the whole log: right if the cause has the
right kind.

The baselines are what people do, and what log collectors are set up for: ``first_error`` is the first line
that holds the word ERROR, ``last_exception`` the last line that looks like ``SomeError: ...``, and
``first_exception``, which takes some knowledge of vLLM, the first such line. Each gives one line. It is right
if that line stands among the evidence of our right cause, or if our rules name the right kind from that line
alone; either suffices, so that a line is not wrong because our rules need more than it. ``wrong``: the line
names nothing, or something else. ``none``: there is no such line, or no cause.

The rules were written with these logs at hand. That ours finds what they hold is what the tests ask for, and
says little of logs that nobody has seen yet: for an estimate of that, give ``--cases`` of your own. What the
baselines find does not depend on it. ``--quick`` takes every tenth log.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
from _bench import HERE, Json, emit, parser

from vllm_startup._diagnosing import diagnose
from vllm_startup._diagnosis.diagnosis import Diagnosis
from vllm_startup._log.lines import LineReader
from vllm_startup.causes import Cause

TESTS = HERE.parent / "tests"
BUDGET = {"right_pct": 100, "more_than_baselines": True}
EXCEPTION = re.compile(r"(?:^|[\s|])[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)(?:: |:?\s*$)")


@attrs.frozen
class Log:
    """The log of a failed start, and the kinds of cause that are right."""

    name: str
    data: bytes
    kinds: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        return self.data.decode("utf-8", "replace").split("\n")


def cases(folder: Path) -> Iterator[Log]:
    for path in sorted(folder.glob("*.log")):
        head, _, data = path.read_bytes().partition(b"\n")
        yield Log(path.stem, data, (json.loads(head)["kind"],))


def recordings(folder: Path) -> Iterator[Log]:
    expectations = json.loads((folder / "expectations.json").read_text("utf-8"))
    for name, right in expectations.items():
        if right["expect_log"]["outcome"] == "failed":
            rows = map(json.loads, (folder / f"{name}.jsonl").read_text("utf-8").splitlines())
            lines = [line for row in rows if row.get("reading") == "log_lines" for line in row["lines"]]
            yield Log(name, "\n".join(lines).encode(), tuple(right["expect_log"]["kinds"]))


# --- the ways to find a cause -------------------------------------------------------------------


def ours(log: Log) -> Cause | None:
    return diagnose(io.BytesIO(log.data)).cause


def first_error(log: Log) -> int | None:
    return next((number for number, line in enumerate(log.lines) if "ERROR" in line), None)


def exceptions(log: Log) -> list[int]:
    return [number for number, line in enumerate(log.lines) if EXCEPTION.search(line)]


def first_exception(log: Log) -> int | None:
    return next(iter(exceptions(log)), None)


def last_exception(log: Log) -> int | None:
    return next(reversed(exceptions(log)), None)


Pick = Callable[[Log], int | None]
BASELINES: dict[str, Pick] = {
    "first_error": first_error,
    "last_exception": last_exception,
    "first_exception": first_exception,
}


def verdict(log: Log, cause: Cause | None) -> str:
    if cause is None:
        return "none"
    return "right" if cause.kind in log.kinds else "wrong"


def verdict_of_line(log: Log, cause: Cause | None, number: int | None) -> str:
    """What one line of a log is worth. ``cause`` is ours."""
    if number is None:
        return "none"
    if (
        cause is not None
        and cause.kind in log.kinds
        and number + 1 in {proof.line for proof in cause.evidence}
    ):
        return "right"
    alone = cause_of(log.lines[number])
    return "right" if alone is not None and alone.kind in log.kinds else "wrong"


def cause_of(text: str) -> Cause | None:
    """What the rules say to one line, told that there is no more."""
    diagnosis, reader = Diagnosis(), LineReader()
    for line in reader.read(text):
        diagnosis.feed(line)
    diagnosis.finish()
    return diagnosis.verdict(ended=True)


def judge(logs: Sequence[Log]) -> Json:
    """The counts of each way, and what it did not get right."""
    found: dict[str, dict[str, str]] = {"ours": {}, **{name: {} for name in BASELINES}}
    for log in logs:
        cause = ours(log)
        found["ours"][log.name] = verdict(log, cause)
        for name, pick in BASELINES.items():
            found[name][log.name] = verdict_of_line(log, cause, pick(log))
    return {
        "logs": len(logs),
        **{
            name: {
                **{word: Counter(verdicts.values())[word] for word in ("right", "wrong", "none")},
                "right_pct": round(100 * sum(v == "right" for v in verdicts.values()) / len(logs), 1),
                "not_right": sorted(log for log, word in verdicts.items() if word != "right")[:10],
            }
            for name, verdicts in found.items()
        },
    }


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--cases", type=Path, action="append", metavar="FOLDER", help="may be repeated")
    options = arguments.parse_args()
    sources = {
        **{str(folder): list(cases(folder)) for folder in options.cases or ()},
        "cases": list(cases(TESTS / "cases")),
        "recordings": list(recordings(TESTS / "recordings")),
    }
    step = 10 if options.quick else 1
    results = {name: judge(logs[::step]) for name, logs in sources.items()}
    within = all(
        judged["ours"]["right_pct"] >= BUDGET["right_pct"]
        and all(judged["ours"]["right"] > judged[name]["right"] for name in BASELINES)
        for judged in results.values()
    )
    options.cases = [str(folder) for folder in options.cases or ()]
    emit("is the cause of a failed start found in its log", options, BUDGET, results, within)
    return 0


if __name__ == "__main__":
    sys.exit(main())
