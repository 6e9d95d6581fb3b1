"""What is written where: reports and events to standard output, everything else to standard error.

A reader that goes away (``| head``) is no error and ends no wait.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final, TextIO

from vllm_startup._launching.forwarding import write_all
from vllm_startup._report import AttemptReport, StartupReport
from vllm_startup._text import clean
from vllm_startup.causes import Cause, Evidence

__all__ = [
    "OutputError",
    "cause_lines",
    "clean",
    "cut",
    "end_screen",
    "say",
    "say_json",
    "tell",
    "width_of",
    "wrapped",
]

_WIDTH: Final = 80
_WIDEST: Final = 120  # longer lines are hard to read
_MOST_EVIDENCE: Final = 5
_MOST_ATTEMPTS: Final = 20
_FACTS: Final = (
    ("vllm_version", "vLLM {}"),
    ("model", "{}"),
    ("architecture", "{}"),
    ("tensor_parallel_size", "TP {}"),
    ("data_parallel_size", "DP {}"),
)


class OutputError(Exception):
    """What was asked for cannot be written: a full disk, mostly."""


# --- streams ----------------------------------------------------------------------------------


def say(text: str) -> None:
    """Write a line to standard output."""
    _write(sys.stdout, text)


def say_json(text: str) -> None:
    """Write a line of JSON to standard output, in UTF-8 whatever the locale."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    _write(sys.stdout, text)


def tell(text: str) -> None:
    """Write a line to standard error, if it can be written: what it says is no command's result.

    Nothing is left in a buffer, and the descriptor is left alone: `run` shares it with its command.
    """
    stream = sys.stderr
    if stream is None:
        return
    try:
        stream.flush()
        write_all(stream.fileno(), f"{text}\n".encode(stream.encoding, "backslashreplace"))
    except io.UnsupportedOperation:  # it is no file
        stream.write(f"{text}\n")
    except OSError:
        pass


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:
        return  # closed before we began (>&-)
    try:
        try:
            stream.write(f"{text}\n")
        except UnicodeEncodeError:
            stream.write(f"{text.encode('ascii', 'replace').decode()}\n")
        stream.flush()
    except BrokenPipeError:
        _drop(stream)
    except OSError as error:
        _drop(stream)
        raise OutputError(f"{stream.name} cannot be written: {error.strerror or error}") from error


def _drop(stream: TextIO) -> None:
    """Send whatever else comes nowhere; Python would complain at exit about what it could not flush."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # no file behind the stream


def width_of(stream: TextIO | None) -> int:
    """How many columns to use."""
    if stream is None or not stream.isatty():
        return _WIDTH
    return max(40, min(shutil.get_terminal_size((_WIDTH, 24)).columns, _WIDEST))


# --- a report for people ------------------------------------------------------------------------


def end_screen(report: StartupReport, width: int = _WIDTH, *, warnings: bool = True) -> str:
    """How it ended, why, and what to do: one screen.

    Args:
        report: What was found out.
        width: How many columns there are.
        warnings: Whether to repeat them; a watch has told them already.
    """
    lines = wrapped(_headline(report), width, "", "  ")
    if facts := _facts(report):
        lines += wrapped(facts, width, "  ")
    if report.cause is not None:
        lines += cause_lines(report.cause, width)
    if len(report.attempts) > 1:
        lines += ["", *_attempts(report.attempts, width)]
    if report.phases:
        lines += ["", *(cut(f"  {line}", width) for line in report.timeline().splitlines())]
    if report.outcome == "unfinished" and report.last_progress is not None:
        progress = report.last_progress
        lines += ["", cut(f"  last progress at {progress.at_s:.1f} s: {clean(progress.what)}", width)]
    if warnings and report.warnings:
        lines += ["", *_warnings(report, width)]
    return "\n".join(lines)


def cut(line: str, width: int) -> str:
    """A line that is no longer than ``width``, with a sign where it was cut."""
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _headline(report: StartupReport) -> str:
    if report.outcome == "ready":
        took = report.elapsed_s if report.ready_s is None else report.ready_s
        return f"ready after {took:.1f} s"
    words = {"timed_out": "timed out", "unfinished": "neither ready nor failed"}
    told = words.get(report.outcome, report.outcome)
    kind = f": {report.cause.kind}" if report.cause and report.cause.kind != report.outcome else ""
    return f"{told} in {report.phase} after {report.elapsed_s:.1f} s{kind}"


def _facts(report: StartupReport) -> str:
    told = (form.format(clean(str(report.facts[name]), 120)) for name, form in _FACTS if name in report.facts)
    return " · ".join(told)


def cause_lines(cause: Cause, width: int) -> Iterator[str]:
    """Why it failed, the evidence and what to do, below an empty line."""
    sure = "" if cause.confidence == "certain" else f" ({cause.confidence})"
    yield ""
    yield from wrapped(f"{clean(cause.message)}{sure}", width, "  ")
    if cause.evidence:
        yield ""
    for item in cause.evidence[:_MOST_EVIDENCE]:
        yield from wrapped(f"{_place(item)}{clean(item.text)}", width, "  | ")
    if len(cause.evidence) > _MOST_EVIDENCE:
        yield f"  | … and {len(cause.evidence) - _MOST_EVIDENCE} more"
    if cause.hint:
        yield ""
        yield from wrapped(f"hint: {clean(cause.hint)}", width, "  ", "        ")
    elif cause.retryable:
        yield ""
        yield "  The same start may succeed when it is tried again."


def _place(item: Evidence) -> str:
    line = f"line {item.line}" if item.line is not None else ""
    place = ", ".join(filter(None, (line, clean(item.process) if item.process else "")))
    return f"{place}: " if place else ""


def wrapped(text: str, width: int, first: str, rest: str | None = None) -> list[str]:
    """Text in lines that are not too long, with what stands in front of the first and of the others."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=first if rest is None else rest
    ) or [first.rstrip()]


def _attempts(attempts: tuple[AttemptReport, ...], width: int) -> Iterator[str]:
    shown = attempts[-_MOST_ATTEMPTS:]
    hidden = len(attempts) - len(shown)
    older = f"; {hidden} older ones are left out" if hidden else ""
    yield from wrapped(f"{len(attempts)} attempts, the newest last{older}:", width, "  ")
    for number, attempt in enumerate(shown, start=hidden + 1):
        why = f": {attempt.cause.kind}" if attempt.cause is not None else ""
        text = f"{number:>5}  {attempt.outcome} in {attempt.phase} after {attempt.duration_s:.1f} s{why}"
        yield cut(text, width)


def _warnings(report: StartupReport, width: int) -> Iterable[str]:
    for warning in report.warnings:
        yield from wrapped(f"warning: {clean(warning.text)} ({warning.code})", width, "  ", "    ")
