"""What is told of the watch itself: warnings, each once, and probes that are broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vllm_startup._diagnosis.evidence import clean
from vllm_startup._events import Event, ProbeBroke, ProbeRecovered, Warned


class Notices:
    """Keeps what does not end the wait. `elapsed` gives the newest attempt's seconds at a time."""

    def __init__(self, emit: Callable[[Event], None], elapsed: Callable[[float], float]) -> None:
        self._emit = emit
        self._elapsed = elapsed
        self._warnings: dict[tuple[str, str], None] = {}
        self._broken: dict[str, str] = {}
        self._untold: set[str] = set()  # broken by what was told of another one

    @property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """Code and text of each, in the order in which they were told."""
        return tuple(self._warnings)

    @property
    def broken(self) -> Mapping[str, str]:
        """The probes that are broken, with the error of each."""
        return self._broken

    def warn(self, at: float, code: str, text: str) -> None:
        """Tell something once."""
        text = clean(text)
        if (code, text) not in self._warnings:
            self._warnings[code, text] = None
            self._emit(Warned(at=at, elapsed_s=self._elapsed(at), code=code, text=text))

    def broke(self, at: float, probe: str, error: str) -> None:
        """Tell that a probe is broken, unless another one is by the same error."""
        if probe in self._broken:
            return
        error = clean(error)
        shared = error in self._broken.values()  # such as a lost connection, which all of them go over
        self._broken[probe] = error
        if shared:
            self._untold.add(probe)
            return
        self._warnings["probe_broken", f"probe {probe}: {error}"] = None
        self._emit(ProbeBroke(at=at, elapsed_s=self._elapsed(at), probe=probe, error=error))

    def recovered(self, at: float, probe: str) -> None:
        """Tell that a probe works again, if it was told that it did not."""
        if self._broken.pop(probe, None) is None:
            return
        if probe in self._untold:
            self._untold.remove(probe)
        else:
            self._emit(ProbeRecovered(at=at, elapsed_s=self._elapsed(at), probe=probe))
