"""``vllm-startup replay``."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from typing import Final

import attrs

from vllm_startup._cli import _output
from vllm_startup._cli._events import EventLines
from vllm_startup._cli._status import OF_OUTCOME, TABLE, UsageError
from vllm_startup._events import Event
from vllm_startup._machine.machine import StartupMachine
from vllm_startup._recording import Tell

DESCRIPTION: Final = """\
Run a recording (of wait --record) through the machine again, and print its
report: the same one.
"""
EPILOG: Final = f"""\
examples:
  vllm-startup wait --pid 4242 --log vllm.log --record start.jsonl
  vllm-startup replay start.jsonl

{TABLE}"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("recording", metavar="RECORDING", help="a file written by wait --record")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument(
        "--events", metavar="FILE", help="write the events as JSON lines; - for standard output"
    )


def run(options: argparse.Namespace) -> int:
    """Replay it."""
    from vllm_startup._machine.reporting import report
    from vllm_startup._versions import versions

    told: list[tuple[Event, float]] = []
    with EventLines.open(options.events, json_report=options.json) as lines:
        machine = _replayed(options.recording, lambda event, at: told.append((event, at)))
        for number, (event, at) in enumerate(told if options.events is not None else (), start=1):
            lines.write(attrs.evolve(event, seq=number, ts=_stamp(machine, at)))
    found = report(machine, machine.now, versions=versions())
    if options.json:
        _output.say_json(found.to_json(indent=2))
    elif options.events != "-":
        _output.say(_output.end_screen(found, _output.width_of(sys.stdout)))
    return OF_OUTCOME[found.outcome]


def _replayed(path: str, tell: Tell) -> StartupMachine:
    from vllm_startup._recording import RecordingError, replay

    try:
        return replay(path, tell=tell)
    except IsADirectoryError:
        raise UsageError(f"RECORDING {path!r} is a directory; give the file's own path") from None
    except OSError as error:
        raise UsageError(f"RECORDING {path!r} cannot be read: {error.strerror or error}") from error
    except RecordingError as error:
        raise UsageError(f"RECORDING {path!r}: {error}") from error


def _stamp(machine: StartupMachine, at: float) -> str | None:
    if machine.wall is None:
        return None
    return (
        datetime.fromtimestamp(machine.wall + at, UTC)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )
