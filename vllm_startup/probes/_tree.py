"""CPU, host memory and I/O of the server's processes: work that nothing is printed about."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from vllm_startup._blocking import BlockingRunner
from vllm_startup._readings import ProbeNote, ProcessSample, ProcessTree, Reading
from vllm_startup.probes._family import Family, Member, family_of
from vllm_startup.probes._system import Stat, System, existing, this_system

if TYPE_CHECKING:
    from collections.abc import Iterable

_INTERVAL_S: Final = 1.0
_LIMIT_S: Final = 5.0


class TreeProbe:
    """Reads the main process and everything that descends from it.

    Processes that were found once stay in the tree when their parent dies and they are given to
    another. The scan runs in a thread, since a read of ``/proc`` can hang on a process in trouble.
    The probe is finished when the whole tree is gone.

    Args:
        pid: The server's main process.
        interval_s: Seconds from one scan to the next.
        limit_s: Seconds that a scan may take.
        name: The probe's name in reports.
        system: Where facts about processes come from; this machine's when None.

    Raises:
        ValueError: No such process exists, or ``interval_s`` is not above 0.
    """

    def __init__(
        self,
        pid: int,
        *,
        interval_s: float = _INTERVAL_S,
        limit_s: float | None = _LIMIT_S,
        name: str = "tree",
        system: System | None = None,
    ) -> None:
        if not interval_s > 0:
            raise ValueError(f"interval_s must be above 0 seconds, not {interval_s!r}")
        self.name = name
        self.interval_s = interval_s
        self.limit_s = limit_s
        self._pid = pid
        self._system = system or this_system()
        stat = existing(pid, self._system)
        self._family = None if stat is None else family_of(stat.identity, system)
        self._runner = BlockingRunner(f"vllm_startup-{name}-{pid}")
        self._finished = False
        self._pids: frozenset[int] = frozenset({pid})

    @property
    def pids(self) -> frozenset[int]:
        """The processes that the last scan found; the main process before the first."""
        return self._pids

    async def sample(self, now: float) -> Iterable[Reading]:
        """Read the tree once."""
        if self._finished:
            raise StopAsyncIteration
        if self._family is None:
            self._finished = True
            text = f"process {self._pid} is hidden from this user: its CPU time and memory are not seen"
            return [ProbeNote(code="tree_unreadable", text=text)]
        tree = await self._runner.run(partial(self._read, self._family))
        self._finished = not tree.processes
        self._pids = frozenset(sample.pid for sample in tree.processes)
        return [tree]

    async def aclose(self) -> None:
        """Let the thread end. A scan that hangs keeps nobody."""
        self._runner.close()

    def _read(self, family: Family) -> ProcessTree:
        members = family.scan(max_age_s=self.interval_s / 2).members
        return tree_of(self._pid, members, self._system)


def tree_of(root: int, members: Iterable[Member], system: System) -> ProcessTree:
    """The reading that tells of a tree's processes as they were scanned.

    Args:
        root: The main process.
        members: The tree, from `Family.scan`.
        system: Where it was scanned.
    """
    samples = (_sample(member.name, member.stat, system) for member in members if member.stat is not None)
    return ProcessTree(root=root, processes=tuple(samples))


def _sample(name: str, stat: Stat, system: System) -> ProcessSample:
    return ProcessSample(
        pid=stat.pid,
        ppid=stat.ppid,
        started_at=stat.started_at,
        name=name,
        cpu_s=stat.cpu_s,
        children_cpu_s=stat.children_cpu_s,
        rss_bytes=stat.rss_bytes,
        read_bytes=system.read_bytes(stat.pid),
        status=stat.status,
    )
