"""Recordings: what a watch saw, as JSON lines that replay to the same report.

The first line is the header: the format's version and what was waited for. Every other line is
an observation; the last one says when the watch ended. Secrets are removed as lines are written.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import IO, Any, TypeVar

import attrs

from vllm_startup import _readings
from vllm_startup._events import Event
from vllm_startup._machine.earlier import Earlier
from vllm_startup._machine.machine import StartupMachine
from vllm_startup._machine.terms import Terms
from vllm_startup._members import check_members, fits
from vllm_startup._readings import GpuSample, Observation, ProbeNote, ProcessSample, Reading
from vllm_startup._redact import redact
from vllm_startup._timeouts import Timeouts
from vllm_startup.causes._base import snake_case

S = TypeVar("S", ProcessSample, GpuSample)

T = TypeVar("T")

RECORDING_SCHEMA = 1

_LAST_UNIX_S = 253_402_300_800.0  # the end of the year 9999: no date can be told beyond it
_DAMAGES = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError)

_KINDS: dict[str, type[Reading]] = {
    snake_case(kind.__name__): kind
    for kind in Reading.__subclasses__()
    if kind.__module__ == _readings.__name__
}
_TERMS = ("url", "until", "stable_for", "restarts", "exit_grace", "raise_early", "waited_s")


def _created(path: str | PathLike[str]) -> IO[str]:
    # O_NONBLOCK: a named pipe that nobody reads is an error at once, not a wait for ever.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, 0o600)
    except OSError as error:  # another user's file, or one of /proc
        os.close(descriptor)
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace", buffering=1)


class RecordingError(ValueError):
    """A file is no recording, or one that this version cannot read."""


class Recorder:
    """Writes observations to a file as they come.

    Args:
        path: The file; what was in it is lost. It is readable for its owner only.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._file: IO[str] | None = _created(path)
        self.error: OSError | None = None

    def begin(self, terms: Terms, *, wall: float | None, utc_offset_s: float) -> None:
        """Write the header."""
        self._write(
            {
                "recording": RECORDING_SCHEMA,
                "started_unix": wall,
                "utc_offset_s": utc_offset_s,
                "terms": {name: getattr(terms, name) for name in _TERMS},
                "timeouts": attrs.asdict(terms.timeouts),
                "earlier": None if terms.earlier is None else attrs.asdict(terms.earlier),
            }
        )

    def write(self, observation: Observation) -> None:
        """Write an observation, its time in seconds since the watch began."""
        reading = observation.reading
        kind = snake_case(type(reading).__name__)
        members: dict[str, Any] = {"reading": kind}
        if _KINDS.get(kind) is type(reading):
            members.update(_packed(reading))
        else:
            members["repr"] = repr(reading)
        self._write({"at": round(observation.at, 6), "probe": observation.probe, **members})

    def end(self, at: float) -> None:
        """Write when the watch ended, and close the file."""
        self._write({"at": round(at, 6), "end": True})
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError as error:
                self.error = self.error or error

    def _write(self, row: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(_scrubbed(row), ensure_ascii=False, default=str) + "\n")
        except OSError as error:  # a full disk ends the recording, not the wait
            self.error = error
            self._close()


Tell = Callable[[Event, float], object]
"""Called with an event and when it was told, in seconds since the wait began."""


def replay(path: str | PathLike[str], *, tell: Tell | None = None, **terms: Any) -> StartupMachine:
    """Run a recording through a new machine, to its end.

    One whose writer was killed, or whose disk was full, goes as far as it was written; its report has the
    warning ``recording_cut_off``.

    Args:
        path: The recording.
        tell: Called with every event.
        **terms: What to ask for instead of what the recorded wait asked for; see `Terms`.

    Returns:
        The machine, from which the report is read.

    Raises:
        OSError: The file cannot be read.
        RecordingError: It is no recording, is damaged, or comes from a newer version.
    """
    with Path(path).open(encoding="utf-8", errors="replace") as lines:
        return replay_lines(lines, tell=tell, **terms)


