"""Install: programs that cannot be run, as the shell, Python, systemd and containers say it."""

from __future__ import annotations

from typing import Final

from vllm_startup.causes._base import Cause
from vllm_startup.causes._install import ProgramMissing, program_missing
from vllm_startup.causes._rules import CauseRule, Found


def _program(found: Found) -> Cause:
    return program_missing(found.word("program") or "")


def _not_run(found: Found) -> Cause:
    """The kernel says the same of a script whose interpreter is missing."""
    program = found.word("program") or ""
    return ProgramMissing(
        message=f"systemd could not start {program}: it, or the interpreter that its first line names, does"
        " not exist",
        hint=f"correct the path in ExecStart=, or the first line of {program}",
        program=program,
        retryable=False,
    )


# What starts a server: a script goes on without others.
_STARTS: Final = r"(?:/[^\s:]{1,300}/)?(?:vllm|python[\d.]{0,5})"


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
        pattern=rf"^(?:[^\s:]{{1,200}}: )?(?:line )?(?:\d+: )?(?:exec: )?(?P<program>{_STARTS}): "
        r"(?:command )?not found$",
        where="line",
        ends=True,
        build=_program,
        versions="bash, dash",
    ),
    CauseRule(
        literal="command not found: ",
        pattern=rf"^zsh:(?:\d+:)? command not found: (?P<program>{_STARTS})$",
        where="line",
        ends=True,
        build=_program,
        versions="zsh",
    ),
    CauseRule(
        literal="No such file or directory",
        pattern=rf"^(?:[^\s:]{{1,200}}: )?(?:line )?(?:\d+: )?(?P<program>{_STARTS}): "
        r"(?:(?P<interpreter>/[^\s:]{1,300}): bad interpreter: |cannot execute: required file not found)?"
        r"No such file or directory$",
        where="line",
        ends=True,
        build=lambda found: program_missing(found.word("interpreter") or found.word("program") or ""),
        versions="bash, dash",
    ),
    CauseRule(
        literal="No such file or directory",
        pattern=rf"^(?:/usr/bin/)?(?:env|nohup|timeout|nice|stdbuf|setsid)(?:: failed to run command)?"
        rf":? ['‘](?P<program>{_STARTS})['’]: No such file or directory$",
        where="line",
        ends=True,
        build=_program,
        versions="coreutils 8 to 9",
    ),
    CauseRule(
        literal="error: execve(): ",
        pattern=r"error: execve\(\): (?P<program>[^\s:]{1,300}): No such file or directory$",
        where="line",
        ends=True,
        build=_program,
        versions="Slurm 20 to 25",
    ),
    CauseRule(
        literal="error: Failed to spawn: ",
        pattern=r"^error: Failed to spawn: `(?P<program>[^`]{1,200})`",
        where="line",
        ends=True,
        build=_program,
        versions="uv 0.4 to 0.9",
    ),
    CauseRule(
        literal="executable file not found in $PATH",
        pattern=r'(?:exec: |^FATAL: +)"(?P<program>[^"]{1,100})": executable file not found',
        where="both",
        ends=True,
        build=_program,
        versions="runc, Docker, Kubernetes, Apptainer",
    ),
    CauseRule(
        literal=": no such file or directory",
        pattern=r'(?:exec: "(?P<program>[^"]{1,300})": stat [^\n:]{1,300}|^exec (?P<entry>/[^\s:]{1,300})): '
        r"no such file or directory",
        where="line",
        ends=True,
        build=lambda found: program_missing(found.word("program") or found.word("entry") or ""),
        versions="runc, Docker",
    ),
    CauseRule(
        literal="Failed at step EXEC spawning ",
        pattern=r"Failed at step EXEC spawning (?P<program>/.{1,300}): No such file or directory$",
        where="line",
        ends=True,
        build=_not_run,
        versions="systemd 219 to 257",
    ),
    CauseRule(
        literal="Failed to locate executable ",
        pattern=r"Failed to locate executable (?P<program>/.{1,300}): No such file or directory$",
        where="line",
        ends=True,
        build=_not_run,
        versions="systemd 247 to 257",
    ),
    CauseRule(
        literal="Ninja is required to load C++ extensions",
        build=lambda _: ProgramMissing(
            message="ninja is not installed", hint="pip install ninja", program="ninja", retryable=False
        ),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="is required for NUMA binding but is not installed",
        pattern=r"(?P<program>numactl) is required for NUMA binding",
        build=_program,
        versions="0.19 to 0.33",
    ),
)
