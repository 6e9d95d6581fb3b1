"""One HTTP client a watch: every request ends in time, reads a bounded body, and names what went wrong."""

from __future__ import annotations

import asyncio
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

import attrs

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterable

    import httpx

    from vllm_startup._url import ServerAddress

CONNECT_LIMIT_S: Final = 1.0
KEEPALIVE_S: Final = 4.0
"""uvicorn closes idle connections after 5 s; we let go first."""

ATTEMPTS: Final = 3
RETRY_WAIT_S: Final = 0.02
"""A server that closes an idle connection at the very moment, or resets one while it begins to listen."""

_SNIPPET: Final = 200
"""Characters of a foreign body that are quoted."""


@attrs.frozen(kw_only=True)
class Response:
    """What a server answered.

    Attributes:
        body: At most as many bytes as were asked for.
        whole: Whether the body ended within that size and in time.
        location: Where a redirect leads, without its query.
    """

    status: int
    body: bytes = b""
    whole: bool = True
    location: str | None = None


@attrs.frozen
class Failure:
    """Why there was no answer.

    Attributes:
        kind: ``connect``: nothing took the connection. ``timeout``: it was taken, and nothing came.
            ``protocol``: what came was no HTTP. ``tls``: the two sides do not agree on TLS.
    """

    kind: Literal["connect", "timeout", "protocol", "tls"]
    detail: str


@attrs.define
class _Progress:
    """What is known of an answer so far, for when the time runs out."""

    response: Response | None = None


