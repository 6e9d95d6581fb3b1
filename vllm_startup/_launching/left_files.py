"""Files that vLLM's processes leave behind: the sockets, stores and shared memory that they talk through.

The first two lie in ``$TMPDIR``, and of a server that ends in good order too (0.32: seven sockets for one
engine, and the store). A socket that nobody is bound to and nobody answers on is of no use to anybody:
those with the random names that vLLM gives are removed, if they are from the tree's time. A store
(``vllm_dist_…``) is a file, which does not tell whose it is; but its random name stands in the server's own
output. The CPU build's workers name shared memory after it. Other shared memory is Python's, whose resource
tracker removes it; but a tracker may be killed, too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

_STORE: Final = b"/vllm_dist_"  # vllm.utils.network_utils.get_file_store_init_method
_SHARED_MEMORY: Final = b"/dev/shm"
_OF_PYTHON: Final = (b"psm_", b"sem.mp-")
_SCHEME: Final = b"file://"
_HEX: Final = frozenset(b"0123456789abcdef")
_ID_BYTES: Final = 32
LONGEST_STORE: Final = 4096  # PATH_MAX
_SLACK_S: Final = 1.0  # of a file system's clock

_READ_BYTES: Final = 1 << 20
_MOST_BYTES: Final = 32 << 20
"""Of a log: a store is named within the first seconds."""


class LeftFiles:
    """The files of one tree: noted while it lives, removed when it is gone.

    Args:
        since: When the tree began, in seconds since the epoch.
        places: The directories in which vLLM puts such files.
    """

    def __init__(self, since: float, places: Iterable[bytes] = ()) -> None:
        self._since = since
        self._places = tuple(places)
        self._sockets: set[bytes] = set()
        self._stores: set[bytes] = set()
        self._shared: set[int] = set()

    def note(self, pids: Iterable[int]) -> None:
        """Note what these processes have mapped, and what they are bound to: ``--uds`` is such a socket too.

        One of another file system's view is left out.
        """
        bound = _bound()
        ours = _link("/proc/self/ns/mnt")
        for pid in pids:
            if _link(f"/proc/{pid}/ns/mnt") != ours:
                continue
            self._shared |= _mapped(pid)
            if not bound:
                continue
            try:
                numbers = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - pathlib would cost the guardian 3 MB
            except OSError:
                continue
            links = {_link(f"/proc/{pid}/fd/{number}") for number in numbers}
            self._sockets.update(path for inode, path in bound.items() if f"socket:[{inode}]" in links)

    def note_store(self, path: bytes) -> bool:
        """Note a store that was named in the server's output; return whether that is news."""
        known = path in self._stores
        self._stores.add(path)
        return not known

    def remove(self) -> None:
        """Remove what nobody uses any more."""
        in_use = set(_bound().values())
        for path in self._sockets - in_use:
            _unlink(path, stat.S_ISSOCK)
        for path in self._random_sockets() - in_use:
            if _is_dead(path):  # else it is bound in another network namespace
                _unlink(path, stat.S_ISSOCK, since=self._since)
        for path in self._stores:
            _unlink(path, stat.S_ISREG, since=self._since)
        names = tuple(path.rpartition(b"/")[2] for path in self._stores)
        for path in _entries(_SHARED_MEMORY, lambda name: name.startswith(names)):
            _unlink(path, stat.S_ISREG, since=self._since)
        self._remove_shared()

    def _remove_shared(self) -> None:
        """Remove Python's shared memory that the tree had, and nobody has any more."""
        left = {_inode(path): path for path in _entries(_SHARED_MEMORY, lambda n: n.startswith(_OF_PYTHON))}
        if not self._shared.isdisjoint(left):  # the look at all others takes 0.1 ms each
            pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - see above
            in_use = set[int]().union(*map(_mapped, pids))
            for inode in self._shared.intersection(left) - in_use:
                _unlink(left[inode], stat.S_ISREG)

    def _random_sockets(self) -> set[bytes]:
        return {path for place in self._places for path in _entries(place, _is_uuid)}


def places_of(environment: Mapping[bytes, bytes]) -> list[bytes]:
    """Where a vLLM with this environment puts its files: as Python's `tempfile` chooses."""
    names = (b"VLLM_RPC_BASE_PATH", b"TMPDIR", b"TEMP", b"TMP")
    return [*filter(None, map(environment.get, names)), b"/tmp"]


def stores_in(text: bytes) -> Iterator[bytes]:
    """The stores that are named in a server's output."""
    at = text.find(_STORE)
    while at >= 0:
        end = at + len(_STORE) + _ID_BYTES
        scheme = text.rfind(_SCHEME, max(0, at - LONGEST_STORE), at + 1)
        path = text[scheme + len(_SCHEME) : end]
        whole = end <= len(text) and _HEX.issuperset(path[-_ID_BYTES:])
        if scheme >= 0 and whole and path.startswith(b"/") and not any(byte <= 0x20 for byte in path):
            yield path
        at = text.find(_STORE, at + 1)


def stores_in_file(fd: int, offset: int) -> Iterator[bytes]:
    """The stores that are named in a log from an offset on."""
    carried, end = b"", offset + _MOST_BYTES
    while offset < end and (data := os.pread(fd, _READ_BYTES, offset)):
        offset += len(data)
        carried += data
        yield from stores_in(carried)
        carried = carried[-LONGEST_STORE:]


def _unlink(path: bytes, is_kind: Callable[[int], bool], *, since: float = 0.0) -> None:
    try:
        found = os.lstat(path)
        if is_kind(found.st_mode) and found.st_mtime >= since - _SLACK_S:
            os.unlink(path)  # noqa: PTH108 - pathlib would cost the guardian 3 MB
    except OSError:
        pass  # its owner has removed it


def _entries(place: bytes, is_wanted: Callable[[bytes], bool]) -> list[bytes]:
    try:
        return [place + b"/" + name for name in os.listdir(place) if is_wanted(name)]  # noqa: PTH208 - see above
    except OSError:
        return []  # there is no such place


def _is_uuid(name: bytes) -> bool:
    """Whether it is a random UUID: ``vllm.utils.network_utils.get_open_zmq_ipc_path``."""
    parts = name.split(b"-")
    digits = b"".join(parts)
    return (
        [len(part) for part in parts] == [8, 4, 4, 4, 12]
        and _HEX.issuperset(digits)
        and digits[12:13] == b"4"
    )


def _is_dead(path: bytes) -> bool:
    """Whether nobody answers on a socket."""
    import socket  # 1 MB that the guardian does without until the end

    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)
        try:
            caller.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
    return False


def _bound() -> dict[int, bytes]:
    """The inode and the absolute path of every socket that is bound to one (proc(5))."""
    try:
        with open("/proc/net/unix", "rb") as file:  # noqa: PTH123 - see above
            rows = [row.split(None, 7) for row in file.read().split(b"\n")[1:]]
    except OSError:
        return {}
    return {int(row[6]): row[7] for row in rows if len(row) == 8 and row[7].startswith(b"/")}


def _mapped(pid: int) -> set[int]:
    """The inodes of the shared memory that a process has; a semaphore's is mapped under another name."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123 - see above
            lines = file.read().split(b"\n")
    except OSError:
        return set()
    return {int(line.split(None, 5)[4]) for line in lines if b" /dev/shm/" in line}


def _inode(path: bytes) -> int:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return 0  # no file has it


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - see above
    except OSError:
        return ""
