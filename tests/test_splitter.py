from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_startup._log.splitter import LineSplitter

LIMIT = 32

pieces = st.sampled_from(
    [
        *(b"\n", b"\r", b"\r\n", b"\0", b"a", b"bar 10%", "é".encode(), "█".encode(), "😀".encode()),
        *(b"\xff", b"\xe2\x82", b"\xf0\x9f", b"x" * LIMIT, b"y" * (LIMIT + 1), b"\x1b[0m"),
    ]
)
streams = st.lists(pieces, max_size=40).map(b"".join) | st.binary(max_size=120)


def split(chunks: list[bytes], limit: int = LIMIT) -> list[str]:
    splitter = LineSplitter(limit)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return lines + splitter.finish()


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(i, len(data)) for i in at), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(streams, st.lists(st.integers(0, 200), max_size=12))
@settings(max_examples=600, deadline=None)
def test_lines_do_not_depend_on_how_the_stream_was_cut(data: bytes, at: list[int]) -> None:
    assert split(cut(data, at)) == split([data])


@given(streams)
@settings(max_examples=300, deadline=None)
def test_one_byte_at_a_time_gives_the_same_lines(data: bytes) -> None:
    assert split([data[i : i + 1] for i in range(len(data))]) == split([data])


@given(streams)
@settings(max_examples=300, deadline=None)
def test_no_line_is_lost_or_doubled(data: bytes) -> None:
    tail = data.rpartition(b"\n")[2]
    expected = (data.count(b"\n")) + (1 if tail.strip(b"\0") or (tail and tail[:1] != b"\0") else 0)
    assert len(split([data])) == expected


@given(streams, st.lists(st.integers(0, 200), max_size=12))
@settings(max_examples=300, deadline=None)
def test_the_unfinished_line_does_not_depend_on_how_the_stream_was_cut(data: bytes, at: list[int]) -> None:
    whole, chunked = LineSplitter(LIMIT), LineSplitter(LIMIT)
    whole.feed(data)
    for chunk in cut(data, at):
        chunked.feed(chunk)
    assert chunked.partial() == whole.partial()


@given(st.text().filter(lambda text: "\n" not in text and not text.startswith("\0")))
def test_any_text_comes_back_as_it_was(text: str) -> None:
    assert split([text.encode("utf-8", "surrogatepass").replace(b"\xed", b"?") + b"\n"], 10_000)[0] == (
        text.encode("utf-8", "surrogatepass").replace(b"\xed", b"?").decode("utf-8", "replace")
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"a\nb\n", ["a", "b"], id="plain"),
        pytest.param(b"\n\n", ["", ""], id="empty lines"),
        pytest.param(
            b"head \r\nnext\n", ["head \r", "next"], id="a carriage return before the newline stays"
        ),
        pytest.param(b"\rbar 1\rbar 2\n", ["\rbar 1\rbar 2"], id="a bar that fits is kept whole"),
        pytest.param(b"caf\xe9\n", ["caf\ufffd"], id="latin-1"),
        pytest.param(b"a\xe2\x82\nb\n", ["a\ufffd", "b"], id="a character cut by the newline"),
        pytest.param(b"\0\0\0INFO x\n", ["INFO x"], id="the hole of a truncated file"),
        pytest.param(b"a\0b\n", ["a\0b"], id="a NUL inside a line stays"),
        pytest.param(
            b"a\x0bb\x0cc\xc2\x85d\xe2\x80\xa8e\n", ["a\x0bb\x0cc\x85d\u2028e"], id="no other line ends"
        ),
        pytest.param(b"x" * 33 + b"\n", ["x" * 32 + "…"], id="a long line keeps its head"),
        pytest.param(b"x" * 31 + "é".encode() + b"\n", ["x" * 31 + "…"], id="cut between characters"),
        pytest.param(b"end", ["end"], id="without a last newline"),
    ],
)
def test_lines(data: bytes, expected: list[str]) -> None:
    assert split([data]) == expected


def test_a_long_bar_keeps_its_prefix_and_what_was_glued_to_its_last_redraw() -> None:
    data = b"(W pid=1) " + b"".join(b"\rbar %d%%" % i for i in range(100)) + b"INFO done\n"
    assert split([data], 64) == ["(W pid=1) \rbar 99%INFO done"]


def test_a_long_bar_that_ends_with_a_carriage_return_keeps_its_last_redraw() -> None:
    assert split([b"\rbar 10%" * 10 + b"\r\n"], 32) == ["\rbar 10%"]


def test_a_bar_in_progress_shows_its_prefix_and_last_redraw() -> None:
    splitter = LineSplitter()
    splitter.feed(b"(W pid=1) \rbar 10%\rbar 20%")
    assert splitter.partial() == "(W pid=1) \rbar 20%"


def test_a_bar_just_cleared_still_shows_its_last_redraw() -> None:
    splitter = LineSplitter()
    splitter.feed(b"bar 10%\rbar 20%\r")
    assert splitter.partial() == "bar 10%\rbar 20%"


def test_an_unfinished_character_is_not_shown() -> None:
    splitter = LineSplitter()
    splitter.feed("█".encode()[:2])
    assert splitter.partial() == ""
    splitter.feed("█".encode()[2:])
    assert splitter.partial() == "█"


def test_an_unfinished_line_may_end_in_bytes_that_are_no_text() -> None:
    splitter = LineSplitter()
    splitter.feed(b"\x80\x80\x80\x80\x80")
    assert splitter.partial() == "\ufffd" * 5


def test_nothing_is_unfinished_after_a_newline() -> None:
    splitter = LineSplitter()
    assert splitter.partial() is None
    splitter.feed(b"a")
    assert splitter.partial() == "a"
    splitter.feed(b"\n")
    assert splitter.partial() is None
    assert splitter.finish() == []


@pytest.mark.parametrize("chunk", [b"x" * 65536, b"\rbar" * 16384, b"\0" * 65536, b"\r" * 65536])
def test_an_endless_line_takes_no_memory(chunk: bytes) -> None:
    splitter = LineSplitter()
    splitter.feed(chunk)
    splitter.feed(chunk)
    tracemalloc.start()
    for _ in range(200):
        assert splitter.feed(chunk) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert len(splitter.partial() or "") <= 65536 + 2


def test_a_limit_too_small_to_be_useful_is_refused() -> None:
    with pytest.raises(ValueError, match="max_line must be at least 16 bytes, not 3"):
        LineSplitter(3)
