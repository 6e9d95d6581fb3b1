"""The package's values as what JSON knows."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

import attrs

from vllm_startup.causes._base import Cause, Evidence


def to_json(value: Any) -> Any:
    """A value of this package as what JSON knows."""
    if isinstance(value, Cause):
        return cause_to_json(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [to_json(item) for item in value]
    if attrs.has(type(value)):
        return {a.name: to_json(getattr(value, a.name)) for a in attrs.fields(type(value))}
    if value is None or isinstance(value, int | bool):
        return value
    # Names of processes and files may be no UTF-8; Python then keeps lone surrogates.
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON values as text that may be shown: what hides or reorders text, or moves a cursor, is escaped."""
    lines = json.dumps(value, indent=indent, ensure_ascii=False).split("\n")
    return "\n".join(line if line.isprintable() else _escaped(line) for line in lines)


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def cause_to_json(cause: Cause) -> dict[str, Any]:
    """A cause in the form that reports and events give it."""
    return {
        "kind": cause.kind,
        "family": cause.family,
        "message": cause.message,
        "hint": cause.hint,
        "confidence": cause.confidence,
        "retryable": cause.retryable,
        "fields": to_json(cause.fields),
        "evidence": [_evidence_to_json(item) for item in cause.evidence],
    }


def _evidence_to_json(item: Evidence) -> dict[str, Any]:
    return {"text": item.text, "process": item.process, "line": item.line, "attempt": item.attempt}
