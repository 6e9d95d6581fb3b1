"""Kills for want of memory, as the server's control group counts them.

A process that the kernel kills for memory says nothing, and nor does its log; SIGKILL alone may be
anybody's. The group's counter tells the two apart, also inside a container, where the kernel's own
log cannot be read.
"""

from __future__ import annotations

import os.path
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import attrs

from vllm_startup._readings import MemoryEvents, ProbeNote, Reading
from vllm_startup.probes._system import read_file

# A death hurries all probes, so that its kill is counted in time whatever the cadence is.
_INTERVAL_S: Final = 1.0
_LIMIT_S: Final = 1.0
# cgroup v1 says "no limit" with the largest number of pages, 8 EiB less a page.
_NO_LIMIT: Final = 1 << 60


@attrs.frozen(kw_only=True)
class _Group:
    """A group's files."""

    events: Path
    limit: Path
    used: Path

    def counters(self) -> bytes | None:
        """Read what the kernel counts; None when the group is gone."""
        return read_file(str(self.events))

    def memory(self, kills: int) -> MemoryEvents:
        """Read what memory there is, beside the kills."""
        return MemoryEvents(oom_kills=kills, limit_bytes=_number(self.limit), used_bytes=_number(self.used))


class CgroupProbe:
    """Reads how many processes of the server's control group were killed for memory.

    Use when: the server runs under a memory limit: containers, pods, units, Slurm jobs. Linux;
    cgroup v2 and v1. It reports when the counter has changed, and once at the beginning.

    Args:
        pid: The server's main process.
        interval_s: Seconds between looks.
        system: The root of the file system, for tests.
    """

    name: str = "cgroup"
    limit_s: float | None = _LIMIT_S

    def __init__(self, pid: int, *, interval_s: float = _INTERVAL_S, system: str = "/") -> None:
        if interval_s <= 0:
            raise ValueError(f"interval_s must be positive, not {interval_s!r}")
        self.interval_s = interval_s
        self._pid, self._system = pid, Path(system)
        self._group: _Group | None = None
        self._seen: bytes | None = None
        self._told: int | None = None
        self._over = False

    async def sample(self, now: float) -> Iterable[Reading]:
        """Look once. The files are the kernel's own: reading them does not block."""
        if self._over:
            raise StopAsyncIteration
        if self._group is None:
            self._group = _find(self._pid, self._system)
        self._seen = None if self._group is None else self._group.counters()
        if self._group is None or self._seen is None:
            return self._nothing()
        kills = _counter(self._seen)
        if kills == self._told:
            return ()
        self._told = kills
        return (self._group.memory(kills),)

    def glance(self, now: float) -> bool:
        """Whether the kernel has counted anything."""
        return self._group is None or self._seen is None or self._group.counters() != self._seen

    def _nothing(self) -> Iterable[Reading]:
        """The group is gone with its last process, or there never was one to read."""
        self._over = True
        if self._told is not None:
            return ()
        return (
            ProbeNote(code="cgroup_unavailable", text="no memory counters of the server's group to read"),
        )

    async def aclose(self) -> None:
        """Hold nothing."""


def _find(pid: int, system: Path) -> _Group | None:
    """The group that a process is in; None where its counters cannot be read."""
    if sys.platform != "linux":
        return None
    try:
        lines = (system / "proc" / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            found = _first(_v2, path, system)
        elif "memory" in controllers.split(","):
            found = _first(_v1, path, system)
        else:
            found = None
        if found is not None:
            return found
    return None


def _v2(root: Path, path: str) -> _Group:
    at = root / path
    return _Group(events=at / "memory.events", limit=at / "memory.max", used=at / "memory.current")


def _v1(root: Path, path: str) -> _Group:
    at = root / "memory" / path
    return _Group(
        events=at / "memory.oom_control",
        limit=at / "memory.limit_in_bytes",
        used=at / "memory.usage_in_bytes",
    )


def _first(make: Callable[[Path, str], _Group], path: str, system: Path) -> _Group | None:
    """The group's files, or the root's: a container sees its own as the root of all."""
    root = system / "sys/fs/cgroup"
    # From another container's view a path begins with "/..".
    parts = [part for part in os.path.normpath(path).split("/") if part and part != ".."]
    for length in (len(parts), 0):
        group = make(root, "/".join(parts[:length]))
        try:
            _counter(group.counters() or b"")
        except (OSError, ValueError):
            continue
        return group
    return None


def _counter(text: bytes) -> int:
    """The kills in ``memory.events`` (v2) or ``memory.oom_control`` (v1, Linux 4.13 and newer).

    Raises:
        ValueError: The kernel does not count them.
    """
    for line in text.splitlines():
        word, _, number = line.partition(b" ")
        if word == b"oom_kill":
            return int(number)
    raise ValueError("oom_kill is not counted")


def _number(path: Path) -> int | None:
    """A file's number of bytes; None for "max", and where there is none."""
    try:
        value = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return value if value < _NO_LIMIT else None
