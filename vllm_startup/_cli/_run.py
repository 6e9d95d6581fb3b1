"""``vllm-startup run``."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import attrs

from vllm_startup._blocking import BlockingRunner, StillRunningError
from vllm_startup._cli import _options, _output, _parser, _preflight
from vllm_startup._cli._events import EventLines
from vllm_startup._cli._parser import PROGRAM
from vllm_startup._cli._progress import PlainProgress, Progress, SilentProgress, live_progress
from vllm_startup._cli._status import OF_OUTCOME, Exit, UsageError
from vllm_startup._cli._telling import Telling
from vllm_startup._exceptions import StartupError
from vllm_startup._hosts.hosts import Hosts, Wanted
from vllm_startup._hosts.termination import default_path
from vllm_startup._launching.running import Running, exit_status, open_standard_streams
from vllm_startup._launching.server import Server, Wish
from vllm_startup._machine.signals import signal_name
from vllm_startup._report import StartupReport
from vllm_startup._startup import Startup
from vllm_startup._timeouts import Timeouts
from vllm_startup._wait import LogSource
from vllm_startup.causes import ShutdownRequested

if TYPE_CHECKING:
    from asyncio.subprocess import Process as AsyncProcess
    from collections.abc import Callable

    from vllm_startup.probes._protocol import Probe

DESCRIPTION: Final = """\
Start a server, watch its start, and stay in front of it for as long as it
lives: its output, its signals and its exit status are passed on unchanged. A
start that fails is told in one screen, and nothing of it is left behind.
"""
EPILOG: Final = f"""\
examples:
  vllm-startup run -- vllm serve Qwen/Qwen3-8B --port 8000
  vllm-startup run --stall 300 --report start.json -- vllm serve MODEL
  vllm-startup run --progress --tty -- vllm serve MODEL

A limit that was given by hand ends the server; the default --stall only tells.
Signals go to the server's main process: in a systemd unit set KillMode=mixed,
or it gets SIGTERM twice.

{_options.PHASES}
exit status:
  the server's; 128+N when signal N ended it; and
  1    it failed and was ended, it exited with 0 before it was ready, or
       --preflight found a fault
  2    wrong usage
  3    it stalled and was ended
  70   a fault of vllm-startup's own
  124  a limit of --timeout ran out, and it was ended
  126  the command cannot be executed; 127: it is not there
