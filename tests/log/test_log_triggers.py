from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_startup._log.triggers import Triggers, searchable

LITERALS = (
    "Starting to load model ",
    "Loading weights took ",
    "world_size=",
    "unrecognized argument",
    "OOMKilled",
    "Error: ",
    "*** SIG",
    "GPU blocks: ",
)


def in_journal(text: str) -> str:
    """How the journal writes a message that is not clean UTF-8."""
    return json.dumps({"MESSAGE": list(text.encode()), "PRIORITY": "6"}, separators=(",", ":"))


@pytest.fixture(scope="module")
def triggers() -> Triggers[str]:
    return Triggers((literal, literal) for literal in LITERALS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Starting to load model m...", ["Starting to load model "]),
        (
            "(A pid=1) INFO 11-30 14:06:44 [a.py:1] Loading weights took 0.00 seconds",
            ["Loading weights took "],
        ),
        ("world_size=1 rank=0", ["world_size="]),
        ("vllm: error: unrecognized arguments: --x", ["unrecognized argument"]),
        ("reason: OOMKilled", ["OOMKilled"]),
        ("ValueError: no", ["Error: "]),
        ("*** SIGSEGV received", ["*** SIG"]),
        ("# GPU blocks: 12", ["GPU blocks: "]),
        ("Error: world_size=1 OOMKilled", ["world_size=", "OOMKilled", "Error: "]),
        ("loading weights took ", []),
        ("local_world_size=1", []),
        ("NotOOMKilled", []),
        ("", []),
    ],
)
def test_literals_are_found_by_their_words(triggers: Triggers[str], text: str, found: list[str]) -> None:
    assert triggers.find(text) == found
    assert triggers.may_hold(text) is bool(found)


def test_a_literal_given_as_anywhere_is_found_inside_words() -> None:
    triggers = Triggers([("OOM", 1), ("rank", 2)], anywhere=["OOM"])
    assert triggers.find("VLLM_OOMKilled ranks") == [1]


def test_a_literal_without_an_ascii_word_is_found_too() -> None:
    assert Triggers([("失败", 1)]).find("模型加载失败了") == [1]


def test_one_literal_may_have_several_payloads() -> None:
    assert Triggers([("took ", "a"), ("took ", "b")]).find("it took 3 s") == ["a", "b"]


def test_an_empty_literal_is_refused() -> None:
    with pytest.raises(ValueError, match="literal must not be empty"):
        Triggers([("", 1)])


def test_no_literals_hold_nowhere() -> None:
    assert not Triggers[int]([]).may_hold("anything")


WORDS = st.sampled_from(
    ["Loading", "weights", "took", "Error:", "rank0", "x=1", "(a", "b)", "█", "GPU", "size:"]
)


@given(
    st.lists(WORDS, max_size=12), st.lists(st.lists(WORDS, min_size=1, max_size=3), min_size=1, max_size=6)
)
def test_what_is_found_is_what_stands_at_the_start_of_a_word(
    line: list[str], phrases: list[list[str]]
) -> None:
    literals = list(dict.fromkeys(" ".join(phrase) + " " for phrase in phrases))
    text = " ".join(line) + " "
    expected = [literal for literal in literals if f" {literal}" in f" {text}"]
    assert Triggers((literal, literal) for literal in literals).find(text) == expected


def test_the_order_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "from vllm_startup._log.triggers import Triggers\n"
        "names = [f'literal{i} x' for i in range(50)]\n"
        "print(Triggers((n, n) for n in names).find(' '.join(reversed(names))) == names)"
    )
    for seed in ("1", "2", "3"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "True\n"


@pytest.mark.parametrize(
    "text",
    [
        "Starting to load model m...",
        "\x1b[1mStarting to load model\x1b[0m m...",
        r'{"message": "loaded\nStarting to load model m..."}',
        r'{"message": "\u001b[1mStarting to load model m..."}',
        in_journal("Starting to load model m..."),
        in_journal(r'{"log": "loaded\nStarting to load model m..."}'),
    ],
    ids=["plain", "coloured", "JSON newline", "JSON colour", "journal bytes", "JSON in journal bytes"],
)
def test_what_a_raw_line_holds_once_it_is_parsed_is_found_before(text: str) -> None:
    assert Triggers([("Starting to load model ", 1)]).find(searchable(text)) == [1]


@pytest.mark.parametrize(
    "text",
    [
        r'{"log": "INFO 11-30 14:28:41 [api_utils.py:347]  \u2588  version 0.32.0"}',
        '{"log": "INFO 11-30 14:28:41 [api_utils.py:347]  █  version 0.32.0"}',
    ],
    ids=["escaped", "as it is"],
)
def test_letters_beyond_ascii_are_found_however_json_writes_them(text: str) -> None:
    assert Triggers([("█  version ", 1)]).find(searchable(text)) == [1]


@pytest.mark.parametrize("numbers", ["[]", "[300]", "[a]", "[[40]]", ""])
def test_numbers_that_are_no_bytes_say_nothing(numbers: str) -> None:
    text = f'{{"MESSAGE":{numbers}'
    assert searchable(text).strip() == text
