"""What exceptions say of why a start failed: each becomes a candidate for the cause, or none.

The most telling rule that knows a link of the chain; else that another process's exception is
quoted, where the chain only passes that on; else the exception itself, which no rule knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from vllm_startup._diagnosis import aftermath
from vllm_startup._diagnosis.candidates import (
    KNOWN_QUOTED,
    KNOWN_SPOKEN,
    KNOWN_WEAK,
    UNKNOWN_FATAL,
    UNKNOWN_LOGGED,
    Candidate,
    headed,
    of_inspection,
    root_of,
    weigh_known,
    weigh_unknown,
)
from vllm_startup._diagnosis.evidence import at_most_likely, clean, with_evidence
from vllm_startup._diagnosis.tone import HARMLESS_LEVELS
from vllm_startup._log.exceptions import MAX_TEXT, RaisedChain, RaisedError, carried
from vllm_startup.causes._rules import RANKS, CauseRule

if TYPE_CHECKING:
    from vllm_startup._log.lines import Line
    from vllm_startup.causes import Cause
    from vllm_startup.causes._ruleset import RuleSet

UNCLASSIFIED: Final = "unclassified_error"
_SHUTDOWN: Final = "shutdown_requested"


class Jury:
    """Judges exceptions by a set of rules. It remembers nothing."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules

    def judge(self, chain: RaisedChain) -> Candidate | None:
        """What an exception says of why the start failed; None for one that says nothing of it."""
        if chain.level in HARMLESS_LEVELS or headed(chain, aftermath.IDLE_HEADLINES):
            return None
        known = self._known(chain)
        if known is not None:
            return known
        roots = [e for e in chain.links if not aftermath.is_wrapper(e)]
        if not roots:
            return self._quoted(chain)
        root = root_of(roots)
        if of_inspection(chain):
            return self._inspection(root, chain)
        if root.name in aftermath.SECONDARY_TYPES:
            return None
        score = weigh_unknown(chain)
        return Candidate(score=score, line=root.line, cause=_unclassified(root, chain), open=True)

    def hear(self, line: Line) -> Candidate | None:
        """What a rule knows of an exception, said without its class: much may be retried or survived."""
        known = self._rules.of_error(RaisedError(type="", text=line.message.strip()[:MAX_TEXT]))
        if known is None:
            return None
        cause = at_most_likely(with_evidence(known[1], line.message, line.process, line.number))
        return Candidate(score=KNOWN_SPOKEN, line=line.number, cause=cause)

    def _known(self, chain: RaisedChain) -> Candidate | None:
        """The link that the most telling rule knows; the first of equals."""
        best: tuple[int, CauseRule, RaisedError, Cause] | None = None
        for error in chain.links:
            if aftermath.is_wrapper(error):
                continue
            matched = self._recognise(error)
            if matched is None:
                continue
            rule, cause = matched
            rank = RANKS[rule.rank]
            if best is None or rank > best[0]:
                best = (rank, rule, error, cause)
            elif type(cause) is type(best[3]):
                best = (*best[:3], _filled(best[3], cause))
        if best is None:
            return None
        _, rule, error, cause = best
        if error.broken_off:
            cause = at_most_likely(cause)
        score = KNOWN_WEAK if rule.rank == "weak" else weigh_known(chain)
        if cause.kind == _SHUTDOWN:  # what failed before it may be why somebody stopped it
            score = min(score, UNKNOWN_FATAL)
        return Candidate(
            score=score,
            line=error.line,
            cause=with_evidence(cause, error.full, chain.process, error.line),
            ends=rule.ends,
            open=rule.rank == "vague",
        )

    def _recognise(self, error: RaisedError) -> tuple[CauseRule, Cause] | None:
        """The most telling rule's word on an exception, or on the one that it carries in its text."""
        outer = self._rules.of_error(error)
        inside = carried(error)
        inner = self._rules.of_error(inside) if inside is not None else None
        if outer is None or inner is None:
            return outer or inner
        return inner if RANKS[inner[0].rank] > RANKS[outer[0].rank] else outer

    def _inspection(self, root: RaisedError, chain: RaisedChain) -> Candidate | None:
        """An exception that no rule knows, inside a failed inspection of the model's class."""
        known = self._rules.of_error(RaisedError(type="ValueError", text="failed to be inspected"))
        if known is None:
            return None
        cause = attrs.evolve(known[1], message=f"{known[1].message}: {root.full}")
        cause = with_evidence(cause, root.full, chain.process, root.line)
        return Candidate(score=weigh_known(chain), line=root.line, cause=cause)

    def _quoted(self, chain: RaisedChain) -> Candidate | None:
        """What a wrapper passes on of another process's exception."""
        for error in chain.links:
            printed = aftermath.printed(error)
            if printed is not None and (known := self._rules.of_error(RaisedError(type="", text=printed))):
                cause = with_evidence(known[1], printed, chain.process, error.line)
                return Candidate(score=KNOWN_QUOTED, line=error.line, cause=cause)
            said = aftermath.quoted(error)
            if said is None:
                continue
            matched = self._rules.of_error(RaisedError(type="", text=said))
            if matched is not None:
                cause = with_evidence(matched[1], error.full, chain.process, error.line)
                return Candidate(score=KNOWN_QUOTED, line=error.line, cause=cause)
            if said.strip():
                cause = _unclassified(attrs.evolve(error, type="", text=said), chain)
                return Candidate(score=UNKNOWN_LOGGED, line=error.line, cause=cause)
        return None


def _filled(cause: Cause, other: Cause) -> Cause:
    """A cause with the fields that it lacks taken from another of its kind."""
    lacking = {
        name: value
        for name, value in other.fields.items()
        if value is not None and cause.fields[name] is None
    }
    if cause.hint is None and other.hint is not None:
        lacking["hint"] = other.hint
    return attrs.evolve(cause, **lacking) if lacking else cause


def _unclassified(error: RaisedError, chain: RaisedChain) -> Cause:
    from vllm_startup.causes._unknown import UnclassifiedError

    text = clean(error.text)
    cause = UnclassifiedError(
        message=f"{chain.process or 'a process'} failed with {error.full.splitlines()[0]}",
        confidence="likely",
        exception=error.type,
        text=text,
        process=chain.process,
    )
    return with_evidence(cause, error.full, chain.process, error.line)
