"""A process and everything that descends from it, also after the kernel gave it other parents."""

from __future__ import annotations

import threading
import time
import weakref
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from vllm_startup._roles import TITLE_PREFIX
from vllm_startup.probes._system import Identity, Stat, System, this_system

if TYPE_CHECKING:
    from collections.abc import Iterable

# The table's pids are read once, when they are new. Within these seconds no system runs through
# all of its pids (32,768 at the least; forks take some 100 us), so that a known pid is the same
# process; after a longer pause it may be another.
_TRUSTED_S: Final = 5.0
# A title that is set without renaming the program (exec of the same one) is seen this late.
_RENAMED_CHECK_S: Final = 5.0
# Linux cuts a program's name to this (TASK_COMM_LEN - 1).
_PROGRAM_LENGTH: Final = 15


class _Origin(NamedTuple):
    process: Identity
    parent: Identity | None


class ProcessTable:
    """Who was started by whom on this machine, shared by all watches of a program.

    A process is read once, when its pid is new, so that a look costs one listing of the pids and a
    read for each new one, however many processes the machine has. Its parent at that moment is kept:
    a process that is given to pid 1 later is still known as its first parent's child.
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self._lock = threading.Lock()
        self._origins: dict[int, _Origin] = {}
        self._children: dict[Identity, list[Identity]] = {}
        self._deferred: set[int] = set()
        self._read_at = float("-inf")

    def descendants(
        self, members: Iterable[Identity], *, max_age_s: float
    ) -> list[tuple[Identity, Identity]]:
        """Return all that descend from the members and are none of them, as (process, parent), parents first.

        Args:
            members: Processes that may have ended since.
            max_age_s: How old the table may be, in seconds, for not being read anew.
        """
        with self._lock:
            self._update(max_age_s)
            known = set(members)
            found: list[tuple[Identity, Identity]] = []
            waiting = list(known)
            while waiting:
                parent = waiting.pop()
                new = [child for child in self._children.get(parent, ()) if child not in known]
                known.update(new)
                waiting.extend(new)
                found.extend((child, parent) for child in new)
            return found

    def _update(self, max_age_s: float) -> None:
        now = time.monotonic()
        if now - self._read_at <= max_age_s:
            return
        if now - self._read_at > _TRUSTED_S:
            self._origins.clear()
            self._children.clear()
        self._read_at = now
        present = set(self._system.pids())
        for pid in self._origins.keys() - present:
            self._forget(pid)
        self._add(present - self._origins.keys())

    def _add(self, pids: set[int]) -> None:
        stats = {pid: stat for pid in pids if (stat := self._system.stat(pid)) is not None}
        self._deferred &= pids
        starts = {pid: origin.process for pid, origin in self._origins.items()}
        starts.update({pid: stat.identity for pid, stat in stats.items()})
        for pid, stat in stats.items():
            parent = starts.get(stat.ppid)
            if parent is None and stat.ppid > 0 and pid not in self._deferred:
                # The listing ran past the parent's pid before it existed: the next one has both.
                self._deferred.add(pid)
                continue
            self._origins[pid] = _Origin(stat.identity, parent)
            if parent is not None:
                self._children.setdefault(parent, []).append(stat.identity)

    def _forget(self, pid: int) -> None:
        process, parent = self._origins.pop(pid)
        if parent is None:
            return
        siblings = self._children[parent]
        siblings.remove(process)
        if not siblings:
            del self._children[parent]


@cache
def shared_table() -> ProcessTable:
    """The table of this program: a hundred watches read ``/proc`` once, not a hundred times."""
    return ProcessTable(this_system())


class Member:
    """A process of the tree.

    Attributes:
        parent: Who started it; None for the main process.
        seen_at: When it was found, on the monotonic clock.
        arguments: Its command line when it was read last.
        stat: What was read last; None when it has not been read or is hidden from us.
    """

    def __init__(self, process: Identity, parent: Member | None) -> None:
        self.process = process
        self.parent = parent
        self.seen_at = time.monotonic()
        self.arguments: tuple[str, ...] = ()
        self.stat: Stat | None = None
        self._program = ""
        self._named_at = float("-inf")

    @property
    def name(self) -> str:
        """Its title as vLLM sets it, else its program's name."""
        first = self.arguments[0] if self.arguments else ""
        if first.startswith(TITLE_PREFIX):
            return first.strip()
        if len(self._program) == _PROGRAM_LENGTH and (whole := first.rpartition("/")[2]).startswith(
            self._program
        ):
            return whole
        return self._program

    @property
    def titled(self) -> bool:
        """Whether vLLM has named it."""
        return self.name.startswith(TITLE_PREFIX)

    def update(self, stat: Stat, system: System, now: float) -> None:
        """Take what was read; read its command line where the name may have changed."""
        self.stat = stat
        if stat.ended:
            # It has no command line any more: what was known stays, unless it took a title since.
            if not self._program or (stat.program.startswith(TITLE_PREFIX) and not self.titled):
                self._program, self.arguments = stat.program, ()
            return
        stale = not self.titled and now - self._named_at >= _RENAMED_CHECK_S
        if stat.program != self._program or stale:
            self._program = stat.program
            self._named_at = now
            self.arguments = system.arguments(stat.pid) or self.arguments


class Scan(NamedTuple):
    """What a look at a family found: those that are there, zombies included.

    Attributes:
        at: When it began, on the monotonic clock.
    """

    at: float
    members: tuple[Member, ...]


class Family:
    """A process with all its descendants. Several probes, each in its thread, may share one.

    Args:
        root: The main process.
        system: Where the facts come from; this machine's when None.
    """

    def __init__(self, root: Identity, *, system: System | None = None) -> None:
        self._system = system or this_system()
        self._table = shared_table() if system is None else ProcessTable(system)
        self._lock = threading.Lock()
        self._latest: Scan | None = None
        self._members: dict[Identity, Member] = {root: Member(root, None)}
        # Another watch may have put a child into the table just before its parent died.
        self._gone: dict[Identity, Member] = {}
        self._scanned = False

    @property
    def latest(self) -> Scan | None:
        """The last scan, whoever made it. Never blocks."""
        return self._latest

    def scan(self, *, max_age_s: float) -> Scan:
        """Look for new members, and read all.

        It blocks for as long as the system takes. Members that are gone are forgotten.

        Args:
            max_age_s: How old the shared table may be, in seconds.
        """
        with self._lock:
            self._latest = self._scan(time.monotonic(), max_age_s)
            return self._latest

    def _scan(self, now: float, max_age_s: float) -> Scan:
        if not self._scanned:
            max_age_s, self._scanned = 0.0, True  # the newest member may be younger than the table
        ancestors = self._members | self._gone
        for process, parent in self._table.descendants(ancestors, max_age_s=max_age_s):
            ancestors[process] = self._members[process] = Member(process, ancestors[parent])
        self._gone = {}
        for process, member in list(self._members.items()):
            stat = self._system.stat(process.pid)
            if stat is None or stat.identity != process:
                self._gone[process] = self._members.pop(process)
            else:
                member.update(stat, self._system, now)
        return Scan(now, tuple(self._members.values()))


_families: weakref.WeakValueDictionary[Identity, Family] = weakref.WeakValueDictionary()


def family_of(root: Identity, system: System | None) -> Family:
    """The family of a process, one for all probes that look at it, so that one scan serves them all."""
    if system is not None:
        return Family(root, system=system)
    family = _families.get(root)
    if family is None:
        family = _families[root] = Family(root)
    return family
