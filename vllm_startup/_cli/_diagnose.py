"""``vllm-startup diagnose``."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from vllm_startup._cli import _output, _targets
from vllm_startup._cli._interrupt import unwinding
from vllm_startup._cli._status import OF_OUTCOME, TABLE, UsageError
from vllm_startup._report import StartupReport

DESCRIPTION: Final = """\
Say from a log how the newest start in it went: its phases, whether it was
ready, and why not. The log is a file, or that of a server which something else
runs.
"""
EPILOG: Final = f"""\
examples:
  vllm-startup diagnose vllm.log
  vllm-startup diagnose --json vllm.log | jq .cause
  vllm-startup diagnose --unit vllm
  kubectl logs my-pod | vllm-startup diagnose -

{TABLE}"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("log", metavar="FILE", nargs="?", help="the log; - for standard input")
    _targets.add_targets(parser.add_argument_group("instead of FILE"))
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def run(options: argparse.Namespace) -> int:
    """Read the log, and print what it says."""
    found = _diagnosed(options)
    if options.json:
        _output.say_json(found.to_json(indent=2))
    else:
        width = _output.width_of(sys.stdout)
        _output.say(_nothing_told(found, options, width) or _output.end_screen(found, width))
    return OF_OUTCOME[found.outcome]


def _nothing_told(found: StartupReport, options: argparse.Namespace, width: int) -> str:
    """What there is to say of a log that is none of vLLM's; empty for any other."""
    from vllm_startup._diagnosing import NOTHING_TOLD

    text = next((warning.text for warning in found.warnings if warning.code == NOTHING_TOLD), None)
    if text is None:
        return ""
    log = options.unit or options.container or options.log
    source = "standard input" if log == "-" else _output.clean(log)
    return "\n".join(_output.wrapped(f"{source}: {text}", width, "", "  "))


def _diagnosed(options: argparse.Namespace) -> StartupReport:
    from vllm_startup._diagnosing import diagnose

    try:
        target = _targets.target_of(options)
        if target is not None:
            with unwinding():
                return diagnose(target.read_log())
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:  # a unit's own file
        raise UsageError(
            f"{error.filename or 'the log'!r} cannot be read: {error.strerror or error}"
        ) from error
    log = options.log
    if log is None:
        raise UsageError("give the log: FILE, - for standard input, --unit U or --container C")
    if log == "-" and sys.stdin is None:
        raise UsageError("FILE is -, but standard input is closed")
    try:
        return diagnose(sys.stdin.buffer if log == "-" else log)
    except IsADirectoryError:
        raise UsageError(f"FILE {log!r} is a directory; give the log's own path") from None
    except OSError as error:
        raise UsageError(f"FILE {log!r} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UsageError(f"FILE {log!r}: {error}") from error
