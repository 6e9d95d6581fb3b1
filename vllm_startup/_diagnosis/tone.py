"""How grave a line says that it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vllm_startup._log.lines import Line

HARMLESS_LEVELS: Final = frozenset({"TRACE", "DEBUG", "INFO", "WARNING"})

# How other libraries' lines tell their level (uvicorn, torch, absl, loguru, plain logging).
_MILD: Final = frozenset({"INFO", "WARN", "WARNING", "DEBUG", "TRACE", "NOTICE"})


# Data that somebody prints: a configuration, arguments.
_DATA: Final = ("{", "Namespace(", "args: ", "non-default args: ")


def is_harmless(line: Line) -> bool:
    """Whether a line says of itself that it is no error."""
    if line.level is not None:
        return line.level in HARMLESS_LEVELS
    head = line.message[:160]
    if head.startswith(_DATA):
        return True
    if "Warning:" in head or head.startswith(("[W", "[I")):
        return True
    if "NCCL WARN" in head:
        return False
    return any(word.strip("[]:-|,") in _MILD for word in head[:80].split()[:6])
