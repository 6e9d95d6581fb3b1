"""A stand-in for `vllm_startup.wait_until_ready` that watches scripted bring-ups."""

from __future__ import annotations

import inspect
from typing import Any

from vllm_startup._report import StartupReport
from vllm_startup._startup import Startup
from vllm_startup._sync import in_own_loop
from vllm_startup._wait import wait_until_ready
from vllm_startup.testing._clock import FakeClock
from vllm_startup.testing._scenarios import Scenario

_SEAMS = ("process", "pid", "log", "gpus", "probes", "model", "api_key", "verify", "clock", "rules")


class ScriptedWait:
    """Takes the place of `vllm_startup.wait_until_ready`: each call watches the next scenario.

    It takes the same arguments. Those that say what to wait for (``timeouts``, ``until``,
    ``stable_for``, ``rules``, ``on_event``, ...) mean the same; those that say where to look are
    kept in ``calls`` and not looked at. `sync` takes the place of ``wait_until_ready_sync``.

    Args:
        scenarios: One bring-up a call.
        clock: The time; a `FakeClock` of its own if not given. Its ``sleep`` suits the pauses of
            the code under test.

    Attributes:
        calls: The arguments of each call, by name, ``url`` among them.
        clock: The time.
    """

    def __init__(self, *scenarios: Scenario, clock: FakeClock | None = None) -> None:
        self.calls: list[dict[str, object]] = []
        self.clock = FakeClock() if clock is None else clock
        self._scenarios = scenarios

    async def __call__(self, url: str | None = None, **arguments: object) -> StartupReport:
        """Wait for the end of the next scenario.

        Raises:
            AssertionError: There is no scenario left.
            StartupError: As from the real one, with the scenario's cause.
            TypeError: The real one does not take such an argument.
        """
        inspect.signature(wait_until_ready).bind(url, **arguments)
        self.calls.append({"url": url, **arguments})
        if len(self.calls) > len(self._scenarios):
            raise AssertionError(
                f"call {len(self.calls)} of a ScriptedWait that holds {len(self._scenarios)} scenarios"
            )
        scenario = self._scenarios[len(self.calls) - 1]
        terms: dict[str, Any] = {name: value for name, value in arguments.items() if name not in _SEAMS}
        rules: Any = arguments.get("rules", ())
        watch = Startup(
            scenario.probes(), url=url, rules=(*rules, *scenario.rules), clock=self.clock, **terms
        )
        async with watch:
            return await watch.wait_until_ready()

    def sync(self, url: str | None = None, **arguments: object) -> StartupReport:
        """Do the same without an event loop."""
        return in_own_loop(self.__call__)(url, **arguments)
