"""When and how processes end, as far as the kernel tells somebody who is not their parent."""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from vllm_startup.probes._system import Identity, exists, read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_startup.probes._system import System

# linux/pidfd.h, Linux 6.15: struct pidfd_info in its first size, and _IOWR(0xFF, 11, that).
_INFO: Final = struct.Struct("QQ11Ii")
_GET_INFO: Final = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_INFO_EXIT: Final = 1 << 3
# Of the files that this program may open: the others are for who looks, connects and reads.
_SHARE: Final = 4


class Exit(NamedTuple):
    """An exit status, or the signal that ended the process; neither when nobody could tell."""

    code: int | None = None
    signal: int | None = None

    @classmethod
    def of_returncode(cls, returncode: int) -> Exit:
        """From `subprocess`' form, where a signal is negative."""
        return cls(signal=-returncode) if returncode < 0 else cls(code=returncode)

    @classmethod
    def of_wait_status(cls, status: int) -> Exit:
        """From wait(2)'s form."""
        return cls.of_returncode(os.waitstatus_to_exitcode(status))


class Watched(NamedTuple):
    """A process whose end is awaited.

    Attributes:
        identity: Who it has to be; None when that is hidden from us.
    """

    pid: int
    identity: Identity | None


class ExitWatch:
    """Calls back when processes end: by event where there are pidfds, else when it is told to look.

    It needs a running loop, and is used from within it only.

    Args:
        system: Where to look up who a process is.
        on_exit: Called once for each process; how it ended is None where the kernel does not say.
    """

    def __init__(self, system: System, on_exit: Callable[[Watched, Exit | None], None]) -> None:
        self._system = system
        self._on_exit = on_exit
        self._most = _open_files_limit() // _SHARE
        self._pidfds: dict[Watched, int] = {}
        self._polled: set[Watched] = set()

    def __len__(self) -> int:
        return len(self._pidfds) + len(self._polled)

    def __iter__(self) -> Iterator[Watched]:
        return iter([*self._pidfds, *self._polled])

    def __contains__(self, watched: Watched) -> bool:
        return watched in self._pidfds or watched in self._polled

    @property
    def must_poll(self) -> bool:
        """Whether the ends of some are seen by `poll` alone."""
        return bool(self._polled)

    def add(self, watched: Watched) -> None:
        """Watch one more. The end of one that is gone already is told before this returns."""
        try:
            pidfd = open_pidfd(watched, self._system) if len(self._pidfds) < self._most else None
        except ProcessLookupError:
            self._on_exit(watched, None)
            return
        if pidfd is None:
            self._polled.add(watched)
            return
        self._pidfds[watched] = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._on_readable, watched)

    def poll(self) -> None:
        """Look at those that have no pidfd."""
        for watched in [watched for watched in self._polled if self._has_ended(watched)]:
            self._polled.remove(watched)
            self._on_exit(watched, exit_of(watched.pid, None))

    def close(self) -> None:
        """Watch nothing any more."""
        self._polled.clear()
        for watched in list(self._pidfds):
            self._drop(watched)

    def _on_readable(self, watched: Watched) -> None:
        try:
            how = exit_of(watched.pid, self._pidfds[watched])
        except OSError:
            how = None  # such as too many open files; the news does not wait for the status
        self._drop(watched)
        self._on_exit(watched, how)

    def _drop(self, watched: Watched) -> None:
        pidfd = self._pidfds.pop(watched)
        # In this order: a closed number may at once be another file's.
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)

    def _has_ended(self, watched: Watched) -> bool:
        if watched.identity is None:
            return not exists(watched.pid)
        stat = self._system.stat(watched.pid)
        return stat is None or stat.ended or stat.identity != watched.identity


def _open_files_limit() -> int:
    """How many files this program may have open."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def open_pidfd(watched: Watched, system: System) -> int | None:
    """Open a descriptor that becomes readable when the process ends.

    Returns:
        The descriptor, to be closed by the caller; None where there are none (macOS, before Linux
        5.3, a seccomp filter, too many open files).

    Raises:
        ProcessLookupError: The process is gone, or its pid is another's by now.
    """
    if sys.platform != "linux":
        return None
    try:
        pidfd = os.pidfd_open(watched.pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None
    if _is_another(watched, system):
        os.close(pidfd)
        raise ProcessLookupError(f"pid {watched.pid} is another process by now")
    return pidfd


def _is_another(watched: Watched, system: System) -> bool:
    """Whether its pid was given to another; one that is gone altogether still has its status to tell."""
    try:
        stat = system.stat(watched.pid)
    except OSError:
        return False
    return watched.identity is not None and stat is not None and stat.identity != watched.identity


def exit_of(pid: int, pidfd: int | None) -> Exit | None:
    """Tell how a process ended, without reaping it; None when the kernel does not say.

    Three sources, of which the first works for children of ours that nobody reaped yet, the second
    for whatever its parent has reaped (Linux 6.15), the third for whatever it has not reaped yet. The
    second is asked again, as the parent may reap in between.

    Args:
        pid: A process that has ended.
        pidfd: Its descriptor, where there is one.
    """
    if sys.platform != "linux":
        return None
    if pidfd is None:
        return _child_exit(os.P_PID, pid) or _zombie_exit(pid)
    return _child_exit(os.P_PIDFD, pidfd) or _reaped_exit(pidfd) or _zombie_exit(pid) or _reaped_exit(pidfd)


def _child_exit(kind: int, process: int) -> Exit | None:
    try:
        # WNOWAIT leaves it to whoever owns the child, such as Popen.wait().
        found = os.waitid(kind, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return None
    if found is None:
        return None
    if found.si_code == os.CLD_EXITED:
        return Exit(code=found.si_status)
    return Exit(signal=found.si_status)


def _reaped_exit(pidfd: int) -> Exit | None:
    import fcntl

    info = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, info)
    except OSError:
        return None
    mask, *_, status = _INFO.unpack(info)
    return Exit.of_wait_status(status) if mask & _INFO_EXIT else None


def _zombie_exit(pid: int) -> Exit | None:
    """What ``/proc`` keeps of a process until its parent reaps it; None when it is not ours to read."""
    stat = read_file(f"/proc/{pid}/stat")
    if not stat:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    status = int(fields[49])
    if fields[0] != b"Z" or (status == 0 and not _may_read(pid)):
        return None
    return Exit.of_wait_status(status)


def _may_read(pid: int) -> bool:
    """Whether the status 0 of a zombie is true: it is also shown to those who may not know."""
    try:
        Path(f"/proc/{pid}/exe").readlink()
    except PermissionError:
        return False
    except OSError:
        return True  # a zombie has no program, and we were allowed to learn that
    return True
