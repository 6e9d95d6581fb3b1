"""The server's log in a file: what is in it already, then whatever is appended.

A look is one `os.stat`, and on local file systems it is made in the event loop: 5 µs against 60 µs for a
hop to a thread and back (25 looks a second: 0.02 % against 0.2 % of a core). On any other file system (NFS,
FUSE, Lustre) a look may hang for good, so there it is made in a thread of the probe's own.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_startup._blocking import BlockingRunner
from vllm_startup._log.packing import compression, decoder
from vllm_startup._log.splitter import LineSplitter
from vllm_startup._readings import LogCaughtUp, LogLines, LogOpened, OwnLogBegins, ProbeNote
from vllm_startup.probes._files import Files, FileStatus, LocalFiles, OpenFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_startup._readings import Reading

POLL_S: Final = 0.04
"""A cause is to be told within 50 ms of its line."""

BROKEN_POLL_S: Final = 0.5
"""How often a log that cannot be read is tried again."""

LIMIT_S: Final = 10.0

SLICE_BYTES: Final = 64 * 1024
"""Read at once: 500 lines of a real start, 0.3 ms to split; 65,536 empty lines, 15 ms."""

TAIL_BYTES, TAIL_LINES = 64 * 1024, 400  # a start that failed ends with a hundred lines without a stamp
"""Of what was there before: enough to hold a line with a time in it."""

MAX_LINES: Final = 2000
"""Lines told in one sample: 20 ms for the machine at the 100,000 real lines/s that it must stand."""

LOCAL_FILE_SYSTEMS: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)


class LogFileProbe:
    """Follows a log file, as ``tail -F`` does, from its start.

    What the file holds at the first look is history. A missing file is awaited; a truncated one is read
    from its start again; after a rotation the old file is followed until the new one holds something,
    since a server that was started with ``> vllm.log`` goes on writing to the old one. The unfinished last
    line is told once it has been waiting for a look, and again when it has grown or ended.

    Limits: text that is overwritten between two looks, ``poll_s`` apart, is not seen. Compressed files
    are not unpacked.

    Args:
        path: A regular file. It may appear later.
        own_from: Its size when the watched server was started: what follows is that one's own.
        poll_s: Seconds between looks.
        local: Whether looks return at once; None: by the file system.

    Raises:
        ValueError: ``path`` is a directory, a named pipe or a device, or holds a null character, or
            ``poll_s`` is not positive.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        own_from: int = 0,
        poll_s: float = POLL_S,
        local: bool | None = None,
    ) -> None:
        if not poll_s > 0:
            raise ValueError(f"poll_s must be more than 0 seconds, not {poll_s}")
        self._path = Path(path)
        if "\0" in str(path):
            raise ValueError(f"log must be a path without null characters, not {str(path)!r}")
        try:
            _check_regular(self._path.stat(), self._path)
        except OSError:
            pass  # missing, or not ours to read: the watch tells
        self._poll_s = poll_s
        self._follower = FileFollower(self._path, own_from=own_from)
        direct = is_local(self._path) if local is None else local
        self._runner = None if direct else BlockingRunner(f"vllm-startup log {self._path.name}")
        self._broken = False

    @property
    def name(self) -> str:
        """``log``."""
        return "log"

    @property
    def interval_s(self) -> float:
        """The time between two looks; 0 while there is more to read."""
        if self._broken:
            return max(BROKEN_POLL_S, self._poll_s)
        return 0.0 if self._follower.behind else self._poll_s

    @property
    def limit_s(self) -> float:
        """How long one look may take; only a remote file system ever needs it."""
        return LIMIT_S

    async def sample(self, now: float) -> Iterable[Reading]:
        """Look once; at most `MAX_LINES` lines come back.

        Raises:
            OSError: The log cannot be read. It is tried again.
            ValueError: Something else than a regular file took its place.
        """
        if self._follower.behind:
            await asyncio.sleep(0)  # a backlog must not starve the other probes
        self._broken = True
        if self._runner is None:
            self._follower.step()
        else:
            await self._runner.run(self._follower.step)
        self._broken = False
        return self._follower.take()

    def glance(self, now: float) -> bool:
        """Whether the file may have changed. A remote one is not asked from the event loop."""
        return self._broken or self._runner is not None or not self._follower.quiet()

    async def aclose(self) -> None:
        """Close the file. A look that hangs is left to its daemon thread."""
        if self._runner is not None:
            self._runner.close()
            if self._runner.busy:
                return  # it still uses the descriptor
        self._follower.close()


