"""vLLM's processes whose server is dead: engines and workers that live on and keep their GPUs' memory.

vLLM names its processes (``VLLM::EngineCore``, 0.10.1 and newer, where setproctitle is installed). Others
are told by what they are: started by multiprocessing, with vLLM's own compiled library in memory.

A process is left over when its parent died and it was given to one that adopts: pid 1, the first process
of a container, a user's service manager. If that one runs vLLM itself, it is no orphan; nor if anything
about it cannot be seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Final

import attrs

from vllm_startup._launching.end_tree import Process, processes
from vllm_startup._roles import TITLE_PREFIX, Role, role_of
from vllm_startup._server_command import find_server

UNTITLED: Final = "untitled vLLM process"

_NEVER_VLLM: Final = frozenset(
    {
        *("ash", "bash", "catatonit", "conmon", "containerd-shim", "dash", "docker-init", "dumb-init"),
        *("init", "pause", "podman-init", "s6-svscan", "sh", "systemd", "tini", "zsh"),
    }
)
"""Programs that adopt or start a server, and are none themselves."""
_ADOPT: Final = frozenset({"conmon", "containerd-shim", "s6-svscan", "systemd"})
"""Those of them that adopt though they are not the first process (PR_SET_CHILD_SUBREAPER)."""
_PYTHON: Final = ("python", "pypy", "pt_main_thread")
_COMM_LENGTH: Final = 15  # Linux cuts a program's name to it
_SPAWNED: Final = ("--multiprocessing-fork", "multiprocessing.forkserver")
_LIBRARY: Final = rb"/vllm/(?:_moe|_rocm)?_C[\w.-]*\.so(?: \(deleted\))?$"


@attrs.frozen(kw_only=True)
class Orphan:
    """One process that a dead server left, or that descends from such a one.

    Attributes:
        process: Who it is, not to be mistaken for another with its pid.
        name: Its title, or its program's name.
        user: The id of the user that it runs as.
    """

    process: Process
    name: str
    user: int

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid


class Seen:
    """What ``/proc`` tells of processes. It blocks.

    Args:
        proc: Where it is mounted.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc

    def arguments(self, pid: int) -> tuple[str, ...]:
        """Its command line; empty where it is not told."""
        text = self._read(pid, "cmdline") or b""
        return (
            tuple(part.decode("utf-8", "replace") for part in text.rstrip(b"\0").split(b"\0")) if text else ()
        )

    def user(self, pid: int) -> int | None:
        """The id of its user, as which it does things."""
        found = re.search(rb"^Uid:\s+\d+\s+(\d+)", self._read(pid, "status") or b"", re.MULTILINE)
        return int(found[1]) if found is not None else None

    def begins_a_container(self, pid: int) -> bool:
        """Whether it is the first process of its pid namespace."""
        found = re.search(rb"^NSpid:.*\s(\d+)$", self._read(pid, "status") or b"", re.MULTILINE)
        return found is not None and int(found[1]) == 1

    def holds_vllm(self, pid: int) -> bool | None:
        """Whether it has loaded vLLM's library; None where that is not ours to see."""
        text = self._read(pid, "maps")
        return None if text is None else re.search(_LIBRARY, text, re.MULTILINE) is not None

    def _read(self, pid: int, name: str) -> bytes | None:
        try:
            with open(f"{self._proc}/{pid}/{name}", "rb") as file:  # noqa: PTH123 - many files, quickly
                return file.read()
        except OSError:
            return None


def orphans(table: Mapping[int, Process] | None = None, *, seen: Seen | None = None) -> list[Orphan]:
    """The processes that dead vLLM servers left, with all that descend from them, parents first."""
    known = processes() if table is None else table
    look = _Look(known, seen or Seen())
    heads = [process for process in known.values() if look.is_vllm(process) and look.is_left(process)]
    return [look.told(process) for process in _with_descendants(heads, known)]


class _Look:
    """One look at all processes."""

    def __init__(self, table: Mapping[int, Process], seen: Seen) -> None:
        self._table = table
        self._seen = seen
        self._children = _by_parent(table)
        self.is_vllm: Callable[[Process], bool] = cache(self._is_vllm)

    def is_left(self, process: Process) -> bool:
        """Whether nobody who runs vLLM is above it."""
        parent = self._table.get(process.parent)
        if parent is None or self.is_vllm(parent):
            return False  # in the latter case its head is judged, and it goes with it
        return self._adopts(parent) and not self._runs_vllm(parent)

    def told(self, process: Process) -> Orphan:
        """The process as people see it."""
        words = self._seen.arguments(process.pid)
        titled = bool(words) and words[0].startswith(TITLE_PREFIX)
        name = words[0].strip() if titled else UNTITLED if self.is_vllm(process) else process.name
        user = self._seen.user(process.pid)
        return Orphan(process=process, name=name, user=-1 if user is None else user)

    def _is_vllm(self, process: Process) -> bool:
        """Whether it is one of a server's own: an engine, a worker, or what else vLLM starts."""
        words = () if process.zombie else self._seen.arguments(process.pid)
        if not words:
            return False
        if words[0].startswith(TITLE_PREFIX):
            return role_of(words[0]) not in (None, Role.LAUNCHER)
        if not any(part in word for word in words[1:] for part in _SPAWNED):
            return False
        children = self._children.get(process.pid, ())
        if any(self._is_titled(child) for child in children):
            return False  # a program that uses a vLLM which gives titles: it has none itself
        # Not every engine loads the library; its workers do.
        return bool(self._seen.holds_vllm(process.pid)) or any(self.is_vllm(child) for child in children)

    def _is_titled(self, process: Process) -> bool:
        return any(word.startswith(TITLE_PREFIX) for word in self._seen.arguments(process.pid)[:1])

    def _adopts(self, process: Process) -> bool:
        known = any(process.name == name[:_COMM_LENGTH] for name in _ADOPT)
        return process.pid == 1 or known or self._seen.begins_a_container(process.pid)

    def _runs_vllm(self, process: Process) -> bool:
        """Whether an adopter may be the parent in truth: a container's first process often is the server."""
        words = self._seen.arguments(process.pid)
        names = {process.name, *(word.rpartition("/")[2][:_COMM_LENGTH] for word in words[:1])}
        if any(name[:_COMM_LENGTH] in names for name in _NEVER_VLLM):
            return False
        if find_server(words) is not None:
            return True
        holds = self._seen.holds_vllm(process.pid)
        # Where that is not ours to see, a Python program may be anything.
        return holds if holds is not None else any(name.startswith(_PYTHON) for name in names)


def _by_parent(table: Mapping[int, Process]) -> dict[int, list[Process]]:
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    return children


def _with_descendants(heads: Iterable[Process], table: Mapping[int, Process]) -> list[Process]:
    children = _by_parent(table)
    found: dict[int, Process] = {}
    waiting = sorted(heads, reverse=True)
    while waiting:
        process = waiting.pop()
        if process.pid not in found and not process.zombie:
            found[process.pid] = process
            waiting += sorted(children.get(process.pid, ()), reverse=True)
    return list(found.values())
