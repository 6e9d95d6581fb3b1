"""The probe of a unit's main process."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_startup._readings import ProcessExited, Reading
from vllm_startup.probes._process import ProcessProbe
from vllm_startup.targets._unit import UnitProbe


class SupervisedProcess:
    """The probe of a unit's main process, whose end systemd knows better.

    Args:
        probe: The probe of the process.
        unit: The probe of its unit.
    """

    def __init__(self, probe: ProcessProbe, unit: UnitProbe) -> None:
        self.name = probe.name
        self.interval_s = probe.interval_s
        self.limit_s = probe.limit_s
        self._probe = probe
        self._unit = unit

    async def sample(self, now: float) -> Iterable[Reading]:
        """What the process's probe sees, but for an end of the main process that it cannot tell whole."""
        seen = await self._probe.sample(now)
        return [r for r in seen if not isinstance(r, ProcessExited) or self._unit.ended(r)]

    async def aclose(self) -> None:
        """Close the process's probe."""
        await self._probe.aclose()
