"""How a server stands: live, started, ready, and why not. Pure.

The words are Kubernetes' own: a startup probe asks whether it has started, a readiness probe whether
traffic may go there now, a liveness probe whether to leave it alone. A server that loads for twenty
minutes is live for as long as something advances.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import attrs

from vllm_startup._events import SCHEMA
from vllm_startup._json import to_json
from vllm_startup._machine.reporting import Status
from vllm_startup._phases import Phase
from vllm_startup._report import StartupReport
from vllm_startup._text import clean
from vllm_startup.causes import Cause

State = Literal["starting", "ready", "unready", "stalled", "failed", "stopping"]
"""``unready``: it was ready, and does not answer well at the moment."""


@attrs.frozen(kw_only=True)
class Standing:
    """A server at one moment.

    Attributes:
        state: What it is, in one word.
        phase: The last phase of its start that was reached.
        summary: One sentence for people.
        elapsed_s: Seconds since its start began.
        quiet_s: Seconds since its start last advanced; None once it has ended.
        moved: What advanced then.
        started: Whether it has been ready once.
        cause: Why its start failed, or cannot succeed; None while nothing says so.
    """

    state: State = "starting"
    phase: Phase = Phase.LAUNCHING
    summary: str = "launching"
    elapsed_s: float = 0.0
    quiet_s: float | None = None
    moved: str = ""
    started: bool = False
    cause: Cause | None = None

    @property
    def live(self) -> bool:
        """Whether it advances, or serves: nothing would be won by a restart."""
        return self.state in ("starting", "ready", "stopping")

    @property
    def ready(self) -> bool:
        """Whether traffic may go there now."""
        return self.state == "ready"

    @property
    def reason(self) -> str:
        """The state in Kubernetes' form: one word in CamelCase."""
        if self.cause is not None:
            return type(self.cause).__name__
        word = self.phase.value if self.state == "starting" else self.state
        return "".join(part.capitalize() for part in word.split("_"))


def while_watched(before: Standing, status: Status, *, catching_up: bool = False) -> Standing:
    """The standing while the start is watched.

    After a stall that ends nothing, the start counts as stalled until something has advanced.

    Args:
        before: The standing at the look before.
        status: How the watch stands.
        catching_up: Whether the watch may still be reading what it has not seen: that is no advance.
    """
    return Standing(
        state=_state(before, status, catching_up=catching_up),
        phase=status.phase,
        summary=clean(status.summary),
        elapsed_s=status.elapsed_s,
        quiet_s=status.quiet_s,
        moved=clean(status.moved),
        started=status.outcome == "ready",
        cause=status.cause,
    )


def _state(before: Standing, status: Status, *, catching_up: bool) -> State:
    if status.outcome == "ready":
        return "ready"
    if status.outcome == "stalled":
        return "stalled"
    if status.outcome is not None or status.cause is not None:
        return "failed"
    if before.state != "stalled":
        return "starting"
    further = status.phase.order > before.phase.order
    moved = before.quiet_s is not None and status.quiet_s < before.quiet_s
    return "starting" if (further or moved) and not catching_up else "stalled"


def when_decided(before: Standing, report: StartupReport) -> Standing:
    """The standing once the start has ended."""
    states: dict[str, State] = {"ready": "ready", "stalled": "stalled"}
    cause = report.cause
    found = f": {cause.message}" if cause is not None else ""
    return Standing(
        state=states.get(report.outcome, "failed"),
        phase=report.phase,
        summary=clean(f"{report.outcome.replace('_', ' ')}{found}"),
        elapsed_s=report.elapsed_s,
        moved=before.moved,
        started=report.outcome == "ready",
        cause=cause,
    )


def when_asked(before: Standing, *, well: bool, detail: str | None) -> Standing:
    """The standing of a server that was ready, by its newest answer."""
    if before.state not in ("ready", "unready"):
        return before
    summary = "ready" if well else clean(f"it was ready, and answers no longer: {detail or 'no answer'}")
    return attrs.evolve(before, state="ready" if well else "unready", summary=summary)


def when_stopping(before: Standing, why: str = "stopping") -> Standing:
    """The standing of a server that was asked to stop, or has ended. Why its start failed stays known."""
    if before.state in ("stalled", "failed", "stopping"):
        return before
    return attrs.evolve(before, state="stopping", summary=clean(why))


def when_refused(cause: Cause) -> Standing:
    """The standing of a server that was not started, since its start would have failed."""
    return Standing(state="failed", summary=clean(f"not started: {cause.message}"), cause=cause)


class Conditions:
    """When the answers to Kubernetes' three questions last changed."""

    def __init__(self, now: float) -> None:
        self._answers: dict[str, tuple[bool, float]] = dict.fromkeys(
            ("Live", "Started", "Ready"), (False, now)
        )

    def note(self, standing: Standing, now: float) -> None:
        """Take a standing.

        Args:
            standing: The newest.
            now: The time of day, in seconds since the Unix epoch.
        """
        for kind, answer in (
            ("Live", standing.live),
            ("Started", standing.started),
            ("Ready", standing.ready),
        ):
            if self._answers[kind][0] != answer:
                self._answers[kind] = (answer, now)

    def to_json(self, standing: Standing) -> list[dict[str, str]]:
        """As Kubernetes writes conditions in a status."""
        return [
            {
                "type": kind,
                "status": str(answer),
                "reason": standing.reason,
                "message": standing.summary,
                "lastTransitionTime": datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
            for kind, (answer, since) in self._answers.items()
        ]


def document(standing: Standing, conditions: Conditions) -> dict[str, Any]:
    """What ``/status`` answers."""
    last = None if standing.quiet_s is None else {"s_ago": round(standing.quiet_s, 1), "what": standing.moved}
    return {
        "schema": SCHEMA,
        "state": standing.state,
        "phase": standing.phase.value,
        "summary": standing.summary,
        "elapsed_s": round(standing.elapsed_s, 1),
        "last_progress": last,
        "cause": None if standing.cause is None else to_json(standing.cause),
        "conditions": conditions.to_json(standing),
    }
