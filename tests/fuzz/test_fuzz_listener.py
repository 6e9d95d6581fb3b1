"""Arbitrary requests to the status listener: an answer of HTTP or none, and the next client is served."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from vllm_startup._hosts.listener import StatusListener, bound
from vllm_startup._hosts.standing import Standing

REQUEST = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
KNOWN = {b"200", b"503", b"400", b"404", b"405", b"413", b"414", b"431", b"501", b"505"}

words = st.sampled_from(
    [
        b"GET",
        b"HEAD",
        b"POST",
        b" ",
        b"/livez",
        b"/status",
        b"/",
        b"*",
        b"http://x/livez",
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"\r\n",
        b"\n",
        b"\r\n\r\n",
        b"Host: x",
        b"Content-Length: 5",
        b"Content-Length: -1",
        b"\x00",
        b"\xff",
        b"\x1b[2J",
        b"Transfer-Encoding: chunked",
        b"Upgrade: h2c",
        b"Expect: 100-continue",
        b"?a=b",
        b"%00",
        b"..",
        b"a" * 20000,
    ]
)
requests = st.lists(words | st.binary(max_size=20), max_size=14).map(b"".join)


async def answered(port: int, pieces: list[bytes]) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionError:
        return b""  # turned away before all was said
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass


async def ask(pieces: list[bytes]) -> tuple[bytes, bytes, list[object]]:
    """What the pieces were answered, then a sound request; and what went wrong unnoticed."""
    wrong: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
    listening = bound("127.0.0.1", 0)
    standing = Standing(summary="loading")
    listener = StatusListener(listening, standing=lambda: standing, document=lambda: {"a": "\u202e"})
    await listener.begin()
    port = listening.getsockname()[1]
    try:
        return await answered(port, pieces), await answered(port, [REQUEST]), wrong
    finally:
        await listener.aclose()


@given(requests, st.integers(0, 200))
def test_requests_of_any_kind(data: bytes, at: int) -> None:
    garbage, sound, wrong = asyncio.run(ask([data[:at], data[at:]]))
    assert sound.startswith(b"HTTP/1.1 200 ")
    assert wrong == []
    if garbage:
        assert garbage.startswith(b"HTTP/1.1 ")
        assert garbage.split()[1] in KNOWN
        assert all(byte in b"\r\n" or 32 <= byte < 127 for byte in garbage)
