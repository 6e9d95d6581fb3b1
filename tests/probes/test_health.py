from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import httpx
import pytest
import trustme

from vllm_startup._readings import Answer, Connection, Reading, Tier
from vllm_startup._redact import redact
from vllm_startup.probes import _http
from vllm_startup.probes._health import HealthProbe
from vllm_startup.probes._http import Response
from vllm_startup.probes._protocol import Probe
from vllm_startup.probes._tiers import http_detail

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

KEY = "sesame-4711"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def descriptors() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
async def _nothing_is_left() -> AsyncIterator[None]:
    before = descriptors()
    yield
    for _ in range(50):
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith("vllm-startup")]
        if not left and descriptors() <= before:
            break
        await asyncio.sleep(0.01)
    assert not left
    assert descriptors() <= before
    assert len(asyncio.all_tasks()) == 1


async def look(probe: HealthProbe, now: float = 0.0) -> list[Reading]:
    """One look at the port, with the answer of ``/health`` that is asked for right behind it."""
    async with asyncio.timeout(10):
        seen = list(await probe.sample(now))
        if [type(reading) for reading in seen] == [Connection] and not probe.interval_s:
            seen += await probe.sample(now)
    return seen


async def rounds(probe: HealthProbe, count: int = 1) -> list[Answer]:
    """The answers of so many whole rounds."""
    answers: list[Answer] = []
    for _ in range(count):
        while True:
            answers += [reading for reading in await look(probe) if isinstance(reading, Answer)]
            if probe.interval_s:
                break
    return answers


def answered(*parts: bytes, pause: float = 0.0, close: bool = False) -> Handler:
    """A server that answers every request with the same bytes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(pause)
                if close:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    return handle


@asynccontextmanager
async def serving(
    handler: Handler, *, sock: socket.socket | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Serve on a port of loopback; gives ``host:port``."""
    tasks: set[asyncio.Task[None]] = set()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def run() -> None:
            try:
                await handler(reader, writer)
            finally:
                writer.close()

        task = asyncio.ensure_future(run())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    if sock is None:
        server = await asyncio.start_server(accepted, "127.0.0.1", 0, ssl=tls)
    else:
        server = await asyncio.start_server(accepted, sock=sock, ssl=tls)
    try:
        host, port = server.sockets[0].getsockname()[:2] if sock is None else ("", 0)
        yield f"{host}:{port}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def probing(url: str, **options: object) -> AsyncIterator[HealthProbe]:
    probe = HealthProbe(url, **options)  # type: ignore[arg-type]  # each test passes what is right
    try:
        yield probe
    finally:
        await probe.aclose()


# --- from refused to ready ----------------------------------------------------------------


async def test_a_server_that_binds_early_and_listens_late() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        async with probing(f"http://127.0.0.1:{sock.getsockname()[1]}") as probe:
            assert isinstance(probe, Probe)
            assert probe.name == "health"
            assert await look(probe) == [Connection(state="refused", detail="Connection refused")]
            assert probe.interval_s == 0.04
            assert await look(probe) == []
            async with serving(answered(OK), sock=sock):
                assert await look(probe) == [
                    Connection(state="listening"),
                    Answer(tier="health", ok=True, status=200),
                ]
                assert probe.interval_s == 0.5
                assert await look(probe) == [Answer(tier="health", ok=True, status=200)]
            assert await look(probe) == [Connection(state="refused", detail="Connection refused")]
            assert probe.interval_s == 0.04


async def test_an_unchanged_port_is_told_again_after_ten_seconds() -> None:
    async with probing("http://127.0.0.1:1") as probe:
        assert len(await look(probe, 0.0)) == 1
        assert await look(probe, 9.9) == []
        assert len(await look(probe, 10.0)) == 1
        assert await look(probe, 10.1) == []


async def test_one_connection_serves_many_rounds() -> None:
    connections = 0
    answer = answered(OK)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answer(reader, writer)

    async with serving(handle) as netloc, probing(f"http://{netloc}") as probe:
        assert [reading.ok for reading in await rounds(probe, 5)] == [True] * 5
    assert connections == 2  # the bare connect, and the client's


