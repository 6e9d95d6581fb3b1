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
    data: bytes

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self.data.decode().splitlines())


def every_case() -> list[Case]:
    found = []
    for path in sorted(CASES.glob("*.log")):
        head, _, data = path.read_bytes().partition(b"\n")
        found.append(Case(path.stem, json.loads(head), data))
    return found


def cases() -> list[Case]:
    """The cases that the text of one start decides; the others need the file as a whole."""
    return [case for case in every_case() if not case.expected.get("whole")]


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
