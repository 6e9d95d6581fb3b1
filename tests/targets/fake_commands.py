"""Commands that answer what a test says, instead of being run."""

from __future__ import annotations

import asyncio
import itertools
import json
import shlex
from asyncio.subprocess import Process
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from vllm_startup.targets import TargetError
from vllm_startup.targets._commands import Completed

_FIELDS = {
    "__CURSOR": "c0",
    "__REALTIME_TIMESTAMP": "1796069897087991",
    "_HOSTNAME": "gpu01",
    "_COMM": "python",
    "_PID": "42",
    "SYSLOG_IDENTIFIER": "vllm",
}


def entry(**fields: Any) -> dict[str, Any]:
    """An entry as journalctl prints it; None takes a field away."""
    return {name: value for name, value in {**_FIELDS, **fields}.items() if value is not None}


def shown(**properties: object) -> str:
    """What ``systemctl show`` prints of a unit that runs."""
    given = {
        "Id": "vllm.service",
        "LoadState": "loaded",
        "ActiveState": "active",
        "SubState": "running",
        "Result": "success",
        "Job": "",
        "NRestarts": 0,
        "InvocationID": "a" * 32,
        "MainPID": 42,
        "ExecMainPID": 42,
        "ExecMainCode": 0,
        "ExecMainStatus": 0,
        "ExecStart": "{ path=/bin/vllm ; argv[]=/bin/vllm serve m --port 9001 ; ignore_errors=no ; pid=42 }",
        "StandardOutput": "journal",
        "StandardError": "inherit",
    }
    return "\n".join(f"{name}={value}" for name, value in {**given, **properties}.items())


Answer = Completed | Callable[[], Completed]


class FakeCommands:
    """A machine on which nothing is run.

    Args:
        answers: What a program, or ``systemctl VERB``, answers.
        journalctl: The entries of ``journalctl`` without ``--follow``.
        streams: What each ``journalctl --follow`` prints, a number for a pause in seconds; one more prints
            nothing.
        pause_s: How long each waits before.
        ends: Whether they end then.
    """

    where = "this machine"

    def __init__(
        self,
        *,
        answers: dict[str, Answer] | None = None,
        journalctl: Sequence[dict[str, Any]] | None = None,
        streams: Sequence[Sequence[dict[str, Any] | float]] = (),
        pause_s: float = 0.0,
        ends: bool = False,
    ) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.answers: dict[str, Answer] = dict(answers or {})
        if journalctl is not None:
            self.answers["journalctl"] = Completed(0, _lines(journalctl), "")
        self._streams = list(streams)
        self._pause_s = pause_s
        self._ends = ends

    def run(self, *argv: str, limit_s: float = 10.0) -> Completed:
        self.asked.append(argv)
        verb = next((word for word in argv[1:] if not word.startswith("-")), "")
        answer = self.answers.get(f"{argv[0]} {verb}") or self.answers.get(argv[0])
        if answer is None:
            raise TargetError(f"{argv[0]} is not installed on {self.where}")
        return answer if isinstance(answer, Completed) else answer()

    async def start(self, *argv: str) -> Process:
        self.asked.append(argv)
        ends = self._ends and bool(self._streams)
        printed = [self._pause_s, *(self._streams.pop(0) if self._streams else ())]
        rest = "echo it was killed >&2" if ends else "exec sleep 60"
        return await asyncio.create_subprocess_exec(
            "sh",
            "-c",
            "\n".join((*_steps(printed), rest)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def check(self, process: Process) -> None:
        """It is always reached."""


def _steps(printed: Iterable[dict[str, Any] | float]) -> Iterator[str]:
    for at_once, found in itertools.groupby(printed, lambda each: isinstance(each, dict)):
        if at_once:
            yield f"printf '%s' {shlex.quote(_lines([each for each in found if isinstance(each, dict)]))}"
        else:
            yield from (f"sleep {pause_s} & wait" for pause_s in found)


def _lines(entries: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(found) + "\n" for found in entries)
