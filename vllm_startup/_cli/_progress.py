"""Progress for people, on standard error: a live block on a terminal, else one line a phase.

What is shown comes in through a few calls (`Progress`), so that another display is another class.
"""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final, Protocol, TextIO

from vllm_startup import _events as e
from vllm_startup._cli import _output
from vllm_startup._cli._layout import Style, block
from vllm_startup._cli._live import Block, columns_of
from vllm_startup._cli._output import clean, cut
from vllm_startup._launching.forwarding import write_all
from vllm_startup._machine.reporting import Status

HEARTBEAT_S: Final = 30.0
_STDERR: Final = 2
_SELDOM_S: Final = 3600.0  # nothing is shown
_LIVE_S: Final = 0.25
_PLAIN_S: Final = 1.0
_INDENT: Final = 12  # as wide as the time and what is between


class Progress(Protocol):
    """A display. All calls come from one thread."""

    interval_s: float
    """How often `status` is wanted, in seconds."""

    def begin(self, what: str) -> None:
        """Say what is waited for."""
        ...

    def event(self, event: e.Event) -> None:
        """Take what happened."""
        ...

    def status(self, status: Status) -> None:
        """Take how it stands."""
        ...

    def say(self, text: str) -> None:
        """Write lines for people."""
        ...

    def break_line(self) -> None:
        """Begin a new line with what is written next: the terminal has echoed a key."""
        ...

    def pass_on(self, fd: int, data: bytes) -> None:
        """Write a command's output to a file descriptor. It may be called from any thread."""
        ...

    def pause(self) -> None:
        """Leave the terminal to others for a while."""
        ...

    def resume(self) -> None:
        """Go on."""
        ...

    def close(self) -> None:
        """Leave nothing behind. Harmless when it is called again."""
        ...


def progress_for(stream: TextIO | None, environ: Mapping[str, str]) -> Progress:
    """The display that suits a stream."""
    live = live_progress(stream, environ)
    return PlainProgress(_output.tell, _output.width_of(stream)) if live is None else live


def live_progress(
    stream: TextIO | None, environ: Mapping[str, str], *, prefix: str = ""
) -> LiveProgress | None:
    """A live display, where the stream is a terminal that can show one."""
    if stream is None or not stream.isatty() or environ.get("TERM", "dumb") == "dumb" or environ.get("CI"):
        return None
    encoding = (stream.encoding or "").lower().replace("-", "")
    style = Style(colour=not environ.get("NO_COLOR"), unicode=encoding == "utf8")
    return LiveProgress(stream.fileno(), style, prefix=prefix)


class SilentProgress:
    """Says nothing but what it is told to say.

    Args:
        prefix: What tells the lines from those of others.
    """

    def __init__(self, *, prefix: str = "") -> None:
        self._prefix = prefix

    interval_s = _SELDOM_S

    def begin(self, what: str) -> None:
        """Nothing."""

    def event(self, event: e.Event) -> None:
        """Nothing."""

    def status(self, status: Status) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Write it."""
        _output.tell(f"{self._prefix}{text}")

    def break_line(self) -> None:
        """Nothing."""

    def pass_on(self, fd: int, data: bytes) -> None:
        """Write it."""
        write_all(fd, data)

    def pause(self) -> None:
        """Nothing."""

    def resume(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing is left behind."""


