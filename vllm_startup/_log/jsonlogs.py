"""Log lines that are JSON objects, whoever wrote them.

Seen: vLLM's own formatter (0.32: ``asctime levelname name processName process message``), what
users write into a ``dictConfig``, loguru's ``serialize``, the journal (``-o json``), Docker's
json-file driver and log collectors.
"""

from __future__ import annotations

import json

import attrs

from vllm_startup._log import records, times

_MESSAGE = ("message", "msg", "event", "MESSAGE", "log", "textPayload", "text")
_LEVEL = ("levelname", "level", "severity", "levelName", "log_level", "lvl")
_TIME = ("__REALTIME_TIMESTAMP", "asctime", "time", "timestamp", "@timestamp", "ts", "created", "datetime")
_PROCESS = ("vllm_process_name", "process_name", "processName", "process")
_PID = ("process", "pid", "process_id", "processId")
_FILE = ("filename", "file", "pathname")
_LINE = ("lineno", "line", "line_number")
_TRACEBACK = ("exc_info", "exc_text", "exception", "traceback", "stack", "stack_info")


@attrs.frozen(kw_only=True)
class JsonRecord:
    """What one JSON line says."""

    lines: tuple[str, ...]
    level: str | None
    source: str | None
    process: str | None
    pid: int | None
    stamp_s: float | None
    outer_pid: int | None


def parse(text: str) -> JsonRecord | None:
    """The record in a line that is a JSON object with a message; None for all others."""
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    inner = found.get("record")
    fields: dict[str, object] = inner if isinstance(inner, dict) else found
    message = _message(fields)
    if message is None:
        return None
    return JsonRecord(
        lines=_lines(message, fields),
        level=_level(fields),
        source=_source(fields),
        process=_process(fields),
        pid=_pid(fields),
        stamp_s=_stamp(fields),
        outer_pid=_integer(fields.get("_PID")),
    )


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(item, int) and 0 <= item < 256 for item in value):
        # The journal writes what is not clean UTF-8 as an array of bytes.
        return bytes(value).decode("utf-8", "replace")
    return None


def _first(fields: dict[str, object], names: tuple[str, ...]) -> object:
    return next((fields[name] for name in names if fields.get(name) not in (None, "")), None)


def _message(fields: dict[str, object]) -> str | None:
    for name in _MESSAGE:
        text = _text(fields.get(name))
        if text is not None:
            return text
    return None


def _lines(message: str, fields: dict[str, object]) -> tuple[str, ...]:
    lines = message.rstrip("\n").split("\n")
    for name in _TRACEBACK:
        traceback = fields.get(name)
        if isinstance(traceback, str) and traceback.strip() and traceback not in message:
            lines += traceback.rstrip("\n").split("\n")
    return tuple(records.plain(line.rstrip("\r")) for line in lines)


def _level(fields: dict[str, object]) -> str | None:
    level = _first(fields, _LEVEL)
    if isinstance(level, dict):
        level = level.get("name")
    return records.level_name(level) if isinstance(level, str) and level.isalpha() else None


def _source(fields: dict[str, object]) -> str | None:
    file = _first(fields, _FILE)
    if isinstance(file, dict):
        file = file.get("name")
    line = _first(fields, _LINE)
    if isinstance(file, str) and isinstance(line, int):
        return f"{file.rpartition('/')[2]}:{line}"
    name = fields.get("name") or fields.get("logger")
    return name if isinstance(name, str) else None


def _process(fields: dict[str, object]) -> str | None:
    for name in _PROCESS:
        value = fields.get(name)
        if isinstance(value, dict):
            value = value.get("name")
        if isinstance(value, str) and value and not value.isdigit():
            return value
    identifier = fields.get("SYSLOG_IDENTIFIER")
    return identifier if isinstance(identifier, str) and identifier in {"systemd", "kernel"} else None


def _pid(fields: dict[str, object]) -> int | None:
    for name in _PID:
        value = fields.get(name)
        if isinstance(value, dict):
            value = value.get("id")
        number = _integer(value)
        if number is not None:
            return number
    return None


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return (
        int(value)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20
        else None
    )


def _stamp(fields: dict[str, object]) -> float | None:
    value = _first(fields, _TIME)
    if isinstance(value, dict):
        value = value.get("timestamp")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return times.epoch(value)
    if not isinstance(value, str) or len(value) > 64:
        return None
    if value.replace(".", "", 1).isdigit() and value.isascii():
        return times.epoch(float(value))
    return times.iso(value) or (times.month_day(value) if value[2:3] == "-" else None)
