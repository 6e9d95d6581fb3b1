"""What a wait was asked for."""

from __future__ import annotations

import attrs

from vllm_startup._machine.earlier import Earlier
from vllm_startup._readings import TIERS, Tier
from vllm_startup._rules import Rule
from vllm_startup._timeouts import Timeouts


def _tier(_terms: object, _attribute: object, value: str) -> None:
    if value not in TIERS:
        raise ValueError(f"until must be one of {', '.join(map(repr, TIERS))}, not {value!r}")


def _seconds(_terms: object, attribute: attrs.Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{attribute.name} must be a number of seconds, not {value!r}")
    if not 0 <= value < 1e12:
        raise ValueError(f"{attribute.name} must be a finite number of seconds from 0, not {value!r}")


def _count(_terms: object, attribute: attrs.Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{attribute.name} must be a whole number, not {value!r}")
    if value < 0:
        raise ValueError(f"{attribute.name} must not be negative, not {value!r}")


def _limits(_terms: object, _attribute: object, value: Timeouts) -> None:
    if not isinstance(value, Timeouts):
        raise TypeError(f"timeouts must be vllm_startup.Timeouts, such as Timeouts(600), not {value!r}")


def _yes_or_no(_terms: object, attribute: attrs.Attribute[bool], value: bool) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{attribute.name} must be True or False, not {value!r}")


def _rules(_terms: object, _attribute: object, value: tuple[Rule, ...]) -> None:
    for rule in value:
        if not isinstance(rule, Rule):
            raise TypeError(f"rules must hold vllm_startup.Rule objects, not {rule!r}")


@attrs.frozen(kw_only=True)
class Terms:
    """What a wait was asked for.

    Attributes:
        url: The server's address, for the report.
        until: The readiness tier that ends the wait.
        stable_for: For how many seconds the tier must hold without a miss.
        restarts: How many deaths of the main process are tolerated.
        exit_grace: How many seconds a failed start's processes may take to be gone before the
            failure is raised all the same.
        raise_early: Whether to raise as soon as the cause is known.
        earlier: An earlier start of the same model, to compare with.
        waited_s: Seconds that were waited before this watch began; they count for the limit of all.
    """

    url: str | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.instance_of(str))
    )
    until: Tier = attrs.field(default="health", validator=_tier)
    stable_for: float = attrs.field(default=0.0, validator=_seconds)
    timeouts: Timeouts = attrs.field(factory=Timeouts, validator=_limits)
    restarts: int = attrs.field(default=0, validator=_count)
    exit_grace: float = attrs.field(default=10.0, validator=_seconds)
    raise_early: bool = attrs.field(default=False, validator=_yes_or_no)
    rules: tuple[Rule, ...] = attrs.field(default=(), validator=_rules)
    earlier: Earlier | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.instance_of(Earlier))
    )
    waited_s: float = attrs.field(default=0.0, validator=_seconds)
