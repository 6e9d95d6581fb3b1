"""The status listener, over real sockets, asked by friends and strangers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from vllm_startup._hosts import listener
from vllm_startup._hosts.listener import StatusListener, bound
from vllm_startup._hosts.standing import Standing, State


async def gone(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except ConnectionError:
        pass


class Asked:
    """A listener, and what it tells."""

    def __init__(self) -> None:
        self.standing = Standing(summary="loading weights")
        self.listening = bound("127.0.0.1", 0)
        self.port: int = self.listening.getsockname()[1]
        self.listener = StatusListener(
            self.listening, standing=lambda: self.standing, document=lambda: {"state": self.standing.state}
        )

    async def say(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            await writer.drain()
            async with asyncio.timeout(5):
                return await reader.read()
        except ConnectionError:
            return b""  # turned away before all was said
        finally:
            await gone(writer)

    async def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        answer = await self.say(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = answer.decode().partition("\r\n\r\n")
        return int(head.split()[1]), body


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    found = Asked()
    await found.listener.begin()
    yield found
    await found.listener.aclose()


@pytest.mark.parametrize(
    ("state", "started", "answers"),
    [
        ("starting", False, (503, 503, 200)),
        ("ready", True, (200, 200, 200)),
        ("unready", True, (200, 503, 503)),
        ("stalled", False, (503, 503, 503)),
        ("failed", False, (503, 503, 503)),
        ("stopping", True, (200, 503, 200)),
    ],
)
async def test_kubernetes_three_questions(
    asked: Asked, state: State, started: bool, answers: tuple[int, int, int]
) -> None:
    asked.standing = Standing(state=state, started=started, summary="as it is")
    got = [await asked.get(path) for path in ("/startupz", "/readyz", "/livez?verbose")]
    assert tuple(status for status, _ in got) == answers
    assert {body for _, body in got} == {"as it is\n"}


async def test_the_status_is_json(asked: Asked) -> None:
    status, body = await asked.get("/status")
    assert (status, json.loads(body)) == (200, {"state": "starting"})


async def test_a_head_request_gets_the_head_alone(asked: Asked) -> None:
    assert await asked.get("/livez", "HEAD") == (200, "")


@pytest.mark.parametrize("path", ["/", "/metrics", "/status/", "/livez/../status", "/%73tatus", "//livez"])
async def test_nothing_else_is_known(asked: Asked, path: str) -> None:
    assert (await asked.get(path))[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
async def test_nothing_can_be_changed(asked: Asked, method: str) -> None:
    assert (await asked.get("/livez", method))[0] == 405


@pytest.mark.parametrize(
    "data",
    [
        b"garbage\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    ],
    ids=["no-http", "bad-length", "no-host", "tls", "long-header"],
)
async def test_what_is_no_request_is_refused(asked: Asked, data: bytes) -> None:
    answer = await asked.say(data)
    assert answer == b"" or answer.split()[1] in (b"400", b"431")
    assert (await asked.get("/livez"))[0] == 200


async def test_a_client_that_says_nothing_is_left(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_LIMIT_S", 0.1)
    assert await asked.say(b"GET /li") == b""
    assert await asked.say(b"") == b""


async def test_too_many_clients_at_once_are_turned_away_and_the_next_is_served(asked: Asked) -> None:
    writers = [(await asyncio.open_connection("127.0.0.1", asked.port))[1] for _ in range(64)]
    await asyncio.sleep(0.1)
    assert await asked.say(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n") == b""
    for writer in writers:
        await gone(writer)
    await asyncio.sleep(0.1)
    assert (await asked.get("/livez"))[0] == 200


async def test_its_end_while_a_client_has_not_asked_is_reported_as_no_error(asked: Asked) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
    assert (await asked.get("/livez"))[0] == 200  # the silent one has been taken, too
    await asked.listener.aclose()
    assert await reader.read() == b""
    await gone(writer)
    assert errors == []


async def test_an_address_in_use_is_an_error_before_anything_starts(asked: Asked) -> None:
    with pytest.raises(OSError, match="in use"):
        bound("127.0.0.1", asked.port)


async def test_a_listener_that_never_began_closes_its_socket() -> None:
    never = Asked()
    await never.listener.aclose()
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", never.port)
