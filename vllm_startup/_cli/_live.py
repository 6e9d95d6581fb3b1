"""A block of lines that stays below what a program prints on the same terminal.

The cursor always stands where the program's next byte goes. The block hangs below it, is erased before
that byte is written and drawn again after it, all in one write: nothing flickers, no line is cut, bars
that redraw themselves stay whole. Nothing is set in the terminal that would have to be set back: who is
killed leaves some text and nothing else.
"""

from __future__ import annotations

import os
import re
import select
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final
from unicodedata import east_asian_width

from vllm_startup._launching.forwarding import write_all

# DECSC and DECRC save and restore the cursor; IND goes down and scrolls at the bottom, in the same column.
_SAVE, _RESTORE, _DOWN = b"\x1b7", b"\x1b8", b"\x1bD"
_NEXT_LINE: Final = b"\x1b[B\r"
_ERASE_LINE, _ERASE_BELOW = b"\x1b[K", b"\x1b[J"
_ERASE: Final = _DOWN + b"\x1b[A" + _SAVE + _NEXT_LINE + _ERASE_BELOW + _RESTORE
_TAIL_BYTES: Final = 4096
_USUAL_COLUMNS: Final = 80
_CLOSE_S: Final = 1.0
_PATIENCE: Final = 4  # drawings, while a program may be about to end its line

Lines = Callable[[int], Sequence[str]]
"""The block's lines for a number of columns."""


class Block:
    """The block of one terminal. Output may be passed on from any thread; all else is one thread's.

    Args:
        fd: The terminal.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._lines: Lines | None = None
        self._shown = False
        self._above: list[bytes] = []
        self._tail = b"\n"
        self._hidden = False
        self._waited = 0  # drawings since the last output

    def pass_on(self, fd: int, data: bytes) -> None:
        """Write a program's output to a file descriptor of this terminal."""
        with self._lock:
            before = self._erased()
            self._tail = (self._tail + data)[-_TAIL_BYTES:]
            self._waited = 0
            write_all(fd, before + data + self._drawn())

    def say(self, text: str) -> None:
        """Write lines above the block, with the next drawing."""
        self._above.append(text.encode(errors="replace").replace(b"\n", b"\r\n") + b"\r\n")

    def break_line(self) -> None:
        """Begin a new line with what is written next: the terminal has echoed a key."""
        self._above.insert(0, b"\r\n")

    def draw(self, lines: Lines) -> None:
        """Draw the block, unless the terminal is held (Ctrl-S): nobody may wait for it."""
        self._lines = lines
        if not self._lock.acquire(blocking=False):
            return
        try:
            if select.select([], [self._fd], [], 0)[1]:
                self._waited += 1
                write_all(self._fd, self._drawn())
        except OSError:
            pass  # it was hung up
        finally:
            self._lock.release()

    def hide(self) -> None:
        """Take the block away, until `show`."""
        self._hidden = True
        if not self._lock.acquire(timeout=_CLOSE_S):
            return  # the terminal is held
        try:
            write_all(self._fd, self._erased() + self._said())
        except OSError:
            pass  # it was hung up
        finally:
            self._lock.release()

    def show(self) -> None:
        """Let it be drawn again."""
        self._hidden = False

    def _erased(self) -> bytes:
        shown, self._shown = self._shown, False
        return _ERASE if shown else b""

    def _drawn(self) -> bytes:
        if self._hidden or self._lines is None or not _settled(self._tail) or not self._in_foreground():
            return b""
        columns = columns_of(self._fd)
        if _at_margin(self._tail, columns):
            return b""
        lines = self._lines(columns)
        patient = not self._tail.endswith(b"\n") and self._waited < _PATIENCE
        erased, said = (b"", b"") if patient or not self._above else (self._erased(), self._said())
        self._shown = True
        below = b"".join(_NEXT_LINE + line.encode() + _ERASE_LINE for line in lines)
        room = _DOWN * len(lines) + b"\x1b[%dA" % len(lines)
        return erased + said + room + _SAVE + below + _ERASE_BELOW + _RESTORE

    def _said(self) -> bytes:
        if not self._above:
            return b""
        said = b"".join(self._above)
        self._above.clear()
        if not self._tail.endswith(b"\n"):
            said = b"\r\n" + said
        self._tail = b"\n"
        return said

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return True  # not the terminal that we were started from


def columns_of(fd: int) -> int:
    """How wide a terminal is; 80 where it does not know."""
    return os.get_terminal_size(fd).columns or _USUAL_COLUMNS


@cache
def _complete() -> re.Pattern[bytes]:
    """An escape sequence that is whole: CSI, OSC, or two characters."""
    return re.compile(
        rb"\x1b(\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(\x07|\x1b\\)|[ -/]*[0-OQ-WYZ\\`-~])", re.DOTALL
    )


def _settled(tail: bytes) -> bool:
    """Whether nothing is cut at the end: no escape sequence and no letter."""
    escape = tail.rfind(b"\x1b")
    if escape >= 0 and tail[escape:] != b"\x1b\\" and not _complete().match(tail, escape):
        return False
    for back in range(1, min(4, len(tail)) + 1):
        byte = tail[-back]
        if byte >= 0xC0:
            return back >= (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
        if byte < 0x80:
            return True
    return True


def _at_margin(tail: bytes, columns: int) -> bool:
    """Whether the next letter wraps: no terminal keeps that in mind while its cursor moves elsewhere."""
    line = tail[max(tail.rfind(b"\n"), tail.rfind(b"\r")) + 1 :]
    letters = _complete().sub(b"", line).decode(errors="replace").expandtabs()
    width = sum(2 if east_asian_width(letter) in "WF" else 1 for letter in letters)
    return width > 0 and width % columns == 0
