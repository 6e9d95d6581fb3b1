"""Crash: a process was ended from outside, or crashed."""

from __future__ import annotations

import re
from typing import Final

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._rules import CauseRule, Found, compiled


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Crash(Cause):
    """A process was ended from outside, or crashed."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ProcessKilled(Crash):
    """A signal from outside ended a process.

    Attributes:
        signal: The signal's number.
        process: Which one.
    """

    signal: int | None = None
    process: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ProcessCrashed(Crash):
    """A process crashed in native code.

    Attributes:
        signal: The signal's number.
        process: Which one.
    """

    signal: int | None = None
    process: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ProcessVanished(Crash):
    """A process is gone, and nobody can tell how it ended.

    Attributes:
        process: Which one.
        pid: Its process id.
    """

    process: str | None = None
    pid: int | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class IllegalMemoryAccess(Crash):
    """A kernel touched memory that is not its own."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class GpuHardwareFault(Crash):
    """The GPU itself failed: memory errors, lost from the bus."""


# --- how they are told -------------------------------------------------------------------

# Who a shell or Slurm says it of.
_WHO: Final = r"(?:[^\s:]{1,200}: line \d+: +\d+ |srun: error: [^\s:]{1,200}: tasks? [\d,-]{1,100}: )?"

# How glibc says that a process has spoilt its heap or its stack; it aborts it then.
_HEAP: Final = (
    "free(): ",
    "malloc(): ",
    "realloc(): ",
    "malloc_consolidate(): ",
    "munmap_chunk(): ",
    "double free or corruption",
    "corrupted double-linked list",
    "corrupted size vs. prev_size",
    "stack smashing detected",
)

_SIGNALS = {
    "segmentation fault": 11,
    "abort": 6,
    "bus error": 7,
    "illegal hardware instruction": 4,
    "Segmentation fault": 11,
    "Segfault": 11,
    "SEGV": 11,
    "Aborted": 6,
    "ABRT": 6,
    "Bus error": 7,
    "BUS": 7,
    "Illegal instruction": 4,
    "ILL": 4,
    "FPE": 8,
}


def _crashed(found: Found) -> Cause:
    what = found.word("what") or ""
    process = found.line.process if found.line is not None else None
    return ProcessCrashed(
        message=f"{process or 'a process'} crashed in native code ({what})",
        signal=_SIGNALS.get(what, 8),
        process=process,
        retryable=None,
    )


def _by_signal(signal: int, found: Found) -> ProcessCrashed:
    process = found.line.process if found.line is not None else None
    if process in (None, "kernel"):
        said = compiled(r"([\w.:+-]{1,60})\[\d+\]:? (?:segfault|trap) ").search(found.text)
        process = said[1] if said else None
    return ProcessCrashed(
        message=f"{process or 'a process'} crashed in native code (signal {signal})",
        signal=signal,
        process=process,
    )


def _heap(found: Found) -> Cause:
    said = found.text.strip("* ").partition("\n")[0]
    return attrs.evolve(_by_signal(6, found), message=f"native code spoilt its memory: {said}")


def _terminated(found: Found) -> Cause:
    what = found.word("what") or ""
    return attrs.evolve(_by_signal(6, found), message=f"native code gave up ({what})", confidence="likely")


def _killed() -> ProcessKilled:
    return ProcessKilled(message="the main process was killed", signal=9)


def _exited(found: Found) -> Cause:
    code = found.number("code") or 0
    signal = code - 128
    if signal == 9:
        return _killed()
    return ProcessCrashed(message=f"the main process crashed (exit status {code})", signal=signal)


def _lost(found: Found) -> Cause:
    actor = compiled(r"class_name: (\w{1,60}).{0,300}?\bpid: (\d{1,10})").search(found.text)
    name = actor[1] if actor else None
    return ProcessVanished(
        message=f"Ray lost {name or 'an actor'}, and can only list what may have ended it",
        process=name,
        pid=int(actor[2]) if actor else None,
        confidence="likely",
    )