async def test_for_the_tier_engine_nothing_is_asked() -> None:
    asked = False

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked = bool(await reader.read())
        writer.close()

    async with serving(handle) as netloc, probing(f"http://{netloc}", until="engine") as probe:
        assert await look(probe) == [Connection(state="listening")]
        assert probe.interval_s == 0.5
        assert await look(probe) == []
        await asyncio.sleep(0.01)
    assert not asked


async def test_ipv6() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as sock:
        async with (
            serving(answered(OK), sock=sock),
            probing(f"http://[::]:{sock.getsockname()[1]}") as probe,
        ):
            assert await rounds(probe) == [Answer(tier="health", ok=True, status=200)]


async def test_a_unix_socket_and_the_stale_file_it_leaves(tmp_path: Path) -> None:
    path = tmp_path / "vllm.sock"
    async with probing(f"unix://{path}") as probe:
        assert await look(probe) == [Connection(state="refused", detail="No such file or directory")]
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
            assert await look(probe) == [Connection(state="refused", detail="Connection refused")]
            async with serving(answered(OK), sock=sock):
                assert await rounds(probe) == [Answer(tier="health", ok=True, status=200)]
        assert path.exists()
        assert await look(probe) == [Connection(state="refused", detail="Connection refused")]


async def test_the_environments_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with serving(answered(OK)) as netloc, probing(f"http://{netloc}") as probe:
        assert [reading.ok for reading in await rounds(probe)] == [True]


async def test_a_name_keeps_its_host_header_and_its_root() -> None:
    requests: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(OK)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async with serving(handle) as netloc:
        port = netloc.rpartition(":")[2]
        async with probing(f"http://localhost:{port}/prefix") as probe:
            await rounds(probe)
    assert requests[0].startswith(b"GET /prefix/health HTTP/1.1\r\n")
    assert f"host: localhost:{port}\r\n".encode() in requests[0].lower()


# --- answers that are none ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "status", "detail"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy", 503, "HTTP 503: 'busy'"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", 500, "HTTP 500"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 404, "HTTP 404"),
        (
            b"HTTP/1.1 307 T\r\nLocation: https://h/health?token=secret\r\nContent-Length: 0\r\n\r\n",
            307,
            "HTTP 307, a redirect to 'https://h/health'",
        ),
        (
            b"HTTP/1.1 401 U\r\nContent-Length: 0\r\n\r\n",
            401,
            "HTTP 401; its key goes into api_key (--api-key-file)",
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, "HTTP 204"),
    ],
)
async def test_other_statuses_are_told(raw: bytes, status: int, detail: str) -> None:
    async with serving(answered(raw)) as netloc, probing(f"http://{netloc}") as probe:
        assert await rounds(probe) == [Answer(tier="health", ok=False, status=status, detail=detail)]


async def test_a_server_that_becomes_healthy() -> None:
    answers = [b"HTTP/1.1 503 S\r\nContent-Length: 0\r\n\r\n", OK]

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answers.pop(0))
        except (asyncio.IncompleteReadError, IndexError):
            writer.close()

    async with serving(handle) as netloc, probing(f"http://{netloc}") as probe:
        assert [(reading.ok, reading.status) for reading in await rounds(probe, 2)] == [
            (False, 503),
            (True, 200),
        ]


@pytest.mark.parametrize(
    ("raw", "detail"),
    [
        (b"220 smtp ready\r\n", "the server closed the connection without an HTTP answer; "),
        (b"220 smtp ready\r\n250 ok\r\n\r\n", "the answer is not HTTP: "),
        (b"\x00\x01\x02\xff" * 10, "the answer is not HTTP: "),
        (b"HTTP/0.9\r\n\r\n", "the answer is not HTTP: "),
    ],
)
async def test_what_is_not_http_is_an_answer_without_a_status(raw: bytes, detail: str) -> None:
    async with serving(answered(raw, close=True)) as netloc, probing(f"http://{netloc}") as probe:
        (answer,) = await rounds(probe)
        assert (answer.ok, answer.status) == (False, None)
        assert (answer.detail or "").startswith(detail)
        assert (answer.detail or "").isprintable()


