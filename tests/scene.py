"""Short words for what a watch sees, and a machine that sees it."""
# ruff: noqa: E501 - log lines as they are printed

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from vllm_startup import _readings as r
from vllm_startup._machine.machine import StartupMachine
from vllm_startup._machine.reporting import report
from vllm_startup._machine.terms import Terms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_startup._events import Event
    from vllm_startup._report import StartupReport

GIB = 1 << 30
MIB = 1 << 20

BANNER = " ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0"
ARCHITECTURE = "Resolved architecture: LlamaForCausalLM"
INIT = "Initializing a V1 LLM engine (v0.32.0) with config: model='/models/m'"
DIST = "world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:4000 backend=nccl"
LOAD = "Starting to load model /models/m..."
LOADED = "Loading weights took 1.00 seconds"
COMPILE = "Dynamo bytecode transform time: 6.21 s"
KV = "GPU KV cache size: 412,336 tokens"
CAPTURED = "Graph capturing finished in 9 secs, took 0.61 GiB"
ENGINE_READY = "init engine (profile, create kv cache, warmup model) took 41.93 s"
ROUTES = "Available routes are:"
SERVED = "INFO:     Application startup complete."
AFTERMATH = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"

PROBES = {
    "Log": "log",
    "ProcessTree": "tree",
    "Process": "process",
    "Gpu": "gpu",
    "Cache": "cache",
    "Connection": "health",
    "Answer": "health",
}


NOON = 1_796_040_000.0  # 2026-11-30 12:00:00 UTC


def stamped(text: str, clock: str, *, name: str = "APIServer", pid: int = 10, level: str = "INFO") -> str:
    return f"({name} pid={pid}) {level} 11-30 {clock} [x.py:1] {text}"


def api(text: str, level: str = "INFO", *, pid: int = 10) -> str:
    return f"(APIServer pid={pid}) {level} 11-30 14:20:40 [api.py:1] {text}"


def engine(text: str, level: str = "INFO", *, pid: int = 20, name: str = "EngineCore") -> str:
    return f"({name} pid={pid}) {level} 11-30 14:20:40 [core.py:1] {text}"


def worker(text: str, level: str = "INFO", *, pid: int = 30, name: str = "Worker_TP0") -> str:
    return f"({name} pid={pid}) {level} 11-30 14:20:40 [worker.py:1] {text}"


def failing(*lines: str, pid: int = 20, name: str = "EngineCore") -> tuple[str, ...]:
    """The engine's own words when it dies of an exception."""
    texts = (
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        '  File "/opt/vllm/core.py", line 3, in run',
        "    work()",
        *lines,
    )
    return tuple(engine(text, "ERROR", pid=pid, name=name) for text in texts)


def aftermath() -> tuple[str, ...]:
    """What the API server prints after any death of an engine."""
    return (
        "Traceback (most recent call last):",
        '  File "/opt/vllm/bin/vllm", line 6, in <module>',
        "    sys.exit(main())",
        AFTERMATH,
    )


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.50 GiB is free."


def opened(*, stream: bool = False) -> r.Reading:
    return r.LogOpened(source="vllm.log", stream=stream)


def log(*lines: str, history: bool = False, partial: str | None = None) -> r.Reading:
    return r.LogLines(lines=lines, history=history, partial=partial)


def found(pid: int = 10, *, age_s: float | None = 0.0, started_at: float | None = None) -> r.Reading:
    return r.ProcessFound(pid=pid, age_s=age_s, started_at=started_at)


def proc(
    pid: int,
    name: str,
    cpu_s: float = 0.0,
    *,
    ppid: int = 10,
    rss: int = 0,
    read: int | None = None,
    status: str = "sleeping",
) -> r.ProcessSample:
    return r.ProcessSample(
        pid=pid,
        ppid=ppid,
        started_at=0.0,
        name=name,
        cpu_s=cpu_s,
        rss_bytes=rss,
        read_bytes=read,
        status=status,
    )


def server(cpu_s: float = 0.0, **more: Any) -> r.ProcessSample:
    return proc(10, "vllm", cpu_s, ppid=1, **more)


def core(
    cpu_s: float = 0.0, *, pid: int = 20, name: str = "VLLM::EngineCore", **more: Any
) -> r.ProcessSample:
    return proc(pid, name, cpu_s, **more)


def rank(
    cpu_s: float = 0.0, *, pid: int = 30, ppid: int = 20, name: str = "VLLM::Worker_TP0", **more: Any
) -> r.ProcessSample:
    return proc(pid, name, cpu_s, ppid=ppid, **more)


def tree(*processes: r.ProcessSample, root: int = 10) -> r.Reading:
    return r.ProcessTree(root=root, processes=processes)


def died(
    pid: int = 10, name: str = "vllm", *, code: int | None = None, signal: int | None = None
) -> r.Reading:
    return r.ProcessExited(pid=pid, name=name, code=code, signal=signal, root=pid == 10)


def gpu(*used_mib: int, total_mib: int = 97_887, tree_mib: int | None = None) -> r.Reading:
    return r.GpuMemory(
        gpus=tuple(
            r.GpuSample(
                index=index,
                uuid=f"GPU-{index}",
                used_bytes=used * MIB,
                total_bytes=total_mib * MIB,
                tree_bytes=None if tree_mib is None else tree_mib * MIB,
            )
            for index, used in enumerate(used_mib)
        )
    )


def refused() -> r.Reading:
    return r.Connection(state="refused")


def listening(owner: r.Owner = "tree", pid: int | None = None) -> r.Reading:
    return r.Connection(state="listening", owner=owner, owner_pid=pid)


def answered(
    status: int = 200,
    *,
    tier: r.Tier = "health",
    ok: bool | None = None,
    owner: r.Owner = "tree",
    pid: int | None = None,
) -> r.Reading:
    fine = status == 200 if ok is None else ok
    return r.Answer(tier=tier, ok=fine, status=status, owner=owner, owner_pid=pid)


Seen = tuple[float, r.Reading]


def probe_of(reading: r.Reading) -> str:
    kind = type(reading).__name__
    return next((name for start, name in PROBES.items() if kind.startswith(start)), "other")


def observed(rows: Iterable[Seen]) -> list[r.Observation]:
    return [r.Observation(at=at, probe=probe_of(reading), reading=reading) for at, reading in rows]


@attrs.define
class Run:
    """A machine, what it told, and its report when time had passed to a moment."""

    machine: StartupMachine
    events: list[Event]

    @property
    def report(self) -> StartupReport:
        return report(self.machine, self.machine.now, versions={})

    @property
    def phases(self) -> dict[str, float]:
        """When each phase began."""
        return {span.phase.value: span.started_s for span in self.report.phases}

    def told(self, kind: str) -> list[Any]:
        """The events of a kind."""
        return [event for event in self.events if event.event == kind]


def watch(
    rows: Iterable[Seen],
    *,
    until_s: float | None = None,
    wall: float | None = None,
    utc_offset_s: float = 0.0,
    **terms: Any,
) -> Run:
    """Let a machine see the rows, and then time pass to ``until_s``. Nothing is concluded."""
    machine = StartupMachine(Terms(**terms), wall=wall, utc_offset_s=utc_offset_s)
    events = machine.tick(0.0)
    for observation in observed(rows):
        events += machine.feed(observation)
    if until_s is not None:
        events += machine.tick(until_s)
    return Run(machine, events)
