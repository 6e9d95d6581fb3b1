"""``vllm-startup replay``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import attrs

from vllm_startup._cli import _output
from vllm_startup._cli._events import EventLines
from vllm_startup._cli._status import OF_OUTCOME, TABLE, UsageError
from vllm_startup._events import Event
from vllm_startup._machine.machine import StartupMachine

DESCRIPTION: Final = """\
Run a recording (of wait --record) through the machine again, and print its report: the same one.
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

    with EventLines.open(options.events, json_report=options.json) as lines:
        machine = _replayed(options.recording)
        if options.events is not None:
            for event in _events(options.recording):
                lines.write(event)
    found = report(machine, machine.now, versions=versions())
    if options.json:
        _output.say_json(found.to_json(indent=2))
    elif options.events != "-":
        _output.say(_output.end_screen(found, _output.width_of(sys.stdout)))
    return OF_OUTCOME[found.outcome]


def _replayed(path: str) -> StartupMachine:
    from vllm_startup._recording import RecordingError, replay

    try:
        return replay(path)
    except IsADirectoryError:
        raise UsageError(f"RECORDING {path!r} is a directory; give the file's own path") from None
    except OSError as error:
        raise UsageError(f"RECORDING {path!r} cannot be read: {error.strerror or error}") from error
    except RecordingError as error:
        raise UsageError(f"RECORDING {path!r}: {error}") from error


def _events(path: str) -> Iterator[Event]:
    """The events of a recording that is known to be whole, as the watch told them."""
    for number, (event, wall) in enumerate(_told(path), start=1):
        stamp = None if wall is None else datetime.fromtimestamp(wall, UTC).isoformat(timespec="microseconds")
        yield attrs.evolve(event, seq=number, ts=stamp.replace("+00:00", "Z") if stamp else None)


def _told(path: str) -> Iterator[tuple[Event, float | None]]:
    from vllm_startup import _recording

    with Path(path).open(encoding="utf-8", errors="replace") as file:
        rows = _recording._rows(file)
        machine = _recording._machine(next(rows)[1], {})
        at, wall = 0.0, machine.wall
        for _, row in rows:
            at = float(row["at"])
            wall = None if machine.wall is None else machine.wall + at
            seen = None if row.get("end") else _recording._observation(at, row)
            for event in machine.tick(at) if seen is None else machine.feed(seen):
                yield event, wall
        for event in machine.finish(at, ended=False):
            yield event, wall
