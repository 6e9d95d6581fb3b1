from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from vllm_startup import (
    AttemptEnded,
    AttemptStarted,
    CauseFound,
    Ended,
    Event,
    Phase,
    PhaseEntered,
    ProbeBroke,
    ProbeRecovered,
    ProgressSeen,
    Status,
    TierReached,
    Warned,
    causes,
)
from vllm_startup._cli._progress import HEARTBEAT_S, LiveProgress, PlainProgress, lines_of, progress_for
from vllm_startup._events import Because

AT: dict[str, Any] = {"at": 0.0, "elapsed_s": 62.04}
CAUSE = causes.ProcessKilled(message="EngineCore was ended by SIGKILL", signal=9)


def phase(text: str) -> PhaseEntered:
    return PhaseEntered(**AT, phase=Phase.LOADING_WEIGHTS, because=Because(probe="log", text=text, at_s=62.0))


def status(**changes: Any) -> Status:
    values: dict[str, Any] = {
        "phase": Phase.LOADING_WEIGHTS,
        "outcome": None,
        "elapsed_s": 62.0,
        "quiet_s": 4.0,
        "cause": None,
        "limit": "stall",
        "limit_in_s": 596.0,
        "summary": "loading weights, shard 41 of 67, last progress 4 s ago",
    }
    return Status(**{**values, **changes})


class Tape:
    """A clock that is moved by hand, and what was written."""

    def __init__(self) -> None:
        self.at = 0.0
        self.lines: list[str] = []

    def plain(self, width: int = 80) -> PlainProgress:
        return PlainProgress(self.lines.append, width, lambda: self.at)


@pytest.mark.parametrize(
    ("event", "lines"),
    [
        (phase("Starting to load"), ["    62.0 s  loading_weights      log: Starting to load"]),
        (Warned(**AT, code="x", text="careful"), ["    62.0 s  warning: careful"]),
        (ProbeBroke(**AT, probe="gpu", error="gone"), ["    62.0 s  probe gpu does not work: gone"]),
        (ProbeRecovered(**AT, probe="gpu"), ["    62.0 s  probe gpu works again"]),
        (TierReached(**AT, tier="health"), ["    62.0 s  tier health reached"]),
        (CauseFound(**AT, cause=CAUSE), ["    62.0 s  process_killed: EngineCore was ended by SIGKILL"]),
        (AttemptStarted(**AT, attempt=1), []),
        (AttemptStarted(**AT, attempt=2), ["    62.0 s  attempt 2 begins"]),
        (
            AttemptEnded(**AT, attempt=1, outcome="failed", cause=CAUSE),
            ["    62.0 s  attempt 1 ended: failed, process_killed"],
        ),
        (AttemptEnded(**AT, attempt=1, outcome="unfinished"), ["    62.0 s  attempt 1 ended: unfinished"]),
        (ProgressSeen(**AT, phase=Phase.COMPILING, what="graphs", done=1), []),
        (Ended(**AT, outcome="ready"), []),
    ],
    ids=lambda value: value.event if isinstance(value, Event) else "",
)
def test_an_event_as_lines(event: Event, lines: list[str]) -> None:
    assert lines_of(event, 80) == lines


def test_evidence_is_cut_and_warnings_are_wrapped() -> None:
    (line,) = lines_of(phase("x" * 200), 60)
    wrapped = lines_of(Warned(**AT, code="x", text="word " * 30), 60)

    assert (len(line), line[-1]) == (60, "…")
    assert len(wrapped) > 2
    assert all(len(line) <= 60 for line in wrapped)
    assert " ".join(" ".join(wrapped).split()).count("word") == 30


def test_foreign_text_is_cleaned() -> None:
    (line,) = lines_of(phase("\x1b[31mred\r\n\u202eevil [bold]markup[/]"), 120)

    assert "\x1b" not in line
    assert "\u202e" not in line
    assert line.endswith("evil [bold]markup[/]")


def test_a_sign_of_life_when_nothing_was_written_for_long() -> None:
    tape = Tape()
    shown = tape.plain()
    shown.begin("waiting for http://127.0.0.1:8000 until health")

    for second in range(int(HEARTBEAT_S) * 2 + 1):
        tape.at = float(second)
        shown.status(status(elapsed_s=float(second)))

    assert tape.lines == [
        "waiting for http://127.0.0.1:8000 until health",
        "    30.0 s  loading weights, shard 41 of 67, last progress 4 s ago",
        "    60.0 s  loading weights, shard 41 of 67, last progress 4 s ago",
    ]


def test_no_sign_of_life_soon_after_a_line_or_after_the_end() -> None:
    tape = Tape()
    shown = tape.plain()
    tape.at = HEARTBEAT_S - 1
    shown.event(phase("Starting"))
    tape.at = HEARTBEAT_S
    shown.status(status())
    tape.at = 10 * HEARTBEAT_S
    shown.status(status(outcome="ready"))
    shown.close()

    assert len(tape.lines) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_display_suits_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    live = progress_for(terminal, {"TERM": "xterm"})
    live.close()

    assert isinstance(live, LiveProgress)
    assert isinstance(progress_for(terminal, {"TERM": "dumb"}), PlainProgress)
    assert isinstance(progress_for(terminal, {"TERM": "xterm", "CI": "1"}), PlainProgress)
    assert isinstance(progress_for(io.StringIO(), {"TERM": "xterm"}), PlainProgress)
    assert isinstance(progress_for(None, {}), PlainProgress)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert isinstance(progress_for(terminal, {"TERM": "xterm"}), PlainProgress)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "stalled if nothing moves in 9:56"),
        ({"limit": "total", "limit_in_s": 4000.4}, "limit in 1:06:40"),
        ({"limit": "compiling", "limit_in_s": 59.6}, "limit of compiling in 1:00"),
    ],
)
def test_the_live_line_names_the_limit_that_fires_next(changes: dict[str, Any], said: str) -> None:
    terminal = Terminal()
    live = progress_for(terminal, {"TERM": "xterm"})
    live.begin("waiting")
    live.status(status(**changes))
    live.close()
    live.status(status(summary="too late"))
    live.close()

    written = terminal.getvalue()
    assert "loading weights, shard 41 of 67, last progress 4 s ago" in written
    assert said in written
    assert "waiting" not in written
    assert "too late" not in written


def test_warnings_stay_above_the_live_line_and_phases_do_not() -> None:
    terminal = Terminal()
    live = progress_for(terminal, {"TERM": "xterm"})
    live.status(status(limit=None, limit_in_s=None))
    live.event(phase("Starting"))
    live.event(Warned(**AT, code="x", text="look [red]here[/]"))
    live.close()

    assert "warning: look [red]here[/]" in terminal.getvalue()
    assert "Starting" not in terminal.getvalue()