async def test_a_server_that_hangs_up_is_asked_again_within_the_sample() -> None:
    hang_ups = [True, False, False]  # the bare connect sends nothing and is not counted

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            if not hang_ups.pop(0):
                writer.write(OK)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async with serving(handle) as netloc, probing(f"http://{netloc}") as probe:
        assert await rounds(probe) == [Answer(tier="health", ok=True, status=200)]
    assert hang_ups == [False]


async def test_a_server_that_always_hangs_up_is_not_http() -> None:
    asked = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        if await reader.read(1):
            asked += 1
        writer.close()

    async with serving(handle) as netloc, probing(f"http://{netloc}") as probe:
        (answer,) = await rounds(probe)
        assert answer == Answer(
            tier="health",
            ok=False,
            detail="the server closed the connection without an HTTP answer;"
            " if it speaks TLS, write https:// in the url",
        )
    assert asked == 3


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_startup.probes._health.REQUEST_LIMIT_S", 0.05)
    monkeypatch.setattr("vllm_startup.probes._health.INFERENCE_LIMIT_S", 0.05)


async def test_a_port_is_told_before_its_server_answers() -> None:
    async with serving(answered(OK)) as netloc, probing(f"http://{netloc}") as probe:
        assert list(await probe.sample(0.0)) == [Connection(state="listening")]
        assert probe.interval_s == 0.0
        assert list(await probe.sample(0.0)) == [Answer(tier="health", ok=True, status=200)]
        assert probe.interval_s == 0.5


@pytest.mark.usefixtures("impatient")
async def test_a_server_that_never_answers_times_out() -> None:
    async with serving(answered(b"", pause=5)) as netloc, probing(f"http://{netloc}") as probe:
        connection, answer = await look(probe)
        assert isinstance(connection, Connection)
        assert connection.state == "listening"
        assert answer == Answer(tier="health", ok=False, detail="no answer to /health within 0.05 s")
        assert probe.interval_s == 0.5


@pytest.mark.usefixtures("impatient")
async def test_a_head_that_drips_times_out() -> None:
    drops = [bytes([byte]) for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1000]
    async with serving(answered(*drops, pause=0.005)) as netloc, probing(f"http://{netloc}") as probe:
        _, answer = await look(probe)
        assert isinstance(answer, Answer)
        assert (answer.ok, answer.status) == (False, None)


@pytest.mark.usefixtures("impatient")
async def test_of_a_body_that_drips_the_status_counts() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    handler = answered(head, *[b"x"] * 100, pause=0.005)
    async with serving(handler) as netloc, probing(f"http://{netloc}") as probe:
        assert await rounds(probe) == [Answer(tier="health", ok=True, status=200)]


async def test_of_an_endless_body_the_beginning_is_read() -> None:
    sent = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 500 Oops\r\n\r\n")
            while True:
                writer.write(b"x" * 65536)
                sent += 65536
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with serving(handle) as netloc, probing(f"http://{netloc}") as probe:
        (answer,) = await rounds(probe)
        assert answer == Answer(tier="health", ok=False, status=500, detail="HTTP 500: '" + "x" * 200 + "'")
    assert sent < 20_000_000


async def test_a_compressed_body_is_not_unpacked() -> None:
    raw = b"HTTP/1.1 503 S\r\nContent-Encoding: gzip\r\nContent-Length: 8\r\n\r\nnot gzip"
    async with serving(answered(raw)) as netloc, probing(f"http://{netloc}") as probe:
        (answer,) = await rounds(probe)
        assert answer.detail == "HTTP 503: 'not gzip'"


async def test_a_port_that_lets_a_connect_in_but_no_request_times_out() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("", request=request)

    async with probing("http://h:1", transport=httpx.MockTransport(handle)) as probe:
        assert await look(probe) == [
            Connection(state="listening"),
            Connection(state="timed_out", detail="ConnectTimeout"),
        ]
        assert probe.interval_s == 0.5


async def test_an_answer_of_several_pieces_is_read_whole() -> None:
    head = b"HTTP/1.1 503 S\r\nTransfer-Encoding: chunked\r\n\r\n"
    handler = answered(head, b"3\r\nsti\r\n", b"7\r\nll busy\r\n", b"0\r\n\r\n", pause=0.002)
    async with serving(handler) as netloc, probing(f"http://{netloc}") as probe:
        assert (await rounds(probe))[0].detail == "HTTP 503: 'still busy'"


