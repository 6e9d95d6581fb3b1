"""Commands on this machine."""

from __future__ import annotations

import sys
import time

import pytest

from vllm_startup.targets import TargetError
from vllm_startup.targets._commands import Completed, LocalCommands


def test_a_command_is_run_to_its_end_without_a_shell() -> None:
    code = "import os, sys; print(os.environ['LC_ALL'], sys.argv[1]); sys.stderr.write('é'); sys.exit(3)"
    done = LocalCommands().run(sys.executable, "-c", code, "$HOME; *")
    assert done == Completed(3, "C.UTF-8 $HOME; *\n", "é")


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(TargetError, match="no-such-program is not installed on this machine"):
        LocalCommands().run("no-such-program")


def test_a_program_that_may_not_be_run_is_named() -> None:
    with pytest.raises(TargetError, match="/etc/passwd cannot be run on this machine: Permission denied"):
        LocalCommands().run("/etc/passwd")


def test_a_command_that_hangs_is_killed() -> None:
    began = time.monotonic()
    with pytest.raises(TargetError, match=r"sleep gave no answer within 0\.2 s"):
        LocalCommands().run("sleep", "30", limit_s=0.2)
    assert time.monotonic() - began < 5


async def test_a_long_command_is_read_while_it_runs() -> None:
    process = await LocalCommands().start("sh", "-c", "echo one; exec sleep 30")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"one\n"
    process.kill()
    assert await process.wait() == -9
