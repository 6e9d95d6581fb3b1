"""The cause in one line, where ``kubectl describe pod`` shows it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from vllm_startup._report import StartupReport
from vllm_startup._text import clean
from vllm_startup.causes._base import Cause

DEFAULT: Final = "/dev/termination-log"
"""Where Kubernetes looks unless ``terminationMessagePath`` says otherwise."""

_MOST_CHARACTERS: Final = 1000
"""Kubernetes takes 4,096 bytes of it, and UTF-8 has up to 4 a character."""


def default_path() -> str | None:
    """The file that Kubernetes has mounted; None where there is none."""
    return DEFAULT if Path(DEFAULT).is_file() else None


def message(report: StartupReport) -> str:
    """What is written for a start that was not ready."""
    if report.cause is None:
        return f"{report.outcome} in phase {report.phase}"
    return cause_message(report.cause)


def cause_message(cause: Cause) -> str:
    """A cause in one line."""
    hint = f" Hint: {cause.hint}" if cause.hint else ""
    return clean(f"{cause.kind}: {cause.message}{hint}", _MOST_CHARACTERS)


def write(path: str, text: str) -> None:
    """Write a line in place, or nothing: the file is a mount of its own and cannot be replaced.

    Raises:
        OSError: It cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{text}\n" if text else "")
