"""What a rule may say of a line or a reading: how users teach the watch new evidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import attrs

from vllm_startup._phases import Phase
from vllm_startup._readings import Reading

if TYPE_CHECKING:
    from vllm_startup._log.lines import Line
    from vllm_startup.causes import Cause


@attrs.frozen
class Advance:
    """Strong evidence that the bring-up is in a phase.

    Attributes:
        phase: The phase; earlier than the one already reached, it moves nothing.
    """

    phase: Phase = attrs.field(converter=Phase)


@attrs.frozen
class Progress:
    """Something moved, so nothing is stuck.

    Attributes:
        what: What moves, e.g. ``checkpoint shards``.
        done: How much is done, in any unit; None where it is not counted.
        total: How much there is in all, in the same unit; None where unknown.
    """

    what: str
    done: float | None = None
    total: float | None = None


Finding: TypeAlias = "Advance | Progress | Cause | None"


def _literal(_rule: object, _attribute: object, value: str | None) -> None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ValueError("literal must be text that is not blank, or None for a rule on readings")


@attrs.frozen
class Rule:
    """A literal to look for, and what it means where it stands.

    Attributes:
        literal: Text that a log line must contain before ``match`` is asked at all, so that a
            rule costs nothing on other lines. None for a rule on readings other than lines.
        match: Called with the parsed `Line`, or with the `Reading` when ``literal`` is None.
            Returns `Advance`, `Progress`, a `Cause` or None. An exception is told once as a
            warning and counts as None.
        name: For reports; the literal where it is not given.
    """

    literal: str | None = attrs.field(validator=_literal)
    match: Callable[[Line], Finding] | Callable[[Reading], Finding] = attrs.field(
        validator=attrs.validators.is_callable()
    )
    name: str = attrs.field(
        kw_only=True, default=attrs.Factory(lambda self: self.literal or "rule", takes_self=True)
    )
