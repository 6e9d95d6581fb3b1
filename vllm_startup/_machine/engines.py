"""The engines of one attempt: which phase each is in, told by its core and its workers."""

from __future__ import annotations

import attrs

from vllm_startup._phases import Phase
from vllm_startup._roles import Role, bare, data_parallel_index, role_of


@attrs.define(kw_only=True)
class Engine:
    """One engine: a core, its workers, or both. TP=PP=1 cores before 0.28 have no worker."""

    name: str
    pids: set[int] = attrs.field(factory=set)
    index: int | None = None
    phase: Phase = Phase.INITIALIZING
    kv_sized: bool = False
    ready: bool = False
    joined: bool = False  # its ranks have begun to find each other; NCCL may spin from now on
    workers: set[str] = attrs.field(factory=set)


class Engines:
    """Who belongs to which engine, and how far each has come.

    A line belongs to an engine by the pid of its process (which is another one in a container),
    else by its name, else by the number in the name, else by the process tree. Workers of several
    engines can print the same name (``-dp 2`` gives ``(Worker pid=1)`` twice): those are dealt out
    one an engine, which leaves the least phase of all engines right even where a pair is swapped.
    """

    def __init__(self) -> None:
        self.all: list[Engine] = []
        self.by_pid: dict[int, Engine] = {}
        self._parents: dict[int, int] = {}

    @property
    def phase(self) -> Phase | None:
        """The least phase of the known engines; None while there is none."""
        return min(self.all, key=_order).phase if self.all else None

    @property
    def ready(self) -> bool:
        """Whether every known engine has said that it is initialised."""
        return bool(self.all) and all(e.ready for e in self.all)

    @property
    def joining(self) -> bool:
        """Whether ranks are finding each other and none has begun to load."""
        return any(e.joined and e.phase.order < Phase.LOADING_WEIGHTS.order for e in self.all)

    def behind(self) -> Engine | None:
        """The engine that the others wait for; None with fewer than two, or when all are level."""
        phases = {e.phase for e in self.all}
        return min(self.all, key=_order) if len(phases) > 1 else None

    def appear(self, pid: int, ppid: int, name: str) -> None:
        """Note a process of the tree by its title."""
        self._parents[pid] = ppid
        if role_of(name) in (Role.ENGINE, Role.WORKER):
            self.find(name, role_of(name), pid)

    def find(self, name: str | None, role: Role | None, pid: int | None) -> Engine | None:
        """The engine that a line or a process belongs to, made known if it is new.

        None where it cannot be told: a line without a prefix while several engines are known.
        """
        known = self.by_pid.get(pid) if pid is not None else None
        if known is None:
            known = self._belonging(name, role, pid)
            if known is None:
                return None
            if pid is not None:
                known.pids.add(pid)
                self.by_pid[pid] = known
        if role is Role.WORKER and name:
            known.workers.add(name)
        elif role is Role.ENGINE and name:
            known.name = name
        return known

    def _belonging(self, name: str | None, role: Role | None, pid: int | None) -> Engine | None:
        if role not in (Role.ENGINE, Role.WORKER) or name is None:
            return self._sole()
        index = data_parallel_index(name)
        by_index = next((e for e in self.all if index is not None and e.index == index), None)
        if role is Role.ENGINE:
            by_name = next((e for e in self.all if bare(e.name) == bare(name)), None)
            orphaned = next((e for e in self.all if e.index is None and not _has_core(e)), None)
            return by_name or by_index or self._adopt(orphaned, index) or self._add(name, index)
        parent = self._parents.get(pid) if pid is not None else None
        by_tree = self.by_pid.get(parent) if parent is not None else None
        return by_tree or by_index or self._least_staffed() or self._add(name, index)

    def _sole(self) -> Engine | None:
        if len(self.all) > 1:
            return None
        return self.all[0] if self.all else self._add("", None)

    def _least_staffed(self) -> Engine | None:
        return min(self.all, key=lambda e: len(e.pids), default=None)

    def _adopt(self, engine: Engine | None, index: int | None) -> Engine | None:
        if engine is not None:
            engine.index = index
        return engine

    def _add(self, name: str, index: int | None) -> Engine:
        engine = Engine(name=name, index=index)
        self.all.append(engine)
        return engine


def _order(engine: Engine) -> int:
    return engine.phase.order


def _has_core(engine: Engine) -> bool:
    return role_of(engine.name) is Role.ENGINE
