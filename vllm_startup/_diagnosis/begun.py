"""A refusal whose reason stands in the lines below: argparse passes on what pydantic says of a value."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

import attrs

from vllm_startup._diagnosis.evidence import clean

if TYPE_CHECKING:
    from vllm_startup._diagnosis.candidates import Candidate
    from vllm_startup._log.lines import Line

_MOST_LINES: Final = 9  # three fields of three lines
_LINK: Final = "For further information visit "


def begins(text: str) -> bool:
    """Whether a line says only that something was refused, as in ``1 validation error for XConfig``."""
    return _announced().search(text) is not None


@cache
def _announced() -> re.Pattern[str]:
    return re.compile(r"\d validation errors? for \w{1,60}$")


@attrs.frozen
class Begun:
    """A candidate that the next lines may belong to.

    Attributes:
        candidate: With all that has come so far.
        lines: How many lines that is.
    """

    candidate: Candidate
    lines: int = 0

    def then(self, line: Line) -> Begun | None:
        """The same with a further line; None where that is none of it."""
        text = line.message.strip()
        if line.level is not None or not text or self.lines == _MOST_LINES:
            return None
        if text.startswith(_LINK):
            return attrs.evolve(self, lines=self.lines + 1)
        cause = self.candidate.cause
        first, *others = cause.evidence
        said = attrs.evolve(first, text=clean(f"{first.text} {text}"))
        message = clean(f"{cause.message}: {text.partition(' [type=')[0]}")
        cause = attrs.evolve(cause, message=message, evidence=(said, *others))
        return Begun(attrs.evolve(self.candidate, cause=cause), self.lines + 1)