async def test_a_body_that_breaks_off_leaves_its_status() -> None:
    raw = b"HTTP/1.1 503 S\r\nContent-Length: 100\r\n\r\nbusy"
    async with serving(answered(raw, close=True)) as netloc, probing(f"http://{netloc}") as probe:
        assert await rounds(probe) == [Answer(tier="health", ok=False, status=503, detail="HTTP 503: 'busy'")]


async def test_a_list_of_models_that_breaks_off_is_none() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{}"
    async with (
        serving(answered(raw, close=True)) as netloc,
        probing(f"http://{netloc}", until="model") as probe,
    ):
        assert [answer.ok for answer in await rounds(probe)] == [True, False]


# --- TLS ----------------------------------------------------------------------------------


@attrs.frozen
class Tls:
    server: ssl.SSLContext
    ca: str


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    ca = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    path = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(str(path))
    return Tls(context, str(path))


async def test_on_loopback_certificates_are_not_checked(tls: Tls) -> None:
    async with serving(answered(OK), tls=tls.server) as netloc, probing(f"https://{netloc}") as probe:
        assert await rounds(probe) == [Answer(tier="health", ok=True, status=200)]


async def test_a_ca_that_is_given_is_used(tls: Tls) -> None:
    async with serving(answered(OK), tls=tls.server) as netloc:
        url = f"https://localhost:{netloc.rpartition(':')[2]}"
        async with probing(url, verify=tls.ca) as probe:
            assert await rounds(probe) == [Answer(tier="health", ok=True, status=200)]


async def test_a_certificate_that_is_not_trusted_names_verify(tls: Tls) -> None:
    async with (
        serving(answered(OK), tls=tls.server) as netloc,
        probing(f"https://{netloc}", verify=True) as probe,
    ):
        (answer,) = await rounds(probe)
        assert (answer.ok, answer.status) == (False, None)
        assert (answer.detail or "").startswith("the server's certificate is not trusted (")
        assert "): give its CA, or leave the check out: verify= (--ca, --" in (answer.detail or "")


@pytest.mark.parametrize(
    ("why", "todo"),
    [
        ("certificate has expired", "renew it, or set this machine's clock"),
        ("certificate is not yet valid", "renew it, or set this machine's clock"),
        (
            "Hostname mismatch, certificate is not valid for 'a'.",
            "name the host in the url as the certificate",
        ),
        ("unable to get local issuer certificate", "give its CA"),
    ],
)
def test_a_refused_certificate_says_what_helps(why: str, todo: str) -> None:
    assert f"({why}): {todo}" in _http._untrusted(why)


async def test_a_server_that_wants_a_certificate_is_told(tls: Tls) -> None:
    tls.server.verify_mode = ssl.CERT_REQUIRED
    tls.server.load_verify_locations(tls.ca)
    async with serving(answered(OK), tls=tls.server) as netloc, probing(f"https://{netloc}") as probe:
        (answer,) = await rounds(probe)
        assert (answer.ok, answer.status) == (False, None)
        assert answer.detail in (
            "the server closed the connection without an HTTP answer; it may want a certificate",
            "TLS failed: tlsv13 alert certificate required",
        )


async def test_a_folder_of_certificates_is_accepted(tls: Tls, tmp_path: Path) -> None:
    async with (
        serving(answered(OK), tls=tls.server) as netloc,
        probing(f"https://{netloc}", verify=tmp_path) as probe,  # none in it by its hash
    ):
        (answer,) = await rounds(probe)
        assert (answer.detail or "").startswith("the server's certificate is not trusted")


async def test_another_failure_of_tls_is_told_in_its_own_words() -> None:
    without_certificate = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    async with (
        serving(answered(OK), tls=without_certificate) as netloc,
        probing(f"https://{netloc}") as probe,
    ):
        (answer,) = await rounds(probe)
        assert (answer.ok, answer.status) == (False, None)
        assert (answer.detail or "").startswith("TLS failed: ")


async def test_https_to_a_server_that_hangs_up_is_told() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("", request=request)

    async with probing("https://h:1", transport=httpx.MockTransport(handle)) as probe:
        assert (await rounds(probe))[0].detail == (
            "the server closed the connection without an HTTP answer; it may want a certificate"
        )


