"""A log file on another machine, followed by the rules of `LogFileProbe` through a shell there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import attrs

from vllm_startup._blocking import BlockingRunner
from vllm_startup._readings import LogOpened, ProbeNote, Reading
from vllm_startup.probes._files import FileStatus, OpenFile
from vllm_startup.probes._log import FileFollower
from vllm_startup.targets._ssh.connection import Connection, ConnectionLostError
from vllm_startup.targets._ssh.shell import Shell

# Requests: `s`: what is at the path; `o`: open that; `f ID`: what is open; `r ID SIZE FROM`: read from it.
# What is open stays so when it is renamed; a new shell finds it by its device and inode beside the path.
# `command` keeps the shell alive when a file cannot be opened.
_SCRIPT: Final = r"""
    p=$1; d=/proc/$$/fd/3; i=;
    status() { stat -L -c "%f %d:%i:%W %s %Y" "$1"; };
    identity() { stat -L -c %d:%i:%W "$1"; };
    open() {
        i=; exec 3<&-;
        for f in "$p" "$p"?*; do
            case $1 in ""|"$(identity "$f")") command exec 3<"$f" && i=$(identity "$d"); break;; esac;
        done;
    };
    hold() { [ "$i" = "$1" ] || open "$1"; [ -n "$i" ]; };
    while read -r n q a b c; do
        case $q in
            s) status "$p";;
            o) open ""; [ -n "$i" ] && status "$d";;
            f) hold "$a" && status "$d";;
            r) hold "$a" && tail -c "+$c" "$d" | head -c "$b";;
        esac;
        printf "\n#%s\n" "$n";
    done 2>/dev/null
"""

_INTERVAL_S: Final = 0.5
_LIMIT_S: Final = 20.0
_SLICE_BYTES: Final = 1024 * 1024  # a slice costs two round trips


@attrs.frozen
class _Status:
    """What `stat` prints, under the names of `os.stat_result`.

    Attributes:
        identity: Which file it is, whatever its name: device, inode, and birth where that is told, since
            an inode may be given to another file while nobody holds it.
    """

    st_mode: int
    st_dev: int
    st_ino: int
    st_size: int
    st_mtime: float
    identity: str


class FarFiles:
    """One path on another machine, and the files that it comes to mean.

    Args:
        connection: How the machine is reached.
        path: A file there. It may be missing.
    """

    def __init__(self, connection: Connection, path: str) -> None:
        self._path = path
        self._shell = Shell(connection, _SCRIPT, path)
        self.lost = False

    def stat(self, path: Path) -> FileStatus:
        """What is at the path."""
        status = _parsed(self._shell.ask("s"))
        if status is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
        return status

    def open(self, path: Path) -> OpenFile:
        """Open what is at the path."""
        status = _parsed(self._shell.ask("o"))
        if status is not None:
            return _FarFile(self, self._shell, status)
        self.stat(path)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self._path)

    def close(self) -> None:
        """End the shell there."""
        self._shell.close()


class _FarFile:
    """An open file. One that was removed while the connection was lost reads as if nothing followed."""

    def __init__(self, files: FarFiles, shell: Shell, status: _Status) -> None:
        self._files = files
        self._shell = shell
        self._last = status
        self._read_to = 0

    def stat(self) -> FileStatus:
        """What it is now."""
        status = _parsed(self._shell.ask(f"f {self._last.identity}"))
        if status is None:
            self._files.lost = True
            return attrs.evolve(self._last, st_size=max(self._last.st_size, self._read_to))
        self._last = status
        return status

    def pread(self, size: int, offset: int) -> bytes:
        """At most ``size`` bytes from ``offset`` on."""
        data = self._shell.ask(f"r {self._last.identity} {size} {offset + 1}")
        self._read_to = max(self._read_to, offset + len(data))
        return data

    def close(self) -> None:
        """Leave it to the shell, which closes it with the next one."""


def _parsed(answer: bytes) -> _Status | None:
    words = answer.split()
    if len(words) != 4:
        return None
    mode, identity, size, modified = words
    device, inode, _ = identity.split(b":")
    return _Status(int(mode, 16), int(device), int(inode), int(size), float(modified), identity.decode())


class FarLogProbe:
    """Follows a log file on another machine from its start, as `LogFileProbe` does on this one.

    It goes on from where it was when a lost connection is back, also in a file that was rotated
    meanwhile and still lies beside its successor (``vllm.log.1``).

    Args:
        connection: How the machine is reached.
        path: The file there. It may appear later.
        clock_ahead_s: Returns how far that machine's clock is ahead of ours.
    """

    name = "log"
    limit_s: float | None = _LIMIT_S

    def __init__(self, connection: Connection, path: str, *, clock_ahead_s: Callable[[], float]) -> None:
        self._source = f"{connection.destination}:{path}"
        self._files = FarFiles(connection, path)
        self._follower = FileFollower(Path(path), self._files, slice_bytes=_SLICE_BYTES)
        self._clock_ahead_s = clock_ahead_s
        self._runner = BlockingRunner("vllm_startup-far-log")
        self._told_lost = False
        self._answered = False
        self.read = False
        """Whether what it held before the watch has been told, or cannot be."""

    @property
    def interval_s(self) -> float:
        """The time between two looks; 0 while there is more to read."""
        return 0.0 if self._follower.behind else _INTERVAL_S

    async def sample(self, now: float) -> Iterable[Reading]:
        """Look once.

        Raises:
            OSError: It cannot be read, or there is no connection. It is tried again.
            ValueError: What is at the path is no regular file.
        """
        self.read = self.read or (self._answered and not self._follower.behind)
        try:
            await self._runner.run(self._follower.step)
        except ConnectionLostError:
            raise
        except (PermissionError, ValueError):  # an answer, too
            self._answered = True
            raise
        self._answered = True
        readings = [self._named(reading) for reading in self._follower.take()]
        if self._files.lost and not self._told_lost:
            self._told_lost = True
            text = f"{self._source} was replaced while the connection was lost: its last lines may be missing"
            readings.append(ProbeNote(code="log_lines_missed", text=text))
        return readings

    async def aclose(self) -> None:
        """End the shell there."""
        self._runner.close()
        self._files.close()

    def _named(self, reading: Reading) -> Reading:
        """A reading as it is told of another machine: lines arrive later than news of a death."""
        if isinstance(reading, LogOpened):
            return attrs.evolve(
                reading, source=self._source, stream=True, clock_ahead_s=self._clock_ahead_s()
            )
        return reading
