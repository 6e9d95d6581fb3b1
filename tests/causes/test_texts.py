"""Every rule by a text that it is for, told by an engine that fails.

``exceptions.tsv`` and ``lines.tsv``: kind, fields as JSON, a function of the traceback (or a file
and a function, ``vllm/config/cache.py:_verify``), the text (``\\n`` where a line of it ends).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from diagnosing import cause_of

from vllm_startup.causes import Cause
from vllm_startup.causes._rules import CauseRule, built_in_rules


def rows(name: str) -> list[tuple[str, str, dict[str, Any], str]]:
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    return [
        (text.replace("\\n", "\n"), kind, json.loads(fields), frame)
        for kind, fields, frame, text in (x.split("\t") for x in lines)
    ]


EXCEPTIONS, LINES = rows("exceptions.tsv"), rows("lines.tsv")


def told(text: str, function: str) -> Cause | None:
    prefix = "(EngineCore pid=200) ERROR 11-30 14:29:21 [core.py:1510] "
    lines = [
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        '  File "/a/b.py", line 3, in run',
    ]
    if function:
        file, _, name = function.rpartition(":")
        lines += ["    work()", f'  File "/a/{file or "c.py"}", line 4, in {name}']
    return cause_of([prefix + line for line in (*lines, "    work()", *text.split("\n"))])


def said(text: str, kind: str) -> Cause | None:
    later = {
        "compiler_missing": ["torch._inductor.exc.InductorError: it failed"],
        "gpu_out_of_memory": ["RuntimeError: NCCL error: unhandled cuda error"],
    }
    ending = "(EngineCore pid=200) ERROR 11-30 14:29:21 [core.py:1510] EngineCore failed to start."
    return cause_of([text, ending, *later.get(kind, ())])


def check(cause: Cause | None, kind: str, fields: dict[str, Any]) -> None:
    assert cause is not None
    assert cause.kind == kind
    got = {name: list(value) if isinstance(value, tuple) else value for name, value in cause.fields.items()}
    assert {name: got[name] for name in fields} == fields


@pytest.mark.parametrize(("text", "kind", "fields", "function"), EXCEPTIONS)
def test_an_exception_gives_its_cause(text: str, kind: str, fields: dict[str, Any], function: str) -> None:
    check(told(text, function), kind, fields)


@pytest.mark.parametrize(("text", "kind", "fields", "function"), LINES)
def test_a_line_gives_its_cause(text: str, kind: str, fields: dict[str, Any], function: str) -> None:
    check(said(text, kind), kind, fields)


def test_no_two_rules_are_the_same() -> None:
    def identity(rule: CauseRule) -> tuple[object, ...]:
        return (rule.literal, rule.pattern, rule.frame, rule.where, rule.exceptions)

    seen = [identity(rule) for rule in built_in_rules()]
    assert len(seen) == len(set(seen))
