"""Logs that went through somebody's hands: margins and wrapping."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_startup._log.margins import margin_of
from vllm_startup._log.wrapping import CONTINUED, Wrap, as_written, wrap_of

LINES = [
    "(APIServer pid=1) INFO 11-30 14:28:41 [api_server.py:1896] vLLM API server version 0.11.0",
    "(APIServer pid=1) INFO 11-30 14:28:41 [utils.py:233] non-default args: {'model': '" + "m" * 300 + "'}",
    "",
    "Traceback (most recent call last):",
    '  File "/usr/local/lib/python3.12/dist-packages/vllm/entrypoints/openai/api_server.py", line 1896, in f',
    "    raise ValueError(message)",
    "ValueError: the model is no model that anybody knows, and it says so in a sentence of some length",
]


def written(*batches: list[str]) -> list[str]:
    return [line for batch in as_written(batches) for line in batch]


def cut(lines: list[str], width: int) -> list[str]:
    return [line[at : at + width] for line in lines for at in range(0, max(len(line), 1), width)]


@pytest.mark.parametrize("width", [60, 80, 100, 132])
def test_lines_that_were_cut_at_a_column_are_whole_again(width: int) -> None:
    parts = cut(LINES, width)
    found = written(parts)
    assert [line for line in found if line != CONTINUED] == LINES
    assert len(found) == len(parts)


def test_a_line_that_is_as_long_as_the_column_ends_where_a_record_follows() -> None:
    record = LINES[0]
    exact = ("ValueError: " + "x" * 80)[:80]
    lines = [record, *LINES[1:], exact, record]
    assert [line for line in written(cut(lines, 80)) if line != CONTINUED] == lines


@pytest.mark.parametrize("margin", ["    ", "\t", "  | ", " │ "])
def test_what_stands_before_every_line_is_no_part_of_it(margin: str) -> None:
    assert written([margin + line for line in LINES if line]) == [line for line in LINES if line]


def test_objects_of_json_are_whole_lines() -> None:
    lines = ['{"log": "' + text + '"}' for text in ("a" * 90, "b" * 20, "c" * 90, "d" * 50, "e" * 90, "f")]
    assert written(lines) == lines


def test_a_whole_line_has_the_number_of_its_first_part() -> None:
    parts = cut(LINES, 80)
    assert written(parts).index("Traceback (most recent call last):") == parts.index(
        "Traceback (most recent call last):"
    )


def test_it_goes_on_over_batches() -> None:
    parts = cut(LINES, 80)
    found = written(parts[:6], parts[6:9], parts[9:])
    assert [line for line in found if line != CONTINUED] == LINES


def test_lines_wrapped_between_words_are_whole_again() -> None:
    text = [
        "ValueError: Free memory on device (16.61/23.68 GiB) on startup is less than",
        "desired GPU memory utilization (0.9, 21.31 GiB). Decrease GPU memory",
        "utilization or reduce GPU memory used by other processes that you may have",
        "started before, and that nobody needs any more because their work has been",
        "done by others in the meantime, as it happens every day in a busy workplace",
    ]
    assert written(text)[0] == " ".join(text)


def test_a_log_that_nobody_wrapped_stays_as_it_is() -> None:
    assert written(LINES) == LINES


def test_a_log_that_was_wrapped_before_it_got_prefixes_is_not_joined() -> None:
    parts = [f"vllm-1  | {part}" for part in cut(LINES, 80)]
    assert written(parts) == parts


def test_padding_up_to_the_window_s_edge_is_no_text() -> None:
    assert wrap_of([line.ljust(180) for line in LINES]) is None


@pytest.mark.parametrize(
    "margin", ["    ", "\t", "> ", ">"], ids=["indented", "tab", "quoted", "quoted without a space"]
)
def test_a_margin_is_taken_off(margin: str) -> None:
    assert written([f"{margin}{line}" for line in LINES]) == LINES


@pytest.mark.parametrize("side", ["│", "┃", "║"])
def test_a_window_that_was_drawn_around_it_is_taken_off(side: str) -> None:
    wide = max(map(len, LINES))
    framed = [f"{side} {line.ljust(wide)} {side}" for line in LINES]
    assert written([f"┌ Logs [tail] {'─' * wide}┐", *framed, f"└{'─' * wide}┘"]) == ["", *LINES, ""]
    assert written([f"{side} {line}\r" for line in LINES]) == LINES
    assert written(["no window", *framed]) == ["no window", *framed]


def test_line_numbers_are_taken_off() -> None:
    assert written([f"{n:6d}\t{line}" for n, line in enumerate(LINES, 41)]) == LINES
    assert written([f"{n}:{line}" for n, line in enumerate(LINES, 9)]) == LINES


def test_a_rank_before_every_line_is_no_margin() -> None:
    assert margin_of([f"0: {line}" for line in LINES]) is None


def test_no_log_at_all() -> None:
    assert written() == []
    assert written([]) == []


@given(st.lists(st.lists(st.text(max_size=90), max_size=20), max_size=4))
def test_no_line_is_lost(batches: list[list[str]]) -> None:
    assert len(written(*batches)) == sum(map(len, batches))


def test_a_wrap_says_which_line_goes_on() -> None:
    assert Wrap(width=5, words=False).continues("abcde", "f")
    assert not Wrap(width=5, words=False).continues("abc", "f")


@pytest.mark.parametrize("joint", [" ", "\\n", "\\r\\n"])
def test_a_log_that_lost_its_line_ends_has_them_again(joint: str) -> None:
    lines = [
        *LINES[:2],
        "(EngineCore pid=7) ERROR 11-30 14:28:42 [core.py:9] Traceback (most recent call last):",
        '  File "/a/b.py", line 3, in work',
        "    raise ValueError(text)",
        "ValueError: the model is unknown: try another",
        "(APIServer pid=1) RuntimeError: Engine core initialization failed.",
    ]
    assert written([joint.join(lines)]) == lines


def test_one_line_of_its_own_stays_as_it_is() -> None:
    for line in (LINES[0], LINES[1], '{"msg": "' + "a\\n" * 9 + '"}', "word " * 100):
        assert written([line]) == [line]
        assert written([], [line], []) == [line]


def test_a_log_with_two_lines_keeps_them() -> None:
    long = " ".join(LINES)
    assert written([long], [long]) == [long, long]


@pytest.mark.parametrize(("escape", "end"), [("#033[", "#015"), ("^[[", "^M"), ("^[[", "")])
def test_control_characters_that_were_spelled_out_are_read(escape: str, end: str) -> None:
    assert written([f"{escape}1;36m(EngineCore pid=1){escape}0;0m it runs{end}", f"more{end}"]) == [
        "\x1b[1;36m(EngineCore pid=1)\x1b[0;0m it runs",
        "more",
    ]
