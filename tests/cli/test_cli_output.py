from __future__ import annotations

import io
from typing import Any

import attrs
import pytest
from cli_tools import FAILED, UP

from vllm_startup import StartupReport, causes
from vllm_startup import _report as r
from vllm_startup._cli._output import end_screen, width_of
from vllm_startup._diagnosing import diagnose

READY = diagnose(UP)
BROKEN = diagnose([*UP[:3], *FAILED])


def changed(report: StartupReport, **values: Any) -> StartupReport:
    return attrs.evolve(report, **values)


def test_a_ready_server_takes_a_few_lines() -> None:
    assert end_screen(READY).splitlines()[:2] == ["ready after 16.0 s", "  vLLM 0.32 · /models/tiny"]
    assert len(end_screen(READY).splitlines()) == 3 + len(READY.phases)


@pytest.mark.parametrize(
    ("values", "headline"),
    [
        ({"outcome": "failed"}, "failed in loading_weights after 36.0 s: no_kv_cache_memory"),
        ({"outcome": "timed_out"}, "timed out in loading_weights after 36.0 s: no_kv_cache_memory"),
        (
            {"outcome": "timed_out", "cause": causes.TimedOut(message="not ready")},
            "timed out in loading_weights after 36.0 s",
        ),
        (
            {"outcome": "stalled", "cause": causes.Stalled(message="nothing moves")},
            "stalled in loading_weights after 36.0 s",
        ),
        (
            {"outcome": "unfinished", "cause": None},
            "neither ready nor failed in loading_weights after 36.0 s",
        ),
    ],
)
def test_the_headline(values: dict[str, Any], headline: str) -> None:
    assert end_screen(changed(BROKEN, **values)).splitlines()[0] == headline


@pytest.mark.parametrize("width", [40, 80, 120])
def test_nothing_is_wider_than_the_screen(width: int) -> None:
    evidence = tuple(
        causes.Evidence(text=f"{n} " + "word " * 60, process="Worker_TP0", line=n) for n in range(1, 9)
    )
    cause = causes.Stalled(message="m " * 80, hint="h " * 80, evidence=evidence, confidence="likely")
    warnings = (r.WarningReport(code="odd", text="w " * 80),)
    screen = end_screen(changed(BROKEN, cause=cause, attempts=BROKEN.attempts * 30, warnings=warnings), width)

    assert max(map(len, screen.splitlines())) <= width
    assert "… and 3 more" in screen
    assert "30 attempts, the newest last; 10 older ones" in " ".join(screen.split())
    assert "(likely)" in screen
    assert "hint: h" in screen
    assert "warning: w" in screen


def test_a_line_that_is_cut_says_so() -> None:
    narrow, wide = (
        [line for line in end_screen(READY, width).splitlines() if "loading_weights" in line]
        for width in (50, 200)
    )
    assert wide == [
        "      16.0 s  loading_weights          0.0 s  log: Starting to load model /models/tiny..."
    ]
    assert narrow == [f"{wide[0][:49]}…"]


def test_warnings_that_were_told_are_not_repeated() -> None:
    warned = changed(READY, warnings=(r.WarningReport(code="odd", text="look"),))

    assert "look" in end_screen(warned)
    assert "look" not in end_screen(warned, warnings=False)


def test_a_start_that_may_succeed_next_time_is_said_so() -> None:
    cause = causes.ProcessKilled(message="killed", retryable=True)

    assert "may succeed when it is tried again" in end_screen(changed(BROKEN, cause=cause))


def test_foreign_text_is_cleaned() -> None:
    nasty = "\x1b]0;owned\x07\u202e\x9b31m"
    cause = causes.UnclassifiedError(
        message=nasty, hint=nasty, evidence=(causes.Evidence(text=nasty, process=nasty),)
    )
    screen = end_screen(
        changed(
            BROKEN, cause=cause, facts={"model": nasty}, warnings=(r.WarningReport(code="x", text=nasty),)
        )
    )

    assert not {"\x1b", "\x07", "\u202e", "\x9b"} & set(screen)


def test_eighty_columns_where_nobody_looks() -> None:
    assert width_of(io.StringIO()) == 80
    assert width_of(None) == 80


def test_the_terminals_width_within_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for columns, used in (("20", 40), ("100", 100), ("300", 120)):
        monkeypatch.setenv("COLUMNS", columns)
        assert width_of(Terminal()) == used
