"""A container's processes, where they run on this machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import attrs

from vllm_startup._machine.signals import CRASHES
from vllm_startup._readings import ProcessExited, ProcessFound, ProcessTree, Reading
from vllm_startup.probes import CacheProbe, CgroupProbe, GpuProbe, ProcessProbe, TreeProbe
from vllm_startup.probes._environ import server_environment
from vllm_startup.probes._protocol import Probe
from vllm_startup.probes._system import existing, this_system
from vllm_startup.targets._containers.state import Life
from vllm_startup.targets._following import FollowingProbe, MainProcess

P = TypeVar("P", bound=Probe)

# An engine makes the process before it starts the container, and notes when that is done.
_BEFORE_S: Final = 30.0
_AFTER_S: Final = 2.0
_EXITING: Final = 0x4  # PF_EXITING of linux/sched.h
_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_ORDER: Final = "CUDA_DEVICE_ORDER"
_PLACES: Final = {"HOME": "/root", "TMPDIR": "/tmp"}
"""Where a container's files lie that its environment does not place."""


class Pids:
    """The numbers that a container's processes have in it, as its log has them.

    Args:
        proc: Where procfs is mounted.
    """

    def __init__(self, *, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: dict[int, tuple[float | None, int]] = {}

    def inside(self, pid: int, started_at: float | None = None) -> int:
        """The number in the container of a process here; its number here where nobody can tell.

        Args:
            pid: Its number here.
            started_at: When the process started, as its number may have been another's.
        """
        known = self._known.get(pid)
        if known is not None and (started_at is None or known[0] == started_at):
            return known[1]
        found = _innermost(self._proc / str(pid) / "status")
        if found is None:
            return pid if known is None else known[1]
        self._known[pid] = (started_at, found)
        return found

    def ends(self, pid: int) -> bool:
        """Whether a process here has ended, or is about to."""
        try:
            fields = (self._proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            return True
        return fields[0] in "ZX" or bool(int(fields[6]) & _EXITING)  # the fields 3 and 9 in proc(5)

    def translated(self, reading: Reading) -> Reading:
        """A reading with the numbers of the container."""
        match reading:
            case ProcessExited():
                return attrs.evolve(reading, pid=self.inside(reading.pid))
            case ProcessTree():
                here = {p.pid: self.inside(p.pid, p.started_at) for p in reading.processes}
                processes = [
                    attrs.evolve(p, pid=here[p.pid], ppid=here.get(p.ppid, 0)) for p in reading.processes
                ]
                return ProcessTree(root=self.inside(reading.root), processes=tuple(processes))
            case _:
                return reading


def _innermost(status: Path) -> int | None:
    """The last of the numbers that a process has in the namespaces around it (proc(5), Linux 4.1)."""
    try:
        for line in status.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    except (OSError, ValueError):
        pass
    return None


class Inside(Generic[P]):
    """A probe whose readings have the numbers of the container, without what its engine tells.

    That is the main process's beginning and end. With the main process of a namespace of pids the kernel
    kills all others, before the end can be seen that is the reason, and a server that is asked to stop ends
    its engines first: those are left out as well.

    Args:
        probe: A probe of the main process.
        main: That process.
        pids: The numbers.
        life: The container's.
        on_exit: Called when a process has ended.
    """

    def __init__(self, probe: P, main: int, pids: Pids, life: Life, on_exit: Callable[[], None]) -> None:
        self.probe = probe
        self._main = main
        self._pids = pids
        self._life = life
        self._on_exit = on_exit

    @property
    def name(self) -> str:
        """The probe's own."""
        return self.probe.name

    @property
    def interval_s(self) -> float:
        """The probe's own."""
        return self.probe.interval_s

    @property
    def limit_s(self) -> float | None:
        """The probe's own."""
        return self.probe.limit_s

    async def sample(self, now: float) -> Iterable[Reading]:
        """Look with the probe."""
        seen = tuple(await self.probe.sample(now))
        if any(isinstance(reading, ProcessExited) for reading in seen):
            self._on_exit()
        return [self._pids.translated(reading) for reading in seen if self._is_ours(reading)]

    async def aclose(self) -> None:
        """Close the probe."""
        await self.probe.aclose()

    def _is_ours(self, reading: Reading) -> bool:
        match reading:
            case ProcessFound() | ProcessExited(root=True):
                return False
            case ProcessExited(signal=number):
                ends = self._life.heard.asked is not None or self._pids.ends(self._main)
                return number in CRASHES or not ends
            case _:
                return True


class LocalProcesses:
    """Looks at the processes of a container, if they are on this machine.

    An engine in a virtual machine (Docker Desktop) or behind a socket that leads elsewhere names pids
    of its own: a process is taken for the container's only where its control group names the container,
    or where it is the first of a namespace of pids and as old as the start.

    Args:
        main: The main process, as the engine names it.
        life: The container's life.
        gpus: The GPUs that the caller says it may use.
        granted: Those that the engine gave to it; None where that is not known, or all.
        on_exit: Called when one of them has ended, which may be the first sign of the container's end.
        proc: Where procfs is mounted.
    """

    def __init__(
        self,
        main: MainProcess,
        life: Life,
        *,
        gpus: Iterable[int | str] | None = None,
        granted: tuple[str, ...] | None = None,
        on_exit: Callable[[], None],
        proc: Path = Path("/proc"),
    ) -> None:
        self._life = life
        self._proc = proc
        self._gpus = None if gpus is None else tuple(gpus)
        self._granted = granted
        self._pids = Pids(proc=proc)
        self._on_exit = on_exit
        self._tree = FollowingProbe("tree", main, lambda pid: self._inside(TreeProbe(self._own(pid)), pid))
        self.probes: tuple[Probe, ...] = (
            FollowingProbe("process", main, lambda pid: self._inside(ProcessProbe(self._own(pid)), pid)),
            self._tree,
            FollowingProbe("gpu", main, self._gpu),
            FollowingProbe("caches", main, self._caches),
            FollowingProbe("cgroup", main, lambda pid: CgroupProbe(self._own(pid))),
        )

    @property
    def seen(self) -> bool:
        """Whether they are seen."""
        return self._tree.probe is not None

    def tree_pids(self) -> Collection[int]:
        """The container's processes as this machine numbers them: its main one, until they are looked at."""
        if self._tree.probe is not None:
            return self._tree.probe.probe.pids
        newest = self._life.newest
        return () if newest is None or newest.pid is None or not self._is_own(newest.pid) else (newest.pid,)

    def _inside(self, probe: P, pid: int) -> Inside[P]:
        return Inside(probe, pid, self._pids, self._life, self._on_exit)

    def _own(self, pid: int) -> int:
        """The pid, if the process is the container's.

        Raises:
            ValueError: It is another one's.
        """
        if not self._is_own(pid):
            raise ValueError(f"process {pid} of this machine is not the container's")
        return pid

    def _is_own(self, pid: int) -> bool:
        newest = self._life.newest
        return newest is not None and is_of_container(
            pid, newest.id, newest.started_at, shared=newest.shares_pids, proc=self._proc
        )

    def _gpu(self, pid: int) -> GpuProbe:
        self._own(pid)
        return GpuProbe(
            gpus=self._gpus,
            environ=lambda: gpu_environment(server_environment(pid), self._granted),
            tree_pids=self.tree_pids,
        )

    def _caches(self, pid: int) -> CacheProbe:
        self._own(pid)
        return CacheProbe(pid, environment=file_environment(server_environment(pid), f"/proc/{pid}/root"))


def is_of_container(
    pid: int, container: str, started_at: float | None, *, shared: bool, proc: Path = Path("/proc")
) -> bool:
    """Whether a process of this machine is the main one of a container.

    Args:
        pid: The process.
        container: The container's id.
        started_at: When it was started, in seconds since the Unix epoch.
        shared: Whether it has no namespace of pids of its own.
        proc: Where procfs is mounted.
    """
    try:
        if container in (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace"):
            return True
        stat = existing(pid, this_system())
    except (OSError, ValueError):
        return False
    if stat is None or started_at is None:
        return False
    first = _innermost(proc / str(pid) / "status") == 1
    return (shared or first) and -_AFTER_S <= started_at - stat.started_at <= _BEFORE_S


def gpu_environment(environment: Mapping[str, str], granted: tuple[str, ...] | None) -> Mapping[str, str]:
    """The environment, with the GPUs named as this machine names them: in it they are counted from 0."""
    if granted is None or not environment:
        return environment
    names = list(granted)
    if _VISIBLE in environment:
        words = [word.strip() for word in environment[_VISIBLE].split(",")]
        if not all(word.isdecimal() and int(word) < len(granted) for word in words):
            return environment
        names = [granted[int(word)] for word in words]
    return {**environment, _VISIBLE: ",".join(names), _ORDER: "PCI_BUS_ID"}


def granted_gpus(inspected: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The GPUs that an engine gave to a container, by NVML index or UUID; None for all, or unknown."""
    requests = (inspected.get("HostConfig") or {}).get("DeviceRequests") or ()
    for request in requests:
        names = [str(name).rpartition("=")[2] for name in request.get("DeviceIDs") or ()]
        if names and "all" not in names:
            return tuple(names)
        count = int(request.get("Count") or 0)
        if count > 0:
            return tuple(map(str, range(count)))
    if requests:
        return None
    for word in (inspected.get("Config") or {}).get("Env") or ():
        name, _, value = str(word).partition("=")
        if name == "NVIDIA_VISIBLE_DEVICES" and value not in ("", "all", "none", "void"):
            return tuple(part.strip() for part in value.split(","))
    return None


def file_environment(environment: Mapping[str, str], root: str) -> Mapping[str, str]:
    """The environment, with paths as this machine reaches the files of the container."""
    if not environment:
        return environment
    return {
        name: root + value if value.startswith("/") else value
        for name, value in {**_PLACES, **environment}.items()
    }
