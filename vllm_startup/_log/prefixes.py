"""What others put before a server's lines: containers, journals, launchers, quotes.

A message of vLLM's own must not be mutilated, so a prefix is taken off only where that is sure:
its form occurs nowhere else (``sure``), or what follows it is a record, or the last record of
the log stood behind the same kind of prefix.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import attrs

from vllm_startup._log import times

if TYPE_CHECKING:
    from collections.abc import Callable

# docker compose -> journal -> kubectl -> Slurm: nobody stacks more.
_DEEPEST = 4

# Programs that speak of the server instead of for it; their name is kept as the line's process.
_REPORTERS = frozenset(
    {
        "systemd",
        "kernel",
        "systemd-oomd",
        "systemd-coredump",
        "earlyoom",
        "dockerd",
        "containerd",
        "slurmstepd",
    }
)


@attrs.frozen(kw_only=True)
class Stripped:
    """A line without what others put before it.

    Attributes:
        text: The rest.
        stamp_s: The outer prefix's time, as in `Line.stamp_s`.
        process: The program that wrote the line, if it is one that reports on others.
        outer_pid: The process id in a journal's prefix.
    """

    text: str
    stamp_s: float | None = None
    process: str | None = None
    outer_pid: int | None = None


@attrs.frozen
class _Form:
    kind: str
    pattern: str
    sure: bool
    # How the group "stamp" is written.
    clock: Callable[[str], float | None] | None = None


_RFC3339 = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)"
_DATE = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d| UTC)?"
_SYSLOG = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?"
# Without "[pid]" only the kernel: `ts` and others write "DATE two words: text" too.
_IDENT = (
    r"(?:[\w.:-]{1,253} )?(?P<ident>kernel(?=:)|[\w.@/()-]{1,128}(?=\[\d{1,10}\]:))"
    r"(?:\[(?P<pid>\d{1,10})\])?: ?"
)

_JOURNAL = _Form("journal", rf"(?P<stamp>{_SYSLOG}) {_IDENT}", True, times.syslog)
_JOURNAL_ISO = _Form("journal", rf"(?P<stamp>{_RFC3339}) {_IDENT}", True, times.iso)
_JOURNAL_FULL = _Form(
    "journal", rf"[A-Z][a-z]{{2}} (?P<stamp>{_DATE})(?: [A-Z]{{2,5}})? {_IDENT}", True, times.iso
)
_JOURNAL_UNIX = _Form(
    "journal", rf"(?P<stamp>\d{{9,11}}\.\d{{6}}) {_IDENT}", True, lambda text: times.epoch(float(text))
)
_JOURNAL_MONOTONIC = _Form("journal", rf"\[ *\d{{1,10}}\.\d{{6}}\] {_IDENT}", True)
_CRI = _Form("cri", rf"(?P<stamp>{_RFC3339}) (?:stdout|stderr) [FP](?: |$)", True, times.iso)
_STAMPED = _Form("stamped", rf"(?P<stamp>{_RFC3339})(?: |$)", True, times.iso)
_DATED = _Form("dated", rf"\[?(?P<stamp>{_DATE})\]?:?(?: |$)", False, times.iso)
_BARRED = _Form("barred", rf"(?P<stamp>{_DATE}) \|(?: |$)", False, times.iso)  # Docker Desktop
_TS = _Form("ts", rf"(?P<stamp>{_SYSLOG})(?: |$)", False, times.syslog)
_COMPOSE = _Form("compose", r"[a-z0-9][a-zA-Z0-9_.-]{0,127}-\d{1,4} *\|(?: |$)", True)
_COMPOSE_NAMED = _Form("named", r"(?P<label>[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}) {1,64}\|(?: |$)", False)
_SUPERVISOR = _Form("supervisor", r"[\w.:-]{1,128} (?:stdout|stderr) \|(?: |$)", True)
_FOREMAN = _Form("foreman", r"\d\d:\d\d:\d\d [\w.-]{1,128} *\|(?: |$)", True)
_PM2 = _Form("pm2", r"\d{1,4}\|[\w.-]{1,128} *\|(?: |$)", True)
_KUBECTL = _Form("kubectl", r"\[pod/[^\]\s]{1,253}\](?: |$)", True)
_RANK = _Form("rank", r"\[(?:rank|default)\d{1,5}\]:(?: |$)", True)
_MPI = _Form("mpi", r"\[\d{1,5},\d{1,6}\]<std(?:out|err)>: ?", True)
_SLURM = _Form("slurm", r" {0,5}\d{1,6}:(?: |$)", False)
_TAI = _Form("tai", r"@[0-9a-f]{24} ", True)
_QUOTE = _Form("quote", r">(?: |$)", False)

_BY_DIGIT = (
    _CRI,
    _JOURNAL_ISO,
    _STAMPED,
    _JOURNAL_UNIX,
    _FOREMAN,
    _PM2,
    _BARRED,
    _DATED,
    _SLURM,
    _COMPOSE,
    _COMPOSE_NAMED,
)
_BY_LETTER = (_JOURNAL, _JOURNAL_FULL, _TS, _SUPERVISOR, _COMPOSE, _COMPOSE_NAMED)


def _forms_of(first: str) -> tuple[_Form, ...]:
    """The forms that a line may have that begins with this character."""
    if first.isdigit():
        return _BY_DIGIT
    if first.isalpha():
        return _BY_LETTER
    return {
        "[": (_KUBECTL, _RANK, _MPI, _JOURNAL_MONOTONIC, _DATED),
        ">": (_QUOTE,),
        " ": (_SLURM,),
        "@": (_TAI,),
    }.get(first, ())


@cache
def _pattern(form: _Form) -> re.Pattern[str]:
    return re.compile(form.pattern)


class _Attempt:
    """A line from which prefixes are being taken."""

    __slots__ = ("kinds", "sure", "taken")

    def __init__(self, text: str) -> None:
        self.taken = [Stripped(text=text)]
        self.kinds: list[str] = []
        self.sure = 0

    @property
    def text(self) -> str:
        return self.taken[-1].text

    def step(self) -> bool:
        text = self.text
        for form in _forms_of(text[:1]):
            found = _pattern(form).match(text)
            if found:
                self._take(form, found)
                return True
        return False

    def _take(self, form: _Form, found: re.Match[str]) -> None:
        groups = found.groupdict()
        stamp, ident, pid = groups.get("stamp"), groups.get("ident"), groups.get("pid")
        before = self.taken[-1]
        if form.sure and self.sure == len(self.kinds):
            self.sure += 1
        label = groups.get("label")
        self.kinds.append(f"{form.kind} {label}" if label else form.kind)
        self.taken.append(
            Stripped(
                text=found.string[found.end() :],
                stamp_s=before.stamp_s
                if before.stamp_s is not None or not stamp or not form.clock
                else form.clock(stamp),
                process=ident if ident in _REPORTERS else before.process,
                outer_pid=int(pid) if pid else before.outer_pid,
            )
        )


class Prefixes:
    """Takes foreign prefixes off the lines of one log, and learns which kind it has.

    Args:
        is_record: Whether a text is, beyond doubt, a whole line of the server's.
    """

    def __init__(self, is_record: Callable[[str], bool]) -> None:
        self._is_record = is_record
        self._style: tuple[str, ...] = ()
        self._indent = ""

    @property
    def learned(self) -> bool:
        """Whether the last record stood behind a prefix."""
        return bool(self._style or self._indent)

    def forget(self) -> None:
        """Learn that a record stood there without any prefix."""
        self._style = ()
        self._indent = ""

    def strip(self, text: str) -> Stripped:
        """Take off what is surely foreign. The line is no record as it stands."""
        attempt = _Attempt(text)
        for _ in range(_DEEPEST):
            if not attempt.step():
                break
            if self._is_record(attempt.text):
                self._style, self._indent = tuple(attempt.kinds), ""
                return attempt.taken[-1]
        return self._unindented(attempt) or self._by_habit(attempt)

    def _unindented(self, attempt: _Attempt) -> Stripped | None:
        taken = attempt.taken[attempt.sure]
        if not taken.text.startswith((" ", "\t")):
            return None
        body = taken.text.lstrip(" \t")
        indent = taken.text[: len(taken.text) - len(body)]
        if self._is_record(body):
            self._style, self._indent = tuple(attempt.kinds[: attempt.sure]), indent
            return attrs.evolve(taken, text=body)
        if self._indent and taken.text.startswith(self._indent):
            return attrs.evolve(taken, text=taken.text[len(self._indent) :])
        return None

    def _by_habit(self, attempt: _Attempt) -> Stripped:
        depth = len(self._style)
        if depth and tuple(attempt.kinds[:depth]) == self._style:
            return attempt.taken[max(depth, attempt.sure)]
        return attempt.taken[attempt.sure]
