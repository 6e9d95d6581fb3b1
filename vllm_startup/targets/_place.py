"""Machines that servers run on: this one, or one that is reached from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from vllm_startup._readings import ProcessExited
from vllm_startup.probes._protocol import Probe
from vllm_startup.targets._commands import Commands
from vllm_startup.targets._following import MainProcess
from vllm_startup.targets._target import LoggedTarget

if TYPE_CHECKING:
    from vllm_startup._arguments import ServerArguments
    from vllm_startup.targets._containers.engine_address import EngineAddress

MOST_BYTES: Final = 1024 * 1024
"""Of a file that somebody else wrote."""

Heard = Callable[[ProcessExited], bool]
"""Asked of the end of a process, from the event loop, whether that may be told as it was seen."""


@attrs.frozen(kw_only=True)
class ProcessLooks:
    """What looks at a server's processes.

    Attributes:
        tree_pids: Returns them, for telling whose socket listens here; None where that cannot be told.
    """

    probes: Sequence[Probe]
    tree_pids: Callable[[], Collection[int]] | None = None


class Place(Protocol):
    """A machine, with what a target needs of it."""

    @property
    def commands(self) -> Commands:
        """Runs commands there."""
        ...

    def clock_ahead_s(self) -> float:
        """How far its clock is ahead of this machine's, in seconds."""
        ...

    def look_at(
        self,
        main: MainProcess,
        *,
        gpus: Sequence[int | str] | None,
        heard: Heard | None = None,
        serves: bool = True,
    ) -> ProcessLooks:
        """Make what looks at the server's processes there, whichever is the main one at the time.

        Args:
            main: Which is; it may be set to another one while they look.
            gpus: As of `Target.locate`.
            heard: Asked of each end that is seen.
            serves: Whether the main process is the server, or its ancestor; else it is only watched for
                life, as the client of a container's engine is.

        Raises:
            TypeError: ``gpus`` is no list of int and str.
            ValueError: ``gpus`` holds what is no UUID.
        """
        ...

    def log_probe(self, path: str) -> Probe:
        """What follows a log file there."""
        ...

    def read_log(self, path: str) -> Iterator[str]:
        """The lines of a file there, up to now.

        Raises:
            OSError: It cannot be read.
        """
        ...

    def head(self, path: str | Path) -> str:
        """The beginning of a file there, 1 MiB at the most. It may block.

        Raises:
            OSError: It cannot be read.
        """
        ...

    def engines(self, engine: str | None) -> Sequence[EngineAddress]:
        """Where container engines may answer there, as this machine reaches them. It may block.

        Args:
            engine: As of `container`, where the caller says.

        Raises:
            TargetError: There is none.
        """
        ...

    def inner_pid(self, pid: int) -> int:
        """The number of a process that was looked at in the innermost namespace around it."""
        ...

    def arguments_of(self, pid: int) -> ServerArguments | None:
        """The own arguments of a process's server there; None where they do not tell.

        It may block, and is called from any thread.

        Raises:
            OSError: That machine cannot be asked.
        """
        ...


class PlacedTarget(LoggedTarget, Protocol):
    """A target that may be on another machine."""

    def at(self, place: Place) -> PlacedTarget:
        """The same one there."""
        ...
