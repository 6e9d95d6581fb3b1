"""What a log alone tells: the same machine, on the lines' own times, with no server to look at.

A log's text proves less than a watch does, so its end is judged by rules of its own. A server that
answered a request, or said that it is up and could bind its port, was ready, whatever came later.
Else a cause that is fixed (a root exception with a terminal wrapper, or a supervisor's word that
the process has ended) is a failure, and anything else is unfinished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from io import TextIOBase
from itertools import islice
from os import PathLike
from typing import Final, Protocol, runtime_checkable

import attrs

from vllm_startup._diagnosis.evidence import at_most_likely
from vllm_startup._events import Outcome
from vllm_startup._log.lines import Line, LineReader
from vllm_startup._log.markers import MARKERS, Means, sight
from vllm_startup._log.packing import compression, decoder
from vllm_startup._log.splitter import LineSplitter
from vllm_startup._log.stamps import StampClock
from vllm_startup._log.triggers import Triggers
from vllm_startup._log.wrapping import as_written
from vllm_startup._machine.attempt import Attempt, Result
from vllm_startup._machine.course import Ground
from vllm_startup._machine.ending import died
from vllm_startup._machine.limits import awaited_by
from vllm_startup._machine.machine import StartupMachine
from vllm_startup._machine.reporting import report
from vllm_startup._machine.terms import Terms
from vllm_startup._phases import Phase
from vllm_startup._readings import ProcessExited
from vllm_startup._redact import redact
from vllm_startup._report import StartupReport
from vllm_startup._text import clean
from vllm_startup._timeouts import Timeouts
from vllm_startup._versions import versions
from vllm_startup.causes import Cause, Evidence, PortInUse

_CHUNK_BYTES: Final = 256 * 1024
_BATCH_LINES: Final = 2000
_REQUEST: Final = "request_served"
# Said on the way out, and only by a server that was up: all that JSON logs without uvicorn's lines tell.
_WAS_UP: Final = frozenset({"api_shutdown", "api_shutdown_up_to_0_22"})
NOTHING_TOLD: Final = "no_vllm_lines"
"""The code of the warning about a log in which nothing tells of a start: another program's, or empty."""
_ACCESS: Final = ' HTTP/1.1" '
_EXCERPT_LINES: Final = 200
_NOBODY: Final = 0  # the pid of a process that the log does not number


@runtime_checkable
class BinaryStream(Protocol):
    """A file or a pipe, opened for bytes."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""
        ...


LogText = str | PathLike[str] | BinaryStream | Iterable[str]


def diagnose(log: LogText) -> StartupReport:
    """Say from a log how the newest start in it went.

    Memory does not grow with the log's size, only with the number of starts in it.

    Args:
        log: A file's path, a stream of bytes, or lines of text.

    Returns:
        ``ready``, ``failed`` with its cause, or ``unfinished``; with a warning ``no_vllm_lines`` where
        nothing in it tells of a start. Times are those of the lines' own
        stamps, mostly whole seconds, since the first line that has one.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is compressed.
    """
    reading = _Reading()
    for lines in as_written(_batches(log)):
        reading.take(lines)
    return reading.conclude()


# --- text in ----------------------------------------------------------------------------------


def _batches(log: LogText) -> Iterator[list[str]]:
    if isinstance(log, str | PathLike):
        with open(log, "rb") as file:  # noqa: PTH123 - takes what the caller gave, as it is
            yield from _of_stream(file)
    elif isinstance(log, BinaryStream) and not isinstance(log, TextIOBase):
        yield from _of_stream(log)
    else:
        lines = (line.removesuffix("\n") for line in log)
        while batch := list(islice(lines, _BATCH_LINES)):
            yield batch


def _of_stream(stream: BinaryStream) -> Iterator[list[str]]:
    splitter = LineSplitter()
    data = stream.read(_CHUNK_BYTES)
    if packed := compression(data):
        tool = "zcat" if packed == "gzip" else f"{packed} -dc"
        raise ValueError(f"log is compressed; unpack it on the way: {tool} FILE | vllm-startup diagnose -")
    foreign = decoder(data)
    while data:
        yield splitter.feed(data if foreign is None else foreign.decode(data).encode("utf-8", "replace"))
        data = stream.read(_CHUNK_BYTES)
    yield splitter.finish()


# --- what it means ------------------------------------------------------------------------------


@attrs.define
class _Witness:
    """The lines of one attempt that say that it was up, or has ended."""

    started: Line | None = None
    requested: bool = False
    stopped: Line | None = None
    exit: Line | None = None

    def note(self, line: Line, *, over: bool) -> None:
        """Take a line that may say so. After the attempt is over, it may be the next one's."""
        for sighting in sight(line):
            if sighting.means is Means.SERVED:
                if over:
                    continue
                self.requested |= sighting.marker.name == _REQUEST
                self.started = self.started or line
            elif sighting.means is Means.EXIT:
                self.exit = self.exit or line
            elif sighting.marker.name in _WAS_UP:
                self.stopped = self.stopped or line

    def was_ready(self, attempt: Attempt) -> bool:
        """Whether the attempt was ready at some time."""
        started = self.started
        if started is None:
            return self.stopped is not None and attempt.course.phase is Phase.STARTING_SERVER
        # vLLM up to 0.10 told of its start-up before uvicorn bound the port.
        return self.requested or not _bind_failed(attempt, started.number)

    def why_ready(self, attempt: Attempt) -> Ground:
        """The evidence; it dates the readiness to the last step of the start that was seen."""
        line = self.started or self.stopped
        served_at = attempt.told.served_at
        at = attempt.activity.newest.at if served_at is None else served_at
        return Ground(probe="log", text=clean(redact(line.message), 200) if line else "", at=at)


