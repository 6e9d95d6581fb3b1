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


_MOST = 1e300  # of a counter, in whatever unit


@attrs.frozen
class Advance:
    """Strong evidence that the bring-up is in a phase.

    Attributes:
        phase: The phase; earlier than the one already reached, it moves nothing.
    """

    phase: Phase = attrs.field(converter=Phase)


def _text(_progress: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{attribute.name} must be text, not {value!r}")


def _count(_progress: object, attribute: attrs.Attribute[float | None], value: float | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_MOST < value < _MOST:
        raise ValueError(f"{attribute.name} must be a finite number or None, not {value!r}")


@attrs.frozen
class Progress:
    """Something moved, so nothing is stuck.

    Attributes:
        what: What moves, e.g. ``checkpoint shards``.
        done: How much is done, in any unit; None where it is not counted.
        total: How much there is in all, in the same unit; None where unknown.
    """

    what: str = attrs.field(validator=_text)
    done: float | None = attrs.field(default=None, validator=_count)
    total: float | None = attrs.field(default=None, validator=_count)


Finding: TypeAlias = "Advance | Progress | Cause | None"


def _literal(_rule: object, _attribute: object, value: str | None) -> None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise ValueError("literal must be text that is not blank, or None for a rule on readings")


@attrs.frozen
class Rule:
    """A literal to look for, and what it means where it stands.

    Attributes:
        literal: Text that a log line must contain before ``match`` is asked at all, so that a
            rule costs nothing on other lines. None for a rule on readings.
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
