"""A terminal for the command where ours is one: its window's size, and the keys that are typed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import select
import termios
from typing import Any, Final

_KEYS: Final = 1024  # at a time
_LATER_S: Final = 0.05  # when a command that reads slowly is tried again


class Terminal:
    """A pseudo-terminal in front of our own, which it resembles.

    Our own keeps its signals (Ctrl-C, Ctrl-Z): they come to us as without a pseudo-terminal, and are
    forwarded. It keeps its output processing too, and the pseudo-terminal has none: so bytes arrive as
    they were written.

    Args:
        ours: Our own terminal.
        keys: Our standard input where it is that terminal, so that keys are passed on; None where not.
    """

    def __init__(self, ours: int, keys: int | None) -> None:
        self._ours = ours
        self._keys = keys
        self._before: list[Any] | None = None  # our terminal's settings
        self._reading = False
        self._size = b""
        self.master, self.slave = pty.openpty()
        settings = termios.tcgetattr(ours)
        settings[1] &= ~termios.OPOST
        termios.tcsetattr(self.slave, termios.TCSANOW, settings)
        self.resize()

    def resize(self) -> bool:
        """Give it the size of our own. Returns whether that is another one."""
        try:
            size = fcntl.ioctl(self._ours, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)
        except OSError:
            return False  # ours was hung up
        before, self._size = self._size, size
        return size != before

    def attach(self) -> None:
        """Pass keys on from now, one by one; not while a shell has the terminal."""
        if self._keys is None or self._reading or not in_foreground(self._keys):
            return
        try:
            self._before = termios.tcgetattr(self._keys)
            termios.tcsetattr(self._keys, termios.TCSADRAIN, _key_by_key(self._before))
        except termios.error:
            return  # it was hung up
        self._reading = True
        asyncio.get_running_loop().add_reader(self._keys, self._pass_on)

    def detach(self) -> None:
        """Leave our own terminal as it was. Harmless when it is called again."""
        if self._keys is None or not self._reading:
            return
        self._reading = False
        asyncio.get_running_loop().remove_reader(self._keys)
        try:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before or [])
        except termios.error:
            pass  # it was hung up

    def close(self) -> None:
        """Leave our own terminal as it was, and let go of the command's."""
        self.detach()
        os.close(self.master)

    def _pass_on(self) -> None:
        assert self._keys is not None
        loop = asyncio.get_running_loop()
        try:
            if not _writable(self.master):
                loop.remove_reader(self._keys)
                loop.call_later(_LATER_S, self._again)
            elif data := os.read(self._keys, _KEYS):
                os.write(self.master, data)
            else:
                self.detach()
        except OSError:
            self.detach()  # one of them is gone

    def _again(self) -> None:
        if self._reading and self._keys is not None:
            asyncio.get_running_loop().add_reader(self._keys, self._pass_on)


def in_foreground(terminal: int) -> bool:
    """Whether the terminal is ours to read from, and its keys' signals come to us."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False


def _writable(fd: int) -> bool:
    return bool(select.select([], [fd], [], 0)[1])


def _key_by_key(settings: list[Any]) -> list[Any]:
    """Settings without lines and echo, which the pseudo-terminal has; signals stay."""
    changed = [*settings]
    changed[0] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
    changed[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
    changed[6] = [*settings[6]]
    changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
    return changed