class HttpClient:
    """Asks one server, over one connection pool.

    It is httpx's transport without its client, which would log each request at level INFO, two a second,
    and would follow what must not be followed: redirects and the environment's proxies. The bare connect
    that comes before cannot follow them either.

    Args:
        address: The server.
        api_key: Sent as a bearer token where a request asks for it; it never leaves otherwise.
        verify: Whether to check the server's certificate, or a file or folder of CA certificates.
        tunnel: The unix socket that leads to the server, where a tunnel does.
        transport: Answers instead of the network.
    """

    def __init__(
        self,
        address: ServerAddress,
        *,
        api_key: str | None = None,
        verify: bool | str | os.PathLike[str] = True,
        tunnel: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._address = address
        self._tunnel = tunnel
        self._api_key = api_key
        self._verify = verify
        self._transport = transport

    @property
    def prepared(self) -> bool:
        """Whether `prepare` has nothing left to do."""
        return self._transport is not None

    def prepare(self) -> None:
        """Import and build what requests need: up to 200 ms once in a process, so it belongs in a thread."""
        import httpx
        import tenacity  # noqa: F401 - `request` needs it at once

        _warm_anyio()
        limits = httpx.Limits(max_connections=2, max_keepalive_connections=1, keepalive_expiry=KEEPALIVE_S)
        self._transport = httpx.AsyncHTTPTransport(
            verify=self._tls(), trust_env=False, limits=limits, uds=self._tunnel or self._address.uds
        )

    async def request(
        self,
        path: str,
        *,
        host: str | None,
        limit_s: float,
        max_body: int,
        json: object = None,
        with_key: bool = True,
    ) -> Response | Failure:
        """GET ``path``, or POST ``json`` to it.

        Args:
            path: Below the server's root.
            host: The IP address that was just seen to listen; None to go by the URL.
            limit_s: Seconds that the whole exchange may take, retries included.
            max_body: Bytes to read; the rest is left.
            json: What to post.
            with_key: Whether the API key may be sent.
        """
        import httpx

        if self._transport is None:
            self.prepare()
        progress = _Progress()
        try:
            async with asyncio.timeout(limit_s):
                request = self._request(path, host, json, with_key, limit_s)
                return await self._with_retries(request, max_body, progress)
        except (TimeoutError, httpx.ReadTimeout, httpx.WriteTimeout, httpx.PoolTimeout):
            if progress.response is not None:
                return progress.response
            return Failure("timeout", f"no answer to {path} within {limit_s:g} s")
        except (httpx.TransportError, ssl.SSLError, OSError) as error:
            if progress.response is not None:
                return progress.response
            return self._failure(error)

    async def aclose(self) -> None:
        """Close all connections."""
        if self._transport is not None:
            await self._transport.aclose()

    async def _with_retries(self, request: httpx.Request, max_body: int, progress: _Progress) -> Response:
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_fixed

        retrying = AsyncRetrying(
            stop=stop_after_attempt(ATTEMPTS),
            wait=wait_fixed(RETRY_WAIT_S),
            retry=retry_if_exception(lambda error: progress.response is None and _is_transient(error)),
            sleep=asyncio.sleep,
            reraise=True,
        )
        return await retrying(self._once, request, max_body, progress)

    def _request(
        self, path: str, host: str | None, json: object, with_key: bool, limit_s: float
    ) -> httpx.Request:
        import httpx

        address = self._address
        netloc = address.netloc
        extensions: dict[str, object] = {}
        if host is not None and address.uds is None:
            netloc = f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"
            extensions["sni_hostname"] = address.host
        headers = {"Host": address.netloc, "User-Agent": "vllm-startup", "Accept-Encoding": "identity"}
        if with_key and self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        timeout = {"connect": CONNECT_LIMIT_S, "read": limit_s, "write": limit_s, "pool": limit_s}
        return httpx.Request(
            "GET" if json is None else "POST",
            f"{address.scheme}://{netloc}{address.root}{path}",
            json=json,
            headers=headers,
            extensions={**extensions, "timeout": timeout},
        )

    async def _once(self, request: httpx.Request, max_body: int, progress: _Progress) -> Response:
        assert self._transport is not None
        answer = await self._transport.handle_async_request(request)
        try:
            progress.response = self._response(answer, b"", whole=False)
            body = bytearray()
            async for chunk in cast("AsyncIterable[bytes]", answer.stream):
                body += chunk[: max_body - len(body)]
                if len(body) >= max_body:
                    return self._response(answer, bytes(body), whole=False)
                if len(progress.response.body) < _SNIPPET:
                    progress.response = self._response(answer, bytes(body), whole=False)
            return self._response(answer, bytes(body), whole=True)
        finally:
            await answer.aclose()

    def _response(self, answer: httpx.Response, body: bytes, *, whole: bool) -> Response:
        """What is kept of an answer. The key goes before anything is cut, lest half of it stays."""
        location = answer.headers.get("location")
        if self._api_key:
            body = body.replace(self._api_key.encode(), b"***")
        return Response(
            status=answer.status_code,
            body=body,
            whole=whole,
            location=self._clean(location.partition("?")[0]) if location else None,
        )

    def _tls(self) -> ssl.SSLContext | bool:
        if self._address.scheme == "http":
            return False  # building a context costs 20 ms
        if isinstance(self._verify, bool):
            return self._verify
        return certificates(self._verify)

    def _failure(self, error: Exception) -> Failure:
        import httpx

        if (tls := _tls_error(error)) is not None:
            return Failure("tls", _tls_detail(tls))
        # Through a tunnel, that is how a refusal looks.
        refused = self._tunnel is not None and _is_transient(error)
        if refused or isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return Failure("connect", str(error) or type(error).__name__)
        return Failure("protocol", self._clean(_protocol_detail(error, self._address.scheme)))

    def _clean(self, text: str) -> str:
        """``text`` without the API key, should a server have sent it back."""
        return text.replace(self._api_key, "***") if self._api_key else text


def certificates(path: str | os.PathLike[str]) -> ssl.SSLContext:
    """A TLS context that trusts the CA certificates in a file or folder.

    Raises:
        OSError: It is missing, or holds no certificates.
    """
    name = str(path)
    if Path(name).is_dir():
        return ssl.create_default_context(capath=name)
    return ssl.create_default_context(cafile=name)


def imported() -> bool:
    """Whether `HttpClient.prepare` costs little, since somebody has imported what it needs."""
    return "httpx" in sys.modules and "tenacity" in sys.modules


def snippet(response: Response) -> str:
    """The beginning of a body on one line, quoted; empty without one."""
    text = " ".join(response.body[:_SNIPPET].decode("utf-8", "replace").split())
    return repr(text) if text else ""


def _warm_anyio() -> None:
    """Let anyio import its asyncio half here, in a loop of this thread's own, not under the first request."""
    try:
        from anyio.lowlevel import checkpoint
    except ImportError:  # pragma: no cover - a later httpx may do without
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(checkpoint())


def _is_transient(error: BaseException) -> bool:
    import httpx

    if isinstance(error, httpx.RemoteProtocolError):
        return "disconnected without sending" in str(error)
    return isinstance(error, (httpx.ReadError, httpx.WriteError, httpx.CloseError))


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error


_TRUST_OPTIONS: Final = "verify= (--ca, --no-verify)"


def _untrusted(why: str) -> str:
    """Why a certificate is refused, and what to do; ``why`` is OpenSSL's word."""
    said = why.lower()
    if "expired" in said or "not yet valid" in said:
        todo = f"renew it, or set this machine's clock; {_TRUST_OPTIONS} can leave the check out"
    elif "mismatch" in said or "not valid for" in said:
        todo = f"name the host in the url as the certificate does; {_TRUST_OPTIONS} can leave the check out"
    else:
        todo = f"give its CA, or leave the check out: {_TRUST_OPTIONS}"
    return f"the server's certificate is not trusted ({why}): {todo}"


def _tls_detail(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _untrusted(error.verify_message)
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "wrong version number" in reason or "record layer" in reason:
        return "the server speaks no TLS: write http:// instead of https:// in the url"
    return f"TLS failed: {reason}"


def _protocol_detail(error: Exception, scheme: str) -> str:
    if _is_transient(error):
        guess = (
            "if it speaks TLS, write https:// in the url" if scheme == "http" else "it may want a certificate"
        )
        return f"the server closed the connection without an HTTP answer; {guess}"
    return f"the answer is not HTTP: {(str(error) or type(error).__name__)[:_SNIPPET]}"