"""

_GOES_ON: Final = "The server is left running; --on-stall kill would end it."
_LAST_WORDS_S: Final = 3.0  # a death is judged within 2 s, even if a grandchild holds the pipe
_LEAST_S: Final = 0.5  # enough for a first look
_FILES_S: Final = 5.0  # a file system that hangs must hold up neither limits nor the server


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
        help="when it stalls: kill if --stall is given, else report",
    )  # fmt: skip
    parser.add_argument_group("before").add_argument(
        "--preflight", action="store_true",
        help="look first for what would make it fail, and start nothing that fails for certain",
    )  # fmt: skip
    output = parser.add_argument_group("output")
    output.add_argument("--progress", action="store_true", help="tell of the start on standard error")
    output.add_argument("--report", metavar="FILE", help="write the report when the start is decided")
    output.add_argument(
        "--status-listen", type=_parser.address, metavar="[HOST:]PORT",
        help="answer /startupz, /readyz, /livez and /status there from the first second; loopback"
        " unless HOST says otherwise",
    )  # fmt: skip
    output.add_argument(
        "--termination-log", metavar="FILE",
        help="write the cause of a failed start in one line; by default /dev/termination-log where"
        " that exists",
    )  # fmt: skip
    output.add_argument("--tty", action="store_true", help="give the server a terminal wherever we have one")
    output.add_argument("--events", metavar="FILE", help="write events as JSON lines")
    _options.add_files(output)


def run(options: argparse.Namespace) -> int:
    """Run the command to its end."""
    if options.events == "-":
        raise UsageError("--events - would write into the server's own output; give it a file")
    _options.refuse_nonsense(options)
    open_standard_streams()
    environ = dict(os.environ)
    _refuse_the_servers_port(options)
    hosts = _hosts(options, environ)
    if options.preflight and (cause := _preflight.forbids(options)) is not None:
        hosts.refused(cause)
        return Exit.FAILED
    with EventLines.open(options.events, json_report=False) as events:
        return asyncio.run(_Run(options, events, environ, hosts).run())


class _Run:
    """One command from its start to its end."""

    def __init__(
        self, options: argparse.Namespace, events: EventLines, environ: dict[str, str], hosts: Hosts
    ) -> None:
        self._options = options
        self._events = events
        self._environ = environ
        self._hosts = hosts
        self._progress = _progress() if options.progress else SilentProgress(prefix=_headed(""))
        self._files = BlockingRunner("vllm-startup report")
        by_hand = options.stall is not _options.STALL_S
        self._began = 0.0
        self._kills_stalled = options.on_stall == "kill" or (by_hand and options.on_stall is None)

    async def run(self) -> int:
        """Start the command, and return the exit status."""
        running = Running(
            self._options.command_line,
            environ=self._environ,
            tty=self._options.tty,
            write=self._progress.pass_on,
            suspending=self._progress.pause,
            resumed=self._progress.resume,
            asked_to_stop=self._hosts.stopping,
        )
        try:
            async with self._hosts, running:
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
            names = ", ".join(f"{process.pid} ({_output.clean(process.name)})" for process in running.left)
            _tell(f"processes of the server could not be ended: {names}")
        return status

    async def _attend(self, running: Running) -> int:
        """Stay until the command ends, or its start does and it has to be ended."""
        self._began = asyncio.get_running_loop().time()
        self._progress.begin(f"starting {_output.clean(self._options.command_line[0])}")
        ended = asyncio.create_task(running.process.wait())
        decided = asyncio.create_task(self._watch(running))
        try:
            await asyncio.wait({ended, decided}, return_when=asyncio.FIRST_COMPLETED)
            if not decided.done():
                await asyncio.wait({decided}, timeout=_LAST_WORDS_S)
            report = _report_of(decided)
            if report is None or report.outcome == "ready" or report.exit is not None or ended.done():
                returncode = await ended
                status = exit_status(returncode)
                self._hosts.ended(_ending(returncode))
                await running.end()
                await asyncio.wait({decided}, timeout=_LAST_WORDS_S + self._options.exit_grace)
                report = _report_of(decided)
                unready = report is not None and report.outcome != "ready"
                status = status or int(unready)
            else:
                await running.end()
                status = OF_OUTCOME[report.outcome]
        finally:
            self._hosts.stopping()
            for task in (ended, decided):
                task.cancel()
            await asyncio.gather(ended, decided, return_exceptions=True)
        if report is not None and report.outcome != "ready":
            self._tell_end(report)
        return status

    # --- the watch --------------------------------------------------------------------------

    async def _watch(self, running: Running) -> StartupReport | None:
        """Watch until it is decided; None when the watch itself broke, which is no fault of the server."""
        try:
            return await self._decide(running)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever breaks here, the server goes on
            self._progress.close()
            _tell(f"internal error, the server goes on unwatched: {_output.clean(repr(error))}")
            return None
        finally:
            running.close_log()

    async def _decide(self, running: Running) -> StartupReport:
        timeouts, record = _options.timeouts(self._options), self._options.record
        url = _url(self._options, own=True)
        stalled: StartupReport | None = None
        while True:
            report = await self._wait(running, url, timeouts, record)
            if stalled is not None and isinstance(report.cause, ShutdownRequested):
                # Whoever asks for its end does so because of that, as Kubernetes does.
                report = attrs.evolve(report, outcome="stalled", cause=stalled.cause)
            await self._write(report)
            await self._hosts.decided(report, self._health(report.url))
            if report.outcome == "ready":
                self._progress.close()
                if self._options.progress:
                    self._tell_end(report)
            if report.outcome != "stalled" or self._kills_stalled or stalled is not None:
                return report
            stalled = report
            self._progress.say(f"{_screen(report)}\n\n  {_GOES_ON}")
            timeouts, record = attrs.evolve(timeouts, stall=None), None  # it goes on

    async def _wait(
        self, running: Running, url: str | None, timeouts: Timeouts, record: str | None
    ) -> StartupReport:
        def look(_: Wish) -> Startup:
            log: LogSource = self._options.log or running.log()
            process = cast("AsyncProcess", running.process)  # what the probes ask of one, it has
            startup = _options.watch(
                self._options, url=server.url, process=process, log=log, timeouts=timeouts, record=record
            )
            waited_s = asyncio.get_running_loop().time() - self._began
            most_s = waited_s if timeouts.total is None else max(0.0, timeouts.total - _LEAST_S)
            startup.already_waited(min(waited_s, most_s))
            return startup

        server = Server(process=running.process, url=url, log=None, watch=look, release=lambda: None)
        self._hosts.follow(lambda: server.status)
        try:
            async with Telling(server, self._progress, self._events) as telling:
                try:
                    report = await server.wait_until_ready()
                except StartupError as error:
                    report = error.report
                await telling.finish(_FILES_S)
        finally:
            await server.close()
        return report

    def _health(self, url: str | None) -> Callable[[], Probe] | None:
        """What looks at the server when it is ready."""
        if url is None:
            return None
        from vllm_startup.probes import HealthProbe

        verify = self._options.verify if self._options.ca is None else self._options.ca
        return partial(HealthProbe, url, verify=verify)

    # --- what is told -----------------------------------------------------------------------

    async def _write(self, report: StartupReport) -> None:
        """Write the report, in a thread: a file system may hang."""
        path = self._options.report
        if path is None:
            return
        text = report.to_json(indent=2) + "\n"
        try:
            async with asyncio.timeout(_FILES_S):
                await self._files.run(partial(_options.write_privately, path, text))
        except (OSError, StillRunningError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            self._progress.say(f"--report {path!r} cannot be written: {why or 'the file system hangs'}")

    def _tell_end(self, report: StartupReport) -> None:
        self._progress.close()
        _output.tell(_headed(_screen(report)))


def _url(options: argparse.Namespace, *, own: bool = False) -> str | None:
    """Where the server will listen, as far as that is known; ``own``: not by a shell's text."""
    from vllm_startup._arguments import parse_command

    if options.url is not None:
        return str(options.url)
    found = parse_command(options.command_line, environ=os.environ)
    return None if found is None or (own and found.in_script) else found.url


