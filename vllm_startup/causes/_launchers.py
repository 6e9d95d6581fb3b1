"""What systemd, Docker and Apptainer say of a server that they cannot start."""

from __future__ import annotations

from typing import Final

from vllm_startup.causes._arguments import FileMissing
from vllm_startup.causes._base import Cause
from vllm_startup.causes._host import PathNotWritable, UserNotFound
from vllm_startup.causes._limit import Stalled, TimedOut
from vllm_startup.causes._rules import CauseRule, Found, compiled
from vllm_startup.causes._server import ShutdownRequested
from vllm_startup.causes._unknown import UnclassifiedError

NOT_STARTED: Final = "systemd did not start it: "
"""What stands before systemd's own words in a unit's journal as it is read, whatever the unit's name."""

_UNMET_PATH: Final = r"\((?:Condition|Assert)(?:Path|File|Directory)\w{2,30}=(?P<path>/[^)\s]{1,300})\)"
_ENDS: Final = ("shutdown_requested", "process_crashed", "process_killed")
_SERVERS: Final = r".{0,200}?(?:vllm|llm|inference)"  # in a journal of the whole machine, as far as it tells


def _no_user(_: Found) -> Cause:
    return UserNotFound(
        message="the user that the server is to run as does not exist",
        hint="create the user, or correct it (systemd: User=, docker: --user)",
        retryable=False,
    )


def _refused(found: Found) -> Cause:
    """A unit that systemd was asked to start and did not: a dependency, an assertion, a condition."""
    unit, _, said = found.text.partition(f": {NOT_STARTED}")
    unit, said = (unit, said) if said else ("the unit", unit)
    unmet = compiled(_UNMET_PATH).search(said)
    if unmet is not None:
        return FileMissing(
            message=f"systemd did not start {unit}, because {unmet['path']} does not exist",
            hint=f"create {unmet['path']}, or correct the condition that names it",
            path=unmet["path"],
        )
    return UnclassifiedError(
        message=f"systemd did not start {unit}: {said}",
        confidence="certain",
        hint="systemctl list-dependencies shows which one failed" if "ependency" in said else None,
        text=said,
        process="systemd",
    )


def _no_output(found: Found) -> Cause:
    what, why = (found.word("what") or "").capitalize(), found.word("why") or ""
    if "No such file" in why:
        return FileMissing(
            message=f"the folder of the file that the unit's Standard{what}= names does not exist",
            hint=f"make that folder, or correct Standard{what}= of the unit",
            retryable=False,
        )
    return PathNotWritable(
        message=f"the file that the unit's Standard{what}= names cannot be opened: {why}",
        hint=f"correct Standard{what}= of the unit",
        retryable=False,
    )


def _took_too_long(found: Found) -> Cause:
    what = "its ExecStartPre=" if found.word("step") == "start-pre" else "its start"
    return ShutdownRequested(
        message=f"systemd ended the server: {what} took longer than the unit's TimeoutStartSec=",
        hint="raise TimeoutStartSec= of the unit, or set it to infinity",
        signal=15,
        retryable=False,
    )


def _unfed(_: Found) -> Cause:
    return ShutdownRequested(
        message="systemd ended the server: nothing told the unit's watchdog in time that it is alive",
        hint="take WatchdogSec= out of the unit, or start vLLM through vllm-startup run with Type=notify, "
        "which tells it",
        signal=6,
        retryable=False,
    )


def _ran_too_long(_: Found) -> Cause:
    return ShutdownRequested(
        message="systemd ended the server: the unit's RuntimeMaxSec= was over",
        hint="raise RuntimeMaxSec= of the unit, or take it out",
        signal=15,
        retryable=False,
    )


def _given_up(found: Found) -> Cause:
    """What `vllm-startup run` says when it ends the server, in a log that both write to."""
    phase, suspect = found.word("phase"), found.word("suspect")
    what = "had stalled in" if found.word("what") == "stalled" else "took too long, in"
    return (Stalled if found.word("what") == "stalled" else TimedOut)(
        message=f"vllm-startup run ended the server, which {what} {phase}"
        + (f"; {suspect}" if suspect else ""),
        phase=phase,
        suspect=suspect,
        retryable=None,
    )


