"""What a marker is: a literal of a log and what it means where a line says it."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_startup._log.lines import Line
    from vllm_startup._phases import Phase
    from vllm_startup._roles import Role

Fact = int | float | str

GIB = 1024**3
# Longer numbers are none; int() of a very long one would be slow.
_LONGEST_NUMBER = 24
_LONGEST_TEXT = 512


class Means(StrEnum):
    """What the machine has to do with a sighting."""

    START = "start"
    """A new start begins, or has just begun."""
    ADVANCE = "advance"
    """The process is in the marker's phase."""
    DIST_INIT = "dist_init"
    """As `ADVANCE`; from here to the first sign of loading, NCCL may spin on the CPU."""
    COMPILE_OR_WARM_UP = "compile_or_warm_up"
    """Compiling, if the engine's `KV_SIZED` is still to come; warming up after it."""
    KV_SIZED = "kv_sized"
    """As `ADVANCE`; the engine knows the size of its KV cache from here on."""
    ENGINE_READY = "engine_ready"
    """The engine core says that it is initialised."""
    SERVER_STARTING = "server_starting"
    """Every engine is up, and the API server prepares to serve."""
    SERVED = "served"
    """The server says that it is up, or has answered a request."""
    HEARTBEAT = "heartbeat"
    """Still alive; said in a healthy slow start and in a hang alike. Never progress."""
    SHUTDOWN = "shutdown"
    """Somebody asked the server to stop, or it is stopping in good order."""
    EXIT = "exit"
    """A supervisor says that the main process has ended."""
    FACT = "fact"
    """Nothing but what it tells."""


@attrs.frozen(kw_only=True)
class Marker:
    """A line of vLLM, or of what runs beside it, and what it means.

    Attributes:
        name: For reports and tests.
        literal: What the message must contain, in vLLM's spelling.
        phase: The phase that the line belongs to; None where it does not tell.
        patterns: The first one must be found in the message, the others may; their named groups
            are facts, or ``done`` and ``total``, or ``exit_code`` and ``exit_signal``.
        progress: What ``done`` and ``total`` count; None for no progress.
        at_start: Whether the message begins with the literal. An optional ``[tag] `` may stand
            before it (0.32).
        any_level: Whether WARNING and above count too.
        roles: The roles that may say it; None for all, and for lines without a prefix.
        speakers: The foreign programs that say it; None for vLLM itself.
        versions: The first and the last vLLM release seen with it, of 0.8.5 to 0.33.0 ("<=" and
            "n/a" as in the sources' history); None for what is no part of vLLM.
    """

    name: str
    literal: str
    means: Means
    phase: Phase | None = None
    patterns: tuple[str, ...] = ()
    progress: str | None = None
    at_start: bool = True
    any_level: bool = False
    roles: frozenset[Role] | None = None
    speakers: frozenset[str] | None = None
    versions: tuple[str, str] | None = None


# Without slots, since one is made for nearly every line of a start: see `Line`.
@attrs.frozen(kw_only=True, slots=False)
class Sighting:
    """A marker seen in a line.

    Attributes:
        means: What it means here; mostly the marker's own.
        done: How much is done, of ``marker.progress``; None where it is not counted.
        total: How much there is in all, in the same unit.
        facts: What the line tells of the server, by the names of the report's ``facts``.
        exit_code: The status of a process that ended; None where the line does not say.
        exit_signal: The name of the signal that ended it, or that asked for the stop, e.g. ``KILL``.
    """

    marker: Marker
    line: Line
    means: Means
    done: float | None = None
    total: float | None = None
    facts: dict[str, Fact] = attrs.field(factory=dict)
    exit_code: int | None = None
    exit_signal: str | None = None

    @property
    def phase(self) -> Phase | None:
        """The marker's phase."""
        return self.marker.phase

    @property
    def progress(self) -> str | None:
        """What moved; None where nothing did."""
        return self.marker.progress


FIRST_WINS = frozenset({"model", "architecture", "max_model_len", "attention_backend"})
"""Facts that a draft model repeats with its own values: the first of a start is the model's."""


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of the table, compiled when it is first needed."""
    return re.compile(pattern)


def whole_number(text: str) -> int | None:
    """``2,097,152`` as a number; None for what is none."""
    digits = text.replace(",", "")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_NUMBER else None


def number(text: str) -> float | None:
    """A decimal number; None for what is none."""
    try:
        return float(text) if len(text) <= _LONGEST_NUMBER else None
    except ValueError:
        return None


def _gib(text: str) -> int | None:
    value = number(text)
    return None if value is None else round(value * GIB)


def harmless(text: str) -> str | None:
    """A name, path or address without the password that a URL may hold."""
    scheme, found, rest = text[:_LONGEST_TEXT].partition("://")
    if found and "@" in rest.partition("/")[0]:
        rest = rest.partition("@")[2]
    return f"{scheme}{found}{rest}" or None


FACTS: dict[str, tuple[str, Callable[[str], Fact | None]]] = {
    "vllm_version": ("vllm_version", harmless),
    "model": ("model", harmless),
    "architecture": ("architecture", harmless),
    "runner": ("runner", harmless),
    "max_model_len": ("max_model_len", whole_number),
    "weights_gib": ("weights_bytes", _gib),
    "filesystem": ("weights_filesystem", harmless),
    "download_s": ("download_s", number),
    "load_s": ("load_s", number),
    "model_gib": ("model_bytes", _gib),
    "kv_cache_tokens": ("kv_cache_tokens", whole_number),
    "kv_cache_gib": ("kv_cache_bytes", _gib),
    "max_concurrency": ("max_concurrency", number),
    "compile_s": ("compile_s", number),
    "graph_capture_s": ("graph_capture_s", number),
    "graph_gib": ("graph_bytes", _gib),
    "engine_init_s": ("engine_init_s", number),
    "world_size": ("world_size", whole_number),
    "tensor_parallel_size": ("tensor_parallel_size", whole_number),
    "pipeline_parallel_size": ("pipeline_parallel_size", whole_number),
    "data_parallel_size": ("data_parallel_size", whole_number),
    "api_server_count": ("api_server_count", whole_number),
    "gpu_memory_utilization": ("gpu_memory_utilization", number),
    "nccl_version": ("nccl_version", harmless),
    "attention_backend": ("attention_backend", harmless),
    "kv_connector": ("kv_connector", harmless),
    "quantization": ("quantization", harmless),
    "dtype": ("dtype", harmless),
    "served_model_name": ("served_model_name", harmless),
    "host": ("host", harmless),
    "port": ("port", whole_number),
    "listen_address": ("listen_address", harmless),
}
"""Named groups of the patterns: the fact that each gives, and how its text is read."""
