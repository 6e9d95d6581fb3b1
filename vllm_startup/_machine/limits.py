"""Which limit ends a wait, when, and what the evidence points to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from vllm_startup._diagnosis.evidence import clean
from vllm_startup._events import Outcome
from vllm_startup._machine.attempt import Attempt
from vllm_startup._machine.readiness import NOT_HERE
from vllm_startup._phases import Phase
from vllm_startup._timeouts import Timeouts
from vllm_startup.causes import Cause, Evidence, ForeignServer, PhaseTimedOut, Stalled, TimedOut, Unhealthy

_AWAITED: Final = {"placement_group_awaited": "Ray's placement group is pending"}  # by its marker


@attrs.define(kw_only=True)
class Limits:
    """The limits of one wait, with the time forgiven in which nobody watched."""

    timeouts: Timeouts
    called_at: float
    forgiven_s: float = 0.0
    phase_forgiven: tuple[Phase | None, float] = (None, 0.0)

    def forgive(self, seconds: float, phase: Phase) -> None:
        """Let no limit count a time in which nobody watched."""
        self.forgiven_s += seconds
        known, before = self.phase_forgiven
        self.phase_forgiven = (phase, seconds + (before if known is phase else 0.0))

    def next(self, attempt: Attempt, *, armed: bool) -> tuple[float, str] | None:
        """The limit that fires first if nothing happens, as (when, ``total``, ``stall`` or a phase)."""
        deadlines: list[tuple[float, str]] = []
        if self.timeouts.total is not None:
            deadlines.append((self.called_at + self.forgiven_s + self.timeouts.total, "total"))
        phase = attempt.course.phase
        allowed = self.timeouts.of(phase)
        if allowed is not None and not attempt.course.over:
            forgiven = self.phase_forgiven[1] if self.phase_forgiven[0] is phase else 0.0
            deadlines.append(
                (max(self.called_at, attempt.course.entered_at) + forgiven + allowed, phase.value)
            )
        if self.timeouts.stall is not None and armed:
            deadlines.append(
                (attempt.activity.quiet_until(self.timeouts.stall, self.timeouts.cpu_only), "stall")
            )
        return min(deadlines, default=None)


def limit_cause(
    attempt: Attempt, limit: str, at: float, timeouts: Timeouts, *, broken: Mapping[str, str]
) -> tuple[Outcome, Cause]:
    """What a limit that fired says: the outcome, and the cause that the evidence names.

    Args:
        attempt: The start that it ends the wait for.
        limit: Which: ``stall``, ``total`` or a phase.
        at: When it fired.
        timeouts: All limits.
        broken: The probes that do not work, with their errors.
    """
    phase = attempt.course.phase
    outcome: Outcome = "stalled" if limit == "stall" else "timed_out"
    if known := _serving_cause(attempt):
        return outcome, known
    suspect = suspect_of(attempt, broken)
    evidence = (Evidence(text=f"last progress: {attempt.activity.newest.what}"),)
    because = f"; {suspect}" if suspect else ""
    if limit == "stall":
        silent = round(attempt.activity.silent_s(at), 3)
        text = f"nothing has advanced for {silent:.0f} s in {phase}{because}"
        return outcome, Stalled(
            message=text, phase=phase, silent_s=silent, suspect=suspect, evidence=evidence
        )
    if limit == "total":
        text = f"not ready after {timeouts.total:g} s, in {phase}{because}"
        return outcome, TimedOut(
            message=text, phase=phase, limit_s=timeouts.total, suspect=suspect, evidence=evidence
        )
    allowed = timeouts.of(phase)
    text = f"{phase} took longer than {allowed:g} s{because}"
    return outcome, PhaseTimedOut(
        message=text, phase=phase, limit_s=allowed, suspect=suspect, evidence=evidence
    )


def _serving_cause(attempt: Attempt) -> Cause | None:
    """A server that answers, but is another one, or answers that it is not well."""
    readiness = attempt.readiness
    answer = readiness.miss if readiness.missed else readiness.last
    if readiness.foreign:
        owner = f"process {readiness.foreign_pid}" if readiness.foreign_pid is not None else "a process"
        text = f"the port belongs to {owner} that is not of the watched server"
        hint = "behind a proxy give no address, so that the server is asked at its own; else end that process"
        return ForeignServer(message=text, pid=readiness.foreign_pid, hint=hint)
    if readiness.missed and attempt.signs.listening_since is None:
        text = "the server failed again before it was stable: nothing listens any more"
        return Unhealthy(message=text, confidence="likely")
    if answer is None or answer.ok or attempt.signs.listening_since is None:
        return None
    again = (
        "failed again before it was stable" if readiness.missed else f"never met the tier {readiness.until}"
    )
    text = f"the server listens but {again}: {answer.detail or f'status {answer.status}'}"
    return Unhealthy(message=clean(text), status=answer.status, confidence="likely")


def awaited_by(attempt: Attempt) -> str | None:
    """What the start waits for by its own last words; None where nothing depends on others."""
    return _AWAITED.get(attempt.told.heartbeat or "")


def suspect_of(attempt: Attempt, broken: Mapping[str, str]) -> str | None:
    """What the evidence points to while nothing moves; None where it points to nothing."""
    if "health" in broken:
        return f"the health probe does not work: {broken['health']}"
    if attempt.signs.unreachable is not None:
        return f"the address cannot be reached: {attempt.signs.unreachable}"
    if attempt.activity.suspended:
        pid, name = next(iter(attempt.activity.suspended.items()))
        return f"process {name} (pid {pid}) is suspended by a signal"
    if attempt.activity.traced:
        pid, name = next(iter(attempt.activity.traced.items()))
        return f"process {name} (pid {pid}) is held by a debugger"
    if attempt.readiness.unanswered and attempt.signs.listening_since is not None:
        return "the port listens, and nothing has answered yet"
    if attempt.is_elsewhere:
        return NOT_HERE
    failure = attempt.told.verdict(ended=True)
    if failure is not None and failure.confidence == "certain":
        return f"the log holds a failure: {failure.message}"
    if awaited := awaited_by(attempt):
        return awaited
    if attempt.engines.joining:
        return "the ranks do not find each other (silence after NCCL's or gloo's first line)"
    if behind := attempt.engines.behind():
        return f"waiting for {behind.name or 'an engine'}, which is in {behind.phase}"
    if lagging := attempt.signs.gpus.lagging:
        return f"GPU {lagging.index} is behind the others"
    return None
