"""The way through the phases: what was entered when, and on which evidence."""

from __future__ import annotations

from functools import cache
from typing import Any

import attrs
from transitions import Machine

from vllm_startup._diagnosis.evidence import clean
from vllm_startup._phases import TRANSITIONS, End, Phase


@attrs.frozen(kw_only=True, slots=False)  # one is made for most lines of a start: see `Line`
class Ground:
    """Evidence with its time on the watch's clock.

    Attributes:
        text: As it was said. Most is never told to anybody, so only `shown` is safe to show.
    """

    probe: str
    text: str
    at: float

    @property
    def shown(self) -> str:
        """The text for people: no secrets, no control characters, not too long."""
        return clean(self.text)


@attrs.define(kw_only=True)
class Span:
    """A phase that was entered, its beginning and end on the watch's clock."""

    phase: Phase
    started_at: float
    ended_at: float | None = None
    because: list[Ground] = attrs.field(factory=list)
    weak: bool = False


@cache
def _table() -> Any:
    """The table of transitions, which knows no course: each keeps its own state.

    Made once, since making it takes as long as reading a hundred lines of a start.
    """
    return Machine(
        model=None,
        states=[*Phase, *End],
        transitions=[list(transition) for transition in TRANSITIONS],
        initial=Phase.LAUNCHING,
        auto_transitions=False,
    )


class Course:
    """One attempt's walk over the table of transitions. `transitions` refuses what the table lacks."""

    def __init__(self, began_at: float) -> None:
        self.state: Phase | End = Phase.LAUNCHING  # moved by transitions
        self.spans: list[Span] = []
        self._began_at = began_at

    @property
    def phase(self) -> Phase:
        """The last phase that was reached."""
        return self.spans[-1].phase if self.spans else Phase.LAUNCHING

    @property
    def entered_at(self) -> float:
        """When the last phase was entered."""
        return self.spans[-1].started_at if self.spans else self._began_at

    @property
    def over(self) -> bool:
        """Whether the attempt can move no more: ready or failed."""
        return self.state in (Phase.READY, End.FAILED)

    def date(self, began_at: float) -> None:
        """Set when the attempt began, which may be learned late."""
        self._began_at = began_at
        for span in self.spans:
            if span.phase is Phase.LAUNCHING or span.started_at < began_at:
                span.started_at = began_at
            if span.ended_at is not None:
                span.ended_at = max(span.ended_at, began_at)

    def enter(self, phase: Phase, at: float, ground: Ground, *, weak: bool = False) -> Span | None:
        """Move forward to a phase. Returns the new span, or None where nothing moves."""
        if self.over or (self.spans and phase.order <= self.phase.order):
            return None
        if phase is not Phase.LAUNCHING:
            self._move(phase)
        started_at = max(at, self.entered_at)
        if self.spans:
            self.spans[-1].ended_at = started_at
        span = Span(phase=phase, started_at=started_at, because=[ground], weak=weak)
        self.spans.append(span)
        return span

    def precede(self, ground: Ground) -> Span | None:
        """Put `Phase.LAUNCHING` first where something later was entered before the process was found."""
        if not self.spans or self.spans[0].phase is Phase.LAUNCHING:
            return None
        first = self.spans[0].started_at
        launching = Span(
            phase=Phase.LAUNCHING, started_at=min(self._began_at, first), ended_at=first, because=[ground]
        )
        self.spans.insert(0, launching)
        return launching

    def confirm(self, phase: Phase, ground: Ground) -> None:
        """Keep more strong evidence with the phase that has been reached."""
        span = self.spans[-1]
        if phase is not span.phase or self.over:
            return
        span.weak = False
        if len(span.because) < _MOST_GROUNDS and all(known.probe != ground.probe for known in span.because):
            span.because.append(ground)

    def fail(self, at: float) -> None:
        """End in failure. The last phase stays the last one reached."""
        if not self.over:
            self._move(End.FAILED)
            self.close(at)

    def _move(self, destination: Phase | End) -> None:
        _table().events[f"enter_{destination}"].trigger(self)

    def close(self, at: float) -> None:
        """End the last span."""
        if self.spans and self.spans[-1].ended_at is None:
            self.spans[-1].ended_at = max(at, self.spans[-1].started_at)


_MOST_GROUNDS = 4  # one a kind of evidence is enough to read
