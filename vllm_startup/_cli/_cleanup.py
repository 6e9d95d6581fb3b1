"""``vllm-startup cleanup``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from vllm_startup._cli import _output
from vllm_startup._cli._layout import clock
from vllm_startup._cli._status import Exit, UsageError

if TYPE_CHECKING:
    from vllm_startup._cleanup import Cleanup, GpuReturn, Leftover

DESCRIPTION: Final = """\
Show the engines and workers that dead vLLM servers left behind, with the GPU
memory that they hold, and end them with --kill: only vLLM's own, none of a
server that lives, and only your own unless you are root.
"""
EPILOG: Final = """\
examples:
  vllm-startup cleanup
  vllm-startup cleanup --kill && systemctl start vllm

exit status:
  0    nothing is left
  1    processes are left: found, or not to be ended
  2    wrong usage
  70   a fault of vllm-startup's own
"""

_GIB: Final = 1024**3


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("--kill", action="store_true", help="end them, with SIGTERM and then SIGKILL")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Look, end what is to be ended, and print it."""
    from vllm_startup._cleanup import cleanup

    try:
        found = cleanup(kill=options.kill)
    except NotImplementedError as error:
        raise UsageError(str(error)) from error
    if options.json:
        _output.say_json(found.to_json(indent=2))
    else:
        _output.say(screen(found, _output.width_of(sys.stdout)))
    return Exit.READY if found.ok else Exit.FAILED


def screen(found: Cleanup, width: int) -> str:
    """What was found and what became of it, in one screen."""
    lines = [_headline(found)]
    if found.processes:
        lines.append("")
    widest = max((len(process.name) for process in found.processes), default=0)
    lines += [_line(process, widest)[:width] for process in found.processes]
    if found.gpus:
        lines += ["", *map(_memory, found.gpus)]
    if found.warnings:
        lines.append("")
    for warning in found.warnings:
        lines += _output.wrapped(f"warning: {warning.text} ({warning.code})", width, "  ", "    ")
    if found.left and not any(process.ended for process in found.processes):
        lines += ["", "  vllm-startup cleanup --kill ends them"]
    return "\n".join(lines)


def _headline(found: Cleanup) -> str:
    if not found.processes:
        return "nothing is left of dead vLLM servers"
    ended = len(found.processes) - len(found.left)
    if not ended:
        return f"{_count(len(found.left))} of dead vLLM servers {_are(len(found.left))} left"
    left = f"; {len(found.left)} could not be" if found.left else ""
    return f"{_count(ended)} of dead vLLM servers {'was' if ended == 1 else 'were'} ended{left}"


def _count(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _line(process: Leftover, widest: int) -> str:
    state = "ended" if process.ended else f"up {clock(process.age_s)}"
    name = f"{_output.clean(process.name):<{widest}}"
    return "  ".join([f"{process.pid:>9}", name, state, *_held(process)])


def _held(process: Leftover) -> Iterator[str]:
    for index, size in process.gpu_bytes.items():
        held = "held" if process.ended else "holds"
        yield f"{held} {'memory' if size is None else f'{size / _GIB:.2f} GiB'} of GPU {index}"


def _memory(gpu: GpuReturn) -> str:
    used = f"{gpu.before_bytes / _GIB:.2f}"
    if gpu.after_bytes is not None:
        used += f" -> {gpu.after_bytes / _GIB:.2f}"
    return f"  GPU {gpu.index}: {used} of {gpu.total_bytes / _GIB:.2f} GiB in use"