async def test_https_to_a_server_without_tls_names_the_fix() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1):
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with serving(handle) as netloc, probing(f"https://{netloc}") as probe:
        (answer,) = await rounds(probe)
        assert answer == Answer(
            tier="health",
            ok=False,
            detail="the server speaks no TLS: write http:// instead of https:// in the url",
        )


async def test_http_to_a_server_with_tls_is_not_http(tls: Tls) -> None:
    async with serving(answered(OK), tls=tls.server) as netloc, probing(f"http://{netloc}") as probe:
        (answer,) = await rounds(probe)
        assert (answer.ok, answer.status) == (False, None)


# --- the tiers above ----------------------------------------------------------------------

MODELS = {"object": "list", "data": [{"id": "base"}, {"id": "adapter"}]}


@attrs.define
class Vllm:
    """A server's routes: what each path answers, and what was asked."""

    routes: dict[str, tuple[int, object]]
    asked: list[tuple[str, object]] = attrs.field(factory=list)
    keys: list[str | None] = attrs.field(factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else None
        self.asked.append((request.url.path, body))
        self.keys.append(request.headers.get("authorization"))
        status, answer = self.routes.get(request.url.path, (404, {"detail": "Not Found"}))
        return httpx.Response(status, json=answer) if answer is not None else httpx.Response(status)


HEALTHY: dict[str, tuple[int, object]] = {"/health": (200, None), "/v1/models": (200, MODELS)}


async def ask(vllm: Vllm, until: Tier, count: int = 1, **options: object) -> list[Answer]:
    async with probing("http://h:1", until=until, transport=httpx.MockTransport(vllm), **options) as probe:
        return await rounds(probe, count)


async def test_each_tier_is_told_in_a_sample_of_its_own() -> None:
    vllm = Vllm(HEALTHY | {"/v1/completions": (200, {"choices": [{"text": "x"}]})})
    async with probing("http://h:1", until="inference", transport=httpx.MockTransport(vllm)) as probe:
        assert await look(probe) == [
            Connection(state="listening"),
            Answer(tier="health", ok=True, status=200),
        ]
        assert probe.interval_s == 0.0
        assert await look(probe) == [Answer(tier="model", ok=True, status=200)]
        assert probe.interval_s == 0.0
        assert await look(probe) == [Answer(tier="inference", ok=True, status=200)]
        assert probe.interval_s == 0.5
    assert vllm.asked == [
        ("/health", None),
        ("/v1/models", None),
        ("/v1/completions", {"model": "base", "prompt": "a", "max_tokens": 1, "temperature": 0}),
    ]


async def test_a_round_ends_at_the_first_tier_that_is_not_met() -> None:
    vllm = Vllm({"/health": (503, None)})
    assert await ask(vllm, "inference") == [Answer(tier="health", ok=False, status=503, detail="HTTP 503")]
    vllm = Vllm({"/health": (200, None)})
    assert [answer.tier for answer in await ask(vllm, "inference")] == ["health", "model"]


@pytest.mark.parametrize(
    ("model", "reply", "ok", "detail"),
    [
        (None, (200, MODELS), True, None),
        ("adapter", (200, MODELS), True, None),
        ("other", (200, MODELS), False, "model 'other' is not served; served: 'base', 'adapter'"),
        ("other", (200, {"data": []}), False, "model 'other' is not served; served: none"),
        (None, (200, {"data": []}), False, "no model is served"),
        (None, (200, {"data": "x"}), False, '/v1/models is no list of models: \'{"data":"x"}\''),
        (None, (200, [1]), False, "/v1/models is no list of models: '[1]'"),
        (None, (404, None), False, "HTTP 404"),
        (None, (500, None), False, "HTTP 500"),
        (
            None,
            (401, {"error": "Unauthorized"}),
            False,
            'HTTP 401: \'{"error":"Unauthorized"}\'; its key goes into api_key (--api-key-file)',
        ),
        (None, (403, None), False, "HTTP 403; its key goes into api_key (--api-key-file)"),
    ],
)
async def test_the_tier_model(
    model: str | None, reply: tuple[int, object], ok: bool, detail: str | None
) -> None:
    vllm = Vllm({"/health": (200, None), "/v1/models": reply})
    answers = await ask(vllm, "model", model=model)
    assert answers[1:] == [Answer(tier="model", ok=ok, status=reply[0], detail=detail)]


async def test_a_list_of_models_that_is_not_json() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"<html>\n<p>hello</p>" if request.url.path != "/health" else b"")

    async with probing("http://h:1", until="model", transport=httpx.MockTransport(handle)) as probe:
        assert (await rounds(probe))[1].detail == "/v1/models is no list of models: '<html> <p>hello</p>'"


