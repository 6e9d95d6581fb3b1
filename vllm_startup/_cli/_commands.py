"""The subcommands, and what happens around each: wrong usage, faults of our own, interruptions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Final, Protocol, cast

import attrs

from vllm_startup._cli import _output
from vllm_startup._cli._interrupt import words_of
from vllm_startup._cli._parser import PROGRAM, Parser
from vllm_startup._cli._spelling import on_command_line
from vllm_startup._cli._status import TABLE, Exit, InterruptedEarlyError, UsageError

_EXAMPLES: Final = """\
examples:
  vllm-startup demo
  vllm-startup run -- vllm serve Qwen/Qwen3-8B
  vllm-startup preflight -- vllm serve Qwen/Qwen3-8B
  vllm-startup wait --pid 4242 --log vllm.log
  vllm-startup wait http://127.0.0.1:8000 --timeout 1800 && start-traffic
  vllm-startup diagnose vllm.log
  journalctl -u vllm -o short-iso | vllm-startup diagnose -

"""


class Command(Protocol):
    """What a subcommand's module holds. It imports what is heavy only when it runs."""

    DESCRIPTION: str
    EPILOG: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        ...

    def run(self, options: argparse.Namespace) -> int:
        """Run it, and return the exit status."""
        ...


@attrs.frozen
class Entry:
    """A subcommand: its name, one line of help, and the module that is it.

    Attributes:
        takes_command: Whether what follows a ``--`` is a command of its own.
    """

    name: str
    help: str
    module: str
    takes_command: bool = False

    def load(self) -> Command:
        """The command."""
        return cast("Command", import_module(self.module))


COMMANDS: Final = (
    Entry("wait", "wait until a server that something else started is ready", "vllm_startup._cli._wait"),
    Entry("run", "start a server, and stay in front of it", "vllm_startup._cli._run", takes_command=True),
    Entry(
        "preflight",
        "look, before a start, for what would make it fail",
        "vllm_startup._cli._preflight",
        takes_command=True,
    ),
    Entry("cleanup", "show what dead servers left behind, and end it", "vllm_startup._cli._cleanup"),
    Entry("demo", "watch a simulated server, without vLLM or a GPU", "vllm_startup._cli._demo"),
    Entry("diagnose", "say from a log how the newest start in it went", "vllm_startup._cli._diagnose"),
    Entry("replay", "run a recording of a wait through the machine again", "vllm_startup._cli._replay"),
    Entry("markers", "compare the known texts with a vLLM's sources", "vllm_startup._cli._markers"),
    Entry("diagram", "print the phases as a Mermaid state diagram", "vllm_startup._cli._diagram"),
)
"""A new subcommand is one entry here and a module of that name."""


def run(arguments: Sequence[str], commands: Sequence[Entry] = COMMANDS) -> int:
    """Run the command that the arguments name, and return its exit status."""
    try:
        status = _run(list(arguments), commands)
    except KeyboardInterrupt:
        status = Exit.INTERRUPTED
    except _output.OutputError as error:
        _output.tell(f"{PROGRAM}: {error}")
        status = Exit.FAULT
    except Exception as error:  # noqa: BLE001 - the contract: a short message and status 70, whatever it is
        _fault(error, debug="--debug" in arguments)
        status = Exit.FAULT
    return int(status)


def _run(arguments: list[str], commands: Sequence[Entry]) -> int:
    arguments, command_line = _divided(arguments, commands)
    if command_line is None:
        _output.tell(f"{PROGRAM} {arguments[0]}: error: put the command behind --, as in:")
        _output.tell(f"  {PROGRAM} {arguments[0]} -- vllm serve MODEL")
        return Exit.USAGE
    try:
        options = _parser(commands).parse_args(arguments)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else Exit.USAGE
    options.command_line = command_line
    try:
        status: int = options.run(options)
    except InterruptedEarlyError as error:
        _output.tell(words_of(error.number).rstrip())
        return 128 + error.number
    except UsageError as error:
        said = on_command_line(_output.clean(str(error), 2000), options.command)
        _output.tell(f"{PROGRAM} {options.command}: error: {said}")
        return Exit.USAGE
    return status


def _divided(arguments: list[str], commands: Sequence[Entry]) -> tuple[list[str], list[str] | None]:
    """Our own arguments, and the command behind ``--`` for those that take one; None where it lacks.

    argparse is not asked: what it does about ``--`` differs between versions of Python.
    """
    takes = {entry.name for entry in commands if entry.takes_command}
    if arguments[:1] == [] or arguments[0] not in takes or {"-h", "--help"} & set(arguments[:2]):
        return arguments, []
    if "--" not in arguments[:-1]:
        return arguments, None
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _fault(error: Exception, *, debug: bool) -> None:
    _output.tell(f"{PROGRAM}: internal error: {_output.clean(repr(error))}")
    if debug:
        import traceback

        _output.tell("".join(traceback.format_exception(error)).rstrip())
    else:
        _output.tell("This is a fault of vllm-startup. Run it again with --debug and report what it prints.")


def _parser(entries: Sequence[Entry]) -> Parser:
    parser = Parser(
        prog=PROGRAM,
        description="Wait until a vLLM server is ready, and say why it never will be.",
        epilog=_EXAMPLES + TABLE,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for entry in entries:
        command = entry.load()
        sub = commands.add_parser(
            entry.name, help=entry.help, description=command.DESCRIPTION, epilog=command.EPILOG
        )
        command.configure(sub)
        sub.add_argument("--debug", action="store_true", help="show the traceback of a fault of our own")
        sub.set_defaults(run=command.run)
    return parser


def _version() -> str:
    from vllm_startup._versions import versions

    return versions()["vllm_startup"]
