"""The server's processes on another machine, looked at once a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from vllm_startup._blocking import BlockingRunner
from vllm_startup._readings import ProbeNote, ProcessExited, ProcessFound, Reading
from vllm_startup._redact import redact_command
from vllm_startup.probes._family import Family, Member
from vllm_startup.probes._process import worth_telling
from vllm_startup.probes._system import Identity, Stat
from vllm_startup.probes._tree import tree_of
from vllm_startup.targets._following import MainProcess
from vllm_startup.targets._ssh.connection import Connection
from vllm_startup.targets._ssh.system import FarSystem

_INTERVAL_S: Final = 1.0
# Three answers at the most, the first of which tells whether there is a connection.
_LIMIT_S: Final = 12.0


class FarProcessProbe:
    """Tells of the main process, its tree, and the ends of those that matter, a second late at the most.

    It also keeps the connection: it makes it anew when it was lost, and closes it when the watch is over.
    How a process ended is known only of one that its parent has not asked about yet.

    Args:
        connection: How the machine is reached.
        system: Its processes.
        main: Which is the server's main process.
        heard: Asked of each end whether it may be told as it is; a supervisor may know more.
        tree: Whether its tree is the server's.
        once: Whether nothing is left to be seen when its tree has gone; False where others follow.
        identity: Who the main process has to be, where that is known.
    """

    name = "process"
    interval_s = _INTERVAL_S
    limit_s: float | None = _LIMIT_S

    def __init__(
        self,
        connection: Connection,
        system: FarSystem,
        main: MainProcess,
        *,
        heard: Callable[[ProcessExited], bool] | None = None,
        tree: bool = True,
        once: bool = False,
        identity: Identity | None = None,
    ) -> None:
        self._connection = connection
        self._system = system
        self._main = main
        self._heard = heard
        self._tree = tree
        self._once = once
        self._identity = identity
        self._pid: int | None = None
        self._family: Family | None = None
        self._root: Identity | None = None
        self._watched: dict[Identity, str] = {}
        self._members: tuple[int, ...] = ()
        self._ready: list[Reading] = []
        self._finished = False
        self._runner = BlockingRunner("vllm_startup-far-processes")

    @property
    def pids(self) -> frozenset[int]:
        """The processes that the last look found, as they are numbered there."""
        return frozenset(self._members)

    async def sample(self, now: float) -> Iterable[Reading]:
        """Look once.

        Raises:
            ConnectionLostError: There is no connection, or nothing comes over it.
            OSError: The shell there has ended.
        """
        if self._finished and not self._ready:
            raise StopAsyncIteration
        if not self._finished:
            await self._runner.run(self._look)
        readings, self._ready = self._ready, []
        return [reading for reading in readings if self._may_tell(reading)]

    async def aclose(self) -> None:
        """Close the connection, with all that goes over it."""
        self._runner.close()
        self._system.close()
        runner = BlockingRunner("vllm_startup-far-close")
        try:
            await runner.run(self._connection.close)
        finally:
            runner.close()

    def _may_tell(self, reading: Reading) -> bool:
        return self._heard is None or not isinstance(reading, ProcessExited) or self._heard(reading)

    # --- in the thread ------------------------------------------------------------------------

    def _look(self) -> None:
        """Look, and keep what is seen until it is fetched, also when nobody waits for it any more."""
        self._connection.ensure()
        pid = self._main.pid
        if pid != self._pid:
            self._family, self._root, self._watched, self._members = None, None, {}, ()
            self._pid = pid
        self._system.refresh(self._members if pid is None or self._family else [pid])
        if pid is not None and self._family is None:
            self._find(pid)
        if self._family is not None:
            self._scan(self._family)

    def _find(self, pid: int) -> None:
        stat = self._system.stat(pid)
        if stat is None or stat.ended or (self._identity is not None and stat.identity != self._identity):
            if self._once:  # it has ended since it was named
                exited = ProcessExited(pid=pid, name=stat.program if stat else "", root=True)
                self._ready += [ProcessFound(pid=pid), exited]
                self._finished = True
            return
        self._root = stat.identity
        self._family = Family(stat.identity, system=self._system)
        self._watched[stat.identity] = stat.program
        self._ready += self._described(stat)

    def _described(self, stat: Stat) -> list[Reading]:
        found = ProcessFound(
            pid=stat.pid,
            started_at=stat.started_at,
            age_s=self._system.age_s(stat),
            command=redact_command(self._system.arguments(stat.pid)),
        )
        if self._system.readable(stat.pid):
            return [found]
        text = f"process {stat.pid} is another user's: its I/O and its environment are not seen"
        return [found, ProbeNote(code="process_unreadable", text=text)]

    def _scan(self, family: Family) -> None:
        members = family.scan(max_age_s=0.0).members
        living = {member.process: member for member in members if member.stat and not member.stat.ended}
        ended = [process for process in self._watched if process not in living]
        # The order is not seen. What ended with the main process mostly ended since that did.
        for process in sorted(ended, key=lambda process: process != self._root):
            self._tell_end(process)
        self._choose(living)
        self._members = tuple(process.pid for process in living)
        if self._tree:
            self._ready.append(tree_of(self._pid or 0, members, self._system))
        self._finished = self._once and not living

    def _tell_end(self, process: Identity) -> None:
        name = self._watched.pop(process)
        how = self._system.exit_of(process.pid)
        self._ready.append(
            ProcessExited(
                pid=process.pid, name=name, code=how.code, signal=how.signal, root=process == self._root
            )
        )

    def _choose(self, living: dict[Identity, Member]) -> None:
        now = time.monotonic()
        for process, member in living.items():
            if process in self._watched or worth_telling(member, now):
                self._watched[process] = member.name
