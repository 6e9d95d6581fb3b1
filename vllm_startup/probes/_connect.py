"""A bare connect: the cheapest way to see that a server listens.

vLLM binds its port early and listens when all else is done, so nearly every connect of a bring-up is
refused. On this machine the kernel refuses at once, in about 12 µs and without a turn of the loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import attrs

from vllm_startup._blocking import BlockingRunner

if TYPE_CHECKING:
    from vllm_startup._url import ServerAddress

CONNECT_LIMIT_S: Final = 1.0
"""A handshake takes one round trip; one lost SYN is sent again after 1 s (RFC 6298)."""

RESOLVE_EVERY_S: Final = 30.0
"""A name may move to another address while its server starts (a pod that was rescheduled)."""

MAX_TARGETS: Final = 4
"""Addresses of one name that are tried: each that is silent costs `CONNECT_LIMIT_S`."""

_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Errors of this process, which say nothing about the server."""

_DIAL_LIMIT: Final = struct.pack("ll", 0, 1000)
"""The longest that a dial of this machine may block: 1 ms, as a struct timeval."""

_NONBLOCK: Final[int] = getattr(socket, "SOCK_NONBLOCK", 0)
"""Saves a system call where it exists; macOS has none."""

_REFUSED: Final = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.ENOENT})

SocketAddress = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
"""What `socket.getaddrinfo` gives; the last only in a Python that was built without IPv6."""

State = Literal["refused", "listening", "timed_out", "unreachable"]

_TELLING: Final[tuple[State, ...]] = ("listening", "refused", "timed_out", "unreachable")
"""From the most telling: which of a name's addresses speaks for it."""


@attrs.frozen
class Attempt:
    """What a connect met; ``detail`` is the operating system's word for it."""

    state: State
    detail: str | None = None


@attrs.frozen(kw_only=True)
class Target:
    """One socket address.

    Attributes:
        host: The IP address as text; the path for a unix socket.
        local: Whether it is an address of this machine.
    """

    family: int
    sockaddr: SocketAddress | str
    host: str
    local: bool


class Connector:
    """Connects to one server, again and again, and lets go at once.

    Attributes:
        target: Where the last connect succeeded; else the first address, None before it is known.
        local: Whether the server can only be on this machine, so that a connect is cheap.
    """

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._targets: tuple[Target, ...] = ()
        self._refusals: tuple[_Refusal, ...] = ()
        self._aim(_fixed_targets(address))
        self._is_name = not self._targets
        self._resolved_at: float | None = None
        self.target: Target | None = self._targets[0] if self._targets else None

    async def connect(self, now: float) -> Attempt:
        """Connect once and close.

        Raises:
            OSError: This process has no descriptor or memory left.
        """
        failed = await self._resolve(now) if self._is_name else None
        if failed is not None:
            return failed
        attempts: list[tuple[Attempt, Target]] = []
        for target in self._targets:
            attempt = await _connect(target)
            attempts.append((attempt, target))
            if attempt.state == "listening":
                break
        best, self.target = min(attempts, key=lambda pair: _TELLING.index(pair[0].state))
        return best

    def still_refused(self) -> bool:
        """Whether every address refuses at once, as this machine's do while nothing listens there."""
        return self.local and all(refusal.holds() for refusal in self._refusals)

    def close(self) -> None:
        """Close the sockets that are kept."""
        for refusal in self._refusals:
            refusal.close()

    def _aim(self, targets: tuple[Target, ...]) -> None:
        self.close()
        self._targets = targets
        self.local = bool(targets) and all(target.local for target in targets)
        self._refusals = tuple(_Refusal(target) for target in targets)

    async def _resolve(self, now: float) -> Attempt | None:
        """Look the name up, if that was long ago; an older answer serves when it fails."""
        if self._resolved_at is not None and now - self._resolved_at < RESOLVE_EVERY_S:
            return None
        # A thread of its own, since a look-up may take half a minute and the loop's executor is joined.
        runner = BlockingRunner("vllm-startup resolve")
        look_up = partial(socket.getaddrinfo, self._address.host, self._address.port, type=socket.SOCK_STREAM)
        try:
            found = await runner.run(look_up)
        except OSError as error:
            if self._targets:
                return None
            return Attempt("unreachable", f"cannot resolve {self._address.host!r}: {error.strerror}")
        finally:
            runner.close()
        self._aim(
            tuple(
                _target(family, sockaddr, str(sockaddr[0]))
                for family, _, _, _, sockaddr in found[:MAX_TARGETS]
            )
        )
        self._resolved_at = now
        return None


