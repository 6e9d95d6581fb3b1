"""What stands before every line of a log that somebody pasted: indentation, quote marks, numbers."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOKED_AT: Final = 200  # lines
_FEWEST: Final = 3
# A window that a terminal program has drawn around a log (k9s, lazydocker).
_SIDES: Final = ("│", "┃", "║")
_FRAME: Final = (*_SIDES, "┌", "└", "├", "╭", "╰", "╔", "╚", "┏", "┗")


def margin_of(lines: list[str]) -> Callable[[str], str] | None:
    """How the margin of a log is taken off its lines, told by its beginning; None without one."""
    head = [line.rstrip("\r") for line in lines[:_LOOKED_AT]]
    filled = [line for line in head if line.strip()]
    if len(filled) < _FEWEST:
        return None
    if all(line.startswith(">") for line in filled):
        quote = "> " if all(line.startswith("> ") or line == ">" for line in filled) else ">"
        return lambda line: line.removeprefix(quote) if line != ">" else ""
    if _is_numbered(head):
        return _unnumbered
    if all(line.startswith(_FRAME) for line in filled):
        return _unframed
    margin = _margin().match(_common(min(filled), max(filled)))
    return _outdented(margin[0]) if margin is not None else None


def _unframed(line: str) -> str:
    bare = line.rstrip("\r")
    if not bare.startswith(_SIDES):
        return "" if bare.startswith(_FRAME) else line
    inside = bare[1:].removeprefix(" ")
    return inside[:-1].rstrip() if inside.endswith(_SIDES) else inside


def _outdented(margin: str) -> Callable[[str], str]:
    return lambda line: line.removeprefix(margin)


def _common(first: str, last: str) -> str:
    """What a sorted list's first and last text begin with: so do all between them."""
    return next((first[:at] for at, letter in enumerate(first) if letter != last[at : at + 1]), first)


@cache
def _margin() -> re.Pattern[str]:
    """Indentation, or the rule that a web page draws beside a log."""
    return re.compile(r"[ \t]+(?:[|│] ?)?")


@cache
def _number() -> re.Pattern[str]:
    """A line's number as ``cat -n``, ``less -N``, ``nl`` and ``grep -n`` write it."""
    return re.compile(r" {0,8}(\d{1,7})(?:\t|:| \| | {1,2})")


def _unnumbered(line: str) -> str:
    return _number().sub("", line, count=1) if line[:9].lstrip(" ")[:1].isdigit() else line


def _is_numbered(lines: list[str]) -> bool:
    """Whether the lines count themselves (a rank's number before each stays the same)."""
    found = [_number().match(line) for line in lines]
    numbers = [int(each[1]) for each in found if each is not None]
    return len(numbers) == len(lines) and all(after == before + 1 for before, after in pairwise(numbers))
