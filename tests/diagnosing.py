"""What several tests of the diagnosis need: cases from files, and a log's text to its cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from vllm_startup._diagnosis.diagnosis import Diagnosis
from vllm_startup._log.lines import LineReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_startup.causes import Cause

CASES = Path(__file__).parent / "cases"


@attrs.frozen
class Case:
    """A small log and what is right about it: its first line, as JSON."""

    name: str
    expected: dict[str, Any]
    lines: tuple[str, ...]


def cases() -> list[Case]:
    found = []
    for path in sorted(CASES.glob("*.log")):
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        found.append(Case(path.stem, json.loads(head), tuple(lines)))
    return found


def read(lines: Iterable[str]) -> Diagnosis:
    """A diagnosis that has read the lines and was told that there are no more."""
    diagnosis = Diagnosis()
    feed(diagnosis, lines)
    diagnosis.finish()
    return diagnosis


def feed(diagnosis: Diagnosis, lines: Iterable[str]) -> None:
    reader = LineReader()
    for text in lines:
        for line in reader.read(text):
            diagnosis.feed(line)


def cause_of(lines: Iterable[str]) -> Cause | None:
    return read(lines).verdict(ended=True)
