"""A connect through a tunnel, whose near end accepts whatever the far end meets."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from typing import Final, Protocol

from vllm_startup._blocking import BlockingRunner
from vllm_startup.probes._connect import CONNECT_LIMIT_S, Attempt, Target

_SOONEST_S: Final = 0.1
_PATIENCE: Final = 4.0  # times as long as a refusal took so far: then there is none


class Route(Protocol):
    """A tunnel to a server that this machine does not reach by itself."""

    @property
    def path(self) -> str:
        """The unix socket that is its near end."""
        ...

    def open(self) -> None:
        """Open it if it is not open. It blocks.

        Raises:
            OSError: It cannot be opened now.
        """
        ...

    def refusal(self) -> str | None:
        """What the other machine said about the newest connection that led nowhere, if it did.

        Raises:
            OSError: No connection ever will lead anywhere.
        """
        ...


class TunnelConnector:
    """Connects to one server through a tunnel, as `Connector` does without.

    An accepted connection is no evidence that anything listens there. One that is closed without a byte
    was refused; one that stays open for longer than refusals take was let in.

    Args:
        route: The tunnel.
    """

    local: Final = False
    target: Final[Target | None] = None

    def __init__(self, route: Route) -> None:
        self._route = route
        self._refused_s: float | None = None

    async def connect(self, now: float) -> Attempt:
        """Connect once and close.

        Raises:
            OSError: The tunnel cannot be opened.
        """
        runner = BlockingRunner("vllm_startup-tunnel")
        try:
            await runner.run(self._route.open)
        finally:
            runner.close()
        began = time.monotonic()
        if not await self._is_closed():
            return Attempt("listening")
        took = time.monotonic() - began
        self._refused_s = max(took, (self._refused_s or 0.0) / 2)
        return _attempt(self._route.refusal())

    def still_refused(self) -> bool:
        """Whether it is known to refuse: never without asking."""
        return False

    def close(self) -> None:
        """Nothing is kept from one connect to the next."""

    async def _is_closed(self) -> bool:
        known = self._refused_s
        patience = (
            CONNECT_LIMIT_S if known is None else min(max(_SOONEST_S, _PATIENCE * known), CONNECT_LIMIT_S)
        )
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            try:
                async with asyncio.timeout(patience):
                    await loop.sock_connect(sock, self._route.path)
                    return not await loop.sock_recv(sock, 1)
            except TimeoutError:
                return False
            except OSError as error:
                if error.errno in _NEAR_END:
                    return True  # the tunnel was closed since: the next call tells
                raise


_NEAR_END: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE})


def _attempt(refusal: str | None) -> Attempt:
    if refusal is None:
        return Attempt("refused")
    words = refusal.removeprefix("connect failed: ")
    if "timed out" in words:
        return Attempt("timed_out", words)
    if "refused" in words or words == "open failed":  # the latter is how a unix socket is missing
        return Attempt("refused", words)
    return Attempt("unreachable", words)
