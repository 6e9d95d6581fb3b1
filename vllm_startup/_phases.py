"""The phases of a vLLM bring-up and the table of moves between them.

What the phases mean
--------------------
A vLLM server opens its port only when everything else is done, so the phases before
`Phase.READY` are told from the outside, by evidence of two strengths.

*Strong* evidence names the phase: a log line that vLLM prints in it, an exit, an answer over
HTTP. It moves the machine at once.

*Weak* evidence fits the phase and little else: an engine process appears, GPU memory rises and
then stands still while the workers compute. It moves the machine only while the log is silent
or absent and after it has held for a while on every rank; the phase is then dated back to when
the evidence began.

Phases only move forward, and any of them may be skipped: an eager start never compiles, a quiet
log never says that it sizes the KV cache. Evidence for an earlier phase than the one reached
does not move anything; where it contradicts what weak evidence had claimed, the report keeps
it under ``disputed``.

One phase is told for the whole server. An engine's phase is the furthest of its core and its
workers; the bring-up's is the least over the known engines; the API server speaks for
`Phase.CONFIGURING` and `Phase.STARTING_SERVER` only.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Final


class Phase(StrEnum):
    """A stage of a vLLM bring-up, in the order in which they are passed."""

    LAUNCHING = "launching"
    """The process exists and imports; vLLM has not said anything yet."""
    CONFIGURING = "configuring"
    """Arguments, the model's configuration and the tokenizer are read."""
    INITIALIZING = "initializing"
    """Engine and worker processes start: device contexts, NCCL or gloo, Ray placement."""
    LOADING_WEIGHTS = "loading_weights"
    """Weights are downloaded, read and post-processed."""
    COMPILING = "compiling"
    """Memory profiling, torch.compile or loading of its artefacts, graph-memory estimates."""
    ALLOCATING_KV_CACHE = "allocating_kv_cache"
    """The KV cache is sized and allocated."""
    WARMING_UP = "warming_up"
    """Kernel warm-up, autotuning, CUDA graph capture."""
    STARTING_SERVER = "starting_server"
    """Routes, chat template, uvicorn; readiness is being confirmed."""
    READY = "ready"
    """The chosen readiness tier held for as long as asked."""

    @cached_property
    def order(self) -> int:
        """The phase's place in the bring-up, counted from 0."""
        return tuple(Phase).index(self)


class End(StrEnum):
    """The machine's other end. It is no `Phase`: a report keeps the last phase that was reached."""

    FAILED = "failed"


TRANSITIONS: Final[tuple[tuple[str, tuple[Phase, ...], Phase | End], ...]] = (
    *(
        (f"enter_{destination}", tuple(Phase)[: destination.order], destination)
        for destination in Phase
        if destination is not Phase.LAUNCHING
    ),
    ("enter_failed", tuple(Phase)[: Phase.READY.order], End.FAILED),
)
"""Every move that exists, as (trigger, sources, destination): forward only, one ending."""


def diagram() -> str:
    """The bring-up as a Mermaid state diagram, drawn from `TRANSITIONS`.

    Skips of more than one phase are left out of the drawing; its note says that they exist.
    """
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.LAUNCHING}"]
    for _trigger, sources, destination in TRANSITIONS:
        drawn = sources if destination is End.FAILED else sources[-1:]
        lines += [f"    {source} --> {destination}" for source in drawn]
    lines += [
        f"    {Phase.READY} --> [*]",
        f"    {End.FAILED} --> [*]",
        f"    note right of {Phase.LAUNCHING}: forward only, phases may be skipped",
    ]
    return "\n".join(lines)