TASKS = {
    "/v1/completions": {"choices": [{"text": "x"}]},
    "/v1/embeddings": {"data": [{"embedding": [0.5]}]},
    "/score": {"data": [{"score": 1.0}]},
    "/rerank": {"results": [{"relevance_score": 1.0}]},
    "/classify": {"data": [{"probs": [0.5]}]},
    "/pooling": {"data": [{"data": [0.5]}]},
}


@pytest.mark.parametrize("path", TASKS)
@pytest.mark.parametrize(
    "missing",
    [
        (404, {"detail": "Not Found"}),
        (400, {"object": "error", "message": "The model does not support Completions API"}),
        (501, {"error": {"message": "The model does not support Completions API"}}),
        (500, {"message": "The model does not support Completions API"}),
    ],
    ids=["404", "400", "501", "500 with its text"],
)
async def test_the_first_task_that_is_there_is_asked_for_and_remembered(
    path: str, missing: tuple[int, object]
) -> None:
    vllm = Vllm(HEALTHY | dict.fromkeys(TASKS, missing) | {path: (200, TASKS[path])})
    answers = await ask(vllm, "inference", count=2, model="adapter")
    assert [(answer.tier, answer.ok) for answer in answers] == [
        ("health", True),
        ("model", True),
        ("inference", True),
    ] * 2
    asked = [where for where, _ in vllm.asked if where in TASKS]
    assert asked == [*list(TASKS)[: list(TASKS).index(path) + 1], path]
    assert {body["model"] for _, body in vllm.asked if isinstance(body, dict)} == {"adapter"}


async def test_a_server_without_any_task() -> None:
    assert (await ask(Vllm(HEALTHY), "inference"))[2] == Answer(
        tier="inference",
        ok=False,
        status=404,
        detail="no task that can be asked for: completion (HTTP 404), embedding (HTTP 404), score (HTTP 404),"
        " rerank (HTTP 404), classify (HTTP 404), pooling (HTTP 404)",
    )


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        ((500, {"error": "boom"}), 'completion: HTTP 500: \'{"error":"boom"}\''),
        ((401, None), "completion: HTTP 401; its key goes into api_key (--api-key-file)"),
        ((200, {"choices": []}), "completion gave no choices: '{\"choices\":[]}'"),
        ((200, "x"), "completion gave no choices: '\"x\"'"),
    ],
)
async def test_a_task_that_fails_is_not_passed_over(reply: tuple[int, object], detail: str) -> None:
    vllm = Vllm(HEALTHY | {"/v1/completions": reply, "/v1/embeddings": (200, TASKS["/v1/embeddings"])})
    assert (await ask(vllm, "inference"))[2] == Answer(
        tier="inference", ok=False, status=reply[0], detail=detail
    )


async def test_a_task_that_goes_away_is_looked_for_again() -> None:
    vllm = Vllm(HEALTHY | {"/v1/completions": (200, TASKS["/v1/completions"])})
    async with probing("http://h:1", until="inference", transport=httpx.MockTransport(vllm)) as probe:
        assert (await rounds(probe))[2].ok
        del vllm.routes["/v1/completions"]
        vllm.routes["/classify"] = (200, TASKS["/classify"])
        assert not (await rounds(probe))[2].ok
        assert (await rounds(probe))[2].ok


async def test_an_inference_that_breaks_off_is_a_miss() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/completions":
            raise httpx.RemoteProtocolError("peer closed connection", request=request)
        return Vllm(HEALTHY)(request)

    async with probing("http://h:1", until="inference", transport=httpx.MockTransport(handle)) as probe:
        assert (await rounds(probe))[2] == Answer(
            tier="inference", ok=False, detail="the answer is not HTTP: peer closed connection"
        )


