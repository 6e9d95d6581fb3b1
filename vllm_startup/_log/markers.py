"""What a line of a log says about a start: the table of markers, and how a line is looked up."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

from vllm_startup._log.marker import (
    FACTS,
    FIRST_WINS,
    Fact,
    Marker,
    Means,
    Sighting,
    compiled,
    number,
    whole_number,
)
from vllm_startup._log.markers_engine import ENGINE
from vllm_startup._log.markers_server import SERVER
from vllm_startup._log.markers_startup import STARTUP
from vllm_startup._log.triggers import Triggers
from vllm_startup._roles import data_parallel_index

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_startup._log.lines import Line

__all__ = ["FIRST_WINS", "MARKERS", "Fact", "Marker", "Means", "Sighting", "is_vllm_record", "sight"]

MARKERS: tuple[Marker, ...] = (*STARTUP, *ENGINE, *SERVER)

# Lines that quote the configuration: whatever else stands in them is no event.
_DUMPS = (
    "Initializing a",
    "non-default args: ",
    "args: ",
    "vLLM gRPC server args: ",
    "Launching Rust frontend: ",
)
_START = Means.START  # to look up an enum's member takes 0.2 us in Python 3.11
_REPORTERS = ("systemd", "kernel")
_HIGH_LEVELS = frozenset({"WARNING", "ERROR", "CRITICAL"})
# "[backbone] saved AOT ...": the compiled part's name, 0.32 and newer.
_LONGEST_TAG = 64
# ast.literal_eval of 16 KiB takes a few ms; longer arguments are read key by key.
_LONGEST_LITERAL = 16 * 1024
_ARGUMENTS = (
    "model",
    "served_model_name",
    "host",
    "port",
    "max_model_len",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "gpu_memory_utilization",
    "quantization",
    "dtype",
    "api_server_count",
)

# What vLLM logs while it is imported, in every process: no sign that it configures anything.
_IMPORT_SOURCES = frozenset(
    {"importing.py", "vllm.triton_utils.importing", "interface.py", "vllm.platforms.interface"}
)
_IMPORT_MESSAGES = (
    "Automatically detected platform",
    "No platform detected",
    "Platform plugin ",
    "Triton ",
    "Available plugins for group ",
    "Failed to import from vllm.",
    "AMD Zen CPU detected",
)


@cache
def _triggers() -> Triggers[Marker]:
    return Triggers((marker.literal, marker) for marker in MARKERS)


def sight(line: Line, among: Iterable[Marker] | None = None) -> tuple[Sighting, ...]:
    """The markers that a line holds; most lines hold none.

    Args:
        line: The line, parsed.
        among: The only ones that it may hold, where that is known, in the order of `MARKERS`.
    """
    found = _triggers().find(line.message) if among is None else among
    sightings = []
    for marker in found:
        if _at_its_place(marker, line.message) and _may_say(marker, line):
            groups = _groups(marker, line.message)
            if groups is not None:
                sightings.append(_sighting(marker, line, groups))
    return tuple(sightings)


def _groups(marker: Marker, message: str) -> dict[str, str] | None:
    """What the patterns give; None if the first one does not fit."""
    groups: dict[str, str] = {}
    for index, pattern in enumerate(marker.patterns):
        found = compiled(pattern).search(message)
        if found is None:
            if index == 0:
                return None
            continue
        groups.update({name: text for name, text in found.groupdict().items() if text is not None})
    return groups


def _sighting(marker: Marker, line: Line, groups: dict[str, str]) -> Sighting:
    means = _meaning(marker, line)
    if not groups:
        return Sighting(marker=marker, line=line, means=means)
    done, total, code = groups.get("done"), groups.get("total"), groups.get("exit_code")
    return Sighting(
        marker=marker,
        line=line,
        means=means,
        done=number(done) if done else None,
        total=number(total) if total else None,
        facts=_facts(groups),
        exit_code=whole_number(code) if code else None,
        exit_signal=groups.get("exit_signal"),
    )


def _may_say(marker: Marker, line: Line) -> bool:
    if not marker.any_level and line.level in _HIGH_LEVELS:
        return False
    if marker.speakers is not None:
        return line.process in marker.speakers
    if line.process in _REPORTERS:
        return False
    return marker.roles is None or line.role is None or line.role in marker.roles


def _at_its_place(marker: Marker, message: str) -> bool:
    if not marker.at_start:
        return marker.literal in message and not message.startswith(_DUMPS)
    if message.startswith(marker.literal):
        return True
    if not message.startswith("["):
        return False
    tag, found, rest = message.partition("] ")
    return bool(found) and len(tag) <= _LONGEST_TAG and rest.startswith(marker.literal)


def _meaning(marker: Marker, line: Line) -> Means:
    # Under a DP supervisor every rank has its own API server, which prints its own banner.
    if marker.means is _START and line.process and data_parallel_index(line.process) is not None:
        return Means.ADVANCE
    return marker.means


def _facts(groups: dict[str, str]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    for group, text in groups.items():
        if group == "arguments":
            facts.update(_arguments(text))
        elif group in FACTS:
            name, read = FACTS[group]
            value = read(text)
            if value is not None:
                facts[name] = value
    return facts


def _arguments(text: str) -> dict[str, Fact]:
    """Facts from the repr of the arguments' dict. Only named ones are kept, so no secret is."""
    values = _literal(text) if len(text) <= _LONGEST_LITERAL else None
    if values is None:
        values = dict(_argument().findall(text[:_LONGEST_LITERAL]))
    facts: dict[str, Fact] = {}
    for name in _ARGUMENTS:
        value = values.get(name)
        if isinstance(value, list) and value:
            value = value[0]
        read = FACTS[name][1]
        fact = read(str(value).strip("'\"")) if isinstance(value, str | int | float) else None
        if fact is not None:
            facts[name] = fact
    return facts


def _literal(text: str) -> dict[str, object] | None:
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        # Objects in it have no literal form: "CompilationConfig(...)".
        return None
    return values if isinstance(values, dict) else None


@cache
def _argument() -> re.Pattern[str]:
    return re.compile(r"'(\w{1,40})': ('[^'\n]{0,512}'|[\d.]{1,20})")


def is_vllm_record(line: Line) -> bool:
    """Whether vLLM's logger wrote the line, and not while it was merely imported."""
    source = line.source
    if source is None or line.level is None:
        return False
    file, _, number_ = source.partition(":")
    if not number_.isdigit() and file.partition(".")[0] != "vllm":
        return False
    if file.rpartition("/")[2] in _IMPORT_SOURCES or file in _IMPORT_SOURCES:
        return False
    return not line.message.startswith(_IMPORT_MESSAGES)
