"""Processes by name, for people."""

from __future__ import annotations

from typing import Final

from vllm_startup._redact import redact_command
from vllm_startup._text import clean
from vllm_startup.probes._system import this_system

_MOST_CHARS: Final = 80


def described(pid: int) -> str:
    """``process 4242 (vllm serve Qwen/Qwen3-8B)``, without secrets."""
    try:
        system = this_system()
        stat, words = system.stat(pid), system.arguments(pid)
    except OSError:
        stat, words = None, ()
    said = " ".join(redact_command(words)) or (stat.program if stat is not None else "")
    return f"process {pid} ({clean(said, _MOST_CHARS)})" if said else f"process {pid}"
