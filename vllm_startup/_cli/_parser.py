"""How arguments are read: argparse, with messages that name the argument and the fix."""

from __future__ import annotations

import argparse
import math
from typing import Any, Final, NoReturn

from vllm_startup._phases import Phase
from vllm_startup._text import clean
from vllm_startup._timeouts import MOST_S, Timeouts

PROGRAM: Final = "vllm-startup"
NO_LIMIT: Final = frozenset({"none", "off"})
LIMITED: Final = tuple(phase.value for phase in Phase if phase is not Phase.READY)
_NAMES: Final = ("total", "cpu_only", *LIMITED)
_LIKENESS: Final = 0.6  # difflib's own default: one or two letters wrong


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations, so that a new option never breaks a script."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **settings)

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] - of three overloads
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        """Refuse a ``--`` as an option's value: argparse would drop it, and give the option an empty list."""
        for argument in args or ():
            if argument == "--":
                break  # what follows is another program's
            name, _, value = argument.partition("=")
            if name.startswith("--") and value == "--":
                self.error(f"argument {name}: '--' is no value")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, without the page of usage that would hide it."""
        self.exit(2, f"{self.prog}: error: {clean(message, 2000)}\nTry: {self.prog} --help\n")


def seconds(text: str) -> float:
    """A number of seconds from 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds, such as 30 or 0.5") from None
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more seconds, not {text!r}")
    if value >= MOST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is more than the {MOST_S:g} seconds that can be told")
    return value


def limit(text: str) -> float | None:
    """A positive number of seconds; None for no limit."""
    return None if text.lower() in NO_LIMIT else seconds(text) or None  # a zero, however it is written


def named_limit(text: str) -> tuple[str, float]:
    """``1800`` or ``loading_weights=900``, as the name of a limit of `Timeouts` and its seconds."""
    name, equals, value = text.rpartition("=")
    name = name.strip().lower().replace("-", "_") if equals else "total"
    if name not in _NAMES:
        raise argparse.ArgumentTypeError(_unknown_phase(name))
    allowed = seconds(value)
    if allowed == 0:
        raise argparse.ArgumentTypeError(f"{text!r} leaves no time; leave the option away for no limit")
    return name, allowed


def _unknown_phase(name: str) -> str:
    import difflib

    if name == "stall":
        return "the stall limit has an option of its own: --stall SECONDS"
    near = difflib.get_close_matches(name, LIMITED, n=1, cutoff=_LIKENESS)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"no phase with a limit is called {name!r}{meant}; there are {', '.join(LIMITED)}"


def timeouts(named: list[tuple[str, float]] | None, stall: float | None) -> Timeouts:
    """The limits of a wait; the last word on each counts."""
    return Timeouts(**{**dict(named or ()), "stall": stall})


def whole(text: str) -> int:
    """A whole number from 0."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0")
    return int(text)


def gpus(text: str) -> list[int | str]:
    """``0,1`` or UUIDs, as a list."""
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of GPUs, such as 0,1 or GPU-1a2b,GPU-3c4d")
    return [int(name) if name.isascii() and name.isdigit() else name for name in names]


def address(text: str) -> tuple[str, int]:
    """``8080``, ``0.0.0.0:8080`` or ``[::]:8080``; loopback without a host."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536) or (":" in bare and bare == host):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no [HOST:]PORT, such as 8080, 0.0.0.0:8080 or [::]:8080"
        )
    return bare or "127.0.0.1", int(port)
