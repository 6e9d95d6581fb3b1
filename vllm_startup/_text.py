"""Foreign text made safe to show: no control characters, no bidirectional tricks, bounded."""

from __future__ import annotations


def clean(text: str, limit: int = 500) -> str:
    """Text from somebody else as one line of at most ``limit`` characters, safe for a terminal.

    What Unicode calls unprintable (controls, and the marks that hide or reorder text) becomes space,
    and runs of space become one.
    """
    shown = text[: limit * 2]
    if not shown.isprintable():  # mostly it is: to look at each character takes ten times as long
        shown = "".join(c if c.isprintable() else " " for c in shown)
    shown = " ".join(shown.split())
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def described(value: object) -> str:
    """Somebody else's object in words, also where its ``__repr__`` raises."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - somebody else's code
        return type(value).__name__
