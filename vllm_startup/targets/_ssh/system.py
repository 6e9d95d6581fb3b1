"""The processes of another machine: its ``/proc``, a snapshot at a time, through a shell there.

A snapshot is mostly one request: which processes there are, and the files of those that belong to the
server. Arguments are read of the server's own alone, since they may hold secrets.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Collection, Iterable
from functools import cache
from typing import Final, NamedTuple

from vllm_startup._roles import TITLE_PREFIX
from vllm_startup.probes._exits import Exit
from vllm_startup.probes._system import Stat, parse_stat
from vllm_startup.targets._ssh.connection import Connection
from vllm_startup.targets._ssh.shell import Shell
from vllm_startup.targets._target import TargetError

# `head` names the files that it prints when it gets several, and skips those that have gone. The newest
# process that it shows is itself, which tells the time since the machine's start.
_SCRIPT: Final = r"""
    cd /proc && while read -r n f; do
        date +%s; echo [0-9]*; head -c 4096 /dev/null self/stat $f;
        printf "\n#%s\n" "$n";
    done 2>/dev/null
"""
_ALL_STATS: Final = "[0-9]*/stat"
_BOOT_ID: Final = "sys/kernel/random/boot_id"
_VECTOR: Final = "self/auxv"
_AT_PAGESZ, _AT_CLKTCK = 6, 17  # getauxval(3)
_PAGE_BYTES, _TICKS = 4096, 100  # where the vector does not tell
_READ_BYTES_KEY: Final = b"\nread_bytes: "
_START_FIELD, _EXIT_FIELD = 19, 49  # of stat, counted behind the name
_TRUSTED_S: Final = 4.0  # after a longer pause a pid may be another process's
_RENAMED_CHECK_S: Final = 4.0  # less than a `Member` waits until it asks for its name again
_AGREE_S: Final = 2.0  # `date` tells whole seconds


class _Machine(NamedTuple):
    """What stays the same while the other machine runs.

    Attributes:
        boot_id: The kernel's name for this run.
        booted_at: When it began, by that machine's clock, in seconds since the Unix epoch.
        ahead_s: How far that clock is ahead of ours.
    """

    boot_id: bytes
    booted_at: float
    tick_s: float
    page_bytes: int
    ahead_s: float


class _Command(NamedTuple):
    program: str
    read_at: float
    arguments: tuple[str, ...]
    inner_pid: int


class FarSystem:
    """A `System` whose facts are those of the last `refresh`. Not for use by two threads at once.

    Args:
        connection: How the machine is reached.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._shell = Shell(connection, _SCRIPT)
        self._machine: _Machine | None = None
        self._generation = -1
        self._date = 0
        self._pids: frozenset[int] = frozenset()
        self._files: dict[str, bytes] = {}
        self._stats: dict[int, Stat] = {}
        self._commands: dict[int, _Command] = {}
        self._read_at = float("-inf")

    def refresh(self, members: Collection[int]) -> None:
        """Look once. It blocks for one answer, and for one or two more where something is new.

        Args:
            members: The processes of which all is to be read; what descends from them is found.

        Raises:
            OSError: As of `Shell.ask`.
            TargetError: The other machine shows no processes.
        """
        self._meet()
        whole = time.monotonic() - self._read_at > _TRUSTED_S
        self._files = {}
        self._ask([_ALL_STATS] if whole else _named(members, "stat"), _named(members, "io"))
        old = () if whole else self._stats.items()
        self._stats = {pid: stat for pid, stat in old if pid in self._pids}
        self._keep_stats()
        if new := self._pids - self._stats.keys():
            self._ask(_named(new, "stat"))
            self._keep_stats()
        self._read_commands(self.family(members))
        self._read_at = time.monotonic()

    def read(self, path: str) -> bytes:
        """The first 4,096 bytes of a file below ``/proc``; empty without one."""
        self._ask([path])
        return self._files.get(path, b"")

    def exit_of(self, pid: int) -> Exit:
        """How a process ended that its parent has not asked about yet; else unknown."""
        fields = _fields(self._files.get(f"{pid}/stat", b""))
        # A status of 0 is shown to those too who may not know it, as I/O is not.
        if len(fields) <= _EXIT_FIELD or fields[0] != b"Z" or not self.readable(pid):
            return Exit()
        return Exit.of_wait_status(int(fields[_EXIT_FIELD]))

    @property
    def clock_ahead_s(self) -> float:
        """How far the other machine's clock is ahead of ours; 0 where it is about the same."""
        return 0.0 if self._machine is None else self._machine.ahead_s

    def close(self) -> None:
        """End the shell there."""
        self._shell.close()

    # --- System -----------------------------------------------------------------------------

    def pids(self) -> Iterable[int]:
        """Every process id that we may see there."""
        return self._pids

    def stat(self, pid: int) -> Stat | None:
        """One process; None when it is gone."""
        return self._stats.get(pid)

    def arguments(self, pid: int) -> tuple[str, ...]:
        """Its command line; empty for what is not of the server's tree."""
        known = self._commands.get(pid)
        return known.arguments if known else ()

    def inner_pid(self, pid: int) -> int:
        """Its number in the innermost of the namespaces around it, as its container's log has it."""
        known = self._commands.get(pid)
        return known.inner_pid if known else pid

    def read_bytes(self, pid: int) -> int | None:
        """Bytes that it fetched from storage; None when that is not ours to read."""
        text = self._files.get(f"{pid}/io", b"")
        if _READ_BYTES_KEY not in text:
            return None
        return int(text.partition(_READ_BYTES_KEY)[2].split(b"\n", 1)[0])

    def age_s(self, stat: Stat) -> float:
        """Seconds since it started."""
        machine = self._known()
        return max(0.0, self._up_s(machine.tick_s) - (stat.started_at - machine.booted_at))

    def readable(self, pid: int) -> bool:
        """Whether everything about it is ours to read."""
        return f"{pid}/io" in self._files

    # --- asking -----------------------------------------------------------------------------

    def _ask(self, *files: Iterable[str]) -> None:
        """Read files below ``/proc`` into `_files`, and the list of processes."""
        answer = self._shell.ask(" ".join(path for part in files for path in part))
        date, listing, text = (*answer.split(b"\n", 2), b"", b"")[:3]
        self._pids = frozenset(int(word) for word in listing.split() if word.isdigit())
        if not self._pids:
            where = self._connection.destination
            raise TargetError(f"{where} shows no processes in /proc; only Linux can be watched over ssh")
        self._date = int(date)
        pieces = _header().split(text)
        self._files.update(zip(map(bytes.decode, pieces[1::2]), pieces[2::2], strict=True))

    def _meet(self) -> None:
        """Learn what machine it is, at first and after each loss of the connection."""
        generation = self._connection.generation
        if generation == self._generation:
            return
        asked_at = time.time()
        self._ask([_BOOT_ID, _VECTOR])
        boot_id = self._files.get(_BOOT_ID, b"").strip()
        if self._machine is None or boot_id != self._machine.boot_id:
            ticks, page_bytes = _units(self._files.get(_VECTOR, b""))
            ahead_s = self._date - (asked_at + time.time()) / 2
            self._machine = _Machine(
                boot_id=boot_id,
                booted_at=self._date - self._up_s(1 / ticks),
                tick_s=1 / ticks,
                page_bytes=page_bytes,
                ahead_s=ahead_s if abs(ahead_s) > _AGREE_S else 0.0,
            )
            self._commands = {}
        self._read_at = float("-inf")
        self._generation = generation

    def _up_s(self, tick_s: float) -> float:
        """Seconds since the machine's start: when `head` began, which has just been."""
        return int(_fields(self._files["self/stat"])[_START_FIELD]) * tick_s

    def _known(self) -> _Machine:
        assert self._machine is not None
        return self._machine

    def _keep_stats(self) -> None:
        machine = self._known()
        for path, text in self._files.items():
            owner, _, name = path.partition("/")
            if name == "stat" and owner.isdigit():
                try:
                    self._stats[int(owner)] = parse_stat(
                        int(owner),
                        text,
                        booted_at=machine.booted_at,
                        tick_s=machine.tick_s,
                        page_bytes=machine.page_bytes,
                    )
                except ValueError:
                    continue  # a name that is made to look like something else

    def family(self, members: Collection[int]) -> set[int]:
        """Those of the members that are there, and what descends from them."""
        children: dict[int, list[int]] = {}
        for stat in self._stats.values():
            children.setdefault(stat.ppid, []).append(stat.pid)
        waiting, found = list(members), set[int]()
        while waiting:
            pid = waiting.pop()
            if pid not in found:
                found.add(pid)
                waiting.extend(children.get(pid, ()))
        return found & self._stats.keys()

    def _read_commands(self, family: set[int]) -> None:
        """Read what is not known yet of the server's processes."""
        now = time.monotonic()
        unknown = {pid for pid in family if f"{pid}/io" not in self._files and pid not in self._commands}
        unnamed = [pid for pid in family if self._is_due(pid, now)]
        if unknown or unnamed:
            self._ask(_named(unnamed, "cmdline"), _named(unnamed, "status"), _named(unknown, "io"))
        for pid in unnamed:
            text = self._files.get(f"{pid}/cmdline", b"").strip(b"\n").rstrip(b"\0")
            words = tuple(word.decode("utf-8", "replace") for word in text.split(b"\0")) if text else ()
            inner = _inner_pid(self._files.get(f"{pid}/status", b""), pid)
            self._commands[pid] = _Command(self._stats[pid].program, now, words, inner)
        self._commands = {pid: command for pid, command in self._commands.items() if pid in family}

    def _is_due(self, pid: int, now: float) -> bool:
        """Whether its command line is not known, or may be another one by now."""
        program, known = self._stats[pid].program, self._commands.get(pid)
        if known is None or known.program != program:
            return True
        return not program.startswith(TITLE_PREFIX) and now - known.read_at >= _RENAMED_CHECK_S


def _named(pids: Iterable[int], name: str) -> list[str]:
    return [f"{pid}/{name}" for pid in pids]


def _inner_pid(status: bytes, pid: int) -> int:
    words = status.partition(b"\nNSpid:")[2].split(b"\n", 1)[0].split()
    return int(words[-1]) if words else pid


def _fields(stat: bytes) -> list[bytes]:
    return stat.rpartition(b")")[2].split()


@cache
def _header() -> re.Pattern[bytes]:
    return re.compile(rb"(?:\A|\n)==> ([!-~]+) <==\n")


def _units(vector: bytes) -> tuple[int, int]:
    """Clock ticks a second and bytes a page, from a process's auxiliary vector (64 bits, little-endian)."""
    whole = vector[: len(vector) - len(vector) % 16]
    told = dict(struct.iter_unpack("<QQ", whole))
    return told.get(_AT_CLKTCK, _TICKS), told.get(_AT_PAGESZ, _PAGE_BYTES)
