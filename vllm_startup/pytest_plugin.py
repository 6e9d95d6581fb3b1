"""Fixtures of `vllm_startup.testing`, loaded by pytest wherever the package is installed.

The plugin is imported in every session of pytest, so it imports nothing until a fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_startup import StartupReport
    from vllm_startup.testing import FakeClock, Scenario, ScriptedProbe, ScriptedWait


@pytest.fixture
def vllm_startup_clock() -> FakeClock:
    """A clock that jumps to the next timer whenever everything waits; see `FakeClock`."""
    from vllm_startup.testing import FakeClock

    return FakeClock()


@pytest.fixture
def vllm_startup_probe() -> type[ScriptedProbe]:
    """Makes probes that see what a script says: ``(name, script)``; see `ScriptedProbe`."""
    from vllm_startup.testing import ScriptedProbe

    return ScriptedProbe


@pytest.fixture
def vllm_startup_wait(vllm_startup_clock: FakeClock) -> Callable[..., ScriptedWait]:
    """Makes stand-ins for `wait_until_ready` of scenarios, on ``vllm_startup_clock``; see `ScriptedWait`."""
    from vllm_startup.testing import ScriptedWait

    def make(*scenarios: Scenario) -> ScriptedWait:
        return ScriptedWait(*scenarios, clock=vllm_startup_clock)

    return make


@pytest.fixture
def vllm_startup_replay() -> Callable[..., StartupReport]:
    """The report of a recording or of observations; see `vllm_startup.testing.replay`."""
    from vllm_startup.testing import replay

    return replay
