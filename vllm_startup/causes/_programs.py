"""Install: programs that cannot be run, as the shell, Python, systemd and containers say it."""

from __future__ import annotations

from vllm_startup.causes._base import Cause
from vllm_startup.causes._install import ProgramMissing, program_missing
from vllm_startup.causes._rules import CauseRule, Found


def _program(found: Found) -> Cause:
    return program_missing(found.word("program") or "")


def _not_executed(found: Found) -> Cause:
    program = found.word("program") or ""
    return ProgramMissing(
        message=f"systemd could not start {program}, which does not exist",
        hint=f"correct the path in ExecStart=, or install what brings {program}",
        program=program,
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="No such file or directory: ",
        pattern=r"No such file or directory: '(?P<program>[\w+.-]{1,60}"
        r"|(?:/usr)?(?:/local)?/s?bin/[\w+.-]{1,60})'",
        exceptions=("FileNotFoundError",),
        frame="_execute_child",
        build=_program,
        versions="Python",
    ),
    CauseRule(
        literal="No such file or directory: ",
        pattern=r"No such file or directory: '(?:/\S{0,200}/)?(?P<program>ninja|nvcc|ptxas|hipcc"
        r"|(?:gcc|g\+\+|cc|c\+\+|clang(?:\+\+)?))'",
        exceptions=("FileNotFoundError",),
        build=_program,
        versions="Python",
    ),
    CauseRule(
        literal="not found",
        pattern=r"^(?:[^\s:]{1,200}: )?(?:line )?(?:\d+: )?(?P<program>vllm|python3?): (?:command )?"
        r"not found$",
        where="line",
        ends=True,
        build=_program,
        versions="bash, dash",
    ),
    CauseRule(
        literal="executable file not found in $PATH",
        pattern=r'exec: "(?P<program>[^"]{1,100})": executable file not found',
        where="both",
        ends=True,
        build=_program,
        versions="runc, Docker, Kubernetes",
    ),
    CauseRule(
        literal="Failed at step EXEC spawning ",
        pattern=r"Failed at step EXEC spawning (?P<program>/.{1,300}): No such file or directory$",
        where="line",
        ends=True,
        build=_not_executed,
        versions="systemd 219 to 257",
    ),
    CauseRule(
        literal="Ninja is required to load C++ extensions",
        build=lambda _: ProgramMissing(
            message="ninja is not installed", hint="pip install ninja", program="ninja", retryable=False
        ),
        versions="torch 1.x to 2.9",
    ),
)
