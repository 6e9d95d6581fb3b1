"""``vllm-startup wait``."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import IO, Final

from vllm_startup._blocking import BlockingRunner
from vllm_startup._cli import _output, _parser
from vllm_startup._cli._events import EventLines
from vllm_startup._cli._progress import Progress, progress_for
from vllm_startup._cli._status import OF_OUTCOME, TABLE, Exit, UsageError
from vllm_startup._exceptions import StartupError
from vllm_startup._readings import TIERS
from vllm_startup._report import StartupReport
from vllm_startup._startup import Startup

DESCRIPTION: Final = """\
Wait until a vLLM server that something else started is ready. The more it may look at (--pid,
--log), the earlier and the more exactly it says what happens. It starts and ends nothing.
"""
EPILOG: Final = f"""\
examples:
  vllm-startup wait
  vllm-startup wait http://10.0.0.5:8000 --until model --timeout 1800
  vllm-startup wait --pid $(systemctl show -P MainPID vllm) --log vllm.log
  vllm-startup wait --log vllm.log --timeout 3600 --timeout loading_weights=900 --stall 300
  vllm-startup wait --pid 4242 --json --events events.jsonl > report.json

phases: {", ".join(_parser.LIMITED[:4])},
  {", ".join(_parser.LIMITED[4:])}

