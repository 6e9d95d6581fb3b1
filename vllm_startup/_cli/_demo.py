"""``vllm-startup demo``."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Final

from vllm_startup._cli import _output
from vllm_startup._cli._events import EventLines
from vllm_startup._cli._interrupt import Interruption
from vllm_startup._cli._progress import Progress, progress_for
from vllm_startup._cli._status import OF_OUTCOME, TABLE, Exit
from vllm_startup._cli._telling import Telling
from vllm_startup._demo.settings import SCENARIOS, VERSIONS
from vllm_startup._events import Event, Warned
from vllm_startup._exceptions import StartupError
from vllm_startup._launching.server import Server
from vllm_startup._machine.reporting import Status
from vllm_startup._report import StartupReport

DESCRIPTION: Final = """\
Start a simulated vLLM server and watch it with the very code that watches a
real one: a tree of processes, a port that listens last, vLLM's own lines. It
needs no vLLM, no model and no GPU, takes less than 15 seconds, and leaves
nothing behind.
"""
EPILOG: Final = f"""\
examples:
  vllm-startup demo
  vllm-startup demo out-of-memory
  vllm-startup demo --json hang > report.json

{TABLE}"""

_OF_SCENARIO: Final = {
    "ready": "it will be ready",
    "out-of-memory": "it will run out of GPU memory",
    "hang": "its ranks will not find each other",
    "killed": "a worker will be killed",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "scenario", nargs="?", choices=SCENARIOS, default="ready", metavar="SCENARIO",
        help=f"how the start goes: {', '.join(SCENARIOS)}; ready by default",
    )  # fmt: skip
    parser.add_argument(
        "--speed", type=_speed, default=1.0, metavar="X", help="how much faster than in 10 seconds (1)"
    )
    parser.add_argument(
        "--vllm", choices=VERSIONS, default=VERSIONS[-1], metavar="VERSION",
        help=f"whose output it has: {' or '.join(VERSIONS)}",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument("--events", metavar="FILE", help="write events as JSON lines; - for standard output")


def run(options: argparse.Namespace) -> int:
    """Start it, and watch."""
    progress = progress_for(sys.stderr, os.environ)
    interruption = Interruption(progress)
    with EventLines.open(options.events, json_report=options.json) as events:
        try:
            found = asyncio.run(_demonstrate(options, interruption, progress, events))
        except asyncio.CancelledError:
            progress.close()
            _output.tell(interruption.words.rstrip())
            return Exit.INTERRUPTED if interruption.number is None else 128 + interruption.number
        finally:
            progress.close()
    _output.tell(_output.end_screen(found, _output.width_of(sys.stderr), warnings=False))
    if options.json:
        _output.say_json(found.to_json(indent=2))
    return OF_OUTCOME[found.outcome]


async def _demonstrate(
    options: argparse.Namespace, interruption: Interruption, progress: Progress, events: EventLines
) -> StartupReport:
    from vllm_startup._demo.demo import demo, demo_timeouts

    interruption.heed()
    progress.say(f"a simulated vLLM server: {_OF_SCENARIO[options.scenario]}")
    async with demo(options.scenario, speed=options.speed, version=options.vllm) as server:
        async with Telling(_Demonstration(server), progress, events) as telling:
            try:
                found = await server.wait_until_ready(timeouts=demo_timeouts(options.scenario))
            except StartupError as error:
                found = error.report
            await telling.finish()
        progress.close()
    return found


class _Demonstration:
    """The watch of a simulated server, without news about GPUs, which it does not use."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def status(self) -> Status:
        """How it stands."""
        return self._server.status

    async def events(self) -> AsyncIterator[Event]:
        """Its events."""
        async for event in self._server.events():
            if not (isinstance(event, Warned) and event.code.startswith(("gpu_", "nvml_"))):
                yield event


def _speed(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0, such as 2")
    return value
