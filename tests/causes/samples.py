"""For every rule a text that it knows, out of the cases and the tables of texts."""

from __future__ import annotations

from functools import cache

import attrs
from diagnosing import cases
from test_texts import EXCEPTIONS, LINES

from vllm_startup._log.exceptions import RaisedError, parse_exception
from vllm_startup._log.lines import Line, LineReader
from vllm_startup._log.tracebacks import Tracebacks
from vllm_startup.causes import Cause
from vllm_startup.causes._rules import CauseRule, built_in_rules


@attrs.frozen
class Sample:
    """What a rule knows, and the cause that it gives."""

    rule: CauseRule
    text: str
    cause: Cause


def samples() -> list[Sample]:
    """One for each rule that has any."""
    found = (_sample(rule) for rule in built_in_rules())
    return [each for each in found if each is not None]


def _sample(rule: CauseRule) -> Sample | None:
    errors, lines = _texts()
    if rule.where != "line":
        for error in errors:
            cause = rule.match(error.full, error=error)
            if cause is not None:
                return Sample(rule, error.full, cause)
    if rule.where != "error":
        for text in lines:
            cause = rule.match(text, line=Line(text=text, message=text))
            if cause is not None:
                return Sample(rule, text, cause)
    return None


@cache
def _texts() -> tuple[list[RaisedError], list[str]]:
    errors, lines = [_error(text, function) for text, _, _, function in EXCEPTIONS], [row[0] for row in LINES]
    for case in cases():
        tracebacks = Tracebacks()
        lines += [line.message for line in _read(case.lines) if tracebacks.feed(line) == "no"]
        tracebacks.finish()
        errors += (link for chain in tracebacks.take() for link in chain.links)
    return errors, lines


def _read(lines: tuple[str, ...]) -> list[Line]:
    reader = LineReader()
    return [line for text in lines for line in reader.read(text)]


def _error(text: str, function: str) -> RaisedError:
    raised = parse_exception(text, loose=True)
    file, _, name = function.rpartition(":")
    functions = (name,) if name else ()
    location = (f"/a/{file}", name) if file else None
    if raised is None:
        return RaisedError(type="", text=text, functions=functions, location=location)
    return RaisedError(type=raised[0], text=raised[1], functions=functions, location=location)
