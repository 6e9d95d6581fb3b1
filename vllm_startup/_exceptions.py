"""What a wait raises when the server is not ready. Why stands in ``error.cause``, as data."""

from __future__ import annotations

from vllm_startup._report import StartupReport
from vllm_startup._text import clean
from vllm_startup.causes._base import Cause


class StartupError(Exception):
    """The server did not become ready.

    Args:
        report: What was found out.
    """

    def __init__(self, report: StartupReport) -> None:
        super().__init__(report)
        self.report = report

    @property
    def cause(self) -> Cause:
        """Why."""
        cause = self.report.cause
        if cause is None:
            raise AttributeError("this report has no cause")
        return cause

    def __str__(self) -> str:
        """What happened, in which phase, after how long, on which evidence, and what to do."""
        report, cause = self.report, self.report.cause
        if cause is None:
            return f"{report.outcome} in {report.phase} after {report.elapsed_s:.1f} s"
        lines = [f"{cause.kind} in {report.phase} after {report.elapsed_s:.1f} s: {clean(cause.message)}"]
        lines += [f"  {item.process or 'evidence'}: {clean(item.text, 200)}" for item in cause.evidence[:3]]
        if cause.hint:
            lines.append(f"  hint: {clean(cause.hint)}")
        return "\n".join(lines)


class StartupTimeout(StartupError, TimeoutError):
    """A limit ended the wait. The server may still be starting."""


class StartupStalled(StartupTimeout):
    """Nothing had advanced for longer than ``Timeouts.stall``."""


def error_for(report: StartupReport) -> StartupError:
    """The exception for a report whose outcome is not ``ready``."""
    kinds = {"stalled": StartupStalled, "timed_out": StartupTimeout}
    return kinds.get(report.outcome, StartupError)(report)
