"""Foreign text made safe to show: no control characters, no bidirectional tricks, bounded."""

from __future__ import annotations

from functools import cache

# C0 and C1 controls, and the marks that reorder or hide text (UAX #9, zero-width characters).
_HIDDEN = (*range(0x20), *range(0x7F, 0xA0), 0x61C, *range(0x200B, 0x2010), *range(0x2028, 0x202F))
_HIDDEN += (*range(0x2060, 0x2070), 0xFEFF, *range(0xFFF9, 0xFFFC))


@cache
def _table() -> dict[int, str]:
    return {code: " " if code in (0x09, 0x0A, 0x0D) else "�" for code in _HIDDEN}


def clean(text: str, limit: int = 500) -> str:
    """Text from somebody else, for a terminal: one line of at most ``limit`` characters."""
    shown = text[: limit * 2].translate(_table()).strip()
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
