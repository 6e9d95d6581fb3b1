"""What the checks before a start found."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import attrs

from vllm_startup._events import SCHEMA
from vllm_startup._json import json_text, to_json
from vllm_startup._report import WarningReport
from vllm_startup._versions import versions
from vllm_startup.causes._base import Cause

CheckOutcome: TypeAlias = Literal["passed", "found", "not_checked"]

_SURE = ("certain", "likely", "unknown")


class NotCheckedError(Exception):
    """A check cannot know what it would have to know. The message says why."""


@attrs.frozen(kw_only=True)
class CheckReport:
    """One check.

    Attributes:
        name: Its name in the table of checks.
        outcome: ``found`` where there is a cause or a warning of it; ``not_checked`` where it could
            not know, broke, or did not answer in time.
        note: Why it was not checked.
        took_s: Seconds; those that it was waited for where it did not answer.
    """

    name: str
    outcome: CheckOutcome
    note: str | None = None
    took_s: float = 0.0


@attrs.frozen(kw_only=True)
class Preflight:
    """What would make a start fail, as far as it can be known before.

    Attributes:
        causes: The faults, in the classes of `vllm_startup.causes`, the surest first.
        warnings: What may be a fault and need not be one.
        checks: Every check, and why it was not made where it was not.
        python: The interpreter whose packages were looked at; None where it is not known.
        took_s: Seconds in all.
    """

    causes: tuple[Cause, ...] = ()
    warnings: tuple[WarningReport, ...] = ()
    checks: tuple[CheckReport, ...] = ()
    python: str | None = None
    took_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether no fault was found. It is no promise: see ``checks`` for what could not be known."""
        return not self.causes

    @property
    def certain(self) -> tuple[Cause, ...]:
        """The faults with which the start fails for certain."""
        return tuple(cause for cause in self.causes if cause.confidence == "certain")

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            **{field.name: to_json(getattr(self, field.name)) for field in attrs.fields(type(self))},
            "versions": versions(),
        }

    def to_json(self, indent: int | None = None) -> str:
        """The result as JSON text."""
        return json_text(self.to_dict(), indent)


def by_confidence(causes: list[Cause]) -> tuple[Cause, ...]:
    """The causes with the surest first, else in their order."""
    return tuple(sorted(causes, key=lambda cause: _SURE.index(cause.confidence)))
