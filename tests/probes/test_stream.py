# ruff: noqa: ASYNC230 - a test may block its own loop
from __future__ import annotations

import asyncio
import gc
import io
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vllm_startup._readings import LogEnded, LogLines, LogOpened, Reading
from vllm_startup.probes._protocol import Probe
from vllm_startup.probes._stream import QUEUE_ITEMS, StreamProbe, _FdSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator


async def drain(probe: StreamProbe, seen: list[Reading] | None = None) -> list[Reading]:
    """Sample until the end has been told."""
    seen = [] if seen is None else seen
    while True:
        try:
            seen += await asyncio.wait_for(probe.sample(0.0), 5)
        except StopAsyncIteration:
            await probe.aclose()
            return seen


def lines(readings: list[Reading]) -> list[str]:
    return [line for reading in readings if isinstance(reading, LogLines) for line in reading.lines]


def assert_no_thread_is_left() -> None:
    for thread in threading.enumerate():
        if thread.name == "vllm-startup stream":
            thread.join(2)
            assert not thread.is_alive()


async def fed(*chunks: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    for chunk in chunks:
        reader.feed_data(chunk)
    reader.feed_eof()
    return reader


async def test_a_reader_is_told_from_its_opening_to_its_end() -> None:
    probe = StreamProbe(await fed(b"a\nb", b"c\nend"), name="stdout")
    assert isinstance(probe, Probe)
    assert (probe.name, probe.interval_s, probe.limit_s) == ("stdout", 0.0, None)
    assert await drain(probe) == [
        LogOpened(source="stdout", stream=True),
        LogLines(lines=("a", "bc")),
        LogLines(lines=("end",)),
        LogEnded(),
    ]


async def test_the_end_is_told_once_and_then_the_probe_is_finished() -> None:
    probe = StreamProbe(await fed())
    assert await drain(probe) == [LogOpened(source="log", stream=True), LogEnded()]
    with pytest.raises(StopAsyncIteration):
        await probe.sample(0.0)


async def test_an_unfinished_line_is_told_once_it_waits() -> None:
    reader = asyncio.StreamReader()
    probe = StreamProbe(reader)
    await probe.sample(0.0)
    reader.feed_data(b"\rbar 10%\rbar 20%")
    assert list(await probe.sample(0.0)) == []
    assert list(await probe.sample(0.0)) == [LogLines(partial="\rbar 20%")]
    waiting = asyncio.create_task(probe.sample(0.0))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    reader.feed_data(b"\n")
    assert list(await waiting) == [LogLines(lines=("\rbar 10%\rbar 20%",))]


async def test_a_reader_that_breaks_raises() -> None:
    reader = asyncio.StreamReader()
    probe = StreamProbe(reader)
    await probe.sample(0.0)
    reader.set_exception(TimeoutError("the far side"))
    with pytest.raises(TimeoutError, match="the far side"):
        await probe.sample(0.0)


async def test_a_pipe_is_drained_and_stays_open_as_it_was() -> None:
    read, write = os.pipe()
    probe = StreamProbe(read)
    assert list(await probe.sample(0.0)) == [LogOpened(source="log", stream=True)]
    os.write(write, b"a\nb\n")
    assert list(await probe.sample(0.0)) == [LogLines(lines=("a", "b"))]
    assert os.get_blocking(read) is False
    await probe.aclose()
    assert os.get_blocking(read) is True
    os.close(read)
    os.close(write)


async def test_a_pipe_that_is_closed_has_ended() -> None:
    read, write = os.pipe()
    os.write(write, b"end")
    os.close(write)
    with os.fdopen(read, "rb") as file:
        assert lines(await drain(StreamProbe(file))) == ["end"]


async def test_waiting_for_a_silent_pipe_can_be_cancelled_and_loses_nothing() -> None:
    read, write = os.pipe()
    probe = StreamProbe(read)
    await probe.sample(0.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(probe.sample(0.0), 0.02)
    os.write(write, b"a\n")
    assert list(await probe.sample(0.0)) == [LogLines(lines=("a",))]
    await probe.aclose()
    os.close(read)
    os.close(write)


async def test_closing_after_the_owner_closed_the_pipe_is_quiet() -> None:
    read, write = os.pipe()
    probe = StreamProbe(read)
    os.close(read)
    os.close(write)
    await probe.aclose()


async def test_a_wake_up_without_data_is_waited_out() -> None:
    read, write = os.pipe()
    probe = StreamProbe(read)
    await probe.sample(0.0)
    source = probe._source
    assert isinstance(source, _FdSource)
    readable = source._readable
    source._readable = AlwaysOnce(readable)  # type: ignore[method-assign]  # as if somebody else took it
    waiting = asyncio.create_task(probe.sample(0.0))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    os.write(write, b"a\n")
    assert list(await waiting) == [LogLines(lines=("a",))]
    await probe.aclose()
    os.close(read)
    os.close(write)


class AlwaysOnce:
    """Says once that there is something, and is right from then on."""

    def __init__(self, readable: Callable[[float | None], Awaitable[bool]]) -> None:
        self.readable = readable
        self.said = False

    async def __call__(self, wait_s: float | None) -> bool:
        if not self.said:
            self.said = True
            return True
        return await self.readable(wait_s)


async def test_an_unfinished_line_in_a_pipe_is_told_once_it_waits() -> None:
    read, write = os.pipe()
    probe = StreamProbe(read)
    await probe.sample(0.0)
    os.write(write, b"bar 10%")
    assert list(await probe.sample(0.0)) == []
    assert list(await probe.sample(0.0)) == [LogLines(partial="bar 10%")]
    await probe.aclose()
    os.close(read)
    os.close(write)


async def test_an_unfinished_line_of_a_blocking_iterable_is_told_once_it_waits() -> None:
    go = threading.Event()

    def source() -> Iterator[bytes]:
        yield b"bar 10%"
        go.wait(5)

    probe = StreamProbe(source())
    await probe.sample(0.0)
    assert list(await probe.sample(0.0)) == []
    assert list(await probe.sample(0.0)) == [LogLines(partial="bar 10%")]
    go.set()
    assert lines(await drain(probe)) == ["bar 10%"]


async def test_a_pipe_that_cannot_be_read_raises() -> None:
    with open(os.devnull, "wb") as file:  # noqa: PTH123 - a device
        probe = StreamProbe(file)
        probe._source._waits = False  # type: ignore[attr-defined]  # as for a file that was redirected
        await probe.sample(0.0)
        with pytest.raises(OSError, match="Bad file descriptor"):
            await probe.sample(0.0)
        await probe.aclose()


async def test_a_child_that_prints_much_is_never_held_up() -> None:
    code = "import sys; [print('line', n, 'x' * 80) for n in range(50_000)]"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    readings = await drain(StreamProbe(child.stdout))
    assert lines(readings) == [f"line {n} " + "x" * 80 for n in range(50_000)]
    assert max(len(reading.lines) for reading in readings if isinstance(reading, LogLines)) <= 2000
    assert child.wait(5) == 0
    child.stdout.close()


async def test_a_child_of_asyncio_is_drained() -> None:
    child = await asyncio.create_subprocess_exec("printf", r"a\nb", stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert lines(await drain(StreamProbe(child.stdout))) == ["a", "b"]
    assert await child.wait() == 0


async def test_a_socket_is_drained() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"a\n")
        theirs.shutdown(socket.SHUT_WR)
        assert lines(await drain(StreamProbe(ours))) == ["a"]


async def test_a_pseudo_terminal_ends_when_its_other_side_closes() -> None:
    ours, theirs = os.openpty()
    os.write(theirs, b"a\n")
    probe = StreamProbe(ours)
    await probe.sample(0.0)
    assert lines(list(await probe.sample(0.0))) == ["a\r"]
    os.close(theirs)
    assert await drain(probe) == [LogEnded()]
    assert os.get_blocking(ours) is True
    os.close(ours)


async def test_a_file_that_was_redirected_is_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+b") as file:
        file.write(b"a\nb\n")
        file.flush()
        file.seek(0)
        assert lines(await drain(StreamProbe(file))) == ["a", "b"]


async def test_a_full_stream_gives_others_their_turn() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    reader = await fed(b"line\n" * 100_000)
    task = asyncio.create_task(other())
    readings = await drain(StreamProbe(reader))
    task.cancel()
    assert len(lines(readings)) == 100_000
    assert turns >= 50


# --- iterables ----------------------------------------------------------------------------


async def chunks(*items: bytes | str) -> AsyncIterator[bytes | str]:
    for item in items:
        await asyncio.sleep(0)
        yield item


async def test_bytes_of_an_asynchronous_iterable_may_be_cut_anywhere() -> None:
    assert lines(await drain(StreamProbe(chunks(b"a\nb", b"", b"c\n")))) == ["a", "bc"]


async def test_text_is_whole_lines() -> None:
    probe = StreamProbe(chunks("a", "b\n", "c\nd", "lone \ud800 surrogate", ""))
    assert lines(await drain(probe)) == ["a", "b", "c", "d", "lone ? surrogate", ""]


async def test_an_unfinished_line_of_an_iterable_is_told_once_it_waits() -> None:
    more = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield b"bar 10%"
        await more.wait()
        yield b"\n"

    probe = StreamProbe(source())
    await probe.sample(0.0)
    await probe.sample(0.0)
    assert list(await probe.sample(0.0)) == [LogLines(partial="bar 10%")]
    more.set()
    assert await drain(probe) == [LogLines(lines=("bar 10%",)), LogEnded()]


async def test_a_cancelled_sample_does_not_end_a_generator() -> None:
    more = asyncio.Event()

    async def source() -> AsyncIterator[str]:
        await more.wait()
        yield "a"

    probe = StreamProbe(source())
    await probe.sample(0.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(probe.sample(0.0), 0.02)
    more.set()
    assert lines(await drain(probe)) == ["a"]


async def test_closing_ends_a_generator_that_waits() -> None:
    ended = False

    async def source() -> AsyncIterator[str]:
        nonlocal ended
        try:
            await asyncio.Event().wait()
            yield "never"
        finally:
            ended = True

    probe = StreamProbe(source())
    await probe.sample(0.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(probe.sample(0.0), 0.02)
    await probe.aclose()
    assert ended
    assert len(asyncio.all_tasks()) == 1


async def test_an_iterable_that_raises_raises() -> None:
    async def source() -> AsyncIterator[str]:
        yield "a"
        raise ConnectionResetError("gone")

    probe = StreamProbe(source())
    await probe.sample(0.0)
    assert lines(list(await probe.sample(0.0))) == ["a"]
    with pytest.raises(ConnectionResetError, match="gone"):
        await probe.sample(0.0)
    await probe.aclose()


async def test_closing_after_the_iterable_broke_is_quiet() -> None:
    class Source:
        def __aiter__(self) -> Source:
            return self

        async def __anext__(self) -> str:
            await asyncio.sleep(0.01)
            raise ConnectionResetError("gone")

    probe = StreamProbe(Source())
    await probe.sample(0.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(probe.sample(0.0), 0.005)
    await asyncio.sleep(0.02)
    await probe.aclose()
    gc.collect()  # a task whose exception nobody has seen would say so now


async def test_a_wrong_item_is_named() -> None:
    async def source() -> AsyncIterator[bytes]:
        yield 7  # type: ignore[misc]  # what a caller without a checker may do

    probe = StreamProbe(source())
    await probe.sample(0.0)
    with pytest.raises(TypeError, match="the stream must give bytes or str, not int"):
        await probe.sample(0.0)
    await probe.aclose()


async def test_a_list_is_read() -> None:
    assert lines(await drain(StreamProbe(["a", "b", b"c"]))) == ["a", "b", "c"]


async def test_a_file_in_memory_is_read() -> None:
    assert lines(await drain(StreamProbe(io.BytesIO(b"a\nb\n")))) == ["a", "b"]


async def test_an_iterable_that_blocks_does_not_block_the_loop() -> None:
    go = threading.Event()

    def source() -> Iterator[bytes]:
        yield b"a\n"
        go.wait(5)
        yield b"b\n"

    probe = StreamProbe(source())
    await probe.sample(0.0)
    assert lines(list(await probe.sample(0.0))) == ["a"]
    waiting = asyncio.create_task(probe.sample(0.0))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    go.set()
    assert lines(list(await waiting)) == ["b"]
    assert await drain(probe) == [LogEnded()]
    assert_no_thread_is_left()


async def test_a_blocking_iterable_is_held_back_when_nobody_reads() -> None:
    given = 0

    def source() -> Iterator[str]:
        nonlocal given
        while given < 100_000:
            given += 1
            yield "line"

    probe = StreamProbe(source())
    await probe.sample(0.0)
    await probe.sample(0.0)
    seen = -1
    while given != seen:
        seen = given
        await asyncio.sleep(0.05)
    assert given <= 3 * QUEUE_ITEMS  # taken by the sample, waiting, and on its way
    await probe.aclose()
    assert_no_thread_is_left()


async def test_a_blocking_iterable_that_raises_raises_after_its_last_line() -> None:
    def source() -> Iterator[str]:
        yield "a"
        raise ConnectionResetError("gone")

    probe = StreamProbe(source())
    await probe.sample(0.0)
    with pytest.raises(ConnectionResetError, match="gone"):
        await drain(probe, seen := [])
    assert lines(seen) == ["a"]
    await probe.aclose()


def test_the_thread_ends_when_the_loop_has_gone() -> None:
    go = threading.Event()

    def source() -> Iterator[str]:
        go.wait(5)
        yield "a"

    async def begin() -> None:
        probe = StreamProbe(source())
        await probe.sample(0.0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(probe.sample(0.0), 0.01)

    asyncio.run(begin())
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "vllm-startup stream"]
    go.set()
    thread.join(1)
    assert not thread.is_alive()
    gc.collect()


# --- misuse -------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", ["vllm.log", b"text", True, 1.5, None])
def test_what_is_no_stream_is_refused(reader: object) -> None:
    with pytest.raises(TypeError, match="reader must be a StreamReader, a file descriptor, an open file"):
        StreamProbe(reader)  # type: ignore[arg-type]  # what a caller without a checker may do


def test_a_closed_descriptor_is_refused() -> None:
    read, write = os.pipe()
    os.close(read)
    os.close(write)
    with pytest.raises(ValueError, match=f"reader must be open, which file descriptor {read} is not"):
        StreamProbe(read)
