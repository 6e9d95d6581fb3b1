from __future__ import annotations

import io
import os
import pty
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

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
from vllm_startup._cli._progress import (
    HEARTBEAT_S,
    LiveProgress,
    PlainProgress,
    SilentProgress,
    lines_of,
    progress_for,
)
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
        "phase_s": 20.0,
        "reached": (Phase.LAUNCHING, Phase.LOADING_WEIGHTS),
        "moved": "checkpoint shards",
        "counter": None,
        "cores": 0.0,
        "read_bytes": 0,
        "read_bytes_per_s": 0.0,
        "gpus": (),
        "suspect": None,
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


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, Callable[[], str]]]:
    """A stream that is a terminal, and what was written to it."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        yield stream, lambda: os.read(ours, 65536).decode()
    os.close(ours)


def test_the_display_suits_the_stream(terminal: tuple[TextIO, Callable[[], str]]) -> None:
    stream, _ = terminal

    assert isinstance(progress_for(stream, {"TERM": "xterm"}), LiveProgress)
    assert isinstance(progress_for(stream, {"TERM": "dumb"}), PlainProgress)
    assert isinstance(progress_for(stream, {}), PlainProgress)
    assert isinstance(progress_for(stream, {"TERM": "xterm", "CI": "1"}), PlainProgress)
    assert isinstance(progress_for(io.StringIO(), {"TERM": "xterm"}), PlainProgress)
    assert isinstance(progress_for(None, {}), PlainProgress)


def test_the_live_display_shows_how_it_stands(terminal: tuple[TextIO, Callable[[], str]]) -> None:
    stream, written = terminal
    live = progress_for(stream, {"TERM": "xterm", "NO_COLOR": "1"})
    live.begin("waiting")
    live.status(status())
    shown = written()
    live.close()
    live.status(status(moved="too late"))
    live.resume()
    live.close()

    assert "[weights]" in shown
    assert "stalled if nothing moves in 9:56" in shown
    assert "waiting" not in shown
    assert "too late" not in written()


def test_warnings_stay_above_the_live_block_and_phases_do_not(
    terminal: tuple[TextIO, Callable[[], str]],
) -> None:
    stream, written = terminal
    live = progress_for(stream, {"TERM": "xterm"})
    live.event(phase("Starting"))
    live.event(Warned(**AT, code="x", text="look here"))
    live.status(status())
    shown = written()
    live.close()

    assert shown.index("warning: look here") < shown.index("last progress")
    assert "Starting" not in shown


def test_output_that_goes_elsewhere_leaves_the_block_alone(
    terminal: tuple[TextIO, Callable[[], str]], tmp_path: Path
) -> None:
    stream, written = terminal
    live = progress_for(stream, {"TERM": "xterm"})
    live.status(status())
    written()
    with (tmp_path / "out").open("wb") as file:
        live.pass_on(file.fileno(), b"line\n")
        live.status(status())

    assert (tmp_path / "out").read_bytes() == b"line\n"
    assert "line" not in written()


def test_a_line_of_ours_begins_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    shown = PlainProgress(lambda line: print(line, file=sys.stderr, flush=True), 80, prefix="us: ")
    shown.begin("starting")
    shown.pass_on(2, b"bar: 10%")
    shown.say("warning")
    shown.pass_on(2, b"\rbar: 20%\n")
    shown.say("done")
    shown.pass_on(1, b"elsewhere")
    shown.say("still")

    assert capfd.readouterr().err == "us: starting\nbar: 10%\nus: warning\n\rbar: 20%\nus: done\nus: still\n"


def test_a_silent_display_says_only_what_it_is_told_to(capfd: pytest.CaptureFixture[str]) -> None:
    silent = SilentProgress(prefix="us: ")
    silent.begin("starting")
    silent.event(phase("Starting"))
    silent.status(status())
    silent.pause()
    silent.resume()
    silent.pass_on(1, b"output\n")
    silent.say("stalled")
    silent.close()

    assert capfd.readouterr() == ("output\n", "us: stalled\n")
