"""A container engine's HTTP API, which Docker and Podman share."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, cast

from vllm_startup._text import clean
from vllm_startup.targets._target import TargetError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable

    import httpx

    from vllm_startup.targets._containers.engine_address import EngineAddress

ANSWER_S: Final = 10.0
"""An engine that pulls or removes images takes seconds for what else takes milliseconds."""

_CONNECT_S: Final = 5.0
_SKEW_S: Final = 2.0  # what a date in whole seconds can be off, and its way here
_NOT_FOUND: Final = 404
_GONE: Final = "no such container"
_ERRORS_FROM: Final = 400

# A peer that vanished without a word is noticed after 30 s: a log may be silent for far longer.
_KEEPALIVE: Final = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
]


class EngineError(Exception):
    """The engine refused a request, in its own words.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class NoSuchContainerError(EngineError):
    """The engine has no container of that name."""


class Engine:
    """Asks one engine. Each request has a connection of its own: an engine may be restarted in between.

    The methods without ``async`` block, and are for before the watch.

    Args:
        address: Where it answers.
        transport: Answers instead of the network, for the asynchronous methods.
    """

    def __init__(self, address: EngineAddress, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.address = address
        self.skew_s = 0.0
        """How far its clock is ahead of this machine's, once `connect` has asked it."""
        self._prefix = ""
        self._transport = transport

    # --- blocking --------------------------------------------------------------------------

    def connect(self) -> None:
        """Make its acquaintance: which version of the API it speaks. The oldest in use is 1.24.

        Raises:
            TargetError: What answers there is no container engine, or there is no agreement on TLS.
        """
        import httpx

        try:
            with self._asked("/_ping", {}) as answer:
                version = answer.headers.get("api-version", "")
                self.skew_s = _skew(answer.headers.get("date", ""))
        except EngineError as error:
            raise TargetError(f"what answers at {self.address} is no container engine: {error}") from error
        except httpx.TransportError as error:
            raise TargetError(f"the engine at {self.address} gives no answer: {clean(str(error))}") from error
        self._prefix = f"/v{version}" if version else ""

    def ask(self, path: str, **query: object) -> Any:
        """GET what a path holds.

        Raises:
            EngineError: The engine refuses.
            httpx.TransportError: It gives no answer.
        """
        with self._asked(self._prefix + path, query) as answer:
            return json.loads(answer.read())

    @contextmanager
    def read(self, path: str, **query: object) -> Iterator[Iterable[bytes]]:
        """GET a stream that ends. It raises what `ask` raises."""
        with self._asked(self._prefix + path, query) as answer:
            yield cast("Iterable[bytes]", answer.stream)

    @contextmanager
    def _asked(self, path: str, query: dict[str, object]) -> Iterator[httpx.Response]:
        import httpx

        transport = httpx.HTTPTransport(verify=self.address.context(), trust_env=False, uds=self.address.uds)
        with transport:
            answer = transport.handle_request(self._request(path, query, read_s=ANSWER_S))
            try:
                if answer.status_code >= _ERRORS_FROM:
                    raise _refusal(answer.status_code, answer.read())
                yield answer
            finally:
                answer.close()

    # --- while watching --------------------------------------------------------------------

    async def get(self, path: str, **query: object) -> Any:
        """GET what a path holds.

        Raises:
            EngineError: The engine refuses.
            TimeoutError: It takes longer than `ANSWER_S`.
            httpx.TransportError: It cannot be reached.
        """
        async with asyncio.timeout(ANSWER_S), self.stream(path, **query) as chunks:
            return json.loads(b"".join([chunk async for chunk in chunks]))

    @asynccontextmanager
    async def stream(self, path: str, **query: object) -> AsyncIterator[AsyncIterator[bytes]]:
        """GET a stream that may be silent for hours. It raises what `get` raises."""
        transport = self._transport or self._made()
        answer = await transport.handle_async_request(self._request(self._prefix + path, query, read_s=None))
        try:
            if answer.status_code >= _ERRORS_FROM:
                raise _refusal(answer.status_code, await answer.aread())
            yield aiter(cast("AsyncIterable[bytes]", answer.stream))
        finally:
            await answer.aclose()

    async def aclose(self) -> None:
        """Close what is open."""
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.aclose()

    def _made(self) -> httpx.AsyncBaseTransport:
        import httpx

        self._transport = httpx.AsyncHTTPTransport(
            verify=self.address.context(),
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),
            uds=self.address.uds,
            socket_options=None if self.address.uds is not None else _KEEPALIVE,
        )
        return self._transport

    def _request(self, path: str, query: dict[str, object], *, read_s: float | None) -> httpx.Request:
        import httpx

        timeout = {"connect": _CONNECT_S, "read": read_s, "write": ANSWER_S, "pool": ANSWER_S}
        headers = {"Host": "engine", "User-Agent": "vllm-startup"}
        if self.address.uds is None:
            del headers["Host"]
        params = {name: _word(value) for name, value in query.items() if value is not None}
        url = httpx.URL(self.address.base + path, params=params or None)
        return httpx.Request("GET", url, headers=headers, extensions={"timeout": timeout})


def _skew(date: str) -> float:
    """How far ahead a clock is that has just said this; 0 where it may be the same."""
    try:
        skew_s = parsedate_to_datetime(date).timestamp() - time.time()
    except ValueError:
        return 0.0
    return skew_s if abs(skew_s) > _SKEW_S else 0.0


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _refusal(status: int, body: bytes) -> EngineError:
    try:
        found = json.loads(body)
        message = found["message"]
    except (ValueError, KeyError, TypeError):
        message = body[:200].decode("utf-8", "replace")
    text = clean(str(message) or f"HTTP status {status}", 300)
    gone = status == _NOT_FOUND or _GONE in text  # Podman, while it removes one
    return NoSuchContainerError(text, status) if gone else EngineError(text, status)
