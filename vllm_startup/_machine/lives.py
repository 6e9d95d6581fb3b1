"""Which processes of the server have lived when: whose end may have given GPU memory back."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from vllm_startup._readings import ProcessSample

_SCAN_S = 2.0  # the tree is looked at every second
_RELEASE_S = 10.0  # GPU memory is given back process by process, and looked at every 1 to 5 s


@attrs.define
class _Life:
    first_at: float
    last_at: float


class Lives:
    """Folds scans of a process tree."""

    def __init__(self) -> None:
        self._lives: dict[tuple[int, float], _Life] = {}
        self._looked_at = 0.0

    def look(self, at: float, processes: Iterable[ProcessSample]) -> None:
        """Take a scan; zombies live no more. Who has been gone for long is forgotten: compilers are many."""
        self._looked_at = at
        for process in processes:
            if process.status not in ("zombie", "dead"):
                self._lives.setdefault((process.pid, process.started_at), _Life(at, at)).last_at = at
        for identity in [each for each, life in self._lives.items() if life.last_at < at - 2 * _RELEASE_S]:
            del self._lives[identity]

    def ended_with(self, risen_at: float, fallen_at: float) -> bool:
        """Whether a process that lived when memory rose is gone, and ended about when memory fell, or later.

        What another tenant of the GPU takes and gives back is no sign of a death.
        """
        return any(
            life.first_at <= risen_at + _SCAN_S and fallen_at - _RELEASE_S <= life.last_at < self._looked_at
            for life in self._lives.values()
        )
