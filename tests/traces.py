"""What a launched server may leave behind, looked for in the system itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import attrs
from trees import Tree, read

SHARED_MEMORY = Path("/dev/shm")


@attrs.frozen(kw_only=True)
class Traces:
    """The traces of one launch.

    vLLM's processes rename themselves over their environment, and one may have left the session: so a process
    belongs to it that has the mark, the directory, the log, or a file in the temporary directory.

    Attributes:
        tree: Gives the mark that is in the environment of the launch.
        place: Its working directory, with its log.
        temporary: Its ``$TMPDIR``.
        port: Where it listens.
    """

    tree: Tree
    place: Path
    temporary: Path
    port: int
    _mapped: set[str] = attrs.field(factory=set)

    def processes(self) -> dict[int, str]:
        """What lives, the guardian and the caller included: pid to command line."""
        found = self.tree.alive()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and any(self._is_ours(path) for path in held_by(entry)):
                found[int(entry.name)] = read(entry / "cmdline").replace(b"\0", b" ").decode().strip()
        return found

    def port_is_taken(self) -> bool:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections are no trace
            try:
                probe.bind(("127.0.0.1", self.port))
                probe.listen()
            except OSError:
                return True
            return False

    def note(self) -> None:
        """Note which shared memory the launch has now: a file there does not tell whose it is."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and self._is_ours(link_of(entry / "cwd")):
                self._mapped.update(
                    line.split(maxsplit=5)[4]
                    for line in read(entry / "maps").decode(errors="replace").splitlines()
                    if f" {SHARED_MEMORY}/" in line
                )

    def files(self) -> list[str]:
        """Files in the temporary directory, and shared memory that was noted."""
        shared = [path for path in SHARED_MEMORY.iterdir() if inode_of(path) in self._mapped]
        return [str(path) for path in sorted([*shared, *self.temporary.rglob("*")])]

    def all(self) -> list[str]:
        """Everything that is there; empty when nothing was left."""
        processes = [f"{pid} {line}" for pid, line in self.processes().items()]
        return [*processes, *self.files(), *([f"port {self.port}"] if self.port_is_taken() else [])]

    def _is_ours(self, path: str) -> bool:
        return path.startswith((str(self.place), str(self.temporary)))


def held_by(entry: Path) -> Iterator[str]:
    """The directory and the open files of a process."""
    yield link_of(entry / "cwd")
    try:
        yield from map(link_of, (entry / "fd").iterdir())
    except OSError:
        return  # it is gone, or is a zombie


def link_of(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def inode_of(path: Path) -> str:
    """A file's inode; empty when it is gone."""
    try:
        return str(path.stat().st_ino)
    except FileNotFoundError:
        return ""
