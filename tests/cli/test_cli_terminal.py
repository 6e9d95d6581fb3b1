"""Commands on a terminal: its keys, its size, its job control, and the live block that leaves no trace."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from cli_terminal import Terminal
from cli_tools import BANNER, PYTHON, TELLS, serving, unstamped, words_of


def test_ctrl_c_reaches_the_command_once(terminal: Callable[..., Terminal]) -> None:
    shown = terminal(*words_of("run", "--", *PYTHON, TELLS, "SIGINT SIGTERM"))
    shown.until(b"terminals [True, False, False]\r\n")

    shown.type(b"\x03")
    shown.until(b"SIGINT\r\n")
    time.sleep(0.2)
    shown.type(b"\x03")
    assert shown.until(b"SIGINT\r\n").strip("^C") == ""


@pytest.mark.parametrize("options", [[], ["--tty"], ["--progress"], ["--tty", "--progress"]])
def test_ctrl_z_stops_and_it_goes_on(terminal: Callable[..., Terminal], options: list[str]) -> None:
    shown = terminal(*words_of("run", *options, "--", *PYTHON, TELLS, "SIGCONT SIGTERM SIGINT"))
    shown.until(b"terminals ")

    shown.type(b"\x1a")
    shown.until(b"[stopped by 20, terminal as before]")
    shown.type(b"\n")
    shown.until(b"SIGCONT\r\n")

    shown.type(b"\x03")  # it has the terminal again
    shown.until(b"SIGINT\r\n")


def test_a_terminal_stays_a_terminal(terminal: Callable[..., Terminal]) -> None:
    shown = terminal(*words_of("run", "--tty", "--", *PYTHON, TELLS, "SIGWINCH SIGTERM SIGINT"))
    shown.until(b"terminals [True, True, True]\r\n")
    shown.until(b"size 80 24\r\n")

    shown.resize(100, 30)
    shown.until(b"SIGWINCH\r\n")
    shown.type(b"\x03")
    assert "SIGWINCH" not in shown.until(b"SIGINT\r\n")  # once


def test_keys_reach_a_command_with_a_terminal(terminal: Callable[..., Terminal]) -> None:
    program = "import sys; print('got', input('prompt> ')); sys.exit(5)"
    shown = terminal(*words_of("run", "--tty", "--", sys.executable, "-c", program))
    shown.until(b"prompt> ")
    shown.type(b"hello\r")

    assert shown.until(b"got hello\r\n") == "hello\r\n"  # echoed once
    shown.until(b"[exit 5, terminal as before]")


def test_no_terminal_where_there_is_none() -> None:
    found = subprocess.run(
        words_of("run", "--tty", "--", *PYTHON, "import os; os._exit(10 + os.isatty(1))"),
        stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30,
    )  # fmt: skip

    assert found.returncode == 10


def test_output_scrolls_above_the_block_and_nothing_of_it_is_left(terminal: Callable[..., Terminal]) -> None:
    pyte = pytest.importorskip("pyte")
    shown = terminal(
        *words_of("run", "--progress", "--timeout", "configuring=1", "--", *serving([BANNER, "bar: 10%"]))
    )
    written = shown.until(b"[exit 124, terminal as before]")
    screen = pyte.Screen(80, 24)
    stream = pyte.Stream(screen)
    before, _, after = written.partition("vllm-startup: timed out")

    stream.feed(before)
    lines = [line.rstrip() for line in screen.display]
    assert "reading its configuration" in written  # it was there
    assert unstamped("".join(lines[:2])) == unstamped(BANNER)
    assert [line for line in lines[2:] if line and not line.startswith((" ", "vllm-startup: "))] == [
        "bar: 10%"
    ]
    assert "\x1b" not in after


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"CI": "1"}])
def test_no_block_where_it_would_disturb(terminal: Callable[..., Terminal], environ: dict[str, str]) -> None:
    shown = terminal(*words_of("run", "--progress", "--", *PYTHON, "import os; os._exit(5)"), **environ)

    assert "\x1b" not in shown.until(b"[exit 5")


WATCHING = [("demo", "--speed", "0.5"), ("wait", "--pid", str(os.getpid()))]
IN_FRONT = ("run", "--progress", "--", *PYTHON, "import time; time.sleep(60)")


@pytest.mark.parametrize("command", [*WATCHING, IN_FRONT], ids=lambda command: command[0])
def test_nothing_of_the_block_is_left_when_it_is_stopped_or_interrupted(
    command: tuple[str, ...], terminal: Callable[..., Terminal]
) -> None:
    shown = terminal(*words_of(*command), NO_COLOR="1")
    shown.until(b"last progress")
    assert "[launch] config engines" in shown.screen()

    shown.type(b"\x1a")
    shown.until(b"[stopped by 20, terminal as before]")
    assert "config engines" not in shown.screen()

    shown.type(b"\n")
    shown.until(b"last progress")  # it is there again
    shown.type(b"\x03")
    shown.until(b"[exit 130, terminal as before]")
    assert "config engines" not in shown.screen()


@pytest.mark.parametrize("command", WATCHING, ids=lambda command: command[0])
def test_an_interruption_is_told_on_a_line_of_its_own(
    command: tuple[str, ...], terminal: Callable[..., Terminal]
) -> None:
    shown = terminal(*words_of(*command))
    shown.until(b"last progress")
    shown.type(b"\x03")
    shown.until(b"[exit 130, terminal as before]")

    lines = shown.screen().splitlines()
    assert "^C" in lines
    assert "interrupted by SIGINT" in lines
