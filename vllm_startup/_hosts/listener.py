"""Answers over HTTP how a server stands, from its first second on, when the server itself cannot.

``/startupz``, ``/readyz`` and ``/livez`` answer 200 for yes and 503 for no, as Kubernetes' probes take
it, and ``/status`` one JSON object. Nothing else is answered: other paths are 404, other methods 405.
Requests are parsed by h11, and bounded in size, time and number.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from vllm_startup._hosts.standing import Standing

if TYPE_CHECKING:
    import h11

_MOST_BYTES: Final = 16 * 1024
_LIMIT_S: Final = 5.0
_MOST_CONNECTIONS: Final = 64
_BACKLOG: Final = 64

_QUESTIONS: Final[dict[str, Callable[[Standing], bool]]] = {
    "/startupz": lambda standing: standing.started,
    "/readyz": lambda standing: standing.ready,
    "/livez": lambda standing: standing.live,
}


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        OSError: The address is in use, or not this machine's.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_BACKLOG)
        found.setblocking(False)
    except BaseException:
        found.close()
        raise
    return found


class StatusListener:
    """Answers on a socket that listens already.

    Args:
        listening: The socket; it is closed with this.
        standing: How the server stands, at this moment.
        document: What ``/status`` answers, at this moment.
    """

    def __init__(
        self,
        listening: socket.socket,
        *,
        standing: Callable[[], Standing],
        document: Callable[[], dict[str, Any]],
    ) -> None:
        self._listening = listening
        self._standing = standing
        self._document = document
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def begin(self) -> None:
        """Answer from now on."""
        self._server = await asyncio.start_server(self._meet, sock=self._listening, limit=_MOST_BYTES)

    def close(self) -> None:
        """Listen no longer."""
        if self._server is None:
            self._listening.close()
        else:
            self._server.close()

    async def aclose(self) -> None:
        """Answer no longer."""
        self.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a client. The task is ours: asyncio 3.11 reports one of its own that is cancelled."""
        client = asyncio.ensure_future(self._serve(reader, writer))
        self._clients.add(client)
        client.add_done_callback(partial(self._leave, writer))

    def _leave(self, writer: asyncio.StreamWriter, client: asyncio.Task[None]) -> None:
        self._clients.discard(client)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._clients) > _MOST_CONNECTIONS:
            return
        try:
            async with asyncio.timeout(_LIMIT_S):
                await self._converse(reader, writer)
        except (OSError, TimeoutError):
            pass  # it went away, or says nothing

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import h11

        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MOST_BYTES)
        bodiless = False
        try:
            request = await _request(connection, reader)
            if request is None:
                return
            bodiless = request.method == b"HEAD"
            status, body, kind = self._answer(request)
        except h11.RemoteProtocolError as error:
            status, body, kind = HTTPStatus(error.error_status_hint), b"this is no request\n", "text/plain"
        headers = [
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ]
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "GET, HEAD"))
        response = h11.Response(status_code=int(status), reason=status.phrase, headers=headers)
        data = [] if bodiless else [h11.Data(data=body)]
        for event in (response, *data, h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        await writer.drain()

    def _answer(self, request: h11.Request) -> tuple[HTTPStatus, bytes, str]:
        if request.method not in (b"GET", b"HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD are answered\n", "text/plain"
        path = request.target.partition(b"?")[0].decode("ascii", "replace")
        if path == "/status":
            return HTTPStatus.OK, json.dumps(self._document()).encode() + b"\n", "application/json"
        asks = _QUESTIONS.get(path)
        if asks is None:
            known = ", ".join([*_QUESTIONS, "/status"])
            return HTTPStatus.NOT_FOUND, f"known are {known}\n".encode(), "text/plain"
        standing = self._standing()
        status = HTTPStatus.OK if asks(standing) else HTTPStatus.SERVICE_UNAVAILABLE
        return status, f"{standing.summary}\n".encode(), "text/plain"


async def _request(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """The head of a request; None when the client left before its end."""
    import h11

    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            return None
        connection.receive_data(await reader.read(_MOST_BYTES))
