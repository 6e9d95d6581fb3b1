"""Whose socket listens: the watched processes', or somebody else's.

Linux tells which inode listens on an address (``/proc/net/tcp``, ``tcp6``, ``unix``; proc(5)) and which
process holds an inode (``/proc/PID/fd``). Only what can be seen for certain is called foreign: with another
network namespace, a forwarder (``docker-proxy``, ``ssh``), a descriptor that is not ours to read, or sockets
of both the tree and others on one port (SO_REUSEPORT: either may answer), the owner is unknown.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from vllm_startup._readings import Owner

_LISTEN: Final = "0A"
"""TCP_LISTEN in ``/proc/net/tcp``; such rows come before all others there."""

_ACCEPTS: Final = 0x10000
"""__SO_ACCEPTCON among the flags of ``/proc/net/unix``."""

_FORWARDERS: Final = (
    *("apache2", "caddy", "cloudflared", "conmon", "containerd-shim", "docker-proxy", "envoy", "gvproxy"),
    *("haproxy", "httpd", "kong", "kube-proxy", "kubectl", "lighttpd", "linkerd2-proxy", "nginx"),
    *("oauth2-proxy", "pasta", "pasta.avx2", "pound", "rootlesskit", "rootlessport", "slirp4netns", "socat"),
    *("ssh", "sshd", "stunnel", "stunnel4", "systemd", "systemd-socket-proxyd", "tailscaled", "traefik"),
    "varnishd",
)
"""Programs that listen for a server in another place; ``comm``, cut to 15 characters by the kernel."""

_COMM_LENGTH: Final = 15

TRUSTED_S: Final = 5.0
"""A process can hand its socket on, or end while another keeps it; nobody does so often."""


@attrs.frozen
class Listener:
    """Who listens on an address.

    Attributes:
        pid: The process that holds the socket, where it could be seen.
        detail: What else is worth telling people.
    """

    owner: Owner = "unknown"
    pid: int | None = None
    detail: str | None = attrs.field(default=None, kw_only=True)


UNKNOWN: Final = Listener()
STRANGER: Final = Listener("foreign")


def find_listener(inodes: Collection[int], tree: Collection[int], *, proc: Path = Path("/proc")) -> Listener:
    """Tell who holds the listening sockets ``inodes``.

    It blocks: about 2 µs a descriptor of the tree, and of all processes when none of the tree's matches
    (20 to 100 ms on a large machine).

    Args:
        inodes: From `listening_inodes`.
        tree: The watched processes. Empty: unknown.
        proc: Where procfs is mounted.
    """
    if not inodes or not tree:
        return UNKNOWN
    wanted = {f"socket:[{inode}]" for inode in inodes}
    held, readable = _search(sorted(tree), wanted, proc)
    found = next(iter(held.values()), None)
    if found is not None:
        return _beside_others(found, wanted - held.keys(), tree, proc)
    if not readable or not _same_network(tree, proc):
        return UNKNOWN
    others, _ = _search(_other_pids(tree, proc), wanted, proc)
    return _judge_others(others, tree, proc)


def _beside_others(pid: int, rest: set[str], tree: Collection[int], proc: Path) -> Listener:
    """The tree holds a socket; ``rest`` may be a twin's that shares the port."""
    twins, _ = _search(_other_pids(tree, proc), rest, proc) if rest else ({}, True)
    for twin in twins.values():
        if _kinship(twin, tree, proc) is None:
            detail = f"process {twin} listens on the same port too (SO_REUSEPORT)"
            return Listener("unknown", twin, detail=detail)
    return Listener("tree", pid)


def _judge_others(held: dict[str, int], tree: Collection[int], proc: Path) -> Listener:
    if not held:
        return UNKNOWN
    pid = min(held.values())
    match _kinship(pid, tree, proc):
        case "child":
            return Listener("tree", pid)
        case "parent":
            return Listener("unknown", pid)
    if (name := _comm(pid, proc)) is None or name in _forwarders():
        return Listener("unknown", pid)
    return Listener("foreign", pid)


def _kinship(pid: int, tree: Collection[int], proc: Path) -> Literal["child", "parent"] | None:
    """``child``: younger than the tree's list. ``parent``: it may have opened the socket for the tree."""
    if any(ancestor in tree for ancestor in _ancestors(pid, proc)):
        return "child"
    return "parent" if any(pid in _ancestors(member, proc) for member in tree) else None


def _search(pids: Iterable[int], wanted: set[str], proc: Path) -> tuple[dict[str, int], bool]:
    """Which of the ``wanted`` sockets which process holds, and whether every process could be looked into."""
    held: dict[str, int] = {}
    readable = True
    for pid in pids:
        try:
            for link in _links(proc / str(pid) / "fd"):
                if link in wanted:
                    held.setdefault(link, pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except OSError:
            readable = False
        if len(held) == len(wanted):
            break
    return held, readable


def _links(folder: Path) -> Iterator[str]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(handle):  # noqa: PTH208 - pathlib lists no descriptors
            try:
                yield os.readlink(name, dir_fd=handle)
            except FileNotFoundError:
                continue  # closed meanwhile
    finally:
        os.close(handle)


def _other_pids(tree: Collection[int], proc: Path) -> list[int]:
    pids = [int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()]
    return sorted(pid for pid in pids if pid not in tree)


def _ancestors(pid: int, proc: Path) -> list[int]:
    """The parents of ``pid``, from the nearest; a bound instead of trust that the links make no ring."""
    found: list[int] = []
    while len(found) < 100 and (pid := _parent(pid, proc)) > 0:
        found.append(pid)
    return found


def _parent(pid: int, proc: Path) -> int:
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[1])  # the name in parentheses may hold anything