class PlainProgress(SilentProgress):
    """One line a phase, and a sign of life when nothing happens for long.

    Args:
        tell: Writes a line.
        width: How long it may be.
        now: The time.
        prefix: What tells the lines from those of others.
    """

    interval_s = _PLAIN_S

    def __init__(
        self,
        tell: Callable[[str], None],
        width: int,
        now: Callable[[], float] = time.monotonic,
        *,
        prefix: str = "",
    ) -> None:
        super().__init__(prefix=prefix)
        self._tell = tell
        self._width = width - len(prefix)
        self._now = now
        self._told_at = now()
        self._cut_short = False

    def begin(self, what: str) -> None:
        """Write it."""
        self._line(what)

    def event(self, event: e.Event) -> None:
        """Write what is worth a line."""
        for line in lines_of(event, self._width):
            self._line(line)

    def status(self, status: Status) -> None:
        """Write it if nothing was written for a while."""
        if status.outcome is None and self._now() - self._told_at >= HEARTBEAT_S:
            self._line(cut(f"{_clock(status.elapsed_s)}  {clean(status.summary)}", self._width))

    def say(self, text: str) -> None:
        """Write it."""
        self._line(text)

    def pass_on(self, fd: int, data: bytes) -> None:
        """Write it, and note whether a line of ours would go on where it ends."""
        write_all(fd, data)
        if _is_stderr(fd):
            self._cut_short = not data.endswith(b"\n")

    def _line(self, line: str) -> None:
        self._told_at = self._now()
        start, self._cut_short = "\n" if self._cut_short else "", False
        self._tell(f"{start}{self._prefix}{line}")


@cache
def _is_stderr(fd: int) -> bool:
    """Whether it is our standard error, or the same file as that."""
    return fd == _STDERR or os.path.sameopenfile(fd, _STDERR)


def lines_of(event: e.Event, width: int) -> list[str]:
    """An event as lines for people; none for one that is no news."""
    at = _clock(event.elapsed_s)
    if isinstance(event, e.PhaseEntered):
        because = event.because
        return [cut(f"{at}  {event.phase:<20} {clean(because.probe)}: {clean(because.text)}", width)]
    text = _words(event)
    return textwrap.wrap(f"{at}  {text}", width, subsequent_indent=" " * _INDENT) if text else []


def _words(event: e.Event) -> str | None:
    match event:
        case e.Warned(text=text):
            return f"warning: {clean(text)}"
        case e.ProbeBroke(probe=probe, error=error):
            return f"probe {clean(probe)} does not work: {clean(error)}"
        case e.ProbeRecovered(probe=probe):
            return f"probe {clean(probe)} works again"
        case e.TierReached(tier=tier):
            return f"tier {tier} reached"
        case e.CauseFound(cause=cause):
            return f"{cause.kind}: {clean(cause.message)}"
        case e.AttemptStarted(attempt=attempt) if attempt > 1:
            return f"attempt {attempt} begins"
        case e.AttemptEnded(attempt=attempt, outcome=outcome, cause=cause):
            return f"attempt {attempt} ended: {outcome}" + (f", {cause.kind}" if cause is not None else "")
        case _:
            return None


def _clock(seconds: float) -> str:
    return f"{seconds:8.1f} s"


class LiveProgress:
    """A block of lines on a terminal (see there), below whatever else is printed on it."""

    interval_s = _LIVE_S

    def __init__(self, fd: int, style: Style, *, prefix: str = "") -> None:
        self._block = Block(fd)
        self._prefix = prefix
        self._style = style
        self._fd = fd
        self._closed = False

    def begin(self, what: str) -> None:
        """Nothing: the block says it."""

    def event(self, event: e.Event) -> None:
        """Write warnings above the block; phases stand in it."""
        if isinstance(event, e.Warned | e.ProbeBroke | e.ProbeRecovered | e.AttemptEnded):
            for line in lines_of(event, columns_of(self._fd) - len(self._prefix)):
                self.say(line)

    def status(self, status: Status) -> None:
        """Draw it again."""
        if not self._closed:
            self._block.draw(lambda columns: block(status, columns, self._style))

    def say(self, text: str) -> None:
        """Write lines above the block."""
        self._block.say(self._prefix + text)

    def break_line(self) -> None:
        """Begin a new line with what is written next."""
        self._block.break_line()

    def pass_on(self, fd: int, data: bytes) -> None:
        """Write output: above the block, where it goes to a terminal."""
        if self._closed or not os.isatty(fd):
            write_all(fd, data)
        else:
            self._block.pass_on(fd, data)

    def pause(self) -> None:
        """Take the block away for a while."""
        self._block.hide()

    def resume(self) -> None:
        """Let it come back."""
        if not self._closed:
            self._block.show()

    def close(self) -> None:
        """Take the block away."""
        if not self._closed:
            self._closed = True
            self._block.hide()