def _fixed_targets(address: ServerAddress) -> tuple[Target, ...]:
    """The addresses that need no look-up; empty for a name.

    ``localhost`` is both loopback addresses, whatever the resolver says: it often gives ``::1`` first or
    alone, and vLLM listens on IPv4 unless it is told otherwise.
    """
    if address.uds is not None:
        return (Target(family=socket.AF_UNIX, sockaddr=address.uds, host=address.uds, local=True),)
    hosts = ("127.0.0.1", "::1") if address.host == "localhost" else (address.host,)
    try:
        return tuple(_numeric_target(str(host), address.port) for host in hosts)
    except OSError:
        return ()


def _numeric_target(host: str, port: int | None) -> Target:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    family, _, _, _, sockaddr = found[0]
    return _target(family, sockaddr, host)


def _target(family: int, sockaddr: SocketAddress, host: str) -> Target:
    return Target(family=family, sockaddr=sockaddr, host=host, local=_is_local(family, sockaddr))


def _is_local(family: int, sockaddr: SocketAddress) -> bool:
    """Whether an address is this machine's: the kernel would then send from that same address.

    Connecting a datagram socket sends nothing.
    """
    if str(sockaddr[0]).startswith("127."):
        return True
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(sockaddr)
            return bool(sock.getsockname()[0] == sockaddr[0])
    except OSError:
        return False


async def _connect(target: Target) -> Attempt:
    try:
        sock = socket.socket(target.family, socket.SOCK_STREAM | _NONBLOCK)
    except OSError as error:
        return _failed(error.errno or 0)
    try:
        if not _NONBLOCK:  # pragma: no cover - macOS
            sock.setblocking(False)
        code = sock.connect_ex(target.sockaddr)
        if code in (errno.EINPROGRESS, errno.EWOULDBLOCK) and target.family == socket.AF_UNIX:
            return Attempt("listening", "its backlog is full")
        if code == errno.EINPROGRESS:
            code = await _finished(sock, target)
        if code:
            return _failed(code)
        return Attempt("refused", "connected to itself") if _met_itself(sock) else Attempt("listening")
    finally:
        sock.close()


class _Refusal:
    """Whether an address of this machine still refuses, asked on a socket that is kept for it.

    Linux lets a socket connect again that was refused, and gives its port back meanwhile: one system
    call a look, half of what a new socket costs. The socket blocks, since the kernel answers for its
    own machine within the call; a listener with a full backlog keeps it for a millisecond.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._socket: socket.socket | None = None

    def holds(self) -> bool:
        """Dial. Where the answer is anything but a refusal, the socket is given up: it may be connected.

        Raises:
            OSError: This process has no descriptor left.
        """
        if self._socket is None:
            self._socket = socket.socket(self._target.family, socket.SOCK_STREAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _DIAL_LIMIT)
        refused = self._socket.connect_ex(self._target.sockaddr) in _REFUSED
        if not refused:
            self.close()
        return refused

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


async def _finished(sock: socket.socket, target: Target) -> int:
    if target.local:  # loopback has answered by now; asking again costs less than a turn of the loop
        code = sock.connect_ex(target.sockaddr)
        if code not in (errno.EALREADY, errno.EINPROGRESS):
            return 0 if code == errno.EISCONN else code
    try:
        async with asyncio.timeout(CONNECT_LIMIT_S):
            await asyncio.get_running_loop().sock_connect(sock, target.sockaddr)
    except TimeoutError as error:
        return error.errno or errno.ETIMEDOUT
    except OSError as error:
        return 0 if error.errno == errno.EISCONN else error.errno or errno.EIO
    return 0


def _met_itself(sock: socket.socket) -> bool:
    """Whether the kernel chose the very port that was dialled as the source port.

    TCP then connects a socket to itself (simultaneous open), once in 28,000 connects to a port among
    the ephemeral ones: every 20 minutes at 25 a second.
    """
    if sock.family == socket.AF_UNIX:
        return False
    try:
        return bool(sock.getsockname() == sock.getpeername())
    except OSError:  # pragma: no cover - it was reset since, which no test can time
        return False


def _failed(code: int) -> Attempt:
    if code in _OUT_OF_RESOURCES:
        raise OSError(code, f"cannot connect: {os.strerror(code)}")
    if code in _REFUSED:
        return Attempt("refused", os.strerror(code))
    if code == errno.ETIMEDOUT:
        return Attempt("timed_out", os.strerror(code))
    return Attempt("unreachable", os.strerror(code))
