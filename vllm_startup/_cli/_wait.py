"""``vllm-startup wait``."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

from vllm_startup._cli import _options, _output, _parser, _targets
from vllm_startup._cli._events import EventLines
from vllm_startup._cli._interrupt import Interruption
from vllm_startup._cli._progress import Progress, progress_for
from vllm_startup._cli._status import OF_OUTCOME, TABLE, Exit, InterruptedEarlyError, UsageError
from vllm_startup._cli._telling import Telling
from vllm_startup._exceptions import StartupError
from vllm_startup._report import StartupReport
from vllm_startup._startup import Startup

if TYPE_CHECKING:
    from vllm_startup.targets import Site, Target

DESCRIPTION: Final = """\
Wait until a vLLM server that something else started is ready. The more it may
look at (--pid, --log), the earlier and the more exactly it says what happens.
It starts and ends nothing.
"""
EPILOG: Final = f"""\
examples:
  vllm-startup wait
  vllm-startup wait http://10.0.0.5:8000 --until model --timeout 1800
  vllm-startup wait --pid 4242 --log vllm.log
  vllm-startup wait --unit vllm --restarts 2
  vllm-startup wait --log vllm.log --timeout loading_weights=900 --stall 300
  vllm-startup wait --pid 4242 --json --events events.jsonl > report.json

{_options.PHASES}
{TABLE}"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    _add_targets(parser.add_argument_group("what to look at"))
    _options.add_readiness(parser.add_argument_group("what ready means"))
    limits = parser.add_argument_group("how long")
    _options.add_limits(limits)
    _add_endings(limits)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print the report as one JSON object")
    output.add_argument("--events", metavar="FILE", help="write events as JSON lines; - for standard output")
    _options.add_files(output)


def _add_targets(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "url", metavar="URL", nargs="?",
        help="where the server will listen: http://, https:// or unix:///path; without it, what the"
        " arguments of --pid say, else http://127.0.0.1:8000",
    )  # fmt: skip
    group.add_argument("--pid", type=_parser.whole, metavar="P", help="the server's main process")
    group.add_argument(
        "--log", metavar="FILE", help="its output: a file, which may appear later; - for standard input"
    )
    _targets.add_targets(group)
    _options.gpus_option(group, default=", with --pid, those that its own environment leaves it")


def _add_endings(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--restarts", type=_parser.whole, default=0, metavar="N",
        help="how many restarts of the server to tolerate (0)",
    )  # fmt: skip
    group.add_argument(
        "--raise-early",
        action="store_true",
        help="return as soon as the cause is known, before they are gone",
    )


def run(options: argparse.Namespace) -> int:
    """Wait, and tell on the way."""
    startup = _startup(options)
    with EventLines.open(options.events, json_report=options.json) as events:
        progress = progress_for(sys.stderr, os.environ)
        wait = _Wait(startup, progress, events)
        try:
            asyncio.run(wait.run())
        except asyncio.CancelledError:
            pass  # by a signal: told below
        finally:
            progress.close()
    found = wait.report
    if found is None:
        return Exit.INTERRUPTED  # before the watch had begun
    screen = _output.end_screen(found, _output.width_of(sys.stderr), warnings=False)
    _output.tell(wait.interruption.words + screen)
    if options.json:
        _output.say_json(found.to_json(indent=2))
    number = wait.interruption.number
    return OF_OUTCOME[found.outcome] if number is None else 128 + number


class _Wait:
    """One wait: the watch, those who tell of it, and the signals that end it."""

    def __init__(self, startup: Startup, progress: Progress, events: EventLines) -> None:
        self.report: StartupReport | None = None
        self.interruption = Interruption(progress)
        self._startup = startup
        self._progress = progress
        self._events = events

    async def run(self) -> None:
        """Wait to the end."""
        self.interruption.heed()
        async with self._startup as startup:
            self._progress.begin(_task(startup.report()))
            try:
                async with Telling(startup, self._progress, self._events) as telling:
                    await _outcome(startup)
                    await telling.finish()
            finally:
                self.report = startup.report()
                self._progress.close()


async def _outcome(startup: Startup) -> None:
    try:
        await startup.wait_until_ready()
    except StartupError:
        pass  # its report is told


def _task(report: StartupReport) -> str:
    where = f" for {_output.clean(report.url)}" if report.url is not None else ""
    return f"waiting{where} until {report.until}"


def _located(options: argparse.Namespace) -> Site | None:
    """Where the target is that the options name. Asking may take seconds, which a signal ends."""
    interruption = Interruption()

    async def locate(target: Target) -> Site:
        from vllm_startup._wait import located

        interruption.heed()
        return await located(target, options.gpus)

    try:
        target = _targets.target_of(options)
        return None if target is None else asyncio.run(locate(target))
    except asyncio.CancelledError:
        raise InterruptedEarlyError(interruption.number or signal.SIGINT) from None
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error


def _startup(options: argparse.Namespace) -> Startup:
    target = _located(options)
    if options.until == "engine" and options.log is None and target is None:
        raise UsageError(
            "--until engine needs --log FILE: only the log tells when the engines are initialised"
        )
    return _options.watch(
        options,
        url=options.url,
        target=target,
        pid=options.pid if target is None else None,
        log=_options.log_source(options.log) if target is None else None,
        restarts=options.restarts,
        raise_early=options.raise_early,
    )