@pytest.mark.usefixtures("impatient")
async def test_an_inference_that_hangs_is_a_miss() -> None:
    async def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/completions":
            await asyncio.sleep(5)
        return Vllm(HEALTHY)(request)

    async with probing("http://h:1", until="inference", transport=httpx.MockTransport(handle)) as probe:
        answer = (await rounds(probe))[2]
        assert (answer.ok, answer.status) == (False, None)
        assert answer.detail in (
            "no answer to /v1/completions within 0.05 s",
            "no task was done within 0.05 s",
        )


async def test_a_server_that_dies_between_two_tiers_is_a_miss_and_then_refused() -> None:
    async with serving(answered(OK)) as netloc:
        probe = HealthProbe(f"http://{netloc}", until="model")
        await look(probe)
    (answer,) = await look(probe)
    assert isinstance(answer, Answer)
    assert (answer.tier, answer.ok, answer.status) == ("model", False, None)
    assert await look(probe) == [Connection(state="refused", detail="Connection refused")]
    await probe.aclose()


# --- the key ------------------------------------------------------------------------------


async def test_the_key_is_sent_and_told_to_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    vllm = Vllm({"/health": (200, None), "/v1/models": (403, {"error": f"bad key {KEY}"})})
    answers = await ask(vllm, "model", api_key=KEY)
    assert vllm.keys == [f"Bearer {KEY}"] * 2
    assert (
        answers[1].detail
        == 'HTTP 403: \'{"error":"bad key ***"}\'; its key goes into api_key (--api-key-file)'
    )
    assert KEY not in repr(answers) + caplog.text + repr(HealthProbe("http://h", api_key=KEY))


async def test_a_key_that_a_server_repeats_is_removed_before_anything_is_cut() -> None:
    vllm = Vllm({"/health": (200, None), "/v1/models": (403, "x" * 195 + KEY)})
    (_, answer) = await ask(vllm, "model", api_key=KEY)
    assert answer.detail is not None
    assert KEY[:3] not in answer.detail


async def test_a_key_in_a_redirect_is_removed() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(307, headers={"location": f"https://h/{KEY}/health"})

    async with probing("http://h:1", api_key=KEY, transport=httpx.MockTransport(handle)) as probe:
        assert (await rounds(probe))[0].detail == "HTTP 307, a redirect to 'https://h/***/health'"


@pytest.mark.parametrize("key", ["", " ", "a\nb", "clé-sésame"])
def test_a_key_that_is_none_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(
        ValueError, match=r"^api_key must be printable ASCII without a newline, and not empty$"
    ):
        HealthProbe("http://h", api_key=key)


# --- whose socket -------------------------------------------------------------------------

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="procfs is Linux's")


@pytest.fixture
def bystander() -> Iterator[int]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        yield child.pid


@linux
async def test_the_trees_own_server() -> None:
    ours = os.getpid()
    async with (
        serving(answered(OK)) as netloc,
        probing(f"http://{netloc}", tree_pids=lambda: [ours]) as probe,
    ):
        assert await look(probe) == [
            Connection(state="listening", owner="tree", owner_pid=ours),
            Answer(tier="health", ok=True, status=200, owner="tree", owner_pid=ours),
        ]


SERVER = """
import http.server, sys
class Ok(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.path, self.headers["Authorization"], flush=True)
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ok)
print(server.server_port, flush=True)
server.serve_forever()
"""


@linux
async def test_a_stranger_is_asked_for_its_health_alone_and_gets_no_key(bystander: int) -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        url = f"http://127.0.0.1:{port}"
        async with probing(url, until="inference", api_key=KEY, tree_pids=lambda: [bystander]) as probe:
            assert await look(probe) == [
                Connection(state="listening", owner="foreign", owner_pid=child.pid),
                Answer(tier="health", ok=True, status=200, owner="foreign", owner_pid=child.pid),
            ]
            assert probe.interval_s == 0.5
        child.terminate()
        assert child.stdout.read() == "/health None\n"


@linux
async def test_without_members_of_the_tree_the_owner_is_unknown() -> None:
    async with serving(answered(OK)) as netloc, probing(f"http://{netloc}", tree_pids=list) as probe:
        assert await rounds(probe) == [Answer(tier="health", ok=True, status=200)]