def _comm(pid: int, proc: Path) -> str | None:
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return None


@cache
def _forwarders() -> frozenset[str]:
    return frozenset(name[:_COMM_LENGTH] for name in _FORWARDERS)


def _same_network(tree: Collection[int], proc: Path) -> bool:
    """Whether every watched process that is left shares our network namespace."""
    ours = _network(proc / "self")
    seen = [_network(proc / str(pid)) for pid in tree if (proc / str(pid)).exists()]
    return ours is not None and bool(seen) and all(network == ours for network in seen)


def _network(process: Path) -> str | None:
    try:
        return str((process / "ns" / "net").readlink())
    except OSError:
        return None


class ListenerFinder:
    """Finds out who listens on one address, and looks anew only when something may have changed.

    Args:
        inodes: Which sockets listen there.
        proc: Where procfs is mounted.
    """

    def __init__(self, inodes: Callable[[], frozenset[int]], *, proc: Path = Path("/proc")) -> None:
        self._inodes = inodes
        self._proc = proc
        self._key: tuple[frozenset[int], frozenset[int]] | None = None
        self._found = UNKNOWN
        self._found_at = 0.0

    def find(self, tree: frozenset[int], now: float) -> Listener:
        """Tell who listens; it blocks for as long as `find_listener`.

        What was found holds for `TRUSTED_S` as long as the same sockets listen and the tree is the same; and
        for as long as the same sockets listen once nobody of the tree is left, who could tell more.
        """
        key = (self._inodes(), tree)
        if self._key is not None and self._key[0] == key[0] and self._is_gone(tree):
            return self._found
        if key != self._key or now - self._found_at >= TRUSTED_S:
            self._found = find_listener(*key, proc=self._proc)
            self._key, self._found_at = key, now
        return self._found

    def _is_gone(self, tree: frozenset[int]) -> bool:
        return not any((self._proc / str(pid)).exists() for pid in tree)


# --- which sockets listen on an address -----------------------------------------------------


def listening_inodes(host: str, port: int, *, proc: Path = Path("/proc")) -> frozenset[int]:
    """The sockets to which the kernel would give a connection to an IP address of this machine.

    Those on the address itself if there are any, else those on its family's wildcard, else, for IPv4,
    those on ``::`` (dual-stack). More than one: SO_REUSEPORT. Empty where the kernel does not tell.
    """
    from ipaddress import ip_address

    address = ip_address(host.partition("%")[0])
    exact, wildcard, dual = set[int](), set[int](), set[int]()
    for family, local, inode in _tcp_rows(port, proc):
        if local == address.packed or local == _MAPPED + address.packed:
            exact.add(inode)
        elif not any(local):
            (wildcard if family == address.version else dual).add(inode)
    return frozenset(exact or wildcard or (dual if address.version == 4 else set()))


_MAPPED: Final = bytes(10) + b"\xff\xff"
"""What an IPv4 address begins with on an IPv6 socket."""


def _tcp_rows(port: int, proc: Path) -> Iterator[tuple[Literal[4, 6], bytes, int]]:
    families: tuple[tuple[Literal[4, 6], str], ...] = ((4, "tcp"), (6, "tcp6"))
    for family, name in families:
        try:
            with (proc / "net" / name).open() as rows:
                next(rows, None)
                for row in rows:
                    fields = row.split()
                    if len(fields) < 10 or fields[3] != _LISTEN:
                        break  # from here on connections, of which there may be very many
                    local, _, number = fields[1].partition(":")
                    if int(number, 16) == port:
                        yield family, _packed(local), int(fields[9])
        except OSError:
            continue


def _packed(text: str) -> bytes:
    """The address in network order; the kernel prints it as 32-bit words of the machine's own order."""
    import sys

    words = (int(text[i : i + 8], 16) for i in range(0, len(text), 8))
    return b"".join(word.to_bytes(4, sys.byteorder) for word in words)


def listening_unix_inodes(path: str, *, proc: Path = Path("/proc")) -> frozenset[int]:
    """The sockets that listen on a unix socket's path, as it was given to ``bind``."""
    found = set[int]()
    try:
        with (proc / "net" / "unix").open(errors="surrogateescape") as rows:
            for row in rows:
                fields = row.rstrip("\n").split(None, 7)
                if len(fields) == 8 and fields[7] == path and int(fields[3], 16) & _ACCEPTS:
                    found.add(int(fields[6]))
    except OSError:
        pass
    return frozenset(found)


# --- who has a port ---------------------------------------------------------------------------


def listeners_on_port(port: int, *, proc: Path = Path("/proc")) -> dict[int, str]:
    """Every socket that listens on a port of this network namespace, whatever its address: by inode."""
    from ipaddress import ip_address

    found: dict[int, str] = {}
    for family, local, inode in _tcp_rows(port, proc):
        address = str(ip_address(local))
        found[inode] = f"{f'[{address}]' if family == 6 else address}:{port}"
    return found


def holders_of(inodes: Iterable[int], *, proc: Path = Path("/proc")) -> dict[int, int]:
    """Which process holds which of the sockets; those that are not ours to see are left out."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    if not wanted:
        return {}
    held, _ = _search(_other_pids((), proc), set(wanted), proc)
    return {wanted[link]: pid for link, pid in held.items()}
