"""``vllm-startup run``."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from functools import partial
from typing import Final

import attrs

from vllm_startup._blocking import BlockingRunner
from vllm_startup._cli import _options, _output
from vllm_startup._cli._events import EventLines
from vllm_startup._cli._progress import Progress, SilentProgress, progress_for
from vllm_startup._cli._status import OF_OUTCOME, Exit, UsageError
from vllm_startup._cli._telling import Telling
from vllm_startup._exceptions import StartupError
from vllm_startup._report import StartupReport
from vllm_startup._running import Running, exit_status, open_standard_streams
from vllm_startup._server import Server, Wish
from vllm_startup._startup import Startup
from vllm_startup._timeouts import Timeouts

DESCRIPTION: Final = """\
Start a server, watch its start, and stay in front of it for as long as it lives: its output, its
signals and its exit status are passed on unchanged. A start that fails is told in one screen, and
nothing of it is left behind.
"""
EPILOG: Final = f"""\
examples:
  vllm-startup run -- vllm serve Qwen/Qwen3-8B --port 8000
  vllm-startup run --timeout 1800 --stall 300 --report start.json -- vllm serve MODEL
  vllm-startup run --progress --tty -- vllm serve MODEL

A limit that was given by hand ends the server; the default --stall only tells. Signals go to the
server's main process: in a systemd unit set KillMode=mixed, or it gets SIGTERM twice.

{_options.PHASES}
exit status:
  the server's; 128+N when signal N ended it; and
  1    it failed and was ended, or exited with 0 before it was ready
  2    wrong usage
  3    it stalled and was ended
  70   a fault of vllm-startup's own
  124  a limit of --timeout ran out, and it was ended
  126  the command cannot be executed; 127: it is not there
"""

NEEDS_COMMAND: Final = "put the server's own command behind --: vllm-startup run -- vllm serve MODEL"
_LAST_WORDS_S: Final = 3.0  # a death is judged within 2 s, even if a grandchild holds the pipe
_LEAST_S: Final = 0.001


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.usage = "%(prog)s [options] [URL] -- COMMAND ..."
    looks = parser.add_argument_group("what to look at")
    looks.add_argument(
        "url", metavar="URL", nargs="?",
        help="where the server will listen, if not where its own arguments say",
    )  # fmt: skip
    looks.add_argument("--log", metavar="FILE", help="a file that it logs to, if not to its output")
    _options.gpus_option(looks, default=" those that its environment leaves it")
    _options.add_readiness(parser.add_argument_group("what ready means"))
    limits = parser.add_argument_group("how long")
    _options.add_limits(limits)
    limits.add_argument(
        "--on-stall", choices=("report", "kill"),
        help="what to do when it stalls: kill if --stall is given, else report",
    )  # fmt: skip
    output = parser.add_argument_group("output")
    output.add_argument("--progress", action="store_true", help="tell of the start on standard error")
    output.add_argument("--report", metavar="FILE", help="write the report when the start is decided")
    output.add_argument("--tty", action="store_true", help="give the server a terminal wherever we have one")
    output.add_argument("--events", metavar="FILE", help="write events as JSON lines")
    _options.add_files(output)


def run(options: argparse.Namespace) -> int:
    """Run the command to its end."""
    if not options.command_line:
        raise UsageError(NEEDS_COMMAND)
    if options.events == "-":
        raise UsageError("--events - would write into the server's own output; give it a file")
    _options.watch(options, url=options.url or "http://127.0.0.1", log=None, record=None)  # refuses nonsense
    open_standard_streams()
    with EventLines.open(options.events, json_report=False) as events:
        return asyncio.run(_Run(options, events).run())


class _Run:
    """One command from its start to its end."""

    def __init__(self, options: argparse.Namespace, events: EventLines) -> None:
        self._options = options
        self._events = events
        self._progress: Progress = progress_for(sys.stderr, os.environ, sharing=True) if options.progress else SilentProgress()
        self._files = BlockingRunner("vllm-startup report")
        by_hand = options.stall is not _options.STALL_S
        self._kills_stalled = options.on_stall == "kill" or (by_hand and options.on_stall is None)

    async def run(self) -> int:
        """Start the command, and return the exit status."""
        running = Running(
            self._options.command_line,
            environ=os.environ,
            tty=self._options.tty,
            write=self._progress.pass_on,
            suspending=self._progress.pause,
            resumed=self._progress.resume,
        )
        try:
            async with running:
                status = await self._attend(running)
        except OSError as error:
            if running.started:
                raise
            _tell(f"{_output.clean(self._options.command_line[0])}: {_reason(error)}")
            return Exit.NOT_FOUND if isinstance(error, FileNotFoundError) else Exit.NOT_EXECUTABLE
        finally:
            self._progress.close()
            self._files.close()
        if running.left:
            names = ", ".join(f"{process.pid} ({process.name})" for process in running.left)
            _tell(f"processes of the server could not be ended: {names}")
        return status

    async def _attend(self, running: Running) -> int:
        process = running.process
        ended = asyncio.create_task(process.wait())
        decided = asyncio.create_task(self._watch(running))
        try:
            await asyncio.wait({ended, decided}, return_when=asyncio.FIRST_COMPLETED)
            if not decided.done():
                await asyncio.wait({decided}, timeout=_LAST_WORDS_S)
            if (report := _result(decided)) is not None and report.outcome != "ready" and not ended.done():
                await running.end()
                return OF_OUTCOME[report.outcome]
            status = exit_status(await ended)
            await running.end()
            if decided.exception() is not None:
                return status
            return status
        finally:
            ...
