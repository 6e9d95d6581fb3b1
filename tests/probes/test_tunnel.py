"""A connect through a tunnel, whose near end accepts whatever the far end meets."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from vllm_startup.probes import Answer, Connection, HealthProbe
from vllm_startup.probes._connect import Attempt
from vllm_startup.probes._tunnel import TunnelConnector

REFUSED = "connect failed: Connection refused"


class Tunnel:
    """A tunnel whose far end a test plays."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "near")
        self.said: str | None = REFUSED
        self.lost: OSError | None = None
        self.serves = False
        self.opened = 0
        self.taken = 0

    def open(self) -> None:
        self.opened += 1
        if self.lost is not None:
            raise self.lost

    def refusal(self) -> str | None:
        return self.said

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Close it, as a far end does where nothing listens; or answer."""
        self.taken += 1
        if self.serves and await reader.readline():
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        self.taken -= 1


@asynccontextmanager
async def tunnel(folder: Path) -> AsyncIterator[Tunnel]:
    made = Tunnel(folder)
    listener = await asyncio.start_unix_server(made.take, made.path)
    async with listener:
        yield made
        while made.taken:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("said", "attempt"),
    [
        (REFUSED, Attempt("refused", "Connection refused")),
        (None, Attempt("refused")),
        ("connect failed: open failed", Attempt("refused", "open failed")),
        ("connect failed: Connection timed out", Attempt("timed_out", "Connection timed out")),
        ("connect failed: No route to host", Attempt("unreachable", "No route to host")),
    ],
)
async def test_one_that_closes_without_a_byte_was_refused(
    tmp_path: Path, said: str | None, attempt: Attempt
) -> None:
    async with tunnel(tmp_path) as far:
        far.said = said
        assert await TunnelConnector(far).connect(0.0) == attempt
        assert far.opened == 1


async def test_one_that_stays_open_was_let_in(tmp_path: Path) -> None:
    async with tunnel(tmp_path) as far:
        connector = TunnelConnector(far)
        await connector.connect(0.0)
        far.serves = True  # it waits for a request
        began = asyncio.get_running_loop().time()
        assert await connector.connect(0.0) == Attempt("listening")
        assert asyncio.get_running_loop().time() - began < 0.5  # refusals were quick
        assert not connector.still_refused()


async def test_a_near_end_that_is_gone_is_no_fault(tmp_path: Path) -> None:
    assert await TunnelConnector(Tunnel(tmp_path)).connect(0.0) == Attempt("refused", "Connection refused")


async def test_a_tunnel_that_cannot_be_opened_is(tmp_path: Path) -> None:
    far = Tunnel(tmp_path)
    far.lost = OSError(errno.EIO, "the connection is lost")
    with pytest.raises(OSError, match="the connection is lost"):
        await TunnelConnector(far).connect(0.0)


async def test_health_is_asked_for_through_it(tmp_path: Path) -> None:
    async with tunnel(tmp_path) as far:
        probe = HealthProbe("http://127.0.0.1:8000", route=far)
        try:
            refused = Connection(state="refused", detail="Connection refused")
            assert list(await probe.sample(0.0)) == [refused]
            assert probe.interval_s == 0.5
            assert probe.glance(1.0)  # only a connect tells
            far.serves = True
            assert list(await probe.sample(1.0)) == [Connection(state="listening")]
            assert list(await probe.sample(1.0)) == [Answer(tier="health", ok=True, status=200)]
            far.serves = False
            assert list(await probe.sample(2.0)) == [refused]
        finally:
            await probe.aclose()
