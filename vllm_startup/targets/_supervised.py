"""The probe of a main process that something supervises."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_startup._readings import ProcessExited, Reading
from vllm_startup.probes._process import ProcessProbe
from vllm_startup.targets._place import Heard


class SupervisedProcess:
    """The probe of a main process whose supervisor hears of the ends first, and may know them better.

    Args:
        probe: The probe of the process.
        heard: The supervisor's.
    """

    def __init__(self, probe: ProcessProbe, heard: Heard | None) -> None:
        self.name = probe.name
        self.interval_s = probe.interval_s
        self.limit_s = probe.limit_s
        self._probe = probe
        self._heard = heard

    async def sample(self, now: float) -> Iterable[Reading]:
        """What the process's probe sees, but for ends that are told by somebody else."""
        seen = await self._probe.sample(now)
        heard = self._heard
        return [r for r in seen if heard is None or not isinstance(r, ProcessExited) or heard(r)]

    async def aclose(self) -> None:
        """Close the process's probe."""
        await self._probe.aclose()