def replay_lines(lines: Iterable[str], *, tell: Tell | None = None, **terms: Any) -> StartupMachine:
    """Run a recording's lines through a new machine, to the recording's end."""
    rows = _rows(lines)
    machine = _machine(next(rows, (0, None))[1], terms)
    at = 0.0
    ended = False
    for number, row in rows:
        if ended:
            raise RecordingError(f"line {number} stands after the recording's end")
        try:
            at = _moment(row["at"])
            ended = bool(row.get("end", False))
            observation = None if ended else _observation(at, row)
            if observation is not None:
                _pass_on(machine.feed(observation), at, tell)
        except _DAMAGES as error:
            raise RecordingError(f"line {number} is no observation: {error!r}") from error
    if not ended:
        _pass_on(machine.feed(Observation(at=at, probe="recording", reading=_CUT_OFF)), at, tell)
    _pass_on([*machine.tick(at), *machine.finish(at, ended=False)], at, tell)
    return machine


_CUT_OFF = ProbeNote(
    code="recording_cut_off",
    text="the recording breaks off here: whoever wrote it was killed, or its disk was full",
)


def _pass_on(events: Iterable[Event], at: float, tell: Tell | None) -> None:
    if tell is not None:
        for event in events:
            tell(event, at)


def _rows(lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number > 1 and not line.endswith("\n"):
                return  # the last one, which was not written to its end
            raise RecordingError(f"line {number} is no JSON: {error}") from error
        if not isinstance(row, dict):
            raise RecordingError(f"line {number} is no JSON object")
        yield number, row


def _machine(header: Any, instead: dict[str, Any]) -> StartupMachine:
    if not header or "recording" not in header:
        raise RecordingError("the first line is no recording's header; recordings are made with record=")
    if header["recording"] != RECORDING_SCHEMA:
        raise RecordingError(
            f"the recording has schema {header['recording']!r}, and this version reads {RECORDING_SCHEMA};"
            " replay it with the version of vllm_startup that wrote it, or a newer one"
        )
    try:
        given = {**header["terms"], "timeouts": Timeouts(**header["timeouts"])}
        if header.get("earlier") is not None:
            given["earlier"] = Earlier(**header["earlier"])
        terms = Terms(**given)
        wall, offset = header["started_unix"], header.get("utc_offset_s", 0.0)
        if not fits(wall, float | None) or not 0 <= (wall or 0.0) < _LAST_UNIX_S or not fits(offset, float):
            raise ValueError(f"started_unix is {wall!r}, utc_offset_s is {offset!r}")
    except _DAMAGES as error:
        raise RecordingError(f"the recording's header is damaged: {error!r}") from error
    asked = attrs.evolve(terms, **instead) if instead else terms
    return StartupMachine(asked, called_at=0.0, wall=wall, utc_offset_s=offset)


def _moment(value: Any) -> float:
    if not fits(value, float) or not 0 <= value < _LAST_UNIX_S:
        raise ValueError(f"at is {value!r}")
    return float(value)


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: _scrubbed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(item) for item in value]
    return value


def _packed(reading: Reading) -> dict[str, Any]:
    return attrs.asdict(reading, filter=lambda attribute, value: value != attribute.default)


def _observation(at: float, row: dict[str, Any]) -> Observation | None:
    kind = None if "repr" in row else _KINDS.get(row["reading"])
    if kind is None:
        return None  # a reading of the caller's own: it meant something to rules that are not here
    values = {a.name: row[a.name] for a in attrs.fields(kind) if a.name in row}
    if "processes" in values:
        values["processes"] = tuple(_sample(ProcessSample, p) for p in values["processes"])
    if "gpus" in values:
        values["gpus"] = tuple(_sample(GpuSample, g) for g in values["gpus"])
    return Observation(at=at, probe=_text(row["probe"]), reading=_made(kind, values))


def _sample(kind: type[S], values: dict[str, Any]) -> S:
    """A sample without what a newer version has added to it."""
    return _made(kind, {a.name: values[a.name] for a in attrs.fields(kind) if a.name in values})


def _made(kind: type[T], values: dict[str, Any]) -> T:
    """A reading or sample whose members have the types that it declares."""
    made = kind(**{name: _tuples(value) for name, value in values.items()})
    check_members(made)
    return made


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
