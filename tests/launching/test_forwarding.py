from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_startup._launching.forwarding import Forwarder, Tap, write_all


async def all_of(tap: Tap) -> bytes:
    return b"".join([data async for data in tap.follow()])


class Way:
    """A forwarder between two pipes."""

    def __init__(self, tap: Tap | None = None, write: Callable[[int, bytes], None] = write_all) -> None:
        source, self.begin = os.pipe()
        self.end, target = os.pipe()
        self.ended = threading.Event()
        self.forwarder = Forwarder(source, target, write=write, tap=tap, ended=self._at_end)
        self._target = target

    def _at_end(self) -> None:
        os.close(self._target)
        self.ended.set()

    def read(self) -> bytes:
        data = b""
        while part := os.read(self.end, 65536):
            data += part
        os.close(self.end)
        return data


# --- the copy -----------------------------------------------------------------------------------


async def test_one_stream_is_copied_as_it_is() -> None:
    tap = Tap()
    for data in (b"a\nb", b"c\n", b"\rbar 1", b"\rbar 2", b"\nlast"):
        tap.put(1, data)
    tap.end()

    assert await all_of(tap) == b"a\nbc\n\rbar 1\rbar 2\nlast\n"
    tap.close()


async def test_two_streams_do_not_cut_each_others_lines() -> None:
    tap = Tap()
    tap.put(1, b"out: one ")
    tap.put(2, b"err: two\nerr: th")
    tap.put(1, b"line\n")
    tap.put(2, b"ree\n")
    tap.end()

    assert await all_of(tap) == b"err: two\nout: one line\nerr: three\n"
    tap.close()


async def test_a_bar_is_ended_by_the_other_streams_line() -> None:
    tap = Tap()
    tap.put(1, b"\rbar 1")
    tap.put(2, b"err\n")
    tap.put(1, b"\rbar 2\n")
    tap.end()

    assert await all_of(tap) == b"\rbar 1\nerr\n\rbar 2\n"
    tap.close()


async def test_a_line_without_end_is_not_kept_for_ever() -> None:
    tap = Tap()
    tap.put(1, b"x" * 100_000)
    following = asyncio.ensure_future(anext(aiter(tap.follow())))

    assert (await asyncio.wait_for(following, 5)).startswith(b"xxx")
    tap.close()


async def test_nothing_is_taken_after_the_end_and_nothing_is_left_open() -> None:
    before, threads = len([*Path("/proc/self/fd").iterdir()]), threading.active_count()
    tap = Tap()
    tap.put(1, b"a\n")
    tap.close()
    tap.put(1, b"b\n")
    tap.end()
    tap.close()

    assert len([*Path("/proc/self/fd").iterdir()]) == before
    assert threading.active_count() == threads


# --- the way ------------------------------------------------------------------------------------


def test_every_byte_arrives_in_order() -> None:
    way, data = Way(), os.urandom(3_000_000)
    sender = threading.Thread(target=lambda: (write_all(way.begin, data), os.close(way.begin)))
    sender.start()

    assert hashlib.sha256(way.read()).digest() == hashlib.sha256(data).digest()
    sender.join()
    assert way.ended.wait(5)


def test_a_slow_reader_holds_up_the_writer_and_loses_nothing() -> None:
    way, sent = Way(), threading.Event()

    def send() -> None:
        write_all(way.begin, b"y" * 1_000_000)
        os.close(way.begin)
        sent.set()

    threading.Thread(target=send).start()
    assert not sent.wait(0.05)

    assert len(way.read()) == 1_000_000
    assert sent.wait(5)


async def test_a_copy_is_made_until_it_is_not_wanted() -> None:
    tap = Tap()
    way = Way(tap)
    os.write(way.begin, b"first\n")
    assert os.read(way.end, 100) == b"first\n"
    way.forwarder.tap = None
    os.write(way.begin, b"second\n")
    os.close(way.begin)
    tap.end()

    assert (way.read(), await all_of(tap)) == (b"second\n", b"first\n")
    tap.close()


def test_a_reader_that_is_gone_is_told_to_the_writer() -> None:
    way = Way()
    os.close(way.end)
    os.write(way.begin, b"nobody reads this\n")
    assert way.ended.wait(5)

    with pytest.raises(BrokenPipeError):
        os.write(way.begin, b"nor this\n")
    os.close(way.begin)


def test_what_cannot_be_written_is_lost_and_the_rest_is_not() -> None:
    failing = [True]

    def write(fd: int, data: bytes) -> None:
        if failing[0]:
            failing[0] = False
            raise OSError(28, "No space left on device")
        write_all(fd, data)

    way = Way(write=write)
    os.write(way.begin, b"lost\n")
    until = time.monotonic() + 5
    while failing[0] and time.monotonic() < until:
        time.sleep(0.005)
    os.write(way.begin, b"kept\n")
    os.close(way.begin)

    assert way.read() == b"kept\n"


def test_a_target_that_does_not_block_is_waited_for() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    received: list[bytes] = []

    def read() -> None:
        while part := os.read(reading, 65536):
            received.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    write_all(writing, b"z" * 500_000)
    os.close(writing)
    reader.join(5)

    assert sum(map(len, received)) == 500_000
    os.close(reading)
