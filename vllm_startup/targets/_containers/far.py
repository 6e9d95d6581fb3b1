"""A container's processes on another machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from vllm_startup._readings import Reading
from vllm_startup.probes._protocol import Probe
from vllm_startup.targets._containers.local import Inside, Pids
from vllm_startup.targets._containers.state import Life
from vllm_startup.targets._following import MainProcess
from vllm_startup.targets._place import Place

P = TypeVar("P", bound=Probe)


class PlacedProcesses:
    """Looks at the processes of a container on the machine that its engine is on.

    Args:
        place: That machine.
        main: The main process, as the engine names it.
        life: The container's life.
        gpus: The GPUs that it may use, where that is known.
        on_exit: Called when one of them has ended.
    """

    def __init__(
        self,
        place: Place,
        main: MainProcess,
        life: Life,
        *,
        gpus: Sequence[int | str] | None,
        on_exit: Callable[[], None],
    ) -> None:
        looks = place.look_at(main, gpus=gpus)
        self._keeper: Any
        self._keeper, *others = looks.probes
        pids = _Pids(place, lambda: self._keeper.pids)
        self.probes: Sequence[Probe] = [_Inside(self._keeper, main, pids, life, on_exit), *others]

    @property
    def seen(self) -> bool:
        """Whether they are seen."""
        return bool(self._keeper.pids)


class _Pids(Pids):
    """The numbers that a container's processes have in it, as another machine tells them."""

    def __init__(self, place: Place, seen: Callable[[], Collection[int]]) -> None:
        super().__init__()
        self._place = place
        self._seen = seen

    def inside(self, pid: int, started_at: float | None = None) -> int:
        """The number in the container of a process there."""
        return self._place.inner_pid(pid)

    def ends(self, pid: int) -> bool:
        """Whether a process there had ended at the last look."""
        return pid not in self._seen()


class _Inside(Inside[P]):
    """Of whichever process is the container's main one at the time."""

    def __init__(
        self, probe: P, main: MainProcess, pids: Pids, life: Life, on_exit: Callable[[], None]
    ) -> None:
        super().__init__(probe, 0, pids, life, on_exit)
        self._following = main

    async def sample(self, now: float) -> Iterable[Reading]:
        """Look with the probe."""
        self._main = self._following.pid or 0
        return await super().sample(now)
