"""Progress for people, on standard error: a live line on a terminal, else one line a phase.

What is shown comes in through three calls (`Progress`), so that another display is another class.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from vllm_startup import _events as e
from vllm_startup._cli import _output
from vllm_startup._cli._output import clean
from vllm_startup._machine.reporting import Status

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

HEARTBEAT_S: Final = 30.0
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

    def close(self) -> None:
        """Leave nothing behind. Harmless when it is called again."""
        ...


def progress_for(stream: TextIO | None, environ: Mapping[str, str]) -> Progress:
    """The display that suits a stream."""
    if stream is not None and stream.isatty() and environ.get("TERM") != "dumb" and not environ.get("CI"):
        try:
            return LiveProgress(_console(stream))
        except ImportError:
            pass  # rich is an extra
    return PlainProgress(_output.tell, _output.width_of(stream))


class PlainProgress:
    """One line a phase, and a sign of life when nothing happens for long."""

    interval_s = _PLAIN_S

    def __init__(
        self, tell: Callable[[str], None], width: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._width = width
        self._now = now
        self._told_at = now()

    def begin(self, what: str) -> None:
        """Write it."""
        self._tell(what)

    def event(self, event: e.Event) -> None:
        """Write what is worth a line."""
        for line in lines_of(event, self._width):
            self._line(line)

    def status(self, status: Status) -> None:
        """Write it if nothing was written for a while."""
        if status.outcome is None and self._now() - self._told_at >= HEARTBEAT_S:
            self._line(_cut(f"{_clock(status.elapsed_s)}  {clean(status.summary)}", self._width))

    def close(self) -> None:
        """Nothing is left behind."""

    def _line(self, line: str) -> None:
        self._told_at = self._now()
        self._tell(line)


def lines_of(event: e.Event, width: int) -> list[str]:
    """An event as lines for people; none for one that is no news."""
    at = _clock(event.elapsed_s)
    if isinstance(event, e.PhaseEntered):
        because = event.because
        return [_cut(f"{at}  {event.phase:<20} {clean(because.probe)}: {clean(because.text)}", width)]
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


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


class LiveProgress:
    """A calm line on a terminal: how it stands, and the limit that fires next."""

    interval_s = _LIVE_S

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        live.start()
        self._live: Live | None = live

    def begin(self, what: str) -> None:
        """Nothing: the live line says it."""

    def event(self, event: e.Event) -> None:
        """Write warnings above the line; phases stand in it."""
        if isinstance(event, e.Warned | e.ProbeBroke | e.ProbeRecovered | e.AttemptEnded | e.CauseFound):
            from rich.text import Text

            for line in lines_of(event, self._console.width):
                self._console.print(Text(line))

    def status(self, status: Status) -> None:
        """Draw it again."""
        if self._live is None:
            return
        from rich.text import Text

        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{_clock(status.elapsed_s)}  ", style="bold")
        text.append(clean(status.summary))
        if status.limit is not None and status.limit_in_s is not None:
            text.append(f"\n{'':{_INDENT}}{_limit(status.limit, status.limit_in_s)}", style="dim")
        self._live.update(text, refresh=True)

    def close(self) -> None:
        """Take the line away."""
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()


def _limit(name: str, left_s: float) -> str:
    minutes, seconds = divmod(round(left_s), 60)
    hours, minutes = divmod(minutes, 60)
    left = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
    what = {"total": "limit", "stall": "stalled if nothing moves"}.get(name, f"limit of {name}")
    return f"{what} in {left}"


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False)
