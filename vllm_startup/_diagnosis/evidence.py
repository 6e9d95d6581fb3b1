"""What is shown of foreign text, and causes that carry it."""

from __future__ import annotations

from functools import lru_cache

import attrs

from vllm_startup._redact import redact
from vllm_startup._text import clean as text_clean
from vllm_startup.causes import Cause, Evidence

MOST = 1000
"""Characters of a text that are looked at at all."""


def clean(text: str) -> str:
    """Foreign text as evidence: secrets and control characters removed, cut."""
    return _clean(text[:MOST])


@lru_cache(maxsize=256)  # what a line says is kept in several places
def _clean(text: str) -> str:
    return text_clean(redact(text))


def with_evidence(cause: Cause, text: str, process: str | None, line: int) -> Cause:
    """A cause with a line that it rests on, put before those it has."""
    evidence = Evidence(text=clean(text), process=process, line=line or None)
    return attrs.evolve(cause, evidence=(evidence, *cause.evidence), message=clean(cause.message))


def at_most_likely(cause: Cause) -> Cause:
    """A cause whose words do not prove it: not more than ``likely``."""
    return attrs.evolve(cause, confidence="likely") if cause.confidence == "certain" else cause
