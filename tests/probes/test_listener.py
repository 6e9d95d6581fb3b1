from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from vllm_startup.probes._listener import (
    UNKNOWN,
    Listener,
    ListenerFinder,
    find_listener,
    listening_inodes,
    listening_unix_inodes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="procfs is Linux's")

LISTEN = """
import socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(); print(s.getsockname()[1], flush=True)
sys.stdin.read()
"""


@attrs.frozen
class Server:
    pid: int
    port: int


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    children: list[subprocess.Popen[str]] = []
    yield children
    for child in children:
        child.communicate("", timeout=5)


@pytest.fixture
def server(started: list[subprocess.Popen[str]]) -> Server:
    return listen(started, 0)


def listen(started: list[subprocess.Popen[str]], port: int) -> Server:
    child = subprocess.Popen(
        [sys.executable, "-c", LISTEN, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    started.append(child)
    assert child.stdout is not None
    return Server(child.pid, int(child.stdout.readline()))


@pytest.fixture
def bystander(started: list[subprocess.Popen[str]]) -> int:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, text=True)
    started.append(child)
    return child.pid


# --- real processes -----------------------------------------------------------------------


def test_the_trees_own_socket(server: Server) -> None:
    inodes = listening_inodes("127.0.0.1", server.port)
    assert find_listener(inodes, {server.pid}) == Listener("tree", server.pid)


def test_a_child_younger_than_the_list_belongs_to_the_tree(server: Server) -> None:
    inodes = listening_inodes("127.0.0.1", server.port)
    assert find_listener(inodes, {os.getpid()}) == Listener("tree", server.pid)


def test_a_strangers_socket(server: Server, bystander: int) -> None:
    inodes = listening_inodes("127.0.0.1", server.port)
    assert find_listener(inodes, {bystander}) == Listener("foreign", server.pid)


def test_a_socket_of_the_trees_parent_is_nobodys(bystander: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        inodes = listening_inodes("127.0.0.1", ours.getsockname()[1])
        assert find_listener(inodes, {bystander}) == Listener("unknown", os.getpid())


def test_two_that_share_a_port_are_told(
    server: Server, started: list[subprocess.Popen[str]], bystander: int
) -> None:
    twin = listen(started, server.port)
    inodes = listening_inodes("127.0.0.1", server.port)
    assert len(inodes) == 2
    assert find_listener(inodes, {server.pid}) == Listener(
        "unknown", twin.pid, detail=f"process {twin.pid} listens on the same port too (SO_REUSEPORT)"
    )
    assert find_listener(inodes, {server.pid, twin.pid}).owner == "tree"
    assert find_listener(inodes, {bystander}).owner == "foreign"


def test_without_a_tree_nobody_can_tell(server: Server) -> None:
    assert find_listener(listening_inodes("127.0.0.1", server.port), ()) == UNKNOWN


def test_nothing_listens(bystander: int) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        inodes = listening_inodes("127.0.0.1", bound.getsockname()[1])
    assert inodes == frozenset()
    assert find_listener(inodes, {bystander}) == UNKNOWN


def inode(sock: socket.socket) -> int:
    return os.fstat(sock.fileno()).st_ino


def test_the_address_itself_wins_over_the_wildcard() -> None:
    with socket.socket() as everywhere, socket.socket() as here:
        for sock, host in ((everywhere, "0.0.0.0"), (here, "127.0.0.1")):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            port = everywhere.getsockname()[1] if sock is here else 0
            sock.bind((host, port))
            sock.listen()
        assert listening_inodes("127.0.0.1", port) == {inode(here)}
        assert listening_inodes("127.0.0.2", port) == {inode(everywhere)}


def test_ipv6_and_dual_stack() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as six:
        assert listening_inodes("::1", six.getsockname()[1]) == {inode(six)}
        assert listening_inodes("127.0.0.1", six.getsockname()[1]) == frozenset()
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as both:
        assert listening_inodes("127.0.0.1", both.getsockname()[1]) == {inode(both)}
        assert listening_inodes("::1", both.getsockname()[1]) == {inode(both)}


def test_unix_sockets(tmp_path: Path) -> None:
    path = str(tmp_path / "v llm.sock")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        assert listening_unix_inodes(path) == frozenset()
        sock.listen()
        assert listening_unix_inodes(path) == {inode(sock)}
        assert listening_unix_inodes(path + "2") == frozenset()


# --- what cannot be set up here: a procfs of files -------------------------------------------


class Proc:
    """A procfs with as much in it as is asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.add(os.getpid(), name="self")
        (root / "self").symlink_to(str(os.getpid()))

    def add(
        self,
        pid: int,
        *,
        ppid: int = 1,
        name: str = "vllm",
        sockets: tuple[int, ...] = (),
        net: str = "net:[1]",
    ) -> None:
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "ns").mkdir()
        (folder / "ns" / "net").symlink_to(net)
        (folder / "comm").write_text(name + "\n")
        (folder / "stat").write_text(f"{pid} (a) b ({name}) S {ppid} 0 0\n")
        for number, socket_inode in enumerate(sockets):
            (folder / "fd" / str(number)).symlink_to(f"socket:[{socket_inode}]")

    def hide(self, pid: int) -> None:
        (self.root / str(pid) / "fd").rmdir()
        (self.root / str(pid) / "fd").write_text("no folder: opening it fails, as without permission")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_a_stranger(proc: Proc) -> None:
    proc.add(10)
    proc.add(20, sockets=(7,))
    assert find_listener({7}, {10}, proc=proc.root) == Listener("foreign", 20)


@pytest.mark.parametrize("name", ["docker-proxy", "ssh", "rootlessport", "systemd-socket-"])
def test_a_forwarder_stands_for_somebody_unknown(proc: Proc, name: str) -> None:
    proc.add(10)
    proc.add(20, name=name, sockets=(7,))
    assert find_listener({7}, {10}, proc=proc.root) == Listener("unknown", 20)


def test_in_another_network_namespace_nobody_can_tell(proc: Proc) -> None:
    proc.add(10, net="net:[2]")
    proc.add(20, sockets=(7,))
    assert find_listener({7}, {10}, proc=proc.root) == UNKNOWN


def test_a_network_namespace_that_may_not_be_read_may_be_another(proc: Proc) -> None:
    proc.add(10)
    (proc.root / "10" / "ns" / "net").unlink()
    proc.add(20, sockets=(7,))
    assert find_listener({7}, {10}, proc=proc.root) == UNKNOWN


def test_a_young_child_that_shares_the_port_is_no_twin(proc: Proc) -> None:
    proc.add(10, sockets=(7,))
    proc.add(20, ppid=10, sockets=(8,))
    assert find_listener({7, 8}, {10}, proc=proc.root) == Listener("tree", 10)


def test_a_member_that_may_not_be_looked_into_may_be_the_one(proc: Proc) -> None:
    proc.add(10)
    proc.hide(10)
    proc.add(20, sockets=(7,))
    assert find_listener({7}, {10}, proc=proc.root) == UNKNOWN


def test_a_holder_that_cannot_be_seen_is_unknown(proc: Proc) -> None:
    proc.add(10)
    proc.add(20)
    proc.hide(20)
    assert find_listener({7}, {10}, proc=proc.root) == UNKNOWN


def test_a_tree_that_has_ended_tells_nothing(proc: Proc) -> None:
    proc.add(20, sockets=(7,))
    assert find_listener({7}, {10}, proc=proc.root) == UNKNOWN


def test_a_holder_that_ends_meanwhile_is_unknown(proc: Proc) -> None:
    proc.add(10)
    proc.add(20, sockets=(7,))
    (proc.root / "20" / "comm").unlink()
    assert find_listener({7}, {10}, proc=proc.root) == Listener("unknown", 20)


def test_a_grandchild_of_the_tree_in_a_container(proc: Proc) -> None:
    proc.add(1, ppid=0)
    proc.add(15)
    proc.add(20, ppid=15, sockets=(7,))
    assert find_listener({7}, {1}, proc=proc.root) == Listener("tree", 20)


def test_without_procfs_nothing_is_known(tmp_path: Path) -> None:
    assert listening_inodes("127.0.0.1", 80, proc=tmp_path) == frozenset()
    assert listening_unix_inodes("/run/x", proc=tmp_path) == frozenset()


def test_rows_after_the_listening_ones_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    row = "   0: 0100007F:1F40 00000000:0000 {} 00000000:00000000 00:00000000 00000000 0 0 {} 1 0 100\n"
    rows = ["  sl  local_address ...\n", row.format("0A", 5), row.format("01", 6), row.format("0A", 7)]
    (tmp_path / "net" / "tcp").write_text("".join(rows))
    assert listening_inodes("127.0.0.1", 8000, proc=tmp_path) == {5}


# --- looking again ------------------------------------------------------------------------


def test_what_was_found_holds_until_something_changes(proc: Proc) -> None:
    inodes = frozenset({7})
    finder = ListenerFinder(lambda: inodes, proc=proc.root)
    proc.add(10)
    proc.add(20, sockets=(7,))
    assert finder.find(frozenset({10}), 0.0) == Listener("foreign", 20)
    (proc.root / "10" / "fd" / "0").symlink_to("socket:[7]")
    assert finder.find(frozenset({10}), 4.9) == Listener("foreign", 20)
    assert finder.find(frozenset({10}), 5.0) == Listener("tree", 10)
    inodes = frozenset({8})
    assert finder.find(frozenset({10}), 5.1) == UNKNOWN
    inodes = frozenset({7})
    assert finder.find(frozenset({20}), 5.2).pid == 20


def test_what_was_found_holds_when_nobody_of_the_tree_is_left(proc: Proc) -> None:
    """Between a death and its news, a stranger's answers must not become those of an unknown."""
    inodes = frozenset({7})
    finder = ListenerFinder(lambda: inodes, proc=proc.root)
    proc.add(10)
    proc.add(20, sockets=(7,))
    assert finder.find(frozenset({10}), 0.0) == Listener("foreign", 20)
    assert finder.find(frozenset(), 0.5) == Listener("foreign", 20)
    assert finder.find(frozenset({11}), 9.0) == Listener("foreign", 20)
    proc.add(12)
    assert finder.find(frozenset({12}), 9.5) == Listener("foreign", 20)
    inodes = frozenset({8})
    assert finder.find(frozenset({11}), 10.0) == UNKNOWN