def _refuse_the_servers_port(options: argparse.Namespace) -> None:
    """The server would find its port taken, minutes later."""
    listen: tuple[str, int] | None = options.status_listen
    url = _url(options) if listen is not None else None
    if listen is None or url is None:
        return
    from vllm_startup._url import parse_url

    if parse_url(url).port == listen[1]:
        raise UsageError(f"--status-listen {listen[1]} is the server's own port; name another")


def _hosts(options: argparse.Namespace, environ: dict[str, str]) -> Hosts:
    """Those who ask how the server is. What they give us in the environment is not the server's."""
    stall_s = _options.timeouts(options).stall
    wanted = Wanted(listen=options.status_listen, termination_log=_termination_log(options), stall_s=stall_s)
    try:
        return Hosts(wanted, environ, warn=_tell)
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        where = ":".join(map(str, options.status_listen))
        raise UsageError(
            f"--status-listen {where} cannot be listened on: {error.strerror}; name another port"
        ) from error


def _termination_log(options: argparse.Namespace) -> str | None:
    log: str | None = options.termination_log
    return log or default_path()


def _progress() -> Progress:
    prefix = _headed("")
    live = live_progress(sys.stderr, os.environ, prefix=prefix)
    return live or PlainProgress(_output.tell, _output.width_of(sys.stderr), prefix=prefix)


def _report_of(decided: asyncio.Task[StartupReport | None]) -> StartupReport | None:
    return decided.result() if decided.done() else None


def _ending(returncode: int) -> str:
    if returncode < 0:
        return f"was ended by {signal_name(-returncode)}"
    return f"exited with status {returncode}"


def _screen(report: StartupReport) -> str:
    return _output.end_screen(report, _output.width_of(sys.stderr), warnings=False)


def _headed(text: str) -> str:
    return f"{PROGRAM}: {text}"


def _tell(text: str) -> None:
    _output.tell(_headed(text))


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).rpartition(": ")[2]
