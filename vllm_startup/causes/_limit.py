"""Limit: the wait ended, not the server."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Limit(Cause):
    """The wait ended, not the server."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Stalled(Limit):
    """Nothing has advanced for too long.

    Attributes:
        phase: Where it stands still.
        silent_s: For how long, in seconds.
        suspect: What the evidence points to.
    """

    phase: str | None = None
    silent_s: float | None = None
    suspect: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PhaseTimedOut(Limit):
    """One phase took longer than allowed.

    Attributes:
        phase: Which.
        limit_s: What was allowed, in seconds.
        suspect: What the evidence points to.
    """

    phase: str | None = None
    limit_s: float | None = None
    suspect: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TimedOut(Limit):
    """The whole took longer than allowed.

    Attributes:
        phase: Where it was.
        limit_s: What was allowed, in seconds.
        suspect: What the evidence points to.
    """

    phase: str | None = None
    limit_s: float | None = None
    suspect: str | None = None