async def test_while_nothing_of_the_server_runs_whoever_answers_is_a_stranger() -> None:
    runs = False
    async with (
        serving(answered(OK)) as netloc,
        probing(f"http://{netloc}", api_key=KEY, runs=lambda: runs) as probe,
    ):
        assert await look(probe) == [
            Connection(state="listening", owner="foreign"),
            Answer(tier="health", ok=True, status=200, owner="foreign"),
        ]
        runs = True
        assert [answer.owner for answer in await rounds(probe)] == ["unknown"]


@linux
async def test_far_away_the_owner_is_unknown() -> None:
    async with (
        serving(answered(OK)) as netloc,
        probing(f"http://{netloc}", tree_pids=lambda: [os.getpid()]) as probe,
    ):
        assert probe._connector is not None
        probe._connector._targets = tuple(
            attrs.evolve(target, local=False) for target in probe._connector._targets
        )
        assert [answer.owner for answer in await rounds(probe)] == ["unknown"]


@linux
async def test_the_owner_of_a_unix_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s"))
        async with (
            serving(answered(OK), sock=sock),
            probing(f"unix://{tmp_path / 's'}", tree_pids=lambda: [os.getpid()]) as probe,
        ):
            assert [answer.owner for answer in await rounds(probe)] == ["tree"]


# --- leaving, and misuse ------------------------------------------------------------------


async def test_a_sample_can_be_cancelled_at_any_time() -> None:
    async with serving(answered(b"", pause=5)) as netloc, probing(f"http://{netloc}") as probe:
        for pause in (0.0, 0.001, 0.005, 0.02):
            task = asyncio.create_task(look(probe))
            await asyncio.sleep(pause)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_samples_go_on_while_a_cancelled_one_is_still_in_its_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go = threading.Event()
    monkeypatch.setattr("vllm_startup.probes._health.imported", lambda: False)
    async with (
        serving(answered(OK)) as netloc,
        probing(f"http://{netloc}", tree_pids=lambda: [os.getpid()]) as probe,
    ):
        stuck = asyncio.create_task(probe._runner.run(lambda: go.wait(5)))
        await asyncio.sleep(0)
        assert [answer.owner for answer in await rounds(probe)] == ["unknown"]
        go.set()
        await stuck
        assert [answer.owner for answer in await rounds(probe)] == ["tree"]


LAZY = """
import asyncio, socket, sys
from vllm_startup.probes._health import HealthProbe
assert not {"httpx", "tenacity", "anyio"} & set(sys.modules)
async def main():
    probe = HealthProbe("http://127.0.0.1:1")
    assert not {"httpx", "tenacity", "anyio"} & set(sys.modules)
    first = asyncio.create_task(probe.sample(0.0))
    turns = 0
    while not first.done():
        turns += 1
        await asyncio.sleep(0)
    assert {"httpx", "tenacity", "anyio"} <= set(sys.modules)
    assert turns > 10, turns
    assert probe._http.prepared
    await probe.aclose()
asyncio.run(main())
"""


def test_what_requests_need_is_imported_in_a_thread_while_nothing_listens() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAZY], capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


async def test_closing_before_the_first_sample() -> None:
    await HealthProbe("http://127.0.0.1:1").aclose()


async def test_the_limits_leave_room_for_the_longest_request() -> None:
    assert HealthProbe("http://h").limit_s == 14.0
    assert HealthProbe("http://h", until="inference").limit_s == 68.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "h:8000"}, "url needs a scheme"),
        ({"until": "ready"}, "until must be one of engine, health, model, inference, not 'ready'"),
        ({"verify": os.devnull}, "verify must be True, False, or the path of CA certificates"),
        ({"verify": "/no/such/ca.pem"}, "verify must be True, False, or the path of CA certificates"),
    ],
)
def test_misuse_is_told_at_construction(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HealthProbe(**({"url": "http://h"} | options))  # type: ignore[arg-type]  # that is the point


def test_a_key_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="api_key must be a string, not bytes"):
        HealthProbe("http://h", api_key=b"x")  # type: ignore[arg-type]  # what a caller may do


def test_what_to_do_about_a_missing_key_is_not_taken_for_one() -> None:
    """A report redacts every text."""
    detail = http_detail(Response(status=401))
    assert redact(detail) == detail
