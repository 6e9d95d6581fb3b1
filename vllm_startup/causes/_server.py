"""Server: the server listens but does not serve, is another one, or was told to end."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._rules import CauseRule, Found


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Server(Cause):
    """The server listens but does not serve, is another one, or was told to end."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Unhealthy(Server):
    """The server listens, but never answered 200, or not for long enough.

    Attributes:
        status: Its last HTTP status.
    """

    status: int | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ForeignServer(Server):
    """The port belongs to a process that is not watched.

    Attributes:
        pid: Its process id.
    """

    pid: int | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class RestartLoop(Server):
    """The server was restarted more often than allowed.

    Attributes:
        restarts: How often.
        causes: The attempts' causes, the oldest first.
    """

    restarts: int | None = None
    causes: tuple[Cause, ...] | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ShutdownRequested(Server):
    """The main process was asked to end.

    Attributes:
        signal: The signal's number.
    """

    signal: int | None = None


# --- how they are told -------------------------------------------------------------------


def _asked(signal: int) -> Cause:
    return ShutdownRequested(
        message="the server was asked to end while it was starting "
        f"({'SIGTERM' if signal == 15 else 'SIGINT'})",
        hint="if a health check did it, give the start more time (Kubernetes: a startupProbe)"
        if signal == 15
        else None,
        signal=signal,
        retryable=True,
    )


def _cancelled(found: Found) -> Cause:
    reason = (found.word("reason") or "").lower()
    return ShutdownRequested(
        message="Slurm ended the job" + (f": {reason}" if reason else ""),
        hint="ask for more time (--time)" if reason == "time limit" else None,
        signal=15,
        confidence="likely",
        retryable=True,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="KeyboardInterrupt: terminated",
        ends=True,
        build=lambda _: _asked(15),
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal=" CANCELLED AT ",
        pattern=r"^(?:slurmstepd: error: )?\*\*\* (?:JOB|STEP) \S{1,40} ON \S{1,100} CANCELLED AT \S{1,40}"
        r"(?: DUE (?i:to) (?P<reason>[\w ]{1,60}))?",
        where="line",
        rank="weak",
        explains=("shutdown_requested",),
        ends=True,
        build=_cancelled,
        versions="Slurm 20 to 25",
    ),
    CauseRule(
        literal="KeyboardInterrupt",
        pattern=r"^KeyboardInterrupt(?:: )?$",
        exceptions=("KeyboardInterrupt",),
        rank="weak",
        build=lambda _: _asked(2),
        versions="Python",
    ),
    CauseRule(
        literal="Back-off restarting failed container",
        where="line",
        rank="weak",
        build=lambda _: RestartLoop(
            message="the container ends again and again, and Kubernetes waits before it starts it anew",
            hint="its own log says why: kubectl logs --previous",
            confidence="likely",
        ),
        versions="Kubernetes 1.16 to 1.34",
    ),
    CauseRule(
        literal=" probe, will be restarted",
        pattern=r"Container \S{1,100} failed (?P<probe>liveness|startup) probe, will be restarted",
        where="line",
        rank="weak",
        explains=("shutdown_requested",),
        ends=True,
        build=lambda found: ShutdownRequested(
            message=f"the kubelet ended the container: its {found.word('probe')} probe failed",
            hint="give the start more time: a startupProbe with a large failureThreshold",
            signal=15,
            confidence="likely",
            retryable=True,
        ),
        versions="Kubernetes 1.16 to 1.34",
    ),
)
