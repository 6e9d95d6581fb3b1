"""A simulated bring-up that is launched and watched by the very code that watches a real one."""

from __future__ import annotations

from collections.abc import Callable

from vllm_startup._demo.command import simulated_server
from vllm_startup._demo.settings import VERSIONS, Scenario
from vllm_startup._events import Event
from vllm_startup._launching.launch import Launch, launch
from vllm_startup._timeouts import Timeouts

_TOTAL_S = 60.0  # four times what a demonstration takes; a machine may be slow
_STALL_S = 4.0  # a real server is given 600


def demo(
    scenario: Scenario = "ready",
    *,
    speed: float = 1.0,
    version: str = VERSIONS[-1],
    on_event: Callable[[Event], object] | None = None,
) -> Launch:
    """Launch a simulated server, to be entered with ``async with`` and waited for like any other.

    Args:
        scenario: How the start goes.
        speed: How much faster than in 10 s.
        version: Which vLLM's output is printed.
        on_event: Called with every event.

    Raises:
        ValueError: An argument makes no sense.
    """
    return launch(simulated_server(scenario, speed=speed, version=version), on_event=on_event)


def demo_timeouts(scenario: Scenario) -> Timeouts:
    """The limits of a demonstration: one that hangs is to be told in seconds."""
    if scenario == "hang":
        return Timeouts(_TOTAL_S, stall=_STALL_S)
    return Timeouts(_TOTAL_S)
