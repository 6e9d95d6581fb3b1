"""What the operating system tells about processes.

Linux is read from ``/proc`` directly, since psutil does not meet the budget of 3 ms of CPU a scan:
for a tree of 64 among 136 processes, finding the children and reading each took 6.2 ms with kept
``psutil.Process`` objects and ``oneshot()`` (7.5 ms with new ones) against 0.6 ms here. Elsewhere
psutil is asked.
"""

from __future__ import annotations

import os
import sys
import time
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psutil


class Identity(NamedTuple):
    """A process that is not mistaken for another with the same pid.

    Attributes:
        started_at: When it started, in seconds since the Unix epoch.
    """

    pid: int
    started_at: float


class Stat(NamedTuple):
    """One process at one moment; the fields are those of `ProcessSample`.

    Attributes:
        program: The program's name as the system keeps it, cut to 15 bytes on Linux.
    """

    pid: int
    ppid: int
    started_at: float
    program: str
    status: str
    cpu_s: float
    children_cpu_s: float
    rss_bytes: int

    @property
    def identity(self) -> Identity:
        """The process that was read."""
        return Identity(self.pid, self.started_at)

    @property
    def ended(self) -> bool:
        """Whether only its exit status is left of it."""
        return self.status in {"zombie", "dead"}


class System(Protocol):
    """Where facts about processes come from. Its methods do not raise for a process that is gone."""

    def pids(self) -> Iterable[int]:
        """Every process id that we may see."""
        ...

    def stat(self, pid: int) -> Stat | None:
        """One process; None when it is gone or hidden from us."""
        ...

    def arguments(self, pid: int) -> tuple[str, ...]:
        """Its command line, which a process may overwrite with a title; empty when unknown."""
        ...

    def read_bytes(self, pid: int) -> int | None:
        """Bytes that it fetched from storage; None when that is not ours to read."""
        ...

    def age_s(self, stat: Stat) -> float:
        """Seconds since it started."""
        ...

    def readable(self, pid: int) -> bool:
        """Whether everything about it is ours to read."""
        ...


# proc(5), the state letters, as psutil words them.
_STATUS: Final = {
    "R": "running",
    "S": "sleeping",
    "D": "disk-sleep",
    "T": "stopped",
    "t": "tracing-stop",
    "Z": "zombie",
    "X": "dead",
    "x": "dead",
    "K": "wake-kill",
    "W": "waking",
    "P": "parked",
    "I": "idle",
}
_READ_SIZE: Final = 65536
_READ_BYTES_KEY: Final = b"\nread_bytes: "