{TABLE}"""

_STALL_S: Final = 600.0  # the default of Timeouts
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    _add_targets(parser.add_argument_group("what to look at"))
    _add_readiness(parser.add_argument_group("what ready means"))
    _add_limits(parser.add_argument_group("how long"))
    _add_output(parser.add_argument_group("output"))


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
    group.add_argument(
        "--gpus", type=_parser.gpus, metavar="LIST",
        help="the GPUs that it may use, as nvidia-smi numbers or UUIDs (0,1); by default, with --pid,"
        " those that its own environment leaves it",
    )  # fmt: skip


def _add_readiness(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--until", choices=TIERS, default="health", metavar="TIER",
        help="engine: the engines are initialised; health: /health answers 200 (the default); model:"
        " /v1/models lists it; inference: one smallest request succeeds",
    )  # fmt: skip
    group.add_argument("--model", metavar="M", help="the model to be served, for --until model or inference")
    group.add_argument(
        "--stable-for",
        type=_parser.seconds,
        default=0.0,
        metavar="S",
        help="hold for S seconds without a miss",
    )
    group.add_argument("--api-key-file", metavar="F", help="a file that holds the key for /v1")
    verify = group.add_mutually_exclusive_group()
    verify.add_argument(
        "--verify", action=argparse.BooleanOptionalAction, default=None,
        help="check the server's certificate; by default not on this machine, else yes",
    )  # fmt: skip
    verify.add_argument("--ca", metavar="FILE", help="check it against these CA certificates")


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--timeout", type=_parser.named_limit, action="append", metavar="[PHASE=]S",
        help="the most seconds in all, or in one phase; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--stall", type=_parser.limit, default=_STALL_S, metavar="S",
        help="the most seconds without any progress (600); 0 or none for no limit",
    )  # fmt: skip
    group.add_argument(
        "--restarts", type=_parser.whole, default=0, metavar="N",
        help="how many restarts of the server to tolerate (0)",
    )  # fmt: skip
    group.add_argument(
        "--exit-grace", type=_parser.seconds, default=10.0, metavar="S",
        help="how long a failed start's processes may take to be gone (10)",
    )  # fmt: skip
    group.add_argument(
        "--raise-early",
        action="store_true",
        help="return as soon as the cause is known, before they are gone",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", action="store_true", help="print the report as one JSON object")
    group.add_argument("--events", metavar="FILE", help="write events as JSON lines; - for standard output")
    group.add_argument(
        "--record", metavar="FILE", help="write all that is seen, secrets removed, for vllm-startup replay"
    )
    group.add_argument(
        "--baseline", metavar="REPORT", help="the report of an earlier start: what differs is a warning"
    )


def run(options: argparse.Namespace) -> int:
    """Wait, and tell on the way."""
    with EventLines.open(options.events, json_report=options.json) as events:
        startup = _startup(options)
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
    _output.tell(_ending(found, wait.signal))
    if options.json:
        _output.say_json(found.to_json(indent=2))
    return OF_OUTCOME[found.outcome] if wait.signal is None else 128 + wait.signal


def _ending(report: StartupReport, signal_number: int | None) -> str:
    screen = _output.end_screen(report, _output.width_of(sys.stderr), warnings=False)
    if signal_number is None:
        return screen
    return f"interrupted by {signal.Signals(signal_number).name}\n{screen}"


def _task(report: StartupReport) -> str:
    where = f" for {_output.clean(report.url)}" if report.url is not None else ""
    return f"waiting{where} until {report.until}"


class _Wait:
    """One wait: the watch, those who tell of it, and the signals that end it."""

    def __init__(self, startup: Startup, progress: Progress, events: EventLines) -> None:
        self.report: StartupReport | None = None
        self.signal: int | None = None
        self._startup = startup
        self._progress = progress
        self._events = events
        self._writer = BlockingRunner("vllm-startup events")

    async def run(self) -> None:
        """Wait to the end."""
        self._heed_signals()
        try:
            async with self._startup as startup:
                self._progress.begin(_task(startup.report()))
                told = [asyncio.create_task(self._show()), asyncio.create_task(self._write())]
                ticker = asyncio.create_task(self._tick())
                try:
                    await self._outcome(startup)
                    await asyncio.gather(*told)
                finally:
                    self.report = startup.report()
                    for task in (*told, ticker):
                        task.cancel()
                    await asyncio.gather(*told, ticker, return_exceptions=True)
                    self._progress.close()
        finally:
            self._writer.close()

    async def _outcome(self, startup: Startup) -> None:
        try:
            await startup.wait_until_ready()
        except StartupError:
            pass  # its report is told

    async def _show(self) -> None:
        async for event in self._startup.events():
            self._progress.event(event)

    async def _write(self) -> None:
        """Write events from a thread: a reader that does not read must not hold up the wait."""
        async for event in self._startup.events():
            await self._writer.run(partial(self._events.write, event))

    async def _tick(self) -> None:
        while True:
            self._progress.status(self._startup.status)
            await asyncio.sleep(self._progress.interval_s)

    def _heed_signals(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in _SIGNALS:
            try:
                loop.add_signal_handler(number, self._interrupt, number, task)
            except (ValueError, RuntimeError, NotImplementedError):
                return  # not the main thread: whoever has it gets the signals

    def _interrupt(self, number: int, task: asyncio.Task[None]) -> None:
        """End the wait in good order; a second signal ends the program at once."""
        self.signal = number
        for each in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(each)
        task.cancel()


# --- the watch ------------------------------------------------------------------------------


def _startup(options: argparse.Namespace) -> Startup:
    from vllm_startup import watch

    _check(options)
    try:
        return watch(
            options.url,
            pid=options.pid,
            log=_log(options.log),
            gpus=options.gpus,
            until=options.until,
            stable_for=options.stable_for,
            model=options.model,
            api_key=_api_key(options.api_key_file),
            verify=options.verify if options.ca is None else options.ca,
            timeouts=_parser.timeouts(options.timeout, options.stall),
            restarts=options.restarts,
            exit_grace=options.exit_grace,
            raise_early=options.raise_early,
            record=options.record,
            baseline=options.baseline,
        )
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        option = "--record" if error.filename == options.record else "--baseline"
        raise UsageError(f"{option} {error.filename!r}: {error.strerror or error}") from error


def _check(options: argparse.Namespace) -> None:
    """Refuse what makes sense to the parts and none together."""
    if options.model is not None and options.until not in ("model", "inference"):
        raise UsageError("--model is looked at with --until model or --until inference; add one of them")
    if options.until == "engine" and options.log is None and options.url is None:
        raise UsageError(
            "--until engine needs --log FILE: only the log tells when the engines are initialised"
        )
    if options.ca is not None and not Path(options.ca).exists():
        raise UsageError(f"--ca {options.ca!r} does not exist; give a file or a folder of CA certificates")


def _log(log: str | None) -> str | IO[bytes] | None:
    if log != "-":
        return log
    if sys.stdin is None:
        raise UsageError("--log is -, but standard input is closed")
    return sys.stdin.buffer


def _api_key(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"--api-key-file {path!r} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise UsageError(f"--api-key-file {path!r} holds no text") from None
    if not key or any(character.isspace() for character in key):
        raise UsageError(f"--api-key-file {path!r} must hold one key and nothing else")
    return key