RULES: tuple[CauseRule, ...] = (
    *(
        CauseRule(literal=said, where="line", ends=True, build=_no_user, versions=versions)
        for said, versions in (
            ("Failed to determine user credentials: ", "systemd 230 to 257"),
            ("Failed at step USER spawning ", "systemd 219 to 257"),
            ("no matching entries in passwd file", "Docker 1 to 28"),
        )
    ),
    CauseRule(
        literal=NOT_STARTED,
        pattern=rf"^\S{{1,255}}: {NOT_STARTED}",
        where="line",
        ends=True,
        build=_refused,
        versions="systemd 230 to 257, by its fields",
    ),
    *(
        CauseRule(
            literal=literal,
            pattern=pattern,
            where="line",
            ends=True,
            build=_refused,
            versions="systemd 230 to 257",
        )
        for literal, pattern in (
            ("Dependency failed for ", rf"(?i)^Dependency failed for {_SERVERS}"),
            ("Assertion failed for ", rf"(?i)^Assertion failed for {_SERVERS}"),
            (
                " was skipped because of ",
                rf"(?i)^{_SERVERS}.{{0,200}}? was skipped because of an? \w+ condition check",
            ),
            (
                "Condition check resulted in ",
                rf"(?i)^Condition check resulted in {_SERVERS}.{{0,200}}? being skipped",
            ),
        )
    ),
    # Whoever asked a server to end, or made it end, says more than that it did.
    *(
        CauseRule(
            literal=literal,
            pattern=pattern,
            where="line",
            rank="weak",
            explains=_ENDS,
            ends=build is not _given_up,  # it may only report that, and the server goes on
            build=build,
            versions=versions,
        )
        for literal, pattern, build, versions in (
            (
                " operation timed out. Terminating.",
                r"^\S{1,255}\.service: (?P<step>start|start-pre) operation timed out\. ",
                _took_too_long,
                "systemd 219 to 257",
            ),
            (
                ".service: Watchdog timeout (limit ",
                r"^\S{1,255}\.service: Watchdog timeout \(limit ",
                _unfed,
                "systemd 219 to 257",
            ),
            (
                ".service: Service reached runtime time limit. Stopping.",
                r"^\S{1,255}\.service: Service reached",
                _ran_too_long,
                "systemd 229 to 257",
            ),
            (
                "vllm-startup: ",
                r"^vllm-startup: (?P<what>stalled|timed out) in (?P<phase>[a-z_]{5,30}) after \d",
                _given_up,
                "vllm-startup",
            ),
        )
    ),
    CauseRule(
        literal=": Failed to set up standard ",
        pattern=r": Failed to set up standard (?P<what>output|error|input): (?P<why>.{1,100})$",
        where="line",
        ends=True,
        build=_no_output,
        versions="systemd 230 to 257",
    ),
    CauseRule(
        literal="Changing to the requested working directory failed",
        where="line",
        ends=True,
        build=lambda _: FileMissing(
            message="the unit's WorkingDirectory= does not exist, or may not be entered",
            hint="correct WorkingDirectory= of the unit",
            retryable=False,
        ),
        versions="systemd 230 to 257",
    ),
    *(
        CauseRule(
            literal=said,
            pattern=pattern,
            where="line",
            ends=True,
            build=lambda found: FileMissing(
                message=f"{found.word('path') or 'a file that the unit names'} does not exist",
                path=found.word("path"),
                retryable=False,
            ),
            versions=versions,
        )
        for said, pattern, versions in (
            ("Failed to load environment files", r": No such file or directory$", "systemd 219 to 257"),
            (
                "bind source path does not exist: ",
                r"bind source path does not exist: (?P<path>/[^\s]{1,400})",
                "Docker 17 to 28",
            ),
            ("could not open image ", r"^FATAL: +could not open image (?P<path>\S{1,400}): ", "Apptainer 1"),
        )
    ),
)
