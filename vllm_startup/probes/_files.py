"""The files that a log may lie in: those of this machine, or of another one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class FileStatus(Protocol):
    """What is needed of `os.stat_result`."""

    @property
    def st_mode(self) -> int: ...
    @property
    def st_dev(self) -> int: ...
    @property
    def st_ino(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_mtime(self) -> float: ...


class OpenFile(Protocol):
    """A file that is open for reading, whatever its name is by now."""

    def stat(self) -> FileStatus:
        """What it is now."""
        ...

    def pread(self, size: int, offset: int) -> bytes:
        """At most ``size`` bytes from ``offset`` on; none at the end."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class Files(Protocol):
    """Where a log lies: on this machine, or on another one. Its methods raise `OSError` as `os` does."""

    def stat(self, path: Path) -> FileStatus:
        """What is at a path."""
        ...

    def open(self, path: Path) -> OpenFile:
        """Open it for reading."""
        ...


class LocalFile:
    """An open file of this machine."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def stat(self) -> FileStatus:
        """What it is now."""
        return os.fstat(self._fd)

    def pread(self, size: int, offset: int) -> bytes:
        """At most ``size`` bytes from ``offset`` on; none at the end."""
        return os.pread(self._fd, size, offset)

    def close(self) -> None:
        """Close it."""
        os.close(self._fd)


class LocalFiles:
    """The files of this machine."""

    def stat(self, path: Path) -> FileStatus:
        """What is at a path."""
        return os.stat(path)  # noqa: PTH116 - 25 times a second, at half the price

    def open(self, path: Path) -> OpenFile:
        """Open it for reading."""
        # O_NONBLOCK: a named pipe that took the file's place meanwhile must not block the open.
        return LocalFile(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
