"""Make recordings of this project's own format from raw ones.

    python tests/recordings/convert.py RAW_FOLDER

A raw recording is a file of JSON lines. The first line tells of the whole: ``vllm``, ``scenario``,
``command``, ``started_unix``, ``ready_s``, ``exit_code`` (negative: a signal), ``ended_by``
(``itself`` or ``recorder``), ``ended_s``, ``killed`` (what was sent to whom, when), and what is
right about it: ``expect``, ``expect_log``, ``phases``. The others are rows in the order of their
time ``t``: a line of output (``text``), or a look from outside (``procs``: [pid, ppid, name,
cpu_s, rss_mib, status] each; ``tcp``: open or refused; ``health``: a status or null).

What is right goes to ``expectations.json``, by the recording's name.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from vllm_startup import Timeouts
from vllm_startup._machine.terms import Terms
from vllm_startup._readings import (
    Answer,
    Connection,
    LogEnded,
    LogLines,
    LogOpened,
    Observation,
    Owner,
    ProcessExited,
    ProcessFound,
    ProcessSample,
    ProcessTree,
    Reading,
)
from vllm_startup._recording import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent

# The stopped engine was watched for 48 s; no healthy start stood still for more than 16 s.
_STALL_S = 20.0
_GRACE_S = 10.0
_AFTER_READY_S = 0.6  # one more look; what follows is the recorder ending the server
_TITLE = "VLLM::"


@attrs.define
class Raw:
    """A raw recording."""

    head: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def end_s(self) -> float:
        """When there is nothing more to see of the start itself."""
        ready: float | None = self.head["ready_s"]
        ended: float = self.head["ended_s"]
        if self.head["ended_by"] == "itself":
            return ended
        return ended if ready is None else min(ended, ready + _AFTER_READY_S)


def read(path: Path) -> Raw:
    """Read a raw recording."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return Raw(rows[0], rows[1:])


def observations(raw: Raw) -> list[Observation]:
    """What the probes of a watch would have seen, in the order of time."""
    seen = [
        *((at, "log", reading) for at, reading in _log(raw)),
        *((at, "process", reading) for at, reading in _process(raw)),
        *((at, "tree", reading) for at, reading in _tree(raw)),
        *((at, "health", reading) for at, reading in _health(raw)),
    ]
    return [
        Observation(at=at, probe=probe, reading=reading) for at, probe, reading in sorted(seen, key=_when)
    ]


def _when(row: tuple[float, str, Reading]) -> float:
    return row[0]


def _rows(raw: Raw, member: str) -> Iterator[dict[str, Any]]:
    ends_itself = raw.head["ended_by"] == "itself"
    return (row for row in raw.rows if member in row and (ends_itself or row["t"] <= raw.end_s))


def _log(raw: Raw) -> Iterator[tuple[float, Reading]]:
    yield 0.0, LogOpened(source="output", stream=True)
    for row in _rows(raw, "text"):
        yield row["t"], LogLines(lines=(row["text"],))
    if raw.head["ended_by"] == "itself":
        last = max((row["t"] for row in _rows(raw, "text")), default=0.0)
        yield max(raw.head["ended_s"], last), LogEnded()


def _process(raw: Raw) -> Iterator[tuple[float, Reading]]:
    head = raw.head
    looks = list(_rows(raw, "procs"))
    first = next(row for row in looks if row["procs"])
    root = first["procs"][0][0]
    yield (
        first["t"],
        ProcessFound(
            pid=root, started_at=head["started_unix"], age_s=first["t"], command=tuple(head["command"])
        ),
    )
    killed = {kill["pid"]: kill["t"] for kill in head["killed"] if kill["signal"] == "SIGKILL"}
    alive: dict[int, str] = {}
    for row in looks:
        now = {pid: name for pid, _, name, *_ in row["procs"] if name.startswith(_TITLE) and pid != root}
        for pid, name in alive.items():
            if pid in killed and pid not in now:
                yield killed[pid], ProcessExited(pid=pid, name=name, signal=int(signal.SIGKILL))
            elif pid not in now:
                yield row["t"], ProcessExited(pid=pid, name=name)
        alive = now
    if head["ended_by"] == "itself":
        code = head["exit_code"]
        status = {"code": code} if code >= 0 else {"signal": -code}
        yield head["ended_s"], ProcessExited(pid=root, name="vllm", root=True, **status)


def _tree(raw: Raw) -> Iterator[tuple[float, Reading]]:
    root = 0
    for row in _rows(raw, "procs"):
        root = root or row["procs"][0][0]
        yield row["t"], ProcessTree(root=root, processes=tuple(_sample(*process) for process in row["procs"]))
    if raw.head["ended_by"] == "itself":
        yield raw.head["ended_s"] + 0.01, ProcessTree(root=root, processes=())


def _sample(pid: int, ppid: int, name: str, cpu_s: float, rss_mib: float, status: str) -> ProcessSample:
    return ProcessSample(
        pid=pid,
        ppid=ppid,
        started_at=0.0,
        name=name,
        cpu_s=cpu_s,
        rss_bytes=int(rss_mib) << 20,
        status=status,
    )


def _health(raw: Raw) -> Iterator[tuple[float, Reading]]:
    # Whatever listened on the port of a start that was never ready was another server.
    owner: Owner = "tree" if raw.head["ready_s"] is not None else "foreign"
    before = None
    for row in _rows(raw, "procs"):
        if row["tcp"] != before:
            before = row["tcp"]
            open_ = before == "open"
            yield (
                row["t"],
                Connection(state="listening", owner=owner) if open_ else Connection(state="refused"),
            )
        if row["health"] is not None:
            ok = row["health"] == 200
            status = row["health"] if isinstance(row["health"], int) else None  # else an error's name
            yield row["t"], Answer(tier="health", ok=ok, status=status, owner=owner)


def convert(path: Path) -> dict[str, Any]:
    """Write the recording of a raw one beside this file. Returns what is right about it."""
    raw = read(path)
    recorder = Recorder(HERE / path.name)
    terms = Terms(timeouts=Timeouts(stall=_STALL_S))
    recorder.begin(terms, wall=raw.head["started_unix"], utc_offset_s=0.0)
    seen = observations(raw)
    for observation in seen:
        recorder.write(observation)
    recorder.end(max(raw.end_s, seen[-1].at) + (_GRACE_S + 2.0 if raw.head["ended_by"] == "itself" else 0.0))
    (HERE / path.name).chmod(0o644)  # a recording is private; this one is text that everybody may read
    names = ("vllm", "scenario", "ready_s", "exit_code", "expect", "expect_log", "phases")
    return {name: raw.head[name] for name in names}


def main(folder: str) -> None:
    """Convert every recording of a folder."""
    expectations = {path.stem: convert(path) for path in sorted(Path(folder).glob("*.jsonl"))}
    text = json.dumps(expectations, indent=1, ensure_ascii=False)
    (HERE / "expectations.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
