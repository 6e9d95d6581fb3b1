"""Bytes in, lines out: the one place where output becomes lines."""

from __future__ import annotations

from typing import Final

MAX_LINE_BYTES: Final = 65536
"""Longest line that is kept whole; vLLM's own longest, the engine's config dump, is under 16 KiB."""

_CUT: Final = "…"


class LineSplitter:
    r"""Cuts a byte stream into lines of text.

    Lines end with ``\n`` alone. A ``\r`` stays in the text: vLLM ends the lines inside one message
    with ``\r\n`` and redraws its bars with ``\r``. Bytes that are not UTF-8 become ``\ufffd``. NULs at
    the start of a line are dropped: a log that was truncated under a writer that does not append
    begins with a hole of them.

    A line that is longer than ``max_line`` bytes is shortened, and an ellipsis says so. Of a plain line
    its head stays; of a bar that redraws itself what stands before the first ``\r`` and the last redraw,
    since other processes' lines are glued behind it. Memory is bounded by ``max_line``, whatever comes,
    and how the stream was cut into chunks makes no difference.
    """

    def __init__(self, max_line: int = MAX_LINE_BYTES) -> None:
        if max_line < 16:
            raise ValueError(f"max_line must be at least 16 bytes, not {max_line}")
        self._max_line = max_line
        self._tail = bytearray()
        self._long: _LongLine | None = None

    def feed(self, data: bytes) -> list[str]:
        """Take what was read and return the lines that it ends."""
        first, newline, rest = data.partition(b"\n")
        self._extend(first)
        if not newline:
            return []
        lines = self.finish() or [""]
        if not rest:
            return lines
        pieces = rest.split(b"\n")
        self._extend(pieces.pop())
        lines += [self._text(piece) for piece in pieces]
        return lines

    def partial(self) -> str | None:
        r"""The unfinished last line as it looks now; None where there is none.

        Of a bar it is what stands before the first ``\r`` and the last redraw.
        """
        if self._long is not None:
            return self._long.text()
        if not self._tail:
            return None
        return _redrawn(bytes(self._tail), self._max_line)

    def finish(self) -> list[str]:
        """End the unfinished last line, if there is one, and return it."""
        if self._long is not None:
            line = self._long.text()
        elif self._tail:
            line = self._tail.decode("utf-8", "replace")
        else:
            return []
        self._long = None
        self._tail.clear()
        return [line]

    def _text(self, line: bytes) -> str:
        if line[:1] == b"\0":
            line = line.lstrip(b"\0")
        if len(line) > self._max_line:
            return _shortened(line, self._max_line)
        return line.decode("utf-8", "replace")

    def _extend(self, data: bytes) -> None:
        if self._long is not None:
            self._long.extend(data)
            return
        if not self._tail and data[:1] == b"\0":
            data = data.lstrip(b"\0")
        self._tail += data
        if len(self._tail) > self._max_line:
            self._long = _LongLine(self._max_line)
            self._long.extend(bytes(self._tail))
            self._tail.clear()


class _LongLine:
    r"""An unfinished line past its limit: what stood before the first ``\r``, and the last redraw."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head = bytearray()
        self._redraws = False
        self._last = b""
        self._now = bytearray()

    def extend(self, data: bytes) -> None:
        if not self._redraws:
            head, cr, data = data.partition(b"\r")
            _append(self._head, head, self._limit)
            if not cr:
                return
            self._redraws = True
        start = data.rfind(b"\r") + 1
        if start:
            self._settle(data[: start - 1])
        _append(self._now, data[start:], self._limit)

    def _settle(self, ended: bytes) -> None:
        r"""Keep the last redraw that drew anything; ``ended`` ends at a ``\r``, which clears the line."""
        first, cr, _ = ended.partition(b"\r")
        _append(self._now, first, self._limit)
        if self._now:
            self._last = bytes(self._now)
        self._now.clear()
        if cr and (drawn := ended[len(first) :].rstrip(b"\r").rpartition(b"\r")[2]):
            self._last = drawn[: self._limit]

    def text(self) -> str:
        if not self._redraws:
            return _decode(bytes(self._head[: self._limit])) + _CUT
        half = self._limit // 2
        return _join(bytes(self._head), bytes(self._now) or self._last, half)


def _append(buffer: bytearray, data: bytes, limit: int) -> None:
    room = limit + 1 - len(buffer)  # one more than is shown, so that it is known to be too long
    if room > 0:
        buffer += data[:room]


def _shortened(line: bytes, limit: int) -> str:
    long_line = _LongLine(limit)
    long_line.extend(line)
    return long_line.text()


def _redrawn(line: bytes, limit: int) -> str:
    if b"\r" not in line:
        return _decode(line)
    head, _, rest = line.partition(b"\r")
    return _join(head, rest.rstrip(b"\r").rpartition(b"\r")[2], limit)


def _join(head: bytes, last: bytes, limit: int) -> str:
    redraw = _cut(last, limit)
    return f"{_cut(head, limit)}\r{redraw}" if redraw else _cut(head, limit)


def _cut(data: bytes, limit: int) -> str:
    if len(data) > limit:
        return _decode(data[:limit]) + _CUT
    return _decode(data)


def _decode(data: bytes) -> str:
    """Decode an unfinished text; the character at its end is left away as long as its rest is missing."""
    text = data.decode("utf-8", "replace")
    return data[: _whole(data)].decode("utf-8", "replace") if text.endswith("\ufffd") else text


def _whole(data: bytes) -> int:
    """Where the last whole character of ``data`` ends."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # not a continuation byte: a character begins here
            length = (
                2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
            )
            return len(data) - back if length > back else len(data)
    return len(data)
