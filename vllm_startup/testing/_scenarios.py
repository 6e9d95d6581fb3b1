"""Whole bring-ups as evidence: what the probes of a watch see from the start to the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from vllm_startup._readings import (
    Answer,
    Connection,
    LogLines,
    LogOpened,
    ProcessExited,
    ProcessFound,
    ProcessSample,
    ProcessTree,
    Reading,
)
from vllm_startup._rules import Rule
from vllm_startup.causes._base import Cause
from vllm_startup.testing._probes import ScriptedProbe

_PID, _ENGINE_PID = 4242, 4243
_CUE = "the scripted failure"
_DYING_S = 0.5

_API = f"(APIServer pid={_PID}) INFO 01-01 00:00:00"
_ENGINE = f"(EngineCore pid={_ENGINE_PID}) INFO 01-01 00:00:00"

# A start of vLLM 0.33 on one GPU, by the share of its time after which each line is printed.
_LINES: tuple[tuple[float, str], ...] = (
    (0.05, f"{_API} [utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.33.0"),
    (0.10, f"{_API} [model.py:733] Resolved architecture: Qwen3ForCausalLM"),
    (
        0.20,
        f"{_ENGINE} [core.py:133] Initializing a V1 LLM engine (v0.33.0) with config: model='Qwen/Qwen3-8B'",
    ),
    (0.30, f"{_ENGINE} [gpu_model_runner.py:5012] Starting to load model Qwen/Qwen3-8B..."),
    (0.50, f"{_ENGINE} [default_loader.py:501] Loading weights took 11.52 seconds"),
    (0.60, f"{_ENGINE} [backends.py:1203] Dynamo bytecode transform time: 6.21 s"),
    (0.80, f"{_ENGINE} [kv_cache_utils.py:2327] GPU KV cache size: 412,336 tokens"),
    (0.85, f"{_ENGINE} [gpu_model_runner.py:6001] Graph capturing finished in 9 secs, took 0.61 GiB"),
    (0.90, f"{_ENGINE} [core.py:402] init engine (profile, create kv cache, warmup model) took 41.93 s"),
    (0.95, f"{_API} [launcher.py:186] Available routes are:"),
)

_Story = tuple[tuple[float, tuple[Reading, ...]], ...]


@attrs.frozen(kw_only=True)
class Scenario:
    """One bring-up: what each probe sees when, and what it takes to understand it.

    Attributes:
        seen: By the probe's name, pairs of seconds since the watch began and what is seen then.
        rules: Rules that the watch needs to tell the scenario's cause.
    """

    seen: dict[str, _Story]
    rules: tuple[Rule, ...] = ()

    def probes(self) -> list[ScriptedProbe]:
        """Fresh probes that see it."""
        return [ScriptedProbe(name, story) for name, story in self.seen.items()]


def ready_after(seconds: float, *, log: bool = True) -> Scenario:
    """A healthy start that answers 200 after so many seconds.

    Args:
        seconds: When ``/health`` answers; the phases before share the time.
        log: Whether there is a log to follow.
    """
    answers = (
        Connection(state="listening", owner="tree"),
        Answer(tier="health", ok=True, status=200, owner="tree"),
    )
    seen = _start(seconds, seconds, log=log)
    return Scenario(seen={**seen, "health": (*seen["health"], (seconds, answers))})


def failed_after(
    seconds: float, cause: Cause | None = None, *, lines: Sequence[str] = (), code: int = 1
) -> Scenario:
    """A start whose main process exits after so many seconds.

    Args:
        seconds: When the failure is logged; the process is gone half a second later.
        cause: What the watch is to find, instead of what ``lines`` say.
        lines: The log's last lines.
        code: The exit status.
    """
    seen = _start(seconds, seconds / 0.5)
    last = (*lines, *((_CUE,) if cause is not None else ()))
    rules = () if cause is None else (Rule(_CUE, lambda _: cause, name="scripted"),)
    died = ProcessExited(pid=_PID, name="vllm", root=True, code=code)
    return Scenario(seen=_ending(seen, seconds, last, died), rules=rules)


def killed_after(seconds: float, *, signal: int = 9) -> Scenario:
    """A start whose main process is ended by a signal after so many seconds, without a word."""
    died = ProcessExited(pid=_PID, name="vllm", root=True, signal=signal)
    return Scenario(seen=_ending(_start(seconds, seconds / 0.5), seconds, (), died))


def hung_after(seconds: float) -> Scenario:
    """A start in which nothing moves any more after so many seconds: no line, no CPU time, no end."""
    return Scenario(seen=_start(seconds, seconds / 0.5))


def _start(until_s: float, whole_s: float, *, log: bool = True) -> dict[str, _Story]:
    """A healthy start that would take ``whole_s``, as far as ``until_s``."""
    if not (math.isfinite(until_s) and until_s > 0):
        raise ValueError(f"seconds must be a positive, finite number, not {until_s!r}")
    spoken = [(whole_s * share, text) for share, text in _LINES if whole_s * share < until_s]
    seen: dict[str, _Story] = {
        "process": ((0.0, (ProcessFound(pid=_PID, command=("vllm", "serve", "Qwen/Qwen3-8B")),)),),
        "tree": tuple((at, (_tree(at, whole_s),)) for at in _every_second(until_s)),
        "health": ((0.0, (Connection(state="refused"),)),),
    }
    if log:
        lines = ((at, (LogLines(lines=(text,)),)) for at, text in spoken)
        seen["log"] = ((0.0, (LogOpened(source="vllm.log"),)), *lines)
    return seen


def _ending(
    seen: dict[str, _Story], at: float, lines: tuple[str, ...], died: ProcessExited
) -> dict[str, _Story]:
    gone = at + _DYING_S
    ending: dict[str, _Story] = {
        "process": ((gone, (died,)),),
        "tree": ((gone, (ProcessTree(root=_PID, processes=()),)),),
    }
    if lines:
        ending["log"] = ((at, (LogLines(lines=lines),)),)
    return {name: (*story, *ending.get(name, ())) for name, story in seen.items()}


def _every_second(until_s: float) -> list[float]:
    return [float(second) for second in range(math.ceil(until_s))]


def _tree(at: float, whole_s: float) -> ProcessTree:
    server = ProcessSample(pid=_PID, ppid=1, started_at=0.0, name="vllm", cpu_s=min(at, 0.2 * whole_s))
    engine_began = 0.15 * whole_s
    if at < engine_began:
        return ProcessTree(root=_PID, processes=(server,))
    engine = ProcessSample(
        pid=_ENGINE_PID, ppid=_PID, started_at=0.0, name="VLLM::EngineCore", cpu_s=at - engine_began
    )
    return ProcessTree(root=_PID, processes=(server, engine))