@cache
def _telling() -> Triggers[None]:
    """The literals of the lines that a `_Witness` notes."""
    markers = (m for m in MARKERS if m.means in (Means.SERVED, Means.EXIT) or m.name in _WAS_UP)
    return Triggers((marker.literal, None) for marker in markers)


class _Reading:
    """One log on its way through the machine, and what its end is judged by."""

    def __init__(self) -> None:
        self._clock = StampClock()
        self._machine = StartupMachine(Terms(timeouts=Timeouts(stall=None, cpu_only=None)))
        self._witnesses: dict[int, _Witness] = {}
        self._noted: Line | None = None
        self._last = ""
        self._lines = 0
        self._untold = self._machine.attempt.activity.newest

    def take(self, lines: list[str]) -> None:
        """Read further lines. They are history: what they say ends no wait."""
        self._machine.bringup.chronicle.hear(self._worth_reading(lines), self._time, history=True)
        self._note()
        self._machine.tick(self._clock.now)  # evidence that needs time has had it
        self._lines += len(lines)
        self._last = next((line for line in reversed(lines) if line), self._last)

    def _worth_reading(self, lines: Iterable[str]) -> Iterator[str]:
        """The lines, without further requests once a server has answered one: they can be millions."""
        for line in lines:
            yield "" if _ACCESS in line and self._of(self._machine.attempt).requested else line

    def _time(self, line: Line) -> float:
        """When a line was written. The line before is now known to belong to the current attempt."""
        self._note()
        if _telling().may_hold(line.message):
            self._noted = line
        return self._clock.at(line)

    def _note(self) -> None:
        if self._noted is not None:
            attempt = self._machine.attempt
            witness = self._witnesses.setdefault(attempt.number, _Witness())
            witness.note(self._noted, over=attempt.told.over)
            self._noted = None

    def conclude(self) -> StartupReport:
        """Judge the newest attempt."""
        machine = self._machine
        machine.bringup.chronicle.finish()
        for line in LineReader().read(self._last):
            self._clock.at(line)  # lines that say nothing were not looked at, and the last one ends the log
        now = self._clock.now
        machine.tick(now)
        self._settle_past()
        attempt, witness = machine.attempt, self._of(machine.attempt)
        if witness.was_ready(attempt):
            ground = witness.why_ready(attempt)
            now = max(ground.at, attempt.course.entered_at)
            attempt.advance(Phase.READY, now, ground)
            machine.end(now, "ready", None)
        elif cause := _cause(attempt, witness):
            machine.end(now, "failed", cause)
        else:
            self._suspect(attempt, now)
            self._miss(attempt, now)
            machine.end(now, "unfinished", None)
        found = report(machine, now, versions=versions())
        return found if attempt.told.lines else attrs.evolve(found, last_progress=None)

    def _suspect(self, attempt: Attempt, now: float) -> None:
        """Tell of an error that may have ended the start, as vLLM survives some, or of what is awaited."""
        cause = attempt.told.diagnosis.verdict(ended=True)
        if cause is not None:
            where = "".join(f" (line {item.line})" for item in cause.evidence[:1] if item.line)
            text = f"an error was logged, and nothing says whether it ended the start: {cause.message}{where}"
            self._machine.bringup.warn(now, "error_in_log", text)
        elif awaited := awaited_by(attempt):
            self._machine.bringup.warn(now, "still_awaited", f"the log ends while {awaited}")

    def _miss(self, attempt: Attempt, now: float) -> None:
        """Say so where no line told anything of a start."""
        bringup = self._machine.bringup
        told = attempt.course.spans or attempt.facts or attempt.activity.newest != self._untold
        if told or bringup.notices.warnings or len(bringup.chronicle.attempts) > 1:
            return
        count = self._lines
        read = f"{count} line{'s' if count > 1 else ''} read" if count else "it is empty"
        bringup.warn(now, NOTHING_TOLD, f"no line of a vLLM server's start: {read}")

    def _settle_past(self) -> None:
        """Judge the earlier attempts by the same rules."""
        for attempt in self._machine.bringup.chronicle.attempts[:-1]:
            ended_at = attempt.result.at if attempt.result else self._clock.now
            witness = self._of(attempt)
            cause = None if witness.was_ready(attempt) else _cause(attempt, witness)
            outcome: Outcome = "ready" if witness.was_ready(attempt) else "failed" if cause else "unfinished"
            attempt.result = Result(outcome=outcome, cause=cause, at=ended_at)

    def _of(self, attempt: Attempt) -> _Witness:
        return self._witnesses.get(attempt.number) or _Witness()


