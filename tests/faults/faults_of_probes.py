"""Probes that hang, raise, are slow or lie: each of them, in turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
from stage import PROBES, Fault, Standing, dies

from vllm_startup.probes import GpuMemory, GpuSample, ProcessSample, ProcessTree, Reading


class Hanging(Standing):
    limit_s = 0.05

    async def sample(self, now: float) -> Iterable[Reading]:
        await asyncio.Event().wait()
        return ()


class Raising(Standing):
    async def sample(self, now: float) -> Iterable[Reading]:
        raise OSError(5, "Input/output error")


class Slow(Standing):
    async def sample(self, now: float) -> Iterable[Reading]:
        await asyncio.sleep(0.15)
        return await super().sample(now)


class Blocking(Standing):
    """Stops the whole loop, as a probe must not."""

    limit_s = 5.0

    async def sample(self, now: float) -> Iterable[Reading]:
        time.sleep(0.05)  # noqa: ASYNC251 - the fault
        return await super().sample(now)


class Holding(Standing):
    """Will not be closed."""

    async def aclose(self) -> None:
        await super().aclose()
        raise OSError(5, "Input/output error")


WRONG: tuple[Any, ...] = (None, "text", float("nan"), float("inf"), -1, 1e300, 10**30, [], object(), True, ())
"""What may stand where something else belongs. Among it are times long past and far ahead."""

SAMPLES = (
    GpuSample(index=0, uuid="GPU-0", used_bytes=1, total_bytes=2),
    ProcessSample(pid=1, ppid=0, started_at=0.0, name="x", cpu_s=0.0),
)


def lies(reading: Any) -> Iterator[Any]:
    """The same reading with each of its members wrong in each way; not those that refuse to be made."""
    for member in attrs.fields(type(reading)):
        for wrong in WRONG:
            if type(wrong) is type(getattr(reading, member.name)):
                continue  # a plausible value is no lie that anybody could tell
            try:
                yield attrs.evolve(reading, **{member.name: wrong})
            except (TypeError, ValueError):
                continue


class Lying(Standing):
    """Tells the truth last."""

    async def sample(self, now: float) -> Iterable[Reading]:
        seen = tuple(await super().sample(now))
        gpu, process = SAMPLES
        return [
            *(lie for reading in seen for lie in lies(reading)),
            *(GpuMemory(gpus=(lie,)) for lie in lies(gpu)),
            *(ProcessTree(root=1, processes=(lie,)) for lie in lies(process)),
            *seen,
        ]


def _fault(stand_in: type[Standing], word: str, probe: str, **more: Any) -> Fault:
    return Fault(name=f"{word} probe {probe}", wrap={probe: stand_in}, **more)


def _useless(stand_in: type[Standing], word: str, error: str) -> Iterator[Fault]:
    """A probe that is of no use: without the health probe nothing can be ready."""
    for probe in PROBES:
        ends: dict[str, Any] = {}
        if probe == "health":
            ends = {"outcome": "timed_out", "kind": "timed_out", "total_s": 1.0}
            ends["fields"] = {"suspect": f"the health probe does not work: {error}"}
        warned = frozenset({"probe_broken"})
        yield _fault(stand_in, word, probe, warned=warned, whole_log=probe != "log", **ends)


def _dying(stand_in: type[Standing], word: str) -> Iterator[Fault]:
    """The server dies: the log names the cause, and without it the process tells that it has ended."""
    for probe in PROBES:
        blind = probe == "log"
        yield Fault(
            name=f"{word} probe {probe}, and the server dies",
            wrap={probe: stand_in},
            then=dies,
            outcome="failed",
            kind="process_exited" if blind else "gpu_out_of_memory",
            whole_log=not blind,
        )


def _lying() -> Iterator[Fault]:
    warned = frozenset({"probe_broken"})
    return (_fault(Lying, "lying", probe, warned=warned, whole_log=probe != "log") for probe in PROBES)


def _all(stand_in: Callable[..., Standing]) -> dict[str, Any]:
    return dict.fromkeys(PROBES, stand_in)


FAULTS: tuple[Fault, ...] = (
    *_useless(Hanging, "hanging", f"no answer within {Hanging.limit_s:g} s"),
    *_useless(Raising, "raising", "OSError(5, 'Input/output error')"),
    *_dying(Hanging, "hanging"),
    *_dying(Raising, "raising"),
    *(_fault(Slow, "slow", probe) for probe in PROBES),
    *_lying(),
    Fault(name="every probe is slow", wrap=_all(Slow)),
    Fault(name="every probe blocks the loop", wrap=_all(Blocking)),
    Fault(name="no probe can be closed", wrap=_all(Holding)),
    Fault(
        name="every probe hangs",
        wrap=_all(Hanging),
        outcome="timed_out",
        kind="timed_out",
        fields={"suspect": f"the health probe does not work: no answer within {Hanging.limit_s:g} s"},
        total_s=1.0,
        whole_log=False,
    ),
)
