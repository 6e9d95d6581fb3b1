"""The report of a wait: where the time went, on which evidence, and why it failed if it did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from typing import Any, TypeAlias

import attrs

from vllm_startup._events import SCHEMA, Because, Outcome
from vllm_startup._json import json_text, to_json
from vllm_startup._phases import Phase
from vllm_startup._readings import Tier
from vllm_startup._text import clean
from vllm_startup._timeouts import Timeouts
from vllm_startup.causes._base import Cause


@attrs.frozen(kw_only=True)
class ExitStatus:
    """How a process ended: by itself with ``code``, or by ``signal``; neither where unknown."""

    code: int | None = None
    signal: int | None = None


@attrs.frozen(kw_only=True)
class PhaseReport:
    """A phase that was entered. Seconds since the attempt began; ``ended_s`` None while it lasts."""

    phase: Phase
    started_s: float
    ended_s: float | None = None
    because: tuple[Because, ...] = ()


@attrs.frozen(kw_only=True)
class AttemptReport:
    """One start of the server. ``started_at`` is RFC 3339 in UTC, None where unknown."""

    started_at: str | None
    duration_s: float
    outcome: Outcome
    phase: Phase
    cause: Cause | None = None
    exit: ExitStatus | None = None


@attrs.frozen(kw_only=True)
class ProcessReport:
    """A process of the server that had a role in it."""

    role: str
    pid: int
    phase: Phase | None = None
    exit: ExitStatus | None = None


@attrs.frozen(kw_only=True)
class GpuReport:
    """Memory of one GPU, in bytes."""

    index: int
    uuid: str
    baseline_bytes: int
    peak_bytes: int
    used_bytes: int
    total_bytes: int


@attrs.frozen(kw_only=True)
class LastProgress:
    """The newest sign of progress. ``at_s`` is in seconds since the attempt began."""

    at_s: float
    what: str


@attrs.frozen(kw_only=True)
class Dispute:
    """Evidence that spoke against a move made on weaker evidence."""

    phase: Phase
    probe: str
    text: str
    at_s: float


@attrs.frozen(kw_only=True)
class WarningReport:
    """Something that somebody should know. ``code`` is stable, ``text`` is for people."""

    code: str
    text: str


@attrs.frozen(kw_only=True)
class StartupReport:
    """Everything that a wait found out. All times are seconds since the newest attempt began.

    Attributes:
        outcome: ``ready``, ``failed``, ``stalled``, ``timed_out``, or ``unfinished`` for a log or
            recording that ends before any of these.
        phase: The last phase that was reached.
        limits: What was allowed.
        started_at: When the newest attempt began, RFC 3339 in UTC; None where unknown.
        elapsed_s: How long the newest attempt has taken in all.
        ready_s: When it was ready; None if it never was.
        tiers: When each readiness tier was first met.
        exit: How the main process ended; None if it did not, or nobody saw it.
        attempts: Every start that was seen, the newest last.
        facts: What the log told: versions, sizes, times.
        disputed: Evidence that spoke against moves made on weaker evidence.
        versions: Of this library and of Python.
    """

    outcome: Outcome
    phase: Phase
    url: str | None
    until: Tier
    limits: Timeouts
    started_at: str | None
    elapsed_s: float
    ready_s: float | None
    last_progress: LastProgress | None
    tiers: dict[Tier, float]
    cause: Cause | None
    exit: ExitStatus | None
    phases: tuple[PhaseReport, ...]
    attempts: tuple[AttemptReport, ...]
    processes: tuple[ProcessReport, ...]
    gpus: tuple[GpuReport, ...]
    facts: dict[str, Any]
    disputed: tuple[Dispute, ...]
    warnings: tuple[WarningReport, ...]
    versions: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values, as in the schema that ships with the package."""
        return {
            "schema": SCHEMA,
            **{a.name: to_json(getattr(self, a.name)) for a in attrs.fields(type(self))},
        }

    def to_json(self, indent: int | None = None) -> str:
        """The report as JSON text."""
        return json_text(self.to_dict(), indent)

    def timeline(self, width: int = 100) -> str:
        """The phases as text: one line each, with when it began, how long it took and why.

        Args:
            width: Columns that a line may take; longer ones are cut.
        """
        return "\n".join(_line(span, self)[:width].rstrip() for span in self.phases)


def _line(span: PhaseReport, report: StartupReport) -> str:
    ended = span.ended_s if span.ended_s is not None else report.elapsed_s
    took = "" if span.phase is Phase.READY else f"{ended - span.started_s:8.1f} s"
    because = "; ".join(f"{b.probe}: {clean(b.text)}" for b in span.because[:1])
    return f"{span.started_s:8.1f} s  {span.phase:<20}{took:>10}  {because}"


Baseline: TypeAlias = "StartupReport | Mapping[str, Any] | str | PathLike[str]"
"""An earlier report, its `StartupReport.to_dict`, or the path of its JSON file."""


def baseline_values(baseline: Baseline) -> Any:
    """An earlier report's JSON values.

    Raises:
        OSError: The file cannot be read.
        ValueError: It holds no JSON.
    """
    if isinstance(baseline, StartupReport):
        return baseline.to_dict()
    return baseline if isinstance(baseline, Mapping) else _read_report(baseline)


def _read_report(path: str | PathLike[str]) -> Any:
    with open(path, encoding="utf-8-sig") as file:  # noqa: PTH123 - takes what the caller gave, as it is
        try:
            return json.load(file)
        except ValueError as error:
            raise ValueError(f"baseline {str(path)!r} is no JSON report: {error}") from error
        except OSError as error:  # of a read, which does not know of what
            raise OSError(error.errno, error.strerror, str(path)) from error