def _bind_failed(attempt: Attempt, line: int) -> bool:
    """Whether the port turned out to be taken after a line."""
    cause = attempt.told.diagnosis.verdict(ended=True)
    return isinstance(cause, PortInUse) and any((item.line or 0) > line for item in cause.evidence)


def _cause(attempt: Attempt, witness: _Witness) -> Cause | None:
    """Why an attempt that was not ready failed; None where nothing says for sure that it did."""
    told = attempt.told
    cause = told.diagnosis.verdict(ended=True)
    if told.exit is None:
        if told.diagnosis.fatal or _is_fixed(attempt, witness, cause):
            return cause
        if told.diagnosis.ends_in_failure:
            return _as_last_words(cause)
        last_words = told.diagnosis.last_words(spoken=_is_excerpt(attempt))
        return _as_last_words(last_words or told.diagnosis.gone)
    code, signal = told.exit
    if cause is not None and (cause.confidence != "unknown" or signal is None):
        return cause
    pid = next((pid for pid in told.banners.values() if pid is not None), _NOBODY)
    ended = died(ProcessExited(pid=pid, name="the server", code=code, signal=signal, root=True))
    if witness.exit is None:
        return ended
    line = witness.exit
    said = Evidence(text=clean(redact(line.message)), process=line.process, line=line.number)
    return attrs.evolve(ended, evidence=(said, *(cause.evidence if cause else ())))


def _is_excerpt(attempt: Attempt) -> bool:
    """Whether a text shows nothing of a start: somebody has cut out what matters."""
    return not attempt.course.spans and not attempt.facts and attempt.told.lines <= _EXCERPT_LINES


def _as_last_words(cause: Cause | None) -> Cause | None:
    """A cause with which an excerpt ends: nothing says that the start ended, and nothing else followed."""
    return None if cause is None else at_most_likely(cause)


def _is_fixed(attempt: Attempt, witness: _Witness, cause: Cause | None) -> bool:
    """Whether an error ended the start although no terminal wrapper says so.

    The port is bound once, last; and what stands in place of a start ("vllm: command not found") is
    no error that the start survived.
    """
    if cause is None or cause.confidence != "certain":
        return False
    return witness.started is not None or not attempt.course.spans
