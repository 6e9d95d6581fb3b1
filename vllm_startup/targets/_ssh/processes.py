"""The server's processes on another machine, looked at once a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from vllm_startup._blocking import BlockingRunner
from vllm_startup._readings import ProbeNote, ProcessExited, ProcessFound, Reading
from vllm_startup._redact import redact_command
from vllm_startup.probes._exits import Exit
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
_FIRST_WORDS_S: Final = 30.0  # for all that a log holds already, as for a container's


class FarProcessProbe:
    """Tells of the main process, its tree, and the ends of those that matter, a second late at the most.

    It also keeps the connection: it makes it anew when it was lost, and closes it when the watch is over.
    How a process ended is known only of one that its parent has not asked about yet. What the log held
    before the watch is told before any end: it may say why.

    Args:
        connection: How the machine is reached.
        system: Its processes.
        main: Which is the server's main process.
        heard: Asked of each end whether it may be told as it is; a supervisor may know more.
        tree: Whether its tree is the server's.
        once: Whether nothing is left to be seen when its tree has gone; False where others follow.
        seen: The main process as it was when it was named, where it has to be that one.
        log_read: Returns whether what the log held before the watch has been told.
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
        seen: Stat | None = None,
        log_read: Callable[[], bool] = lambda: True,
    ) -> None:
        self._connection = connection
        self._system = system
        self._main = main
        self._heard = heard
        self._tree = tree
        self._once = once
        self._seen = seen
        self._log_read = log_read
        self._pid: int | None = None
        self._family: Family | None = None
        self._root: Identity | None = None
        self._watched: dict[Identity, str] = {}
        self._members: tuple[int, ...] = ()
        self._ready: list[Reading] = []
        self._held: list[Reading] = []
        self._held_since: float | None = None
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
        if self._finished and not self._ready and not self._held:
            raise StopAsyncIteration
        if not self._finished:
            await self._runner.run(self._look)
        elif self._held and not self._may_tell_ends(now):
            await self._runner.run(self._connection.ensure)  # the log is still to be read over it
        readings, self._ready = self._ready, []
        self._held += [reading for reading in readings if self._may_tell(reading)]
        return self._released(now)

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

    def _may_tell_ends(self, now: float) -> bool:
        late = self._held_since is not None and now - self._held_since >= _FIRST_WORDS_S
        return late or self._log_read()

    def _released(self, now: float) -> list[Reading]:
        """What is told now, in order: nothing from the first end on that waits for the log."""
        ends = [isinstance(reading, ProcessExited) for reading in self._held]
        told = len(ends)
        if any(ends) and not self._may_tell_ends(now):
            told = ends.index(True)
            self._held_since = now if self._held_since is None else self._held_since
        released, self._held = self._held[:told], self._held[told:]
        return released

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
        if stat is not None and self._seen is not None and stat.identity != self._seen.identity:
            stat = None  # its pid is another's by now
        if stat is None or stat.ended:
            if self._once:
                self._ready += self._ended_since(pid, stat)
                self._finished = True
            return
        self._root = stat.identity
        self._family = Family(stat.identity, system=self._system)
        self._watched[stat.identity] = stat.program
        self._ready += self._described(stat)

    def _ended_since(self, pid: int, stat: Stat | None) -> list[Reading]:
        """Of a process that has ended since it was named: when it began tells which words are its own."""
        known, how = stat or self._seen, Exit() if stat is None else self._system.exit_of(pid)
        found = ProcessFound(
            pid=pid,
            started_at=None if known is None else known.started_at,
            age_s=None if known is None else self._system.age_s(known),
        )
        name = "" if known is None else known.program
        return [found, ProcessExited(pid=pid, name=name, code=how.code, signal=how.signal, root=True)]

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
