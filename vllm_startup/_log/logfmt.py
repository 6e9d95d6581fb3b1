"""Log lines in logfmt, as Go programs pass on what a server prints (logrus, slog: Docker Model Runner)."""

from __future__ import annotations

import re
from functools import cache

from vllm_startup._log import records, times
from vllm_startup._log.prefixes import Stripped

BEGINS = "time="

_LONGEST = 32 * 1024  # what is longer is no line of a server's, and could take long
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@cache
def _form() -> re.Pattern[str]:
    stamp = r'"?(?P<stamp>\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:\d\d))"?'
    said = r'(?:"(?P<quoted>[^"\\]*(?:\\.[^"\\]*)*)"|(?P<bare>[^\s"]\S*))'
    return re.compile(rf"time={stamp} level=\w{{1,10}} msg={said}")


@cache
def _escaped() -> re.Pattern[str]:
    return re.compile(r"\\(?:x([0-9a-f]{2})|(.))", re.DOTALL)


def parse(text: str) -> Stripped | None:
    """What stands behind ``msg=``; None for other lines.

    The level is the program's, which knows nothing of the server's.
    """
    found = _form().match(text) if len(text) <= _LONGEST else None
    if found is None:
        return None
    said = found["bare"] if found["quoted"] is None else _escaped().sub(_letter, found["quoted"])
    return Stripped(text=records.plain(said).rstrip("\r\n"), stamp_s=times.iso(found["stamp"]))


def _letter(found: re.Match[str]) -> str:
    code, letter = found.groups()
    return chr(int(code, 16)) if code else _ESCAPES.get(letter, letter)
