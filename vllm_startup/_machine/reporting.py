"""The machine's state as a report, and in one sentence."""

from __future__ import annotations

from datetime import UTC, datetime

import attrs

from vllm_startup._machine.attempt import Attempt, Process, Result
from vllm_startup._machine.course import Span
from vllm_startup._machine.limits import suspect_of
from vllm_startup._machine.machine import StartupMachine
from vllm_startup._phases import Phase
from vllm_startup._readings import ProcessExited
from vllm_startup._report import (
    AttemptReport,
    Dispute,
    ExitStatus,
    GpuReport,
    LastProgress,
    PhaseReport,
    ProcessReport,
    StartupReport,
    WarningReport,
)
from vllm_startup._roles import role_of
from vllm_startup.causes import Cause


def report(machine: StartupMachine, now: float, *, versions: dict[str, str]) -> StartupReport:
    """Everything that the machine knows at ``now``."""
    attempt = machine.attempt
    newest = attempt.activity.newest
    exited = _exit_of(attempt)
    cause = number_evidence(machine.cause or attempt.ending.cause, attempt.number)
    return StartupReport(
        outcome=machine.outcome or "unfinished",
        phase=attempt.course.phase,
        url=machine.bringup.url,
        until=machine.terms.until,
        limits=machine.terms.timeouts,
        started_at=_wall(machine, attempt),
        elapsed_s=attempt.elapsed(attempt.dated(now)),
        ready_s=_ready_s(attempt),
        last_progress=LastProgress(at_s=attempt.elapsed(attempt.dated(newest.at)), what=newest.what),
        tiers={tier: attempt.elapsed(at) for tier, at in attempt.readiness.reached.items()},
        cause=cause,
        exit=exited,
        phases=tuple(_phase(attempt, span) for span in attempt.course.spans),
        attempts=tuple(_attempts(machine, now)),
        processes=tuple(_process(attempt, p) for p in attempt.processes.values() if _had_a_part(attempt, p)),
        gpus=_gpus(attempt),
        facts=dict(attempt.facts),
        disputed=tuple(
            Dispute(
                phase=d.phase, probe=d.ground.probe, text=d.ground.shown, at_s=attempt.elapsed(d.ground.at)
            )
            for d in attempt.disputed
        ),
        warnings=tuple(
            WarningReport(code=code, text=text) for code, text in machine.bringup.notices.warnings
        ),
        versions=versions,
    )


def number_evidence(cause: Cause | None, attempt: int) -> Cause | None:
    """The cause with the attempt's number in its evidence."""
    if cause is None:
        return None
    numbered = tuple(attrs.evolve(e, attempt=attempt) if e.attempt is None else e for e in cause.evidence)
    return attrs.evolve(cause, evidence=numbered)


def _phase(attempt: Attempt, span: Span) -> PhaseReport:
    return PhaseReport(
        phase=span.phase,
        started_s=attempt.elapsed(span.started_at),
        ended_s=None if span.ended_at is None else attempt.elapsed(span.ended_at),
        because=tuple(attempt.because(ground) for ground in span.because),
    )


def _ready_s(attempt: Attempt) -> float | None:
    spans = attempt.course.spans
    return attempt.elapsed(spans[-1].started_at) if spans and spans[-1].phase is Phase.READY else None


def _exit_of(attempt: Attempt) -> ExitStatus | None:
    if attempt.ending.root is not None:
        return _status(attempt.ending.root)
    if attempt.told.exit is not None:
        return ExitStatus(code=attempt.told.exit[0], signal=attempt.told.exit[1])
    return None


def _status(exited: ProcessExited) -> ExitStatus:
    return ExitStatus(code=exited.code, signal=exited.signal)


def _attempts(machine: StartupMachine, now: float) -> list[AttemptReport]:
    found = []
    for attempt in machine.bringup.chronicle.attempts:
        result = attempt.result or Result(outcome="unfinished", cause=attempt.ending.cause, at=now)
        found.append(
            AttemptReport(
                started_at=_wall(machine, attempt),
                duration_s=max(0.0, attempt.elapsed(result.at)),
                outcome=result.outcome,
                phase=Phase.READY if result.outcome == "ready" else attempt.course.phase,
                cause=number_evidence(result.cause, attempt.number),
                exit=_exit_of(attempt),
            )
        )
    return found


def _had_a_part(attempt: Attempt, process: Process) -> bool:
    """Whether a process belongs into a report: not the compilers and helpers that come and go."""
    killed = process.exit is not None and process.exit.signal is not None
    root = process.pid == attempt.pid or (process.exit is not None and process.exit.root)
    return root or killed or role_of(process.name) is not None


def _process(attempt: Attempt, process: Process) -> ProcessReport:
    engine = attempt.engines.by_pid.get(process.pid)
    role = role_of(process.name)
    return ProcessReport(
        role=role.value if role else "server",
        pid=process.pid,
        phase=engine.phase if engine else None,
        exit=_status(process.exit) if process.exit else None,
    )


