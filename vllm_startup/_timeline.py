"""A report as text for people: the way through the phases, and what went wrong."""

from __future__ import annotations

from vllm_startup._report import PhaseReport, StartupReport
from vllm_startup._text import clean

_WIDTH = 100


def timeline(report: StartupReport) -> str:
    """One line a phase: when it began, how long it took, and the evidence for it."""
    return "\n".join(_line(span, report) for span in report.phases)


def _line(span: PhaseReport, report: StartupReport) -> str:
    ended = span.ended_s if span.ended_s is not None else report.elapsed_s
    took = "" if span.phase.value == "ready" else f"{ended - span.started_s:8.1f} s"
    because = "; ".join(f"{b.probe}: {clean(b.text)}" for b in span.because[:1])
    return f"{span.started_s:8.1f} s  {span.phase.value:<20}{took:>10}  {because}"[:_WIDTH].rstrip()
