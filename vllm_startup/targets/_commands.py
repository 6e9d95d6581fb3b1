"""Commands that are run where a target is: on this machine, or on one that is reached from it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from asyncio.subprocess import Process
from typing import Final, NamedTuple, Protocol

from vllm_startup.targets._target import TargetError

# What a program prints is parsed, so that it has to be English.
_LOCALE: Final = {"LC_ALL": "C.UTF-8"}


class Completed(NamedTuple):
    """A command that has ended.

    Attributes:
        code: Its exit status; negative for the signal that ended it.
    """

    code: int
    stdout: str
    stderr: str


class Commands(Protocol):
    """Runs commands where a target is."""

    @property
    def where(self) -> str:
        """The machine, for people: ``this machine``, ``root@gpubox``."""
        ...

    def run(self, *argv: str, limit_s: float = 10.0) -> Completed:
        """Run a command to its end. It blocks.

        Args:
            argv: The program and its arguments; no shell looks at them.
            limit_s: Seconds that it may take before it is killed.

        Raises:
            TargetError: It cannot be started there, or took too long.
        """
        ...

    async def start(self, *argv: str) -> Process:
        """Start a command whose output is read while it runs, from the pipes of what is returned.

        The caller ends it. Signals of a terminal do not reach it.

        Raises:
            OSError: It cannot be started.
        """
        ...

    async def check(self, process: Process) -> None:
        """Look whether a command that was started has ended because its machine cannot be reached.

        Args:
            process: From `start`; it has ended.

        Raises:
            OSError: That is why.
        """
        ...


class LocalCommands:
    """Runs commands on this machine."""

    where = "this machine"

    def run(self, *argv: str, limit_s: float = 10.0) -> Completed:
        """Run a command to its end. It blocks."""
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=limit_s,
                check=False,
                env={**os.environ, **_LOCALE},
            )
        except FileNotFoundError as error:
            raise TargetError(f"{argv[0]} is not installed on {self.where}") from error
        except subprocess.TimeoutExpired as error:
            raise TargetError(f"{argv[0]} gave no answer within {limit_s:g} s on {self.where}") from error
        except OSError as error:
            raise TargetError(f"{argv[0]} cannot be run on {self.where}: {error.strerror}") from error
        return Completed(done.returncode, done.stdout, done.stderr)

    async def start(self, *argv: str) -> Process:
        """Start a command whose output is read while it runs."""
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **_LOCALE},
        )

    async def check(self, process: Process) -> None:
        """This machine is always reached."""
