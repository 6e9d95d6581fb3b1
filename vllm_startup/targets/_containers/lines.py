"""The lines of a container's log, out of the stream in which an engine's API sends them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from vllm_startup._log.splitter import LineSplitter
from vllm_startup.targets._containers.state import moment

_HEAD_BYTES: Final = 8
_STREAMS: Final = frozenset({0, 1, 2})  # standard input, output, error; 3 is the engine's own trouble
_TTY: Final = 1
# "2026-11-30T20:10:31.123456789+00:00" and a space.
_STAMP_BYTES: Final = 40
_SECOND: Final = len("2026-11-30T20:10:31")
# Podman 4 stamps by whole seconds, and sends what is later than a given time, Docker what is not earlier.
_OVERLAP_S: Final = 1.0
_MOST_LINES: Final = 100_000
"""Kept of those, should an unfinished line keep them from being forgotten."""


class Stamped(NamedTuple):
    """A line, and the engine's own words for when its beginning arrived."""

    stamp: str
    text: str

    @property
    def dated(self) -> str:
        """The line as ``docker logs --timestamps`` prints it."""
        return f"{self.stamp} {self.text}" if self.stamp else self.text


class LogDecoder:
    """Takes a stream apart, wherever it is cut: frames without a terminal, plain lines with one.

    Each frame has a head of 8 bytes (the stream's number, three zeros, the length) and begins with a
    stamp. A line can be spread over several frames, between which others stand that belong to the other
    stream: Docker cuts lines at 16 KiB, Podman wherever their writer paused.

    Args:
        tty: Whether the container has a terminal.
    """

    def __init__(self, *, tty: bool) -> None:
        self._tty = tty
        self._head = bytearray()
        self._left = 0
        self._stream = _TTY
        self._stamping: bytearray | None = None
        self._stamp = ""
        self._begun: dict[int, str] = {}
        self._splitters: dict[int, LineSplitter] = {}

    @property
    def oldest_unfinished(self) -> str | None:
        """The stamp of the oldest line whose end has not arrived; None without one."""
        return min(self._begun.values(), default=None)

    def partial(self) -> str | None:
        """The unfinished line of the stream that wrote last."""
        splitter = self._splitters.get(self._stream)
        return splitter.partial() if splitter is not None and self._stream in self._begun else None

    def feed(self, data: bytes) -> list[Stamped]:
        """Take what arrived, and return the lines that it ends."""
        if self._tty:
            return [_unstamped(line) for line in self._splitter(_TTY).feed(data)]
        lines: list[Stamped] = []
        at, end = 0, len(data)
        while at < end:
            if not self._left:
                at = self._take_head(data, at)
                continue
            piece = data[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            self._take_piece(piece, lines)
        return lines

    def _take_head(self, data: bytes, at: int) -> int:
        wanted = _HEAD_BYTES - len(self._head)
        self._head += data[at : at + wanted]
        if len(self._head) == _HEAD_BYTES:
            self._stream = self._head[0]
            self._left = int.from_bytes(self._head[4:], "big")
            self._head.clear()
            self._stamping = bytearray()
        return at + wanted

    def _take_piece(self, piece: bytes, lines: list[Stamped]) -> None:
        if self._stamping is not None:
            self._stamping += piece
            stamp, space, rest = self._stamping.partition(b" ")
            if not space and self._left and len(self._stamping) < _STAMP_BYTES:
                return
            if space and _is_stamp(stamp):
                self._stamp, piece = stamp.decode(), bytes(rest)
            else:
                piece = bytes(self._stamping)
            self._stamping = None
        if self._stream in _STREAMS:
            self._split(piece, lines)

    def _split(self, piece: bytes, lines: list[Stamped]) -> None:
        stamp = self._begun.pop(self._stream, self._stamp)
        for text in self._splitter(self._stream).feed(piece):
            lines.append(Stamped(stamp, text))
            stamp = self._stamp
        if not piece.endswith(b"\n"):
            self._begun[self._stream] = stamp

    def _splitter(self, stream: int) -> LineSplitter:
        return self._splitters.setdefault(stream, LineSplitter())


def _is_stamp(text: bytes | bytearray) -> bool:
    return len(text) > _SECOND and text[4:5] == b"-" and text[10:11] == b"T"


def _unstamped(line: str) -> Stamped:
    stamp, _, text = line.partition(" ")
    if not _is_stamp(stamp[:_STAMP_BYTES].encode("utf-8", "replace")):
        stamp, text = "", line
    return Stamped(stamp, text.removesuffix("\r"))


class Overlap:
    """Where to go on in a log after its stream broke, and which of its lines are known by then.

    A stream is asked for again from a little before the newest line that was seen. What was seen since
    then is dropped, each line as often as it was seen: neither order nor stamps are unique.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_MOST_LINES)
        self._known: Counter[int] = Counter()
        self._second = ""
        self._second_at = 0.0

    def since(self, oldest_unfinished: str | None) -> float | None:
        """From when on to ask, in seconds since the Unix epoch; None before the first line.

        Args:
            oldest_unfinished: The stamp of a line that was seen in part, and has to be seen again.
        """
        if not self._seen:
            return None
        newest = self._seen[-1][0]
        unfinished = moment(oldest_unfinished) if oldest_unfinished else None
        return min(newest, newest if unfinished is None else unfinished) - _OVERLAP_S

    def again(self) -> None:
        """Note that the lines from `since` on come once more."""
        self._known = Counter(line for _, line in self._seen)

    def new(self, lines: Iterable[Stamped], oldest_unfinished: str | None = None) -> list[Stamped]:
        """The lines that were not seen before.

        Args:
            lines: What arrived.
            oldest_unfinished: As of `since`, now.
        """
        found: list[Stamped] = []
        for line in lines:
            key = hash(line)
            if self._known and self._known[key] > 0:
                self._known[key] -= 1
                continue
            self._note(line.stamp, key)
            found.append(line)
        self._forget(oldest_unfinished)
        return found

    def _note(self, stamp: str, key: int) -> None:
        second = stamp[:_SECOND]
        if second != self._second:
            at = moment(stamp)
            if at is not None:
                self._second, self._second_at = second, float(int(at))
        self._seen.append((self._second_at, key))

    def _forget(self, oldest_unfinished: str | None) -> None:
        since = self.since(oldest_unfinished)
        while since is not None and self._seen[0][0] < since - _OVERLAP_S:
            self._seen.popleft()
