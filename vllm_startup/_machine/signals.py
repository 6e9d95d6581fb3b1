"""Signals by number and by name, as Linux has them (signal(7)); the core asks no operating system."""

from __future__ import annotations

_NAMES = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE"}
_NAMES |= {5: "SIGTRAP", 9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE"}
_NAMES |= {14: "SIGALRM", 15: "SIGTERM", 16: "SIGSTKFLT", 24: "SIGXCPU", 25: "SIGXFSZ", 26: "SIGVTALRM"}
_NAMES |= {27: "SIGPROF", 29: "SIGIO", 30: "SIGPWR", 31: "SIGSYS"}

SIGKILL = 9

STOPS = frozenset({1, 2, 15})
"""What asks a process to end: HUP, INT, TERM."""

CRASHES = frozenset({4, 6, 7, 8, 11})
"""What a fault in native code raises: ILL, ABRT, BUS, FPE, SEGV."""


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 42`` where there is no common name."""
    return _NAMES.get(number, f"signal {number}")


def signal_number(text: str | None) -> int | None:
    """9 for ``9``, ``KILL`` and ``SIGKILL``; None for what is no signal known here."""
    if text is None:
        return None
    if text.isdigit():
        return int(text)
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    return next((number for number, known in _NAMES.items() if known == name), None)
