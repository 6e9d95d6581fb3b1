"""This machine, as the place of a target."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_startup.probes._protocol import Probe
from vllm_startup.targets._commands import Commands, LocalCommands
from vllm_startup.targets._following import FollowingProbe, MainProcess
from vllm_startup.targets._place import MOST_BYTES, Heard, ProcessLooks
from vllm_startup.targets._supervised import SupervisedProcess

if TYPE_CHECKING:
    from vllm_startup._arguments import ServerArguments
    from vllm_startup.probes import TreeProbe
    from vllm_startup.targets._containers.engine_address import EngineAddress


class Here:
    """This machine.

    Args:
        commands: Runs commands on it.
    """

    def __init__(self, commands: Commands | None = None) -> None:
        self.commands: Commands = commands or LocalCommands()

    def clock_ahead_s(self) -> float:
        """Its clock is the one that others are measured by."""
        return 0.0

    def look_at(
        self,
        main: MainProcess,
        *,
        gpus: Sequence[int | str] | None,
        heard: Heard | None = None,
        serves: bool = True,
    ) -> ProcessLooks:
        """What looks at the server's processes."""
        from vllm_startup.probes import CacheProbe, CgroupProbe, GpuProbe, ProcessProbe, TreeProbe

        unbound = GpuProbe(gpus=gpus)  # it refuses nonsense now
        root = FollowingProbe("process", main, lambda pid: SupervisedProcess(ProcessProbe(pid), heard))
        if not serves:  # what a container's client does says nothing of the server
            return ProcessLooks(probes=[root, unbound])
        tree = FollowingProbe("tree", main, TreeProbe)

        def pids() -> Collection[int]:
            return _pids(tree, main)

        return ProcessLooks(
            probes=[
                root,
                tree,
                FollowingProbe("gpu", main, lambda pid: GpuProbe(gpus=gpus, pid=pid, tree_pids=pids)),
                FollowingProbe("caches", main, CacheProbe),
                FollowingProbe("cgroup", main, CgroupProbe),
            ],
            tree_pids=pids,
        )

    def log_probe(self, path: str) -> Probe:
        """What follows a log file."""
        from vllm_startup.probes import LogFileProbe

        return LogFileProbe(path)

    def read_log(self, path: str) -> Iterator[str]:
        """The lines of a file, up to now."""
        with Path(path).open(encoding="utf-8", errors="replace", newline="\n") as file:
            for line in file:
                yield line.removesuffix("\n")

    def head(self, path: str | Path) -> str:
        """The beginning of a file."""
        with Path(path).open("rb") as file:
            return file.read(MOST_BYTES).decode("utf-8", "replace")

    def engines(self, engine: str | None) -> Sequence[EngineAddress]:
        """Where container engines may answer."""
        from vllm_startup.targets._containers.engine_address import addresses

        return addresses(engine)

    def inner_pid(self, pid: int) -> int:
        """The number of a process in the innermost namespace around it."""
        from vllm_startup.targets._containers.local import Pids

        return Pids().inside(pid)

    def arguments_of(self, pid: int) -> ServerArguments | None:
        """The own arguments of a process's server; None where they do not tell."""
        from vllm_startup._arguments import arguments_of_process

        return arguments_of_process(pid, own=True)


def _pids(tree: FollowingProbe[TreeProbe], main: MainProcess) -> Collection[int]:
    """The processes of the start that is watched."""
    if tree.probe is not None:
        return tree.probe.pids
    return () if main.pid is None else (main.pid,)
