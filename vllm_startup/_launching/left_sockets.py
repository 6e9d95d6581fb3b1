"""Unix sockets that killed processes leave in the file system.

vLLM's processes talk through ZeroMQ sockets in ``$TMPDIR``, five of them for one engine (0.32), which
unlink their files when they are closed in good order, and a kill leaves them there for ever.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable


class LeftSockets:
    """The socket files of a tree: noted while it lives, removed when it is gone."""

    def __init__(self) -> None:
        self._paths: set[bytes] = set()

    def note(self, pids: Iterable[int]) -> None:
        """Note what these processes are bound to; one of another file system's view is left out."""
        bound = _bound()
        if not bound:
            return
        ours = _link("/proc/self/ns/mnt")
        for pid in pids:
            if _link(f"/proc/{pid}/ns/mnt") != ours:
                continue
            try:
                numbers = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - pathlib would cost the guardian 3 MB
            except OSError:
                continue
            links = {_link(f"/proc/{pid}/fd/{number}") for number in numbers}
            self._paths.update(path for inode, path in bound.items() if f"socket:[{inode}]" in links)

    def remove(self) -> None:
        """Remove those that nobody is bound to any more."""
        in_use = set(_bound().values())
        for path in self._paths - in_use:
            try:
                if stat.S_ISSOCK(os.lstat(path).st_mode):
                    os.unlink(path)  # noqa: PTH108 - see above
            except OSError:
                pass  # its owner has removed it


def _bound() -> dict[int, bytes]:
    """The inode and the absolute path of every socket that is bound to one (proc(5))."""
    try:
        with open("/proc/net/unix", "rb") as file:  # noqa: PTH123 - see above
            rows = [row.split(None, 7) for row in file.read().split(b"\n")[1:]]
    except OSError:
        return {}
    return {int(row[6]): row[7] for row in rows if len(row) == 8 and row[7].startswith(b"/")}


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - see above
    except OSError:
        return ""
