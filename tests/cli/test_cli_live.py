"""The live block, looked at on a terminal: what it shows, and that it damages nothing."""

from __future__ import annotations

import os
import pty
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_startup._cli._layout import Style, block, clock
from vllm_startup._cli._live import Block, _settled
from vllm_startup._machine.reporting import Counter, Status
from vllm_startup._phases import Phase
from vllm_startup._report import GpuReport

GIB = 1 << 30
PLAIN = Style(colour=False)


def status(**changes: Any) -> Status:
    values: dict[str, Any] = {
        "phase": Phase.LOADING_WEIGHTS,
        "outcome": None,
        "elapsed_s": 83.0,
        "quiet_s": 4.0,
        "cause": None,
        "limit": "stall",
        "limit_in_s": 596.0,
        "summary": "loading weights",
        "phase_s": 62.0,
        "reached": (Phase.LAUNCHING, Phase.CONFIGURING, Phase.INITIALIZING, Phase.LOADING_WEIGHTS),
        "moved": "checkpoint shards",
        "counter": Counter(what="checkpoint shards", done=41, total=67),
        "cores": 6.24,
        "read_bytes": 331_000_000_000,
        "read_bytes_per_s": 1_840_000_000.0,
        "gpus": gpus(*[48.2] * 8),
        "suspect": None,
    }
    return Status(**{**values, **changes})


def gpus(*used: float) -> tuple[GpuReport, ...]:
    return tuple(
        GpuReport(
            index=index,
            uuid=f"GPU-{index}",
            baseline_bytes=0,
            peak_bytes=int(gib * GIB),
            used_bytes=int(gib * GIB),
            total_bytes=96 * GIB,
        )
        for index, gib in enumerate(used)
    )


# --- what it says -------------------------------------------------------------------------------


def test_a_start_in_six_lines() -> None:
    assert block(status(), 80, PLAIN) == [
        "  launch config engines [weights] compile cache warm-up server ready       1:23",
        "  loading weights, 1:02  ━━━━━━━━━━━━━━╸─────────  checkpoint shards 41 of 67",
        "  331.0 GB read, 1.8 GB/s; 6.2 CPU cores busy",
        "  last progress 4 s ago: checkpoint shards",
        "  8 GPUs  ━━── ━━── ━━── ━━── ━━── ━━── ━━── ━━──  48.2 of 96 GiB, evenly",
        "  stalled if nothing moves in 9:56",
    ]


def test_little_is_known_at_first() -> None:
    bare = status(
        phase=Phase.LAUNCHING, reached=(), phase_s=0.2, elapsed_s=0.2, moved="", counter=None, cores=0.0,
        read_bytes=0, read_bytes_per_s=0.0, gpus=(), limit=None, limit_in_s=None, quiet_s=0.2,
    )  # fmt: skip

    assert block(bare, 80, PLAIN) == [
        "  [launch] config engines weights compile cache warm-up server ready        0 s",
        "  launching, 0 s",
        "  last progress 0 s ago",
    ]


@pytest.mark.parametrize(
    ("used", "line"),
    [
        ([70.8], "  GPU  ━━━━━━━━━━━━────  70.8 of 96 GiB"),
        ([70.8, 12.0], "  2 GPUs  ━━━━━━━━━━━━──── ━━──────────────  12.0 to 70.8 of 96 GiB, unevenly"),
        ([70.0] * 40, "  40 GPUs  70.0 of 96 GiB, evenly"),
    ],
)
def test_gpu_memory(used: list[float], line: str) -> None:
    assert line in block(status(gpus=gpus(*used)), 80, PLAIN)


@pytest.mark.parametrize(("quiet", "told"), [(1.0, False), (30.0, True)])
def test_what_it_waits_for_is_told_when_nothing_moves(quiet: float, told: bool) -> None:
    lines = block(status(quiet_s=quiet, suspect="waiting for worker TP3"), 80, PLAIN)

    assert ("  waiting for worker TP3" in lines) is told


