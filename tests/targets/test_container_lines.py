"""Frames in any cut, and streams that overlap."""

from __future__ import annotations

import time

import pytest
from fake_engine import NOW, frame, stamp
from hypothesis import given
from hypothesis import strategies as st

from vllm_startup.targets._containers.lines import LogDecoder, Overlap, Stamped

STAMP = stamp(NOW)


def texts(lines: list[Stamped]) -> list[str]:
    return [line.text for line in lines]


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.text("ab \r", max_size=9), st.booleans()), max_size=12),
    st.lists(st.integers(1, 40), min_size=1),
)
def test_a_cut_makes_no_difference(pieces: list[tuple[int, str, bool]], cuts: list[int]) -> None:
    data = b"".join(frame(f"{STAMP} {text}{chr(10) * end}", stream=stream) for stream, text, end in pieces)
    whole = LogDecoder(tty=False).feed(data)
    decoder, found, at = LogDecoder(tty=False), list[Stamped](), 0
    for number in range(len(data)):
        size = cuts[number % len(cuts)]
        found += decoder.feed(data[at : at + size])
        at += size
    assert found == whole


def test_a_line_has_the_stamp_of_its_beginning() -> None:
    decoder = LogDecoder(tty=False)
    later = stamp(NOW + 5)
    assert decoder.feed(frame(f"{STAMP} one ")) == []
    assert decoder.oldest_unfinished == STAMP
    assert decoder.partial() == "one "
    assert decoder.feed(frame(f"{later} line\n")) == [Stamped(STAMP, "one line")]
    assert decoder.oldest_unfinished is None
    assert decoder.partial() is None


def test_what_the_engine_says_of_itself_is_no_line_of_the_servers() -> None:
    data = frame("Error grabbing logs: EOF", stream=3) + frame(f"{STAMP} on\n")
    assert texts(LogDecoder(tty=False).feed(data)) == ["on"]


def test_a_terminals_stream_is_plain_text() -> None:
    decoder = LogDecoder(tty=True)
    assert decoder.feed(f"{STAMP} one\r\n{STAMP} tw".encode()) == [Stamped(STAMP, "one")]
    assert decoder.feed(b"o\r\nno stamp\r\n") == [Stamped(STAMP, "two"), Stamped("", "no stamp")]


def overlapping(lines: list[Stamped]) -> Overlap:
    overlap = Overlap()
    assert overlap.new(lines) == lines
    return overlap


def test_equal_lines_of_one_second_are_told_as_often_as_they_were_written() -> None:
    second = STAMP.partition(".")[0] + "Z"  # as Podman 4 stamps
    overlap = overlapping([Stamped(second, "same")] * 2)
    assert overlap.since(None) == NOW - 1.0
    overlap.again()
    assert overlap.new([Stamped(second, "same")] * 3) == [Stamped(second, "same")]


def test_a_line_that_was_seen_in_part_is_seen_again_and_what_stood_beside_it_is_not() -> None:
    beside = [Stamped(stamp(NOW + number), f"line {number}") for number in range(30)]
    overlap = Overlap()
    for line in beside:
        overlap.new([line], STAMP)
    assert overlap.since(STAMP) == NOW - 1.0
    overlap.again()
    assert overlap.new([*beside, Stamped(STAMP, "the whole line")]) == [Stamped(STAMP, "the whole line")]


def test_little_is_kept_of_what_was_seen() -> None:
    overlap = Overlap()
    for number in range(1000):
        overlap.new([Stamped(stamp(NOW + number), "line")])
    overlap.again()
    assert sum(overlap._known.values()) <= 4


@pytest.mark.slow
def test_a_flood_is_read_faster_than_it_is_sent() -> None:
    data = b"".join(
        frame(f"{stamp(NOW + n / 10_000)} (Worker pid=9) a line of a flood {n}\n") for n in range(50_000)
    )
    decoder, overlap = LogDecoder(tty=False), Overlap()
    began = time.process_time()
    read = sum(len(overlap.new(decoder.feed(data[at : at + 65536]))) for at in range(0, len(data), 65536))
    assert read == 50_000
    assert time.process_time() - began < 2.0  # 0.2 s on an idle machine
