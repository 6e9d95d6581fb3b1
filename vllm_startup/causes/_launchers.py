"""What systemd, Docker and Apptainer say of a server that they cannot start."""

from __future__ import annotations

from vllm_startup.causes._arguments import FileMissing
from vllm_startup.causes._base import Cause
from vllm_startup.causes._host import UserNotFound
from vllm_startup.causes._rules import CauseRule, Found


def _no_user(_: Found) -> Cause:
    return UserNotFound(
        message="the user that the server is to run as does not exist",
        hint="create the user, or correct it (systemd: User=, docker: --user)",
        retryable=False,
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
