"""What a watch tells while it goes on: one frozen class a kind of event."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from vllm_startup._json import to_json
from vllm_startup._phases import Phase
from vllm_startup._readings import Tier
from vllm_startup.causes._base import Cause, snake_case

SCHEMA = 1
"""Version of the events' and the report's format: fields are added, never changed."""

Outcome = Literal["ready", "failed", "stalled", "timed_out", "unfinished"]


@attrs.frozen(kw_only=True)
class Because:
    """The evidence for a move.

    Attributes:
        probe: The probe that saw it.
        text: What it saw, shortened.
        at_s: When, in seconds since the attempt began.
    """

    probe: str
    text: str
    at_s: float


@attrs.frozen(kw_only=True)
class Event:
    """Base of all events.

    Attributes:
        at: Seconds on the clock of the watch.
        elapsed_s: Seconds since the current attempt began.
        seq: The event's number in its watch, from 1; 0 before the watch has told it.
        ts: When the watch told it, RFC 3339 in UTC; None where the time of day is unknown.
    """

    event: ClassVar[str] = "event"

    at: float
    elapsed_s: float
    seq: int = 0
    ts: str | None = None

    def __init_subclass__(cls) -> None:
        """Name the event after its class."""
        super().__init_subclass__()
        cls.event = cls.__dict__.get("event", snake_case(cls.__name__))

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON values, as in the schema that ships with the package."""
        names = [a.name for a in attrs.fields(type(self)) if a.name not in _FIRST]
        head = {"schema": SCHEMA, "seq": self.seq, "ts": self.ts, "elapsed_s": to_json(self.elapsed_s)}
        return {**head, "event": self.event, **{name: to_json(getattr(self, name)) for name in names}}


_FIRST = frozenset({"at", "elapsed_s", "seq", "ts"})


@attrs.frozen(kw_only=True)
class AttemptStarted(Event):
    """A start began, or was found under way."""

    attempt: int
    pid: int | None = None


@attrs.frozen(kw_only=True)
class AttemptEnded(Event):
    """A start ended and another one follows, or may follow."""

    attempt: int
    outcome: Outcome
    cause: Cause | None = None


@attrs.frozen(kw_only=True)
class PhaseEntered(Event):
    """The bring-up moved forward. ``elapsed_s`` is when the phase began, which may be earlier than now."""

    phase: Phase
    because: Because


@attrs.frozen(kw_only=True)
class ProgressSeen(Event):
    """A counter moved."""

    event: ClassVar[str] = "progress"

    phase: Phase
    what: str
    done: float | None = None
    total: float | None = None


@attrs.frozen(kw_only=True)
class ProbeBroke(Event):
    """A probe raised or hung. The others go on."""

    event: ClassVar[str] = "probe_broken"

    probe: str
    error: str


@attrs.frozen(kw_only=True)
class ProbeRecovered(Event):
    """A probe that was broken works again."""

    probe: str


@attrs.frozen(kw_only=True)
class Warned(Event):
    """Something that somebody should know and that does not end the wait."""

    event: ClassVar[str] = "warning"

    code: str
    text: str


@attrs.frozen(kw_only=True)
class TierReached(Event):
    """A readiness tier was met for the first time."""

    tier: Tier


@attrs.frozen(kw_only=True)
class CauseFound(Event):
    """The start cannot succeed any more, and this is why."""

    cause: Cause


@attrs.frozen(kw_only=True)
class Ended(Event):
    """The wait is over."""

    outcome: Outcome
    cause: Cause | None = None