@pytest.mark.parametrize(
    ("limit", "left", "line"),
    [
        ("total", 4000.4, "  limit in 1:06:40"),
        ("compiling", 59.6, "  limit of compiling in 1:00"),
        ("stall", 9.0, "  stalled if nothing moves in 9 s"),
    ],
)
def test_the_limit_that_fires_next(limit: str, left: float, line: str) -> None:
    assert block(status(limit=limit, limit_in_s=left), 80, PLAIN)[-1] == line


@pytest.mark.parametrize("columns", [1, 20, 40, 60, 79, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    long = "x" * 300
    lines = block(status(moved=long, suspect=long, quiet_s=9.0, gpus=gpus(*[1.0] * 9)), columns, PLAIN)

    assert all(len(line) < max(columns, 21) for line in lines)
    assert lines


def test_foreign_text_cannot_steer_the_terminal() -> None:
    lines = block(status(moved="\x1b[2J\rboo\u202e", suspect="\x07\x9bx", quiet_s=9.0), 80, PLAIN)

    assert not any(character in "".join(lines) for character in "\x1b\r\x07\x9b\u202e")


def test_ascii_where_there_is_nothing_else() -> None:
    lines = block(status(moved="y" * 300), 80, Style(colour=False, unicode=False))

    assert all(line.isascii() for line in lines)
    assert "[weights]" in lines[0]


def test_colour_only_where_it_is_wanted() -> None:
    assert "\x1b[1;36mweights\x1b[0m" in block(status(), 80, Style())[0]
    assert not any("\x1b" in line for line in block(status(), 80, PLAIN))


def test_times() -> None:
    assert [clock(seconds) for seconds in (0.4, 59.4, 59.6, 3599.6)] == ["0 s", "59 s", "1:00", "1:00:00"]


# --- that it damages nothing --------------------------------------------------------------------


@attrs.define
class Screen:
    """A terminal in memory, and the pseudo-terminal that leads to it."""

    fd: int
    _ours: int
    _emulator: Any
    _stream: Any
    _bytes: bytearray = attrs.field(factory=bytearray)

    @classmethod
    def of(cls, columns: int = 40, rows: int = 8) -> Screen:
        pyte = pytest.importorskip("pyte")
        ours, theirs = pty.openpty()
        import fcntl
        import struct
        import termios

        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        emulator = pyte.HistoryScreen(columns, rows, history=1000)
        return cls(theirs, ours, emulator, pyte.ByteStream(emulator))

    def take(self) -> bytes:
        """Show what was written since the last look, and return it."""
        os.set_blocking(self._ours, False)
        written = b""
        try:
            while data := os.read(self._ours, 65536):
                written += data
        except BlockingIOError:
            pass
        self._stream.feed(written)
        return written

    def text(self) -> list[str]:
        """All lines, those that scrolled away too."""
        self.take()
        gone = [
            "".join(line[column].data for column in range(self._emulator.columns)).rstrip()
            for line in self._emulator.history.top
        ]
        lines = [*gone, *(line.rstrip() for line in self._emulator.display)]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def cursor(self) -> tuple[int, int]:
        self.take()
        return (len(self._emulator.history.top) + self._emulator.cursor.y, self._emulator.cursor.x)

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._ours)


@pytest.fixture
def screen() -> Iterator[Screen]:
    made = Screen.of()
    yield made
    made.close()


def three(_columns: int) -> list[str]:
    return ["block one", "block two", "block three"]


def test_the_block_hangs_below_the_output(screen: Screen) -> None:
    shown = Block(screen.fd)
    shown.draw(three)
    shown.pass_on(screen.fd, b"first\n")
    shown.pass_on(screen.fd, b"second: 10%")

    assert screen.text() == ["first", "second: 10%", "block one", "block two", "block three"]
    assert screen.cursor() == (1, 11)

    shown.pass_on(screen.fd, b"\rsecond: 20%\nthird\n")
    assert screen.text()[:4] == ["first", "second: 20%", "third", ""]

    shown.hide()
    assert screen.text() == ["first", "second: 20%", "third"]


def test_a_block_that_has_shrunk_leaves_no_line(screen: Screen) -> None:
    shown = Block(screen.fd)
    shown.draw(three)
    shown.draw(lambda columns: ["one"])

    assert screen.text() == ["", "one"]


def test_what_is_said_stands_above_whole(screen: Screen) -> None:
    shown = Block(screen.fd)
    shown.draw(three)
    shown.pass_on(screen.fd, b"half a ")
    shown.say("warning: look")
    shown.draw(three)
    assert screen.text()[0] == "half a"  # the line may be about to end

    shown.pass_on(screen.fd, b"line\n")
    assert screen.text()[:3] == ["half a line", "warning: look", ""]


def test_what_is_said_waits_not_for_ever_for_the_end_of_a_line(screen: Screen) -> None:
    shown = Block(screen.fd)
    shown.draw(three)
    shown.pass_on(screen.fd, b"prompt> ")
    shown.say("warning: look")
    for _ in range(5):
        shown.draw(three)

    assert screen.text()[:3] == ["prompt>", "warning: look", ""]


def test_nothing_is_drawn_within_a_sequence_or_a_letter(screen: Screen) -> None:
    shown = Block(screen.fd)
    shown.draw(three)
    screen.take()
    shown.pass_on(screen.fd, b"a\x1b[3")
    shown.draw(three)
    assert screen.take().endswith(b"a\x1b[3")

    shown.pass_on(screen.fd, b"1mred\x1b[0m \xe2\x96")
    shown.draw(three)
    assert screen.take().endswith(b"\xe2\x96")

    shown.pass_on(screen.fd, b"\x88\n")
    assert screen.text()[0] == "ared █"


@pytest.mark.parametrize(
    ("tail", "settled"),
    [
        (b"text", True),
        (b"\x1b", False),
        (b"\x1b[", False),
        (b"\x1b[31", False),
        (b"\x1b[31m", True),
        (b"\x1b]0;title", False),
        (b"\x1b]0;title\x07", True),
        (b"\x1b]0;title\x1b\\", True),
        (b"\x1bM", True),
        (b"\xc3", False),
        (b"\xc3\xa9", True),
        (b"\xe2\x96", False),
        (b"\xf0\x9f\x98", False),
        (b"\xf0\x9f\x98\x80", True),
        (b"\x80\x80\x80\x80\x80", True),
        (b"", True),
    ],
)
def test_where_output_may_be_interrupted(tail: bytes, settled: bool) -> None:
    assert _settled(tail) is settled


WORDS = [
    b"a line\n", b"loading: 10%\r", b"loading: 20%", b"\n", b"\x1b[32mgreen\x1b[0m", "▄█ é".encode(),
    b"a line that is longer than the terminal is wide, so that it wraps\n", b"x", b"\r\n",
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    parts=st.lists(st.sampled_from(WORDS), max_size=25),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    draws=st.lists(st.integers(0, 4), min_size=1, max_size=8),
)
def test_the_output_is_as_it_would_be_without_a_block(
    parts: list[bytes], cuts: list[int], draws: list[int]
) -> None:
    data = b"".join(parts)
    with_block, without = Screen.of(), Screen.of()
    try:
        shown, at, turn = Block(with_block.fd), 0, 0
        while at < len(data):
            size = cuts[turn % len(cuts)] * 7
            shown.pass_on(with_block.fd, data[at : at + size])
            for _ in range(draws[turn % len(draws)]):
                shown.draw(lambda columns, height=turn % 4 + 1: ["b" * (columns - 1)] * height)
            with_block.take()
            at, turn = at + size, turn + 1
        shown.hide()
        os.write(without.fd, data)

        assert with_block.text() == without.text()
    finally:
        with_block.close()
        without.close()


def test_a_terminal_that_is_held_holds_up_output_only(screen: Screen) -> None:
    import termios

    shown = Block(screen.fd)
    termios.tcflow(screen.fd, termios.TCOOFF)  # Ctrl-S
    writer = threading.Thread(target=shown.pass_on, args=(screen.fd, b"held\n"))
    writer.start()
    shown.draw(three)  # returns at once

    termios.tcflow(screen.fd, termios.TCOON)
    writer.join(5)
    assert not writer.is_alive()
    assert screen.text()[0] == "held"


def test_a_terminal_that_is_gone_is_no_error(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    shown = Block(theirs)
    shown.draw(three)
    os.close(ours)

    shown.draw(three)
    shown.hide()
    os.close(theirs)
