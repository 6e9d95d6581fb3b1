"""Rules of the caller's: what they find is taken, and what goes wrong in them is told."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import attrs

from vllm_startup._diagnosis.evidence import clean
from vllm_startup._log.lines import Line
from vllm_startup._machine.attempt import Attempt
from vllm_startup._machine.course import Ground
from vllm_startup._phases import Phase
from vllm_startup._rules import Advance, Progress, Rule
from vllm_startup._text import described
from vllm_startup.causes import Cause


def apply_rule(
    rule: Rule,
    subject: Any,
    at: float,
    attempt: Attempt,
    *,
    history: bool,
    warn: Callable[[float, str, str], None],
) -> None:
    """Ask a rule, and take what it finds.

    Args:
        rule: The caller's.
        subject: The line or the reading that it is asked about.
        at: When that was.
        attempt: What it finds something of.
        history: Whether that was before the watch.
        warn: Takes the time, the code and the text of a warning.
    """
    try:
        finding = rule.match(subject)
    except BaseException as error:  # the caller's code may do anything, asyncio's cancellation too
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        warn(at, "rule_failed", f"rule {rule.name!r} raised {described(error)}")
        return
    match finding:
        case None:
            pass
        case Advance(phase=Phase.READY):
            text = f"rule {rule.name!r} says ready, which only the server's own answers can"
            warn(at, "rule_failed", text)
        case Advance(phase=phase):
            text = clean(subject.message if isinstance(subject, Line) else described(subject))
            attempt.advance(phase, at, Ground(probe=f"rule {rule.name}", text=text, at=at))
        case Progress(what=what, done=done, total=total):
            attempt.count(at, what, done, total)
        case Cause():
            cause = attrs.evolve(finding, message=clean(finding.message))
            attempt.told.ruled(cause, at, history=history)
        case _:
            if isinstance(finding, Coroutine):
                finding.close()  # else Python warns that nobody awaited it
            kind = type(finding).__name__
            warn(at, "rule_failed", f"rule {rule.name!r} returned a {kind}, which means nothing here")