def read_file(path: str) -> bytes | None:
    """Read the beginning of a small file; None when it is gone or not ours to read.

    Raises:
        OSError: It could not be read for another reason, such as too many open files: to take that
            for the end of a process would be a lie.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError, ProcessLookupError):
        return None
    try:
        return os.read(fd, _READ_SIZE)
    except (PermissionError, ProcessLookupError):
        return None  # it ended after the file was opened, or forbids the reading alone
    finally:
        os.close(fd)


def parse_stat(pid: int, text: bytes, *, booted_at: float, tick_s: float, page_bytes: int) -> Stat:
    """Read a process's line in ``/proc/PID/stat`` (proc(5)).

    Raises:
        ValueError: It is not whole.
    """
    # The name may hold blanks and brackets: the last bracket ends it.
    opening, closing = text.index(b"("), text.rindex(b")")
    fields = text[closing + 2 :].split()
    if len(fields) < 22:
        raise ValueError(f"the stat of process {pid} is cut")
    return Stat(
        pid=pid,
        ppid=int(fields[1]),
        started_at=booted_at + int(fields[19]) * tick_s,
        program=text[opening + 1 : closing].decode("utf-8", "replace"),
        status=_STATUS.get(fields[0].decode("ascii", "replace"), "running"),
        cpu_s=(int(fields[11]) + int(fields[12])) * tick_s,
        children_cpu_s=(int(fields[13]) + int(fields[14])) * tick_s,
        rss_bytes=int(fields[21]) * page_bytes,
    )


class ProcSystem:
    """Linux's ``/proc``.

    Args:
        root: Where it is mounted.
    """

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        # Read once: the kernel moves it when the wall clock is set, and identities must not move.
        self._booted_at = self._boot_time()

    def pids(self) -> Iterable[int]:
        """Every process id that we may see."""
        return [int(entry) for entry in os.listdir(self._root) if entry.isdigit()]  # noqa: PTH208 - twice as fast

    def stat(self, pid: int) -> Stat | None:
        """One process; None when it is gone or hidden from us."""
        text = read_file(f"{self._root}/{pid}/stat")
        if not text:
            return None
        return parse_stat(
            pid, text, booted_at=self._booted_at, tick_s=self._tick_s, page_bytes=self._page_bytes
        )

    def arguments(self, pid: int) -> tuple[str, ...]:
        """Its command line, which a process may overwrite with a title; empty when unknown."""
        text = read_file(f"{self._root}/{pid}/cmdline")
        if not text:
            return ()
        return tuple(part.decode("utf-8", "replace") for part in text.rstrip(b"\0").split(b"\0"))

    def read_bytes(self, pid: int) -> int | None:
        """Bytes that it fetched from storage; None when that is not ours to read."""
        text = read_file(f"{self._root}/{pid}/io")
        if not text or _READ_BYTES_KEY not in text:
            return None
        return int(text.partition(_READ_BYTES_KEY)[2].split(b"\n", 1)[0])

    def age_s(self, stat: Stat) -> float:
        """Seconds since it started, exact where the wall clock and the boot time are not."""
        up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return max(0.0, up_s - (stat.started_at - self._booted_at))

    def readable(self, pid: int) -> bool:
        """Whether everything about it is ours to read."""
        return read_file(f"{self._root}/{pid}/io") is not None

    def _boot_time(self) -> int:
        text = read_file(f"{self._root}/stat") or b""
        return int(text.partition(b"\nbtime ")[2].split(b"\n", 1)[0] or b"0")


class PsutilSystem:
    """Any platform that psutil knows."""

    def pids(self) -> Iterable[int]:
        """Every process id that we may see."""
        import psutil

        return psutil.pids()

    def stat(self, pid: int) -> Stat | None:
        """One process; None when it is gone or hidden from us."""
        import psutil

        try:
            process = psutil.Process(pid)
            with process.oneshot():
                return self._stat(process)
        except (psutil.Error, OSError):
            return None

    def arguments(self, pid: int) -> tuple[str, ...]:
        """Its command line, which a process may overwrite with a title; empty when unknown."""
        import psutil

        try:
            return tuple(psutil.Process(pid).cmdline())
        except (psutil.Error, OSError):
            return ()

    def read_bytes(self, pid: int) -> int | None:
        """Bytes that it fetched from storage; None when that is not ours to read."""
        import psutil

        try:
            return int(psutil.Process(pid).io_counters().read_bytes)
        except (psutil.Error, OSError, AttributeError):
            return None  # macOS counts no I/O by process

    def age_s(self, stat: Stat) -> float:
        """Seconds since it started, by the wall clock."""
        return max(0.0, time.time() - stat.started_at)

    def readable(self, pid: int) -> bool:
        """Whether everything about it is ours to read."""
        import psutil

        try:
            psutil.Process(pid).memory_info()
        except psutil.AccessDenied:
            return False
        except (psutil.Error, OSError):
            return True  # gone: nobody keeps it from us
        return True

    def _stat(self, process: psutil.Process) -> Stat:
        import psutil

        cpu_s = children_cpu_s = 0.0
        rss_bytes = 0
        try:
            times = process.cpu_times()
            cpu_s, children_cpu_s = times.user + times.system, times.children_user + times.children_system
            rss_bytes = process.memory_info().rss
        except (psutil.AccessDenied, psutil.ZombieProcess):
            pass  # macOS tells these of one's own processes only
        return Stat(
            pid=process.pid,
            ppid=process.ppid(),
            started_at=process.create_time(),
            program=process.name(),
            status=str(process.status()),
            cpu_s=cpu_s,
            children_cpu_s=children_cpu_s,
            rss_bytes=rss_bytes,
        )


@cache
def this_system() -> System:
    """The fastest source that works on this machine."""
    if sys.platform == "linux" and read_file("/proc/self/stat"):
        return ProcSystem()
    return PsutilSystem()


def existing(pid: int, system: System) -> Stat | None:
    """Look up a process that the caller was told of.

    Returns:
        The process; None when it exists but is hidden from us.

    Raises:
        TypeError: ``pid`` is no number.
        ValueError: No process has this id.
    """
    if not isinstance(pid, int) or isinstance(pid, bool):
        raise TypeError(f"pid must be a number, not {pid!r}")
    if not exists(pid):
        raise ValueError(f"pid {pid} does not exist: give the id of the vllm process while it runs")
    leader = _thread_group(pid)
    if leader != pid:
        raise ValueError(f"pid {pid} is a thread of process {leader}: give pid={leader}")
    return system.stat(pid)


def exists(pid: int) -> bool:
    if pid <= 0:
        return False  # kill(2) takes these for groups
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _thread_group(pid: int) -> int:
    """The process that a thread belongs to: Linux accepts a thread's id where a pid is asked for."""
    status = read_file(f"/proc/{pid}/status") or b""
    found = status.partition(b"\nTgid:")[2].split(b"\n", 1)[0]
    return int(found) if found.strip() else pid
