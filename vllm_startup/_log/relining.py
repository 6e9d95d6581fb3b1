"""Line ends that a log has lost, and control characters that a tool has spelled out."""

from __future__ import annotations

import re
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HEADER: Final = "Traceback (most recent call last):"
_ESCAPED: Final = "\\n"
# How rsyslog, and ``cat -v`` and ``less``, spell a colour's beginning and a carriage return.
_SPELLINGS: Final = (("#033[", "#015"), ("^[[", "^M"))
# What can hold a traceback, and what is left whole of a line.
_SHORTEST: Final = 200
_LONGEST: Final = 64 * 1024
_MOST_EMPTY: Final = 1000  # lines around the one
_FEWEST: Final = 3  # lines that were one: fewer are one by themselves


def with_line_ends(batches: Iterable[list[str]]) -> Iterator[list[str]]:
    """A log's lines; those of a log that is one single line as they were before it lost their ends.

    They are counted as they stood then. Of a log with more than one line nothing changes but control
    characters that were spelled out.
    """
    remaining = iter(batches)
    first: list[str] = []
    for batch in remaining:
        first += batch
        if sum(map(bool, first)) > 1 or len(first) > _MOST_EMPTY:
            break
    else:
        filled = [line for line in first if line.strip()]
        if len(filled) == 1 and len(parts := _parted(filled[0])) > 1:
            first = parts
    whole = chain([first], remaining) if first else iter(())
    for escape, end in _SPELLINGS:
        if any(escape in line or line.endswith(end) for line in first):
            return _unspelled(whole, escape, end)
    return whole


def _unspelled(batches: Iterable[list[str]], escape: str, end: str) -> Iterator[list[str]]:
    return ([line.removesuffix(end).replace(escape, "\x1b[") for line in batch] for batch in batches)


@cache
def _begins() -> re.Pattern[str]:
    """A record, a process's prefix, a traceback's header, a frame, an exception: each begins a line."""
    prefix = r"\(\w[^()\n]{0,60} ?pid=\d{1,10}\)"
    record = r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
    error = r"[A-Za-z_][\w.]{0,100}(?:Error|Exception): "
    text = rf'{re.escape(_HEADER)}|File "/|{error}'
    # What stands behind a prefix or a record's place is its own text.
    return re.compile(rf"(?<=\S)(?<!\d\))(?:(?<!\])\s+(?={text})|\s+(?={prefix} |{record}))")


@cache
def _frame() -> re.Pattern[str]:
    """The end of a frame, behind which its source stands."""
    return re.compile(r'(File "[^"\n]{1,400}", line \d{1,7}, in [\w<>.]{1,100})[ \t]+(?=\S)')


def _parted(line: str) -> list[str]:
    """The lines that one line was; itself where it is one of its own."""
    if not _SHORTEST <= len(line) <= _LONGEST or line.lstrip().startswith("{"):
        return [line]
    if line.count(_ESCAPED) >= _FEWEST:
        return line.replace("\\r\\n", "\n").replace(_ESCAPED, "\n").split("\n")
    parts = _begins().sub("\n", line)
    if parts.count("\n") < _FEWEST:
        return [line]
    with_source = _frame().sub(r"\1\n    ", parts).split("\n")
    return ["  " + part if part.startswith('File "') else part for part in with_source]
