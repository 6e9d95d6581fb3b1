from __future__ import annotations

import pytest

from vllm_startup._url import ServerAddress, parse_url


@pytest.mark.parametrize(
    ("url", "text", "netloc", "loopback"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("http://localhost:8000/", "http://localhost:8000", "localhost:8000", True),
        ("HTTP://LocalHost:8000", "http://localhost:8000", "localhost:8000", True),
        ("http://0.0.0.0:8000", "http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("http://[::]:8000", "http://[::1]:8000", "[::1]:8000", True),
        ("http://[::1]:8000", "http://[::1]:8000", "[::1]:8000", True),
        ("http://127.1.2.3:8000", "http://127.1.2.3:8000", "127.1.2.3:8000", True),
        ("https://gpu.example/vllm/", "https://gpu.example/vllm", "gpu.example", False),
        ("http://gpu.example", "http://gpu.example", "gpu.example", False),
        ("http://10.0.0.7:80", "http://10.0.0.7", "10.0.0.7", False),
        ("unix:///run/vllm.sock", "unix:///run/vllm.sock", "localhost", True),
        ("http+unix:///run/vllm.sock", "unix:///run/vllm.sock", "localhost", True),
        ("unix:///run/v%20llm@1.sock", "unix:///run/v llm@1.sock", "localhost", True),
        ("https+unix:///run/vllm.sock", "https+unix:///run/vllm.sock", "localhost", True),
        ("http+unix://%2Frun%2Fv.sock/pre", "http+unix://%2Frun%2Fv.sock/pre", "localhost", True),
    ],
)
def test_addresses(url: str, text: str, netloc: str, loopback: bool) -> None:
    address = parse_url(url)
    assert (str(address), address.netloc, address.loopback) == (text, netloc, loopback)


def test_the_parts_of_a_tcp_address() -> None:
    assert parse_url("https://gpu.example:8443/vllm") == ServerAddress(
        scheme="https", host="gpu.example", port=8443, uds=None, root="/vllm"
    )


def test_the_parts_of_a_unix_address_with_a_root() -> None:
    assert parse_url("http+unix://%2Frun%2Fv.sock/pre/") == ServerAddress(
        scheme="http", host=None, port=None, uds="/run/v.sock", root="/pre"
    )


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8000", "url needs a scheme: write 'http://localhost:8000'"),
        ("127.0.0.1:8000", "url needs a scheme: write 'http://127.0.0.1:8000'"),
        ("[::1]:8000", "url needs a scheme: write 'http://[::1]:8000'"),
        ("gpu.example", "url needs a scheme: write 'http://gpu.example'"),
        ("/run/v.sock", "url needs a scheme: write 'unix:///run/v.sock' for a unix socket"),
        ("ftp://h", "url must begin with http://, https:// or unix://, not 'ftp://'"),
        ("http://", "url names no host: write 'http://127.0.0.1:8000'"),
        ("http://:8000", "url names no host: write 'http://127.0.0.1:8000'"),
        ("http://h:0", "url's port must be a number from 1 to 65535, not 0"),
        ("http://h:65536", "url's port must be a number from 1 to 65535"),
        ("http://h:eight", "url's port must be a number from 1 to 65535"),
        ("http://h:8000/v1", "url must be the server's root: leave '/v1' away"),
        ("http://h:8000/v1/models", "url must be the server's root: leave '/v1/models' away"),
        ("http://h:8000/pre/health", "url must be the server's root: leave '/health' away"),
        ("http://h:8000/?key=sesame", "url must be the server's root, without '?' and '#'"),
        ("http://h:8000/#top", "url must be the server's root, without '?' and '#'"),
        ("http://[::1", "url is not valid: 'http://[::1'"),
        ("http://a b", "url must not be empty or hold spaces or control characters: 'http://a b'"),
        ("http://a\x1b[2J", "url must not be empty or hold spaces or control characters: 'http://a\\x1b[2J'"),
        ("", "url must not be empty or hold spaces or control characters: ''"),
        ("http://" + "a" * 64, "url's host is not a valid name: '" + "a" * 64 + "'"),
        ("http://[fe80::1%eth0]:1", "url's host must be without a zone such as '%eth0': 'fe80::1%eth0'"),
        ("unix://run/v.sock", "url of a unix socket needs an absolute path: write 'unix:///run/v.sock'"),
        ("unix:///" + "x" * 110, "url of a unix socket must be at most 107 bytes long: '/" + "x" * 110 + "'"),
    ],
)
def test_what_is_no_address_is_refused_with_the_fix(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^url") as caught:
        parse_url(url)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "url", ["http://me:sesame@h:8000", "me:sesame@h:8000", "http://me:ses ame@h", "http://me:sesame@h:x"]
)
def test_a_password_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="url must not hold a user name or a password") as caught:
        parse_url(url)
    assert "sesame" not in str(caught.value)


def test_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match=r"url must be a string such as 'http://127\.0\.0\.1:8000', not int"):
        parse_url(8000)  # type: ignore[arg-type]  # what a caller without a checker may do
