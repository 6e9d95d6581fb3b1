"""Many rules, asked together: a literal's dispatch first, then the few rules that it leaves."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from vllm_startup._log.triggers import Triggers
from vllm_startup.causes._rules import RANKS, CauseRule, built_in_rules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_startup._log.exceptions import RaisedError
    from vllm_startup.causes._base import Cause


class RuleSet:
    """Rules in their order, ready to be asked."""

    def __init__(self, rules: Iterable[CauseRule]) -> None:
        self._rules = tuple(rules)
        numbered = list(enumerate(self._rules))
        by_text = [(n, r) for n, r in numbered if r.literal != r.frame and r.where != "place"]
        self._errors = Triggers((rule.literal, n) for n, rule in by_text if rule.where != "line")
        self.of_lines = tuple(rule for _, rule in by_text if rule.where != "error")
        self._places = tuple((rule.literal, n) for n, rule in numbered if rule.where == "place")
        self._frames: dict[str, list[int]] = {}
        for n, rule in numbered:
            if rule.frame is not None and rule.literal == rule.frame:
                self._frames.setdefault(rule.frame, []).append(n)
        # A word alone would be searched for in every line; an exception that has no other is found
        # by what all exceptions have.
        self.literals = tuple(
            dict.fromkeys(r.literal for _, r in by_text if r.where == "error" and " " in r.literal.strip())
        )

    def of_error(self, error: RaisedError) -> tuple[CauseRule, Cause] | None:
        """The most telling rule's word on an exception; of equals, the first's."""
        texts = _as_written(error.full)
        numbers = {n for text in texts for n in self._errors.find(text)}
        for function in error.functions:
            numbers.update(self._frames.get(function, ()))
        place = error.place
        numbers.update(n for literal, n in self._places if literal in place)
        best: tuple[CauseRule, Cause] | None = None
        for n in sorted(numbers):
            rule = self._rules[n]
            if best is not None and RANKS[rule.rank] <= RANKS[best[0].rank]:
                continue
            causes = (rule.match(text, error=error) for text in texts)
            cause = next((cause for cause in causes if cause is not None), None)
            if cause is not None:
                best = (rule, cause)
        return best


def _as_written(text: str) -> tuple[str, ...]:
    """A text, and what it was before it was wrapped, if it was: between words, or at a column."""
    if "\n" not in text:
        return (text,)
    return text, " ".join(text.split()), text.replace("\n", "")


@cache
def built_in() -> RuleSet:
    """The package's own rules; made once, when the first diagnosis begins."""
    return RuleSet(built_in_rules())
