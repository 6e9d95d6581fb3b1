"""HostResource: host memory ran out, or what is shared of it."""

from __future__ import annotations

from vllm_startup.causes._base import Cause
from vllm_startup.causes._host import HostOutOfMemory, shared_memory_too_small
from vllm_startup.causes._rules import CauseRule, Found


def _killed_for_memory(found: Found) -> Cause:
    process = found.word("process")
    return HostOutOfMemory(
        message=f"{process or 'a process'} was killed because the host or container ran out of memory",
        hint="raise the memory limit of the container or unit, or load with fewer processes at a time",
        process=process,
        retryable=None,
    )


def _no_memory(_: Found) -> Cause:
    return HostOutOfMemory(message="the process could not allocate host memory", retryable=None)


def _shared_memory(_: Found) -> Cause:
    return shared_memory_too_small()


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="Killed process",
        pattern=r"[Oo]ut of memory: Killed process (?P<pid>\d+) \((?P<process>[^)]{1,64})\)",
        where="line",
        build=_killed_for_memory,
        versions="Linux 4 to 6",
    ),
    CauseRule(
        literal="oom-kill:",
        pattern=r"oom-kill:constraint=.{0,400}?task=(?P<process>[^,]{1,64}),pid=(?P<pid>\d+)",
        where="line",
        build=_killed_for_memory,
        versions="Linux 5 to 6",
    ),
    CauseRule(
        literal="due to memory pressure for",
        pattern=r"^Killed (?P<process>\S{1,300}) due to memory pressure for",
        where="line",
        build=_killed_for_memory,
        versions="systemd-oomd 247 to 257",
    ),
    CauseRule(
        literal="killed by the OOM killer",
        where="line",
        build=_killed_for_memory,
        versions="systemd 243 to 257",
    ),
    CauseRule(
        literal="result 'oom-kill'",
        where="line",
        ends=True,
        build=_killed_for_memory,
        versions="systemd 243 to 257",
    ),
    CauseRule(
        literal="OOMKilled", where="line", ends=True, build=_killed_for_memory, versions="Kubernetes, Docker"
    ),
    CauseRule(
        literal="oom_kill event",
        pattern=r"Detected \d+ oom_kill events? in ",
        where="line",
        ends=True,
        build=_killed_for_memory,
        versions="Slurm 20 to 25",
    ),
    CauseRule(
        literal="Out Of Memory",
        pattern=r"^srun: error: [^\s:]{1,200}: tasks? [\d,-]{1,100}: Out Of Memory$",
        where="line",
        ends=True,
        build=_killed_for_memory,
        versions="Slurm 20 to 25",
    ),
    CauseRule(
        literal="due to the node running low on memory", build=_killed_for_memory, versions="Ray 2.2 to 2.5x"
    ),
    CauseRule(
        literal="which exceeds the memory usage threshold of",
        pattern=r"exceeds the memory usage threshold of [\d.]{1,10}\. Ray killed this worker",
        where="line",
        build=_killed_for_memory,
        versions="Ray 2.2 to 2.5x",
    ),
    CauseRule(
        literal="killed by SIGKILL by OOM killer due to high memory usage",
        rank="weak",
        build=lambda _: HostOutOfMemory(
            message="a Ray worker died, most often for host memory; Ray lists a crash as the other "
            "possibility",
            confidence="likely",
        ),
        versions="Ray 2.0 to 2.5x",
    ),
    CauseRule(literal="memory: you tried to allocate", build=_no_memory, versions="torch 1.x to 2.9"),
    CauseRule(literal="Cannot allocate memory", build=_no_memory, rank="generic", versions="glibc"),
    CauseRule(
        literal="MemoryError",
        pattern=r"MemoryError(?!: Not enough space in the data buffer)",  # of vLLM's own
        exceptions=("MemoryError",),
        build=_no_memory,
        rank="generic",
        versions="Python",
    ),
    CauseRule(literal="_ArrayMemoryError", build=_no_memory, rank="generic", versions="numpy 1 and 2"),
    CauseRule(literal="std::bad_alloc", where="both", build=_no_memory, versions="libstdc++"),
    *(
        CauseRule(
            literal=said,
            where="both",
            explains=("nccl_failed",),
            build=_shared_memory,
            versions="NCCL 2.18 to 2.27",
        )
        for said in ("Error while creating shared memory segment", "failed to extend /dev/shm/")
    ),
    CauseRule(
        literal="insufficient shared memory (shm)",
        where="both",
        build=_shared_memory,
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="No space left on device",
        pattern=r"No space left on device.{0,40}(?:/dev/shm|psm_|/torch_\d|sem\.)"
        r"|</torch_\d[^>\n]{0,60}>[^\n]{0,40}: No space left on device",
        build=_shared_memory,
        versions="Python, torch",
    ),
    CauseRule(
        literal="memory allocation of ",
        pattern=r"^memory allocation of \d+ bytes failed$",
        where="line",
        ends=True,
        build=_no_memory,
        versions="Rust",
    ),
    CauseRule(literal="(os error 12)", build=_no_memory, versions="Rust"),
    CauseRule(
        literal="LLVM ERROR: out of memory", where="line", ends=True, build=_no_memory, versions="LLVM"
    ),
    CauseRule(
        literal="OpenBLAS error: Memory allocation still failed",
        where="line",
        ends=True,
        build=_no_memory,
        versions="OpenBLAS 0.3",
    ),
    CauseRule(
        literal="The node was low on resource: memory",
        where="line",
        ends=True,
        build=_killed_for_memory,
        versions="Kubernetes",
    ),
    CauseRule(
        literal="exceeded memory limit (",
        pattern=r"^slurmstepd: error: [^\n]{1,80} exceeded memory limit \(",
        where="line",
        ends=True,
        build=_killed_for_memory,
        versions="Slurm 17 to 20",
    ),
    CauseRule(
        literal="unable to allocate shared memory(shm) for file",
        build=_shared_memory,
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal=" exceeds /dev/shm size",
        build=_shared_memory,
        versions="Ray 2",
    ),
    CauseRule(literal="Insufficient space in /dev/shm", build=_shared_memory, versions="0.29 to 0.33"),
)
