"""``vllm-startup preflight``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from vllm_startup._cli import _output, _parser
from vllm_startup._cli._status import Exit, UsageError

if TYPE_CHECKING:
    from vllm_startup._preflight.result import Preflight
    from vllm_startup.causes import Cause

DESCRIPTION: Final = """\
Look, before a server is started, for faults with which its start would fail
minutes later: packages that do not go together, a port that is taken, a model
that is not there, too few GPUs or too little of their memory. It starts
nothing. What it cannot know it does not claim, and lists as not checked.
"""
EPILOG: Final = """\
examples:
  vllm-startup preflight -- vllm serve Qwen/Qwen3-8B --tensor-parallel-size 8
  vllm-startup preflight --json -- vllm serve MODEL | jq .causes
  vllm-startup preflight --python /opt/vllm/bin/python -- ./start-server.sh

Run it where the server will run, in its container and as its user.

exit status:
  0    nothing was found
  1    something was found: a cause is given
  2    wrong usage
  70   a fault of vllm-startup's own
"""

_MOST_CAUSES: Final = 6
_NOT_STARTED: Final = "It was not started; run without --preflight starts it all the same."


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.usage = "%(prog)s [options] -- COMMAND ..."
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter that will run it, where the command does not show it",
    )
    parser.add_argument(
        "--timeout",
        type=_parser.seconds,
        default=5.0,
        metavar="S",
        help="the most seconds for all checks (5)",
    )


def run(options: argparse.Namespace) -> int:
    """Make the checks, and print what they found."""
    from vllm_startup._preflight.preflight import preflight

    try:
        found = preflight(options.command_line, python=options.python, timeout=options.timeout)
    except ValueError as error:
        named = str(error).startswith(("python ", "timeout "))
        raise UsageError(f"--{error}" if named else str(error)) from error
    if options.json:
        _output.say_json(found.to_json(indent=2))
    else:
        _output.say(screen(found, _output.width_of(sys.stdout)))
    return Exit.READY if found.ok else Exit.FAILED


def forbids(options: argparse.Namespace) -> Cause | None:
    """Look before ``run`` starts its command, and tell on standard error what was found.

    Returns:
        Why the start would fail for certain. What may be a fault and need not stops nobody.
    """
    from vllm_startup._preflight.preflight import preflight

    found = preflight(options.command_line)
    if found.causes or found.warnings:
        text = screen(found, _output.width_of(sys.stderr))
        _output.tell(f"{_parser.PROGRAM}: {text}")
    if not found.certain:
        return None
    _output.tell(f"\n  {_NOT_STARTED}")
    return found.certain[0]


def screen(found: Preflight, width: int) -> str:
    """What was found, in one screen."""
    lines = _output.wrapped(_headline(found), width, "", "  ")
    for cause in found.causes[:_MOST_CAUSES]:
        lines += _output.cause_lines(cause, width)
    if len(found.causes) > _MOST_CAUSES:
        lines += ["", f"  … and {len(found.causes) - _MOST_CAUSES} more, which --json shows"]
    if found.warnings:
        lines.append("")
    for warning in found.warnings:
        text = f"warning: {_output.clean(warning.text)} ({warning.code})"
        lines += _output.wrapped(text, width, "  ", "    ")
    if not_checked := list(_not_checked(found, width)):
        lines += ["", "  not checked:", *not_checked]
    return "\n".join(lines)


def _headline(found: Preflight) -> str:
    made = sum(check.outcome != "not_checked" for check in found.checks)
    if not found.causes:
        how_far = f"{made} of {len(found.checks)} checks, {found.took_s:.1f} s"
        return f"nothing found that would stop the start ({how_far})"
    verb = "would" if found.certain else "may"
    kinds = ", ".join(dict.fromkeys(cause.kind for cause in found.causes))
    return f"the start {verb} fail: {kinds}"


def _not_checked(found: Preflight, width: int) -> Iterator[str]:
    """The checks that were not made, those together that have one reason."""
    names: dict[str, list[str]] = {}
    for check in found.checks:
        if check.outcome == "not_checked":
            names.setdefault(check.note or "", []).append(check.name)
    for note, of in names.items():
        yield from _output.wrapped(f"{', '.join(of)}: {note}", width, "    ", "      ")
