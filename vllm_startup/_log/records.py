"""The forms of a log record: vLLM's own, uvicorn's, and those of other Python loggers."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from vllm_startup._log import times

# vLLM's process prefix, also twice (0.17 workers) or behind Ray's, which adds an address.
# The names have spaces and "=" up to 0.10.1: "(VllmWorker rank=0 pid=1)".
_PROCESS = r"\((?:(?P<name>[^()]{1,80}?) )?pid=(?P<pid>\d{1,10})(?:, ?ip=[^()\s]{1,64})?\) ?"
_PROCESSES = rf"(?:{_PROCESS}){{0,4}}"
_LEVEL = r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL|TRACE)"
# 0.4 to 0.8 have no "[" before the file; a formatter of the user's may write the year.
_STAMP = r"(?P<stamp>(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d{1,6})?"
_SOURCE = r"\[?(?P<source>[^\]\[\s]{1,200}:\d{1,7})\] ?"

# A record further into a line than this is text that somebody quotes.
_SEARCHED = 8192
# Longer than any sensible VLLM_LOGGING_PREFIX; what is longer is a line that lacks its newline.
_LONGEST_PREFIX = 64
_LEVELS = {
    "TRACE": "DEBUG",
    "WARN": "WARNING",
    "FATAL": "CRITICAL",
    "SUCCESS": "INFO",
    "EXCEPTION": "ERROR",
}
_HEADER_CHARS = 240
# A line of 64 KiB that is all escapes would take 10 ms; a coloured one has a dozen.
_MOST_ESCAPES = 2048


# What vLLM's processes print without a logger.
_RAW = ("Traceback (most recent call last):", '  File "', "usage: vllm ", "usage: api_server.py ")


class Record(NamedTuple):
    """A line, or the part of a line, that is one log record.

    A tuple, since one is made for every line that is read: an attrs class costs 0.6 us more.
    """

    message: str
    process: str | None = None
    pid: int | None = None
    level: str | None = None
    source: str | None = None
    stamp_s: float | None = None
    start: int = 0


@cache
def _escape() -> re.Pattern[str]:
    # Colours and cursor moves; window titles (OSC) end with BEL or ST.
    return re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")


def plain(text: str) -> str:
    """The text without terminal escapes."""
    return _escape().sub("", text, count=_MOST_ESCAPES)


@cache
def _vllm() -> re.Pattern[str]:
    return re.compile(f"{_PROCESSES}{_LEVEL} {_STAMP} {_SOURCE}")


@cache
def _vllm_prefix() -> re.Pattern[str]:
    return re.compile(_PROCESSES)


@cache
def _uvicorn() -> re.Pattern[str]:
    # uvicorn pads "LEVEL:" to ten columns; a sentence that begins "ERROR: " is not its.
    levels = r"INFO(?=:     )|WARNING(?=:  )|ERROR(?=:    )|DEBUG(?=:    )|CRITICAL(?=: )|TRACE(?=:    )"
    return re.compile(rf"{_PROCESSES}(?P<level>{levels}):\s{{1,5}}")


@cache
def _dated() -> re.Pattern[str]:
    return re.compile(r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|[+-]\d\d:?\d\d))?)\]?")


@cache
def _level_word() -> re.Pattern[str]:
    words = "TRACE|DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL|SUCCESS"
    return re.compile(rf"(?<![\w.:-])({words}|{words.lower()})(?![\w.-])")


@cache
def _origin() -> re.Pattern[str]:
    """Where a record of another logger comes from, between its level and its message."""
    return re.compile(
        r"(?:(?: *[\]|:-])+ ?| +)(?:\[?([\w.<>/-]{1,120}:(?:[\w.<>]{1,80}:)?\d{1,7})\]?(?: - | \| |: | ))?"
    )


def is_record(text: str) -> bool:
    """Whether the text is, as it stands, a line of vLLM's or uvicorn's, or one of a traceback."""
    return (
        _vllm().match(text) is not None
        or _uvicorn().match(text) is not None
        or text.startswith(_RAW)
        or own_process(text).pid is not None
    )


def stamp_of(text: str) -> float | None:
    """A record's time, with or without its year."""
    return times.month_day(text) if text[2] == "-" else times.iso(text)


def vllm(text: str) -> Record | None:
    """A record of vLLM's logger at the very beginning of the text."""
    found = _vllm().match(text)
    return _record(found) if found else None


def _record(found: re.Match[str]) -> Record:
    name, pid, level, stamp, source = found.group("name", "pid", "level", "stamp", "source")
    start, end = found.span()
    stamp_s = stamp_of(stamp)
    return Record(found.string[end:], name, int(pid) if pid else None, level, source, stamp_s, start)


def vllm_inside(text: str) -> Record | None:
    """A record of vLLM's logger behind something else."""
    if "] " not in text[:_SEARCHED]:
        return None
    found = _vllm().search(text, 0, _SEARCHED)
    if not found:
        return None
    return _record(found)


def is_own_prefix(before: str) -> bool:
    """Whether what stands before a record belongs to it (VLLM_LOGGING_PREFIX and the like)."""
    return len(before) <= _LONGEST_PREFIX and not is_bar(before)


def uvicorn(text: str) -> Record | None:
    """A record of uvicorn's default formatter."""
    found = _uvicorn().match(text)
    if not found:
        return None
    name, pid, level = found.group("name", "pid", "level")
    return Record(text[found.end() :], name, int(pid) if pid else None, level)


def dated(text: str) -> Record | None:
    """A record of another logger: a date with its year, a level, a message (loguru, FlashInfer)."""
    date = _dated().match(text)
    if not date:
        return None
    head = text[date.end() : date.end() + _HEADER_CHARS]
    level = _level_word().search(head)
    if not level or not _is_header(head[: level.start()], level.group()):
        return None
    origin = _origin().match(head, level.end())
    end = origin.end() if origin else level.end()
    return Record(
        message=text[date.end() + end :],
        level=level_name(level.group()),
        source=origin.group(1) if origin else None,
        stamp_s=times.iso(date.group(1).strip()),
    )


def _is_header(between: str, level: str) -> bool:
    """Whether only names and separators stand between a date and a level, no prose."""
    names = between.replace("[", " ").replace("]", " ").replace("|", " ").replace(" - ", " ").split()
    # "Fatal Python error: ..." is prose: a level in lower case has no names before it.
    return len(names) <= (2 if level.isupper() else 0) and all(
        name.replace(".", "").replace("_", "").replace("-", "").isalnum() for name in names
    )


def level_name(word: str) -> str:
    """Python's name for a level."""
    upper = word.strip().upper()
    return _LEVELS.get(upper, upper)


def own_process(text: str) -> Record:
    """A line that is no logger's record, with its process prefix if it has one."""
    if not text.startswith("("):
        return Record(text)
    found = _vllm_prefix().match(text)
    if not found or not found.end():
        return Record(text)
    pid = found.group("pid")
    return Record(text[found.end() :], found.group("name"), int(pid) if pid else None)


def is_bar(text: str) -> bool:
    """Whether the text looks like a tqdm bar, whose shapes are ``33%|███| 1/3`` and vLLM's own."""
    return "%|" in text or "% Completed |" in text
