"""The server's address: parsed once, checked at construction, kept free of secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

if TYPE_CHECKING:
    from urllib.parse import SplitResult

Scheme = Literal["http", "https"]

_DEFAULT_PORTS: dict[Scheme, int] = {"http": 80, "https": 443}

_UNIX_SCHEMES: dict[str, Scheme] = {
    "unix": "http",
    "http+unix": "http",
    "https+unix": "https",
}

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that one listens on but cannot connect to, and where to find such a server instead."""

_MAX_UNIX_PATH = 107
"""Bytes of a unix socket's path: ``sun_path`` holds 108 with its end (unix(7)); macOS has 103."""

_API_PATHS = ("/health", "/v1/models", "/v1")
"""What people paste although the server's root is asked for; checked from the longest."""


@attrs.frozen(kw_only=True)
class ServerAddress:
    """Where a server listens.

    Attributes:
        host: A name or an IP address, without brackets; None for a unix socket.
        port: None for a unix socket.
        uds: The path of a unix socket; None for TCP.
        root: The path under which the server is mounted: empty, or ``/prefix`` without a final slash.
    """

    scheme: Scheme
    host: str | None = None
    port: int | None = None
    uds: str | None = None
    root: str = ""

    @property
    def loopback(self) -> bool:
        """Whether the server can only be on this machine, by the address alone."""
        return self.host is None or self.host == "localhost" or _is_loopback_ip(self.host)

    @property
    def netloc(self) -> str:
        """What stands in a ``Host`` header; ``localhost`` for a unix socket."""
        if self.host is None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        if self.uds is not None:
            if self.root:
                from urllib.parse import quote

                return f"{self.scheme}+unix://{quote(self.uds, safe='')}{self.root}"
            return f"unix://{self.uds}" if self.scheme == "http" else f"https+unix://{self.uds}"
        return f"{self.scheme}://{self.netloc}{self.root}"


def parse_url(url: str) -> ServerAddress:
    """Read a server's URL: ``http``, ``https``, or a unix socket as ``unix:///path``.

    ``http+unix://%2Fpath/prefix`` is understood too. The wildcards ``0.0.0.0`` and ``::`` become the
    loopback address, since nothing can connect to them.

    Raises:
        TypeError: ``url`` is no string.
        ValueError: ``url`` is no address of a server. The message says what to write instead.
    """
    if not isinstance(url, str):
        raise TypeError(f"url must be a string such as 'http://127.0.0.1:8000', not {type(url).__name__}")
    parts = _split(url)
    if parts.scheme in _UNIX_SCHEMES:
        return _parse_unix(parts)
    if parts.scheme in ("http", "https"):
        return _parse_tcp(parts)
    raise ValueError(_scheme_message(url, parts))


def _split(url: str) -> SplitResult:
    from urllib.parse import urlsplit

    if not url.startswith("unix:") and "@" in url:  # told first: no message below may quote a password
        raise ValueError("url must not hold a user name or a password; a key goes into api_key=")
    if not url or not url.isprintable() or any(char.isspace() for char in url):
        raise ValueError(f"url must not be empty or hold spaces or control characters: {_quoted(url)}")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError(f"url is not valid: {_quoted(url)}") from error
    if parts.query or parts.fragment:
        raise ValueError("url must be the server's root, without '?' and '#'")
    return parts


def _scheme_message(url: str, parts: SplitResult) -> str:
    if "://" in url:
        return f"url must begin with http://, https:// or unix://, not {parts.scheme + '://'!r}"
    if url.startswith("/"):
        return f"url needs a scheme: write {'unix://' + url!r} for a unix socket"
    return f"url needs a scheme: write {'http://' + url!r}"


def _parse_unix(parts: SplitResult) -> ServerAddress:
    from urllib.parse import unquote

    scheme = _UNIX_SCHEMES[parts.scheme]
    path, root = (unquote(parts.netloc), parts.path) if parts.netloc else (unquote(parts.path), "")
    if not path.startswith("/"):
        whole = f"unix:///{path}{root}"
        raise ValueError(f"url of a unix socket needs an absolute path: write {whole!r}")
    if len(path.encode()) > _MAX_UNIX_PATH:
        raise ValueError(f"url of a unix socket must be at most {_MAX_UNIX_PATH} bytes long: {path!r}")
    return ServerAddress(scheme=scheme, uds=path, root=_root(root))


def _parse_tcp(parts: SplitResult) -> ServerAddress:
    scheme: Scheme = "https" if parts.scheme == "https" else "http"
    host = parts.hostname
    if not host:
        raise ValueError(f"url names no host: write '{scheme}://127.0.0.1:8000'")
    try:
        port = parts.port
    except ValueError:
        raise ValueError("url's port must be a number from 1 to 65535") from None
    if port == 0:
        raise ValueError("url's port must be a number from 1 to 65535, not 0")
    root = _root(parts.path)
    for path in _API_PATHS:
        if root.endswith(path):
            raise ValueError(f"url must be the server's root: leave {path!r} away")
    _check_host(host)
    return ServerAddress(
        scheme=scheme,
        host=_WILDCARDS.get(host, host),
        port=_DEFAULT_PORTS[scheme] if port is None else port,
        root=root,
    )


def _root(path: str) -> str:
    return path.rstrip("/")


def _check_host(host: str) -> None:
    if "%" in host:
        raise ValueError(f"url's host must be without a zone such as '%eth0': {_quoted(host)}")
    try:
        if ":" not in host:
            host.encode("idna")
    except UnicodeError:
        raise ValueError(f"url's host is not a valid name: {_quoted(host)}") from None


def _is_loopback_ip(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _quoted(text: str) -> str:
    return repr(text[:80])
