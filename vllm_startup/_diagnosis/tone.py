"""How grave a line says that it is."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vllm_startup._log.lines import Line

HARMLESS_LEVELS: Final = frozenset({"TRACE", "DEBUG", "INFO", "WARNING"})

# How other libraries' lines tell their level (uvicorn, torch, absl, loguru, plain logging).
_MILD: Final = frozenset({"INFO", "WARN", "WARNING", "DEBUG", "TRACE", "NOTICE"})


# Data that somebody prints: a configuration, arguments.
_DATA: Final = ("{", "Namespace(", "args: ", "non-default args: ")


# What vLLM says in passing though no start survives it (0.6 to 0.33).
_GRAVE: Final = "No platform detected, vLLM is running on UnspecifiedPlatform"

# A statement that somebody shows.
_STATEMENTS: Final = ("raise ", "assert ", "except ", "logger.")


def is_harmless(line: Line) -> bool:
    """Whether a line says of itself that it is no error."""
    if line.level in HARMLESS_LEVELS:
        return not line.message.startswith(_GRAVE)
    if line.message.lstrip(" ").startswith(_STATEMENTS) or is_retried(line.message):
        return True
    if line.level is not None:
        return False
    head = line.message[:160]
    if head.startswith(_DATA):
        return True
    if "Warning:" in head or head.startswith(("[W", "[I")):
        return True
    if "NCCL WARN" in head:
        return False
    return any(word.strip("[]:-|,") in _MILD for word in head[:80].split()[:6])


def is_farewell(line: Line) -> bool:
    """Whether a harmless line only tells that something is taken down, as after a failure, too."""
    return line.message.startswith(("Shutting down ", "Shutdown ", "[shutdown] "))


@cache
def _attempt() -> re.Pattern[str]:
    return re.compile(r"(?i)\b(?:attempt|try|retry|retrying) \(?(\d{1,4}) ?(?:of|/) ?(\d{1,4})")


def is_retried(text: str) -> bool:
    """Whether a text tells of an attempt after which another one is made."""
    found = _attempt().search(text[:400])
    return found is not None and int(found[1]) < int(found[2])