class OwnLog(os.PathLike[str]):
    """The path of a log to which a server was made to append, and the log's size before."""

    def __init__(self, path: Path, size: int) -> None:
        self.path, self.size = path, size

    def __fspath__(self) -> str:
        return str(self.path)


class FileFollower:
    """One log file, look by look, without a loop.

    What `step` sees is kept until `take` fetches it, so that nothing is lost when the caller of a
    `step` in a thread has been cancelled.
    """

    def __init__(
        self,
        path: Path,
        files: Files | None = None,
        *,
        own_from: int = 0,
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        self._path = path
        self._files = files or LocalFiles()
        self._slice_bytes = slice_bytes
        self._file: OpenFile | None = None
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._history_end = 0
        self._own_from = own_from
        self._splitter = LineSplitter()
        self._ready: deque[Reading] = deque()
        self._waiting = False
        self._told_partial: str | None = None
        self._opened = False
        self._caught_up = True
        self._missed = False
        self._more = False

    @property
    def behind(self) -> bool:
        """Whether more is known to be there than `take` has given."""
        return self._more or bool(self._ready)

    def take(self) -> list[Reading]:
        """What was seen, oldest first, at most `MAX_LINES` lines."""
        taken: list[Reading] = []
        lines = 0
        while self._ready:
            reading = self._ready[0]
            lines += len(reading.lines) if isinstance(reading, LogLines) else 0
            if lines > MAX_LINES:
                break
            taken.append(self._ready.popleft())
        return taken

    def step(self) -> None:
        """Look once, and read at most ``slice_bytes``; nothing while `take` has something to give.

        Raises:
            OSError: The log cannot be opened or read.
            ValueError: Something else than a regular file is at its place.
        """
        if self._ready:
            return
        self._more = False
        there = self._stat()
        if self._file is None:
            if there is None:
                self._tell_missing("there is no log at {path} yet")
                return
            self._open(live=self._missed)
        if not self._unchanged(there) and not self._read():
            self._look_for_replacement(there)
        self._tell_partial()

    def quiet(self) -> bool:
        """Whether nothing has changed and nothing waits to be told.

        Raises:
            OSError: The log cannot be looked at.
        """
        settled = not self._waiting or self._told_partial is not None
        return settled and not self.behind and self._file is not None and self._unchanged(self._there())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _unchanged(self, there: FileStatus | None) -> bool:
        """Whether this look can end after its one `os.stat`, as most do."""
        return (
            there is not None
            and (there.st_dev, there.st_ino) == self._identity
            and there.st_size == self._offset
        )

    def _stat(self) -> FileStatus | None:
        there = self._there()
        if there is not None:
            _check_regular(there, self._path)
        return there

    def _there(self) -> FileStatus | None:
        try:
            return self._files.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _open(self, *, live: bool) -> None:
        try:
            file = self._files.open(self._path)
        except PermissionError as error:
            message = f"log {str(self._path)!r} may not be read by this user"
            raise PermissionError(errno.EACCES, message) from error
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):  # it took the log's place since the look
            file.close()
            _check_regular(status, self._path)
        self.close()
        self._file = file
        self._identity = (status.st_dev, status.st_ino)
        self._offset = 0
        self._history_end = 0 if live else status.st_size
        if self._own_from > self._history_end:  # another file than it was, or cut off
            self._own_from = 0
        if not self._opened:
            self._opened = True
            self._caught_up = not self._history_end
            self._ready.append(self._opening(file, status.st_mtime))

    def _opening(self, file: OpenFile, modified_at: float) -> LogOpened:
        if not self._history_end:
            return LogOpened(source=str(self._path))
        data = file.pread(TAIL_BYTES, max(0, self._history_end - TAIL_BYTES))
        lines = LineSplitter().feed(data + b"\n")
        return LogOpened(source=str(self._path), modified_at=modified_at, tail=tuple(lines[-TAIL_LINES:]))

    def _read(self) -> bool:
        """Read a slice; False at the end of what there is."""
        assert self._file is not None
        history = self._offset < self._history_end
        ends = self._own_from if self._offset < self._own_from else self._history_end
        size = min(self._slice_bytes, ends - self._offset) if history else self._slice_bytes
        data = self._file.pread(size, self._offset)
        if not data:
            return False
        if not self._offset:
            self._tell_packing(data)
        self._offset += len(data)
        self._more = len(data) == size
        self._tell(self._splitter.feed(data), history=history)
        if self._offset == self._own_from:
            self._tell(self._splitter.finish(), history=True)
            self._ready.append(OwnLogBegins())
        self._tell_caught_up()
        return True

    def _look_for_replacement(self, there: FileStatus | None) -> None:
        assert self._file is not None
        if self._file.stat().st_size < self._offset:
            self._tell(self._splitter.finish(), history=False)
            self._offset = self._history_end = 0
            self._read()
        elif there is None:
            self._tell_missing("the log at {path} was removed; what its writer still adds is read")
        elif (there.st_dev, there.st_ino) != self._identity and there.st_size > 0:
            self._more = True
            if not self._read():  # the writer's last words, between the read before and the rotation
                self._open(live=True)
                self._tell(self._splitter.finish(), history=False)

    def _tell(self, lines: list[str], *, history: bool) -> None:
        if lines:
            self._ready.extend(batches(lines, history=history))
            self._waiting = False
            self._told_partial = None

    def _tell_caught_up(self) -> None:
        if not self._caught_up and self._offset >= self._history_end:
            self._caught_up = True
            self._ready.append(LogCaughtUp())

    def _tell_partial(self) -> None:
        if self._more:
            return
        text = self._splitter.partial()
        if text is None:
            self._waiting = False
        elif not self._waiting:
            self._waiting = True
        elif text and text != self._told_partial:
            self._told_partial = text
            history = 0 < self._offset <= self._history_end
            self._ready.append(LogLines(partial=text, history=history))

    def _tell_packing(self, head: bytes) -> None:
        packing = compression(head) or ("UTF-16" if decoder(head) else None)
        if packing is not None:
            text = f"the log at {self._path} is in {packing}: nothing in it can be read"
            self._ready.append(ProbeNote(code="log_unreadable", text=text))

    def _tell_missing(self, text: str) -> None:
        if not self._missed:
            self._missed = True
            self._ready.append(ProbeNote(code="log_missing", text=text.format(path=self._path)))


