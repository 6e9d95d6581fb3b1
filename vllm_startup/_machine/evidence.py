"""What is shown of foreign text, and causes that carry it."""

from __future__ import annotations

from typing import Final

import attrs

from vllm_startup._redact import redact
from vllm_startup.causes import Cause, Evidence

MAX_EVIDENCE: Final = 500


def clean(text: str) -> str:
    """Foreign text as evidence: secrets and control characters removed, cut."""
    shown = "".join(c if c.isprintable() else " " for c in redact(text[: MAX_EVIDENCE * 2]))
    shown = " ".join(shown.split())
    return shown if len(shown) <= MAX_EVIDENCE else shown[: MAX_EVIDENCE - 1] + "…"


def with_evidence(cause: Cause, text: str, process: str | None, line: int) -> Cause:
    """A cause with a line that it rests on, put before those it has."""
    evidence = Evidence(text=clean(text), process=process, line=line or None)
    return attrs.evolve(cause, evidence=(evidence, *cause.evidence), message=clean(cause.message))
