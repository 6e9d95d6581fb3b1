"""No line, however long or odd, takes long: each rule and each marker with what could make it slow."""

from __future__ import annotations

import re
import time

import pytest

from vllm_startup._diagnosis.diagnosis import Diagnosis
from vllm_startup._log.lines import LineReader
from vllm_startup._log.markers import MARKERS, sight
from vllm_startup.causes._rules import built_in_rules

LIMIT_S = 0.05
LONGEST = 64 * 1024  # what the splitter lets through of a line
RECORD = "(EngineCore pid=2) ERROR 11-30 14:28:52 [core.py:1] "
FILLERS = (
    *("a", " ", "'", "(", "0", ".", "a.", "a ", "[", "/", "1 ", ": ", "::", "x/", "{", "\\", "|", "_", "a-"),
    *("https://huggingface.co/", "\x1b[0m", "█", "pid=", "(a pid=1) "),
)
LITERALS = sorted({rule.literal for rule in built_in_rules()} | {marker.literal for marker in MARKERS})


def cpu_s(text: str) -> float:
    began = time.process_time()
    diagnosis = Diagnosis()
    for line in LineReader().read(text):
        sight(line)
        diagnosis.feed(line)
    diagnosis.finish()
    diagnosis.verdict(ended=True)
    return time.process_time() - began


def takes_long(text: str, limit_s: float = LIMIT_S) -> bool:
    return cpu_s(text) > limit_s and cpu_s(text) > limit_s  # the first may have compiled patterns


@pytest.mark.parametrize("literal", LITERALS, ids=lambda text: re.sub(r"\W+", "_", text)[:50])
def test_a_hostile_line_takes_no_time(literal: str) -> None:
    for number, filler in enumerate((*FILLERS, literal)):
        long = filler * (LONGEST // len(filler))
        texts = (
            literal + long,
            long[: LONGEST - len(literal)] + literal,
            f"ValueError: {literal}{long}",
            RECORD + long[:3_900] + literal + long,
        )
        assert not takes_long(texts[number % len(texts)][:LONGEST]), filler


@pytest.mark.parametrize("filler", FILLERS, ids=repr)
def test_a_megabyte_in_one_line_takes_no_time(filler: str) -> None:
    long = filler * (1_000_000 // len(filler))
    for text in (long, RECORD + long, f"ValueError: CUDA error {long}"):
        assert not takes_long(text, LIMIT_S * len(text) / LONGEST / 4)  # no line of a file is so long