def batches(lines: list[str], *, history: bool = False) -> list[LogLines]:
    """Cut lines into readings of at most `MAX_LINES`."""
    return [
        LogLines(lines=tuple(lines[start : start + MAX_LINES]), history=history)
        for start in range(0, len(lines), MAX_LINES)
    ]


def is_local(path: Path, *, mountinfo: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether looks at ``path`` are known to return at once.

    From ``/proc/self/mountinfo`` (proc(5)). Where that is missing (macOS), local is assumed for what is
    not under ``/Volumes`` or ``/net``, where remote file systems are mounted by convention.
    """
    where = os.path.abspath(path)  # noqa: PTH100 - no link is followed: resolving them could hang
    try:
        mounts = mountinfo.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return not where.startswith(("/Volumes/", "/net/"))
    return _file_system(where, mounts) in LOCAL_FILE_SYSTEMS


def _file_system(where: str, mounts: str) -> str:
    """The type of the file system that is mounted nearest above ``where``, the latest mount winning."""
    best, kind = "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = fields[4].replace("\\040", " ")  # proc(5) escapes spaces so
        inside = point == "/" or where == point or where.startswith(point + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split(" ", 1)[0]
    return kind


def _check_regular(status: FileStatus, path: Path) -> None:
    mode = status.st_mode
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise ValueError(f"log must be a file, and {str(path)!r} is a directory: name the file in it")
    raise ValueError(f"log must be a regular file, which {str(path)!r} is not: give a pipe as an open stream")