def _gpus(attempt: Attempt) -> tuple[GpuReport, ...]:
    return tuple(
        GpuReport(
            index=d.index,
            uuid=d.uuid,
            baseline_bytes=d.baseline,
            peak_bytes=d.peak,
            used_bytes=d.used,
            total_bytes=d.total,
        )
        for d in sorted(attempt.signs.gpus.devices.values(), key=lambda d: d.index)
    )


def _wall(machine: StartupMachine, attempt: Attempt) -> str | None:
    if machine.wall is None:
        return None
    moment = datetime.fromtimestamp(machine.wall + attempt.began_at - machine.called_at, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_VERBS = {
    Phase.LAUNCHING: "launching",
    Phase.CONFIGURING: "reading its configuration",
    Phase.INITIALIZING: "initializing its engines",
    Phase.LOADING_WEIGHTS: "loading weights",
    Phase.COMPILING: "compiling",
    Phase.ALLOCATING_KV_CACHE: "allocating the KV cache",
    Phase.WARMING_UP: "warming up",
    Phase.STARTING_SERVER: "starting the server",
    Phase.READY: "ready",
}


_READ_LATELY_S = 5.0


@attrs.frozen(kw_only=True)
class Counter:
    """A counter, e.g. ``checkpoint shards`` 41 of 67; ``total`` None where unknown."""

    what: str
    done: float
    total: float | None = None


@attrs.frozen(kw_only=True)
class Status:
    """A wait at one moment.

    Attributes:
        phase: The last phase that was reached.
        outcome: How the wait ended; None while it goes on.
        elapsed_s: Seconds since the newest attempt began.
        quiet_s: Seconds since the newest sign of progress.
        cause: Why the start cannot succeed any more; None while nothing says so.
        limit: The limit that fires first if nothing happens: ``total``, ``stall`` or a phase.
        limit_in_s: In how many seconds it fires.
        summary: All of that in one sentence.
        phase_s: Seconds since the phase began.
        reached: The phases that were entered.
        moved: The newest sign of progress, in words.
        counter: The newest counter of this phase; None without one.
        cores: CPU cores that worked over the last half minute.
        read_bytes: What was read from storage since the watch began.
        read_bytes_per_s: How fast; 0 when nothing was read lately.
        gpus: Memory of each GPU.
        suspect: What the start waits for; None where nothing points to anything.
    """

    phase: Phase
    outcome: str | None
    elapsed_s: float
    quiet_s: float
    cause: Cause | None
    limit: str | None
    limit_in_s: float | None
    summary: str
    phase_s: float = 0.0
    reached: tuple[Phase, ...] = ()
    moved: str = ""
    counter: Counter | None = None
    cores: float = 0.0
    read_bytes: int = 0
    read_bytes_per_s: float = 0.0
    gpus: tuple[GpuReport, ...] = ()
    suspect: str | None = None


def status(machine: StartupMachine, now: float) -> Status:
    """The state of the wait at ``now``."""
    attempt, activity = machine.attempt, machine.attempt.activity
    quiet_s = max(0.0, now - activity.newest.at)
    limit = machine.next_limit
    reading = activity.read_at is not None and now - activity.read_at < _READ_LATELY_S
    counter = activity.counter()
    suspect = suspect_of(attempt, machine.bringup.notices.broken)
    return Status(
        phase=attempt.course.phase,
        outcome=machine.outcome,
        elapsed_s=attempt.elapsed(attempt.dated(now)),
        quiet_s=quiet_s,
        cause=number_evidence(machine.cause or attempt.ending.cause, attempt.number),
        limit=limit[1] if limit else None,
        limit_in_s=max(0.0, limit[0] - now) if limit else None,
        summary=_summary(machine, quiet_s, suspect),
        phase_s=max(0.0, now - attempt.course.entered_at),
        reached=tuple(span.phase for span in attempt.course.spans),
        moved=activity.newest.what,
        counter=Counter(what=counter[0], done=counter[1], total=counter[2]) if counter else None,
        cores=activity.cores,
        read_bytes=activity.read_bytes,
        read_bytes_per_s=activity.read_rate if reading else 0.0,
        gpus=_gpus(attempt),
        suspect=suspect,
    )


def _summary(machine: StartupMachine, quiet_s: float, suspect: str | None) -> str:
    attempt = machine.attempt
    cause = machine.cause or attempt.ending.cause
    if cause is not None:
        return f"{machine.outcome or 'failing'} in {attempt.course.phase}: {cause.message}"
    if machine.outcome is not None:
        return "ready" if machine.outcome == "ready" else f"{machine.outcome} in {attempt.course.phase}"
    parts = [_VERBS[attempt.course.phase]]
    if (counter := attempt.activity.counter()) is not None:
        what, done, total = counter
        parts.append(f"{what} {done:g} of {total:g}" if total is not None else f"{what} {done:g}")
    parts.append(f"last progress {quiet_s:.0f} s ago")
    return ", ".join([*parts, suspect] if suspect else parts)