def _illegal(_: Found) -> Cause:
    return IllegalMemoryAccess(
        message="a GPU kernel touched memory that is not its own",
        hint="start once with CUDA_LAUNCH_BLOCKING=1: the traceback then names the kernel",
        retryable=None,
    )


def _hardware(_: Found) -> Cause:
    return GpuHardwareFault(
        message="the GPU reported a hardware fault",
        hint="drain the node, look for Xid lines in dmesg, and reset or replace the GPU",
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="Fatal Python error: ",
        pattern=r"^Fatal Python error: (?P<what>Segmentation fault|Aborted|Bus error|Illegal instruction|"
        r"Floating.point exception)",
        where="line",
        ends=True,
        build=_crashed,
        versions="Python",
    ),
    CauseRule(
        literal="Segfault encountered",
        pattern=r"^!+ (?P<what>Segfault) encountered !+",
        where="line",
        ends=True,
        build=_crashed,
        versions="torch 1.x to 2.9",
    ),
    *(
        CauseRule(
            literal=literal,
            pattern=pattern,
            where="line",
            ends=True,
            build=lambda found: _by_signal(found.number("signal") or 0, found),
            versions=versions,
        )
        for literal, pattern, versions in (
            ("Caught signal ", r"\] Caught signal (?P<signal>4|6|7|8|11) \(", "UCX 1.8 to 1.19"),
            (
                "] Signal: ",
                r"^\[[\w.:-]{1,90}\] Signal: [A-Z][\w ]{1,40} \((?P<signal>4|6|7|8|11)\)",
                "Open MPI 4 to 5",
            ),
        )
    ),
    CauseRule(
        literal="received at time=",
        pattern=r"^\*\*\* SIG(?P<what>SEGV|ABRT|BUS|ILL|FPE)\b",
        where="line",
        ends=True,
        build=_crashed,
        versions="glog, Ray",
    ),
    *(
        CauseRule(
            literal=end,
            pattern=rf"^{_WHO}(?P<what>{end})(?: *\(core dumped\)| {{2,}}\S.{{0,400}}|$)",
            where="line",
            rank="weak",
            ends=True,
            build=_crashed,
            versions="bash, Slurm",
        )
        for end in (
            "Segmentation fault",
            "Aborted",
            "Bus error",
            "Illegal instruction",
            "Floating point exception",
        )
    ),
    *(
        CauseRule(
            literal=end,
            pattern=rf"^(?:zsh: |\[\d+\] +(?:[+-] +)?\d+ +)(?P<what>{end})\b",
            where="line",
            rank="weak",
            ends=True,
            build=_crashed,
            versions="zsh",
        )
        for end in ("segmentation fault", "abort", "bus error", "illegal hardware instruction")
    ),
    CauseRule(
        literal="killed",
        pattern=r"^(?:zsh: |\[\d+\] +(?:[+-] +)?\d+ +)killed {2,}\S",
        where="line",
        rank="weak",
        ends=True,
        build=lambda _: attrs.evolve(_killed(), confidence="likely"),
        versions="zsh",
    ),
    *(
        CauseRule(
            literal=said,
            pattern=rf"^(?:\*\*\* )?{re.escape(said)}",
            where="line",
            rank="weak",
            build=_heap,
            versions="glibc",
        )
        for said in _HEAP
    ),
    CauseRule(
        literal="terminate called after throwing an instance of ",
        # c10's tell of another rank's end as a rule, and of memory another rule.
        pattern=r"^terminate called after throwing an instance of "
        r"'(?!c10::|std::bad_alloc|std::system_error)(?P<what>[\w:]{1,100})",
        where="line",
        rank="weak",
        build=_terminated,
        versions="libstdc++",
    ),
    CauseRule(
        literal="Assertion `",
        pattern=r"^[^\s:]{1,200}: [^\n]{1,800}: Assertion `(?P<what>[^\n]{1,400})' failed\.?$",
        where="line",
        rank="weak",
        build=_terminated,
        versions="glibc",
    ),
    CauseRule(
        literal="segfault at ",
        pattern=r"(?:^|[ :])segfault at [0-9a-f]{1,16} ip ",
        where="line",
        rank="weak",
        build=lambda found: attrs.evolve(_by_signal(11, found), confidence="likely"),
        versions="Linux 4 to 6",
    ),
    CauseRule(
        literal="trap invalid opcode ip",
        where="line",
        rank="weak",
        build=lambda found: attrs.evolve(_by_signal(4, found), confidence="likely"),
        versions="Linux 4 to 6",
    ),
    CauseRule(
        literal="terminated with signal SIG",
        pattern=r"Exception: process \d+ terminated with signal SIG(?P<what>SEGV|ABRT|BUS|ILL|FPE|KILL)",
        build=lambda found: _killed() if found.word("what") == "KILL" else _crashed(found),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="an illegal memory access was encountered",
        where="both",
        build=_illegal,
        versions="CUDA error 700",
    ),
    CauseRule(
        literal="error: misaligned address",
        pattern=r"(?:CUDA|HIP) error: misaligned address",
        build=_illegal,
        versions="CUDA and HIP error 716",
    ),
    CauseRule(literal="uncorrectable ECC error", build=_hardware, versions="CUDA error 214"),
    CauseRule(literal="uncorrectable NVLink error", build=_hardware, versions="CUDA error 220"),
    CauseRule(literal="GPU is lost", where="both", build=_hardware, versions="NVML"),
    CauseRule(literal="fallen off the bus", where="line", build=_hardware, versions="NVIDIA driver, Xid 79"),
    CauseRule(
        literal="NVRM: Xid ",
        # Memory that failed for good, NVLink, a fallen bus, a firmware that does not answer.
        pattern=r"NVRM: Xid \(PCI:[^)]{1,40}\): (?:48|64|74|79|95|119|120|140)\b",
        where="line",
        rank="weak",
        build=lambda found: attrs.evolve(_hardware(found), confidence="likely"),
        versions="NVIDIA driver",
    ),
    CauseRule(
        literal="error: unspecified launch failure",
        pattern=r"(?:CUDA|HIP) error: unspecified launch failure",
        rank="generic",
        build=lambda _: GpuHardwareFault(
            message="a kernel failed without a reason: the GPU, its driver or the kernel is at fault",
            confidence="likely",
        ),
        versions="CUDA and HIP error 719",
    ),
    CauseRule(
        literal="code=killed, status=9/KILL",
        where="line",
        rank="weak",
        ends=True,
        build=lambda _: _killed(),
        versions="systemd",
    ),
    CauseRule(
        literal="Killed",
        pattern=rf"^{_WHO}Killed(?: {{2,}}\S.{{0,400}})?$",
        where="line",
        rank="weak",
        ends=True,
        build=lambda _: attrs.evolve(_killed(), confidence="likely"),
        versions="bash, Slurm",
    ),
    CauseRule(
        literal="exited with code",
        pattern=r"exited with code (?P<code>13[245679])\b",
        where="line",
        rank="weak",
        ends=True,
        build=_exited,
        versions="docker compose",
    ),
    CauseRule(
        literal="terminated with exit code",
        pattern=r"terminated with exit code (?P<code>13[245679])\b",
        where="line",
        rank="weak",
        ends=True,
        build=_exited,
        versions="kubectl",
    ),
    CauseRule(
        literal="The actor is dead because its worker process has died",
        rank="weak",
        build=_lost,
        versions="Ray 2.0 to 2.5x",
    ),
    CauseRule(
        literal="Main process exited, code=",
        pattern=r"code=(?:dumped|killed), status=\d+/(?P<what>SEGV|ABRT|BUS|ILL|FPE)",
        where="line",
        rank="weak",
        build=_crashed,
        versions="systemd",
    ),
    CauseRule(
        literal="error: hardware stack error",
        pattern=r"CUDA error: hardware stack error",
        build=_hardware,
        versions="CUDA error 714",
    ),
    CauseRule(
        literal="NVMLError_ResetRequired",
        build=_hardware,
        versions="NVML 16",
    ),
    *(
        CauseRule(
            literal=said, pattern=rf"CUDA error: {said}", build=_illegal, versions="CUDA errors 717 and 718"
        )
        for said in ("operation not supported on global/shared address space", "invalid program counter")
    ),
)
