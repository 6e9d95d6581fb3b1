"""Arbitrary arguments on the command line: refused by name, or a wait as any other; never a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_startup._cli import main
from vllm_startup._url import parse_url
from vllm_startup.probes._http import HttpClient

OPTIONS = (
    *("--timeout", "--stall", "--stable-for", "--pid", "--restarts", "--gpus", "--until", "--model"),
    *(
        "--log",
        "--record",
        "--events",
        "--baseline",
        "--api-key-file",
        "--ca",
        "--unit",
        "--container",
        "--engine",
    ),
)
"""All of `wait` that take a value; not --ssh, which would start one."""

odd = st.sampled_from(
    [
        "",
        " ",
        "-",
        "--",
        "0",
        "-0",
        "1e999",
        "1e308",
        "nan",
        "-1",
        "9" * 25,
        "9" * 5000,
        "0x10",
        "1_000",
        "٣",
        "½",
        "loading_weights=",
        "=5",
        "total=1e-9",
        "total=nan",
        "compiling=0",
        "ready=1",
        "x" * 5000,
        "\u202e",
        "�",
        "GPU-",
        "MIG-x",
        "0,1,",
        "1,1",
        "0-3",
        "/",
        ".",
        "..",
        "~",
        "/dev/null",
        "/proc/self/mem",
        "a/b\nc",
    ]
)
some = odd | st.text(max_size=20).filter(lambda text: "\0" not in text)  # an argument cannot hold it
hosts = st.sampled_from(
    ["127.0.0.1:1", "[::1]:1", "[::1", "::1", "127.0.0.1:99999", "127.0.0.1:-1", "@", "127.0.0.1:٣"]
)
urls = st.builds(
    lambda scheme, host, rest: scheme + host + rest,
    st.sampled_from(["http://", "https://", "unix://", "HTTP://", "http:", "", "ftp://", "http:///"]),
    hosts,
    some.map(lambda text: f"/{text}") | st.sampled_from(["", "/", "?a", "#b", "//", "/\ud800", "%"]),
)


@pytest.fixture(scope="module", autouse=True)
def _elsewhere() -> Iterator[None]:
    """Some of the arguments are files that are written; no thread of an earlier wait imports anything."""
    HttpClient(parse_url("http://127.0.0.1")).prepare()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield


def run(*arguments: str) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([os.fsdecode(argument.encode("utf-8", "surrogatepass")) for argument in arguments])
    return status, err.getvalue()


def is_sound(status: int, said: str, *names: str) -> None:
    assert "Traceback" not in said
    assert "internal error" not in said
    assert {character for character in said if not character.isprintable()} <= {"\n"}
    assert status in (0, 1, 2, 124)
    if status == 2:
        assert any(name in said for name in names), said


@given(st.sampled_from(OPTIONS), some)
def test_an_option_of_wait(option: str, value: str) -> None:
    status, said = run(
        "wait", "http://127.0.0.1:1", f"{option}={value}", "--timeout", "0.001"
    )  # the last word
    is_sound(status, said, option, option[2:].replace("-", "_"), option[2:])


@given(urls | some)
def test_a_url(url: str) -> None:
    status, said = run("wait", "--timeout", "0.001", "--", url)
    is_sound(status, said, "url", "URL", "unrecognized arguments")


@given(
    st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_files_of_any_content(content: bytes) -> None:
    Path("any").write_bytes(content)
    for command in (("diagnose", "any"), ("diagnose", "--json", "any"), ("replay", "any")):
        status, said = run(*command)
        assert "internal error" not in said
        assert status in (0, 1, 2, 3, 4, 124)
    status, said = run("wait", "http://127.0.0.1:1", "--timeout", "0.001", "--baseline", "any")
    is_sound(status, said, "baseline")
    status, said = run("wait", "http://127.0.0.1:1", "--timeout", "0.001", "--api-key-file", "any")
    is_sound(status, said, "--api-key-file")
