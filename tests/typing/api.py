"""What users' type checkers see. It is checked, not run."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterable
from typing import assert_never, assert_type

import attrs

import vllm_startup
from vllm_startup import (
    Advance,
    Event,
    Line,
    Phase,
    PhaseEntered,
    Probe,
    Progress,
    Rule,
    Startup,
    StartupError,
    StartupReport,
    StartupStalled,
    StartupTimeout,
    Status,
    Timeouts,
    causes,
    probes,
    testing,
    wait_until_ready,
    wait_until_ready_sync,
    watch,
)


async def main_job(process: subprocess.Popen[bytes]) -> None:
    """The calls of the README."""
    assert_type(await wait_until_ready("http://127.0.0.1:8000", pid=4242, log="vllm.log"), StartupReport)
    assert_type(wait_until_ready_sync("http://127.0.0.1:8000", process=process), StartupReport)
    async with watch("http://127.0.0.1:8000", timeouts=Timeouts(1800, loading_weights=900)) as startup:
        assert_type(startup, Startup)
        assert_type(startup.status, Status)
        assert_type(startup.status.summary, str)
        assert_type(startup.events(), AsyncIterator[Event])
        assert_type(await startup.wait_until_ready(), StartupReport)
        async for event in startup.events():
            if isinstance(event, PhaseEntered):
                assert_type(event.phase, Phase)


def failure(error: StartupError) -> str:
    """A cause is matched by kind, by field and by family."""
    match error.cause:
        case causes.KvCacheTooSmall(fits_len=int(length)):
            assert_type(length, int)
            return f"use {length}"
        case causes.GpuMemory() as cause:
            assert_type(cause.retryable, bool | None)
            return cause.message
        case causes.DependencyVersionMismatch(package=package):
            assert_type(package, str | None)
            return package or ""
        case _:
            return error.cause.kind


def limits(error: StartupStalled) -> tuple[StartupTimeout, TimeoutError]:
    """A stall is a timeout."""
    return error, error


def phase(value: Phase) -> int:
    """Phases are a closed set."""
    match value:
        case Phase.LAUNCHING | Phase.CONFIGURING | Phase.INITIALIZING:
            return 1
        case Phase.LOADING_WEIGHTS | Phase.COMPILING | Phase.ALLOCATING_KV_CACHE | Phase.WARMING_UP:
            return 2
        case Phase.STARTING_SERVER | Phase.READY:
            return 3
        case _:
            assert_never(value)


@attrs.frozen(kw_only=True)
class QueueLength(probes.Reading):
    """A reading of one's own."""

    waiting: int


class QueueProbe:
    """A probe of one's own needs no base class."""

    name = "queue"
    interval_s = 1.0
    limit_s: float | None = 5.0

    async def sample(self, now: float) -> Iterable[probes.Reading]:
        """Look."""
        return [QueueLength(waiting=int(now))]

    async def aclose(self) -> None:
        """Release nothing."""


def on_line(line: Line) -> Advance | causes.Cause | None:
    """A match on lines."""
    return Advance(Phase.WARMING_UP) if "ready" in line.message else None


def on_reading(reading: probes.Reading) -> Progress | None:
    """A match on readings."""
    return Progress("queue", reading.waiting) if isinstance(reading, QueueLength) else None


async def own_evidence() -> None:
    """Probes, rules, hooks."""
    probe: Probe = QueueProbe()
    rules = [Rule("plugin", on_line), Rule(None, on_reading, name="queue")]
    seen: list[Event] = []
    async with Startup([probe], rules=rules, on_event=seen.append, record="r.jsonl") as startup:
        report = await startup.wait_until_ready()
    assert_type(report.phases[0].because[0].text, str)
    assert_type(report.cause, causes.Cause | None)


async def for_tests() -> None:
    """The tools for tests."""
    clock = testing.FakeClock()
    probe: Probe = testing.ScriptedProbe(
        "p", [(0, probes.LogEnded()), (1, [probes.LogEnded()]), (2, OSError())]
    )
    wait = testing.ScriptedWait(testing.ready_after(60), clock=clock)
    assert_type(await wait("http://a:1", timeouts=Timeouts(60)), StartupReport)
    assert_type(testing.replay("r.jsonl", until="model"), StartupReport)
    async with Startup([probe, testing.HungProbe()], clock=clock):
        await clock.advance(5)
    assert_type(vllm_startup.__version__, str)


def before_and_after() -> None:
    """The checks before a start, and what dead servers left."""
    found = vllm_startup.preflight(
        ["vllm", "serve", "m"], env={}, cwd="/", python="/usr/bin/python3", timeout=5
    )
    assert_type(found, vllm_startup.Preflight)
    assert_type(found.ok, bool)
    for cause in found.causes:
        match cause:
            case causes.DependencyVersionMismatch(package=str(package), other_version=str(version)):
                print(package, version)
            case causes.PortInUse():
                print(cause.address)
            case _:
                print(cause.hint)
    left = vllm_startup.cleanup(kill=True)
    assert_type(left, vllm_startup.Cleanup)
    assert_type(next(process.gpu_bytes for process in left.left).get(0), int | None)
