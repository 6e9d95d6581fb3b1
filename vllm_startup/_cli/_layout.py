"""How it stands, in a few calm lines: the way so far, what moves now, what ends the wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from vllm_startup._machine.reporting import Status
from vllm_startup._phases import Phase
from vllm_startup._report import GpuReport
from vllm_startup._text import clean

_STEPS: Final = {
    Phase.LAUNCHING: "launch",
    Phase.CONFIGURING: "config",
    Phase.INITIALIZING: "engines",
    Phase.LOADING_WEIGHTS: "weights",
    Phase.COMPILING: "compile",
    Phase.ALLOCATING_KV_CACHE: "cache",
    Phase.WARMING_UP: "warm-up",
    Phase.STARTING_SERVER: "server",
    Phase.READY: "ready",
}
_DOING: Final = {
    Phase.LAUNCHING: "launching",
    Phase.CONFIGURING: "reading its configuration",
    Phase.INITIALIZING: "initializing its engines",
    Phase.LOADING_WEIGHTS: "loading weights",
    Phase.COMPILING: "compiling",
    Phase.ALLOCATING_KV_CACHE: "allocating the KV cache",
    Phase.WARMING_UP: "warming up",
    Phase.STARTING_SERVER: "starting the server",
    Phase.READY: "ready",
}
_MARGIN: Final = 2
_GAP: Final = 2
_BAR: Final = 24
_LEAST_BAR: Final = 8
_WIDEST_GPU_BAR: Final = 16
_GB, _GIB = 1e9, 1 << 30
_LITTLE_CPU: Final = 0.1  # of a core: hung processes poll
_EVEN: Final = 0.01
_QUIET_S: Final = 5.0  # ranks need some seconds to find each other when all is well


@attrs.frozen(kw_only=True)
class Style:
    """What a terminal can show.

    Attributes:
        colour: Whether it may be coloured.
        unicode: Whether it has more than ASCII.
    """

    colour: bool = True
    unicode: bool = True

    def paint(self, text: str, code: str) -> str:
        """Text in a colour (an SGR code)."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text

    def bar(self, share: float, width: int) -> str:
        """A bar that is filled to a share from 0 to 1."""
        full, rest = ("━", "─") if self.unicode else ("=", "-")
        halves = round(min(max(share, 0.0), 1.0) * width * 2)
        filled = full * (halves // 2)
        if halves % 2 and self.unicode:
            filled += "╸"
        return self.paint(filled, "36") + self.paint(rest * (width - len(filled)), "2")


def block(status: Status, columns: int, style: Style) -> list[str]:
    """The lines of the block, none longer than the terminal is wide."""
    width = max(20, columns - 1)  # what stands in the last column wraps in some terminals
    return [
        *_steps(status, width, style),
        _doing(status, width, style),
        *_moves(status, width, style),
        *_gpus(status.gpus, width, style),
        *_worry(status, width, style),
        *_ends(status, width, style),
    ]


def _steps(status: Status, width: int, style: Style) -> list[str]:
    """All phases in their usual order, the current one marked, and the time."""
    names = [name if p is not status.phase or style.colour else f"[{name}]" for p, name in _STEPS.items()]
    time = clock(status.elapsed_s)
    arrow = " › " if style.unicode else " > "
    if _MARGIN + len(arrow.join(names)) + _GAP + len(time) > width:
        arrow = " "
    room = width - _MARGIN - len(arrow.join(names)) - len(time)
    if room < _GAP:
        return []
    painted = [style.paint(name, _colour(p, status)) for p, name in zip(_STEPS, names, strict=True)]
    return [" " * _MARGIN + style.paint(arrow, "2").join(painted) + " " * room + style.paint(time, "1")]


def _colour(phase: Phase, status: Status) -> str:
    if phase is status.phase:
        return "1;36"
    return "32" if phase in status.reached else "2"


def _doing(status: Status, width: int, style: Style) -> str:
    """What is done now, for how long, and how far it is."""
    text = _DOING[status.phase] if status.cause is None else f"failing in {status.phase}"
    text = f"{text}, {clock(status.phase_s)}"
    counter = status.counter
    if counter is None:
        return _line(text, width, style, "1")
    said = f"{clean(counter.what)} {counter.done:g}"
    if counter.total is not None:
        said += f" of {counter.total:g}"
    room = width - _MARGIN - len(text) - len(said) - 2 * _GAP
    if not counter.total or room < _LEAST_BAR:
        return _line(f"{text}, {said}", width, style, "1")
    bar = style.bar(counter.done / counter.total, min(_BAR, room))
    return f"{_line(text, width, style, '1')}{' ' * _GAP}{bar}{' ' * _GAP}{said}"


def _moves(status: Status, width: int, style: Style) -> list[str]:
    """What moves beside counters, and when something last did."""
    parts = []
    if status.read_bytes_per_s > 0:
        parts.append(f"{_size(status.read_bytes)} read, {_size(status.read_bytes_per_s)}/s")
    if status.cores >= _LITTLE_CPU:
        parts.append(f"{status.cores:.1f} CPU cores busy")
    moved = f": {clean(status.moved)}" if status.moved else ""
    last = _line(f"last progress {clock(status.quiet_s)} ago{moved}", width, style)
    return [_line("; ".join(parts), width, style), last] if parts else [last]


def _gpus(gpus: Sequence[GpuReport], width: int, style: Style) -> list[str]:
    """A small bar a GPU, and what they hold."""
    if not gpus:
        return []
    used = sorted(gpu.used_bytes / _GIB for gpu in gpus)
    even = used[-1] - used[0] <= max(used[-1] * _EVEN, 0.1)
    span = f"{used[-1]:.1f}" if even else f"{used[0]:.1f} to {used[-1]:.1f}"
    said = f"{span} of {max(gpu.total_bytes for gpu in gpus) / _GIB:.0f} GiB"
    if len(gpus) > 1:
        said += ", evenly" if even else ", unevenly"
    label = "GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    room = width - _MARGIN - len(label) - len(said) - 4
    each = min(_WIDEST_GPU_BAR, room // len(gpus) - 1)
    if each < 1:
        return [_line(f"{label}  {said}", width, style)]
    bars = " ".join(style.bar(gpu.used_bytes / max(gpu.total_bytes, 1), each) for gpu in gpus)
    return [f"{' ' * _MARGIN}{label}  {bars}  {said}"]


def _worry(status: Status, width: int, style: Style) -> list[str]:
    """Why it fails; or what it waits for, if nothing else moves either."""
    if status.cause is not None:
        return [_line(clean(status.cause.message), width, style, "31")]
    if status.suspect is None or status.quiet_s < _QUIET_S:
        return []
    return [_line(clean(status.suspect), width, style, "33")]


def _ends(status: Status, width: int, style: Style) -> list[str]:
    """The limit that fires next."""
    if status.limit is None or status.limit_in_s is None:
        return []
    names = {"total": "limit", "stall": "stalled if nothing moves"}
    what = names.get(status.limit, f"limit of {status.limit}")
    return [_line(f"{what} in {clock(status.limit_in_s)}", width, style, "2")]


def clock(seconds: float) -> str:
    """``8 s``, ``1:42`` or ``1:06:40``."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds:02}"
    return f"{minutes}:{seconds:02}" if minutes else f"{seconds} s"


def _size(count: float) -> str:
    return f"{count / _GB:.1f} GB" if count >= _GB else f"{count / 1e6:.0f} MB"


def _line(text: str, width: int, style: Style, code: str = "") -> str:
    room = width - _MARGIN
    if len(text) > room:
        text = f"{text[: room - 1]}{'…' if style.unicode else '.'}"
    return " " * _MARGIN + (style.paint(text, code) if code else text)
