"""What may happen to the watcher itself, and what its caller's own code may do."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

import faults_of_logs
import faults_of_probes
from stage import Fault, Stage, Standing, always

from vllm_startup._clock import LoopClock
from vllm_startup.probes import Reading

PAUSE_S = 4.5
"""Longer than what the pump takes for a busy loop."""

# --- the watcher ----------------------------------------------------------------------------


async def watcher_stopped(stage: Stage) -> None:
    assert stage.watcher is not None
    os.kill(stage.watcher.pid, signal.SIGSTOP)
    await asyncio.sleep(PAUSE_S)
    os.kill(stage.watcher.pid, signal.SIGCONT)
    await asyncio.sleep(0.2)
    assert stage.watcher.returncode is None


class Stepped(LoopClock):
    """A wall clock that somebody sets while the watch goes on."""

    def __init__(self, *steps_s: float) -> None:
        self._steps_s = list(steps_s)

    def wall(self) -> float:
        step_s = self._steps_s[0] if len(self._steps_s) == 1 else self._steps_s.pop(0)
        return time.time() + step_s


async def out_of_descriptors_for_a_while(_stage: Stage) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    await asyncio.sleep(0.5)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- the caller's code ----------------------------------------------------------------------


class OfMineError(BaseException):
    """An exception that no ``except Exception`` meets."""


def raising(error: BaseException) -> Callable[..., Any]:
    def call(*_arguments: object) -> Any:
        raise error

    return call


async def asynchronous(_event: object) -> None:
    raise AssertionError("nobody awaits this")


class Own(Standing):
    """A probe of the caller's own, that fails in one of its parts."""

    name = "own"
    interval_s = 0.05  # type: ignore[assignment]  # no property here

    def __init__(self, part: str, error: BaseException) -> None:
        self.part = part
        self.error = error

    def _may(self, part: str) -> None:
        if part == self.part:
            raise self.error

    async def sample(self, now: float) -> Iterable[Reading]:
        self._may("sample")
        return ()

    async def aclose(self) -> None:
        self._may("aclose")

    def glance(self, now: float) -> bool:
        self._may("glance")
        return True


async def everything_at_once(stage: Stage) -> None:
    """Ten thousand lines a second, a log that is rotated, and a stranger's port."""
    stranger = await stage.another()
    await stranger.do("listen", stage.port, "hostile")
    await faults_of_logs.flooded(stage)
    await stranger.end()


ERRORS: tuple[BaseException, ...] = (ValueError("mine"), OfMineError("mine"))


def _hook(call: Callable[..., Any], name: str) -> Fault:
    return Fault(name=f"on_event {name}", further=lambda: {"on_event": call})


def _rule(error: BaseException) -> Fault:
    return Fault(
        name=f"rules raise {type(error).__name__}",
        further=lambda: {"rules": always(raising(error))},
        warned=frozenset({"rule_failed"}),
    )


def _own(part: str, error: BaseException, **more: Any) -> Fault:
    return Fault(
        name=f"{part} of an own probe raises {type(error).__name__}",
        further=lambda: {"probes": [Own(part, error)]},
        **more,
    )


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="everything at once",
        during=everything_at_once,
        wrap={
            "process": faults_of_probes.Slow,
            "tree": faults_of_probes.Raising,
            "caches": faults_of_probes.Hanging,
            "cgroup": faults_of_probes.Lying,
        },
        further=lambda: {
            "on_event": lambda _: time.sleep(0.01),
            "rules": always(raising(ValueError("mine"))),
            "probes": [Own("sample", ValueError("mine"))],
            "clock": Stepped(*(1e6, -1e6) * 500, 0.0),
        },
        warned=frozenset({"probe_broken", "rule_failed"}),
    ),
    Fault(
        name="watcher stopped and continued",
        by_command=True,
        during=watcher_stopped,
        options=("--stall", "3"),
        total_s=4.0,
        warned=frozenset({"watch_paused"}),
    ),
    Fault(name="clock stepped ahead", further=lambda: {"clock": Stepped(0.0, 0.0, 1e9)}),
    Fault(name="clock stepped back", further=lambda: {"clock": Stepped(0.0, 0.0, -1e8)}),
    Fault(name="clock stepped to and fro", further=lambda: {"clock": Stepped(*(1e6, -1e6) * 500, 0.0)}),
    Fault(name="out of descriptors for a while", during=out_of_descriptors_for_a_while),
    *(
        _hook(raising(error), f"raises {type(error).__name__}")
        for error in (*ERRORS, SystemExit(3), KeyboardInterrupt(), GeneratorExit())
    ),
    _hook(lambda event: asynchronous(event), "gives a coroutine"),
    *(_rule(error) for error in (*ERRORS, StopIteration("mine"), asyncio.CancelledError())),
    _own("sample", ValueError("mine"), warned=frozenset({"probe_broken"})),
    _own("sample", OfMineError("mine"), outcome=OfMineError),
    *(_own(part, error) for part in ("glance", "aclose") for error in ERRORS),
)
