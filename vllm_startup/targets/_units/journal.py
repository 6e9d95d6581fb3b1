"""A unit's journal: entries in, lines of a log out, and what systemd says in fields of its own.

Entries come as JSON (``journalctl --output=json``): text alone would lose which start a line belongs
to, and where a message of several lines ends. They become the lines that ``journalctl --output
short-iso-precise`` prints, which the log's reader knows. systemd.journal-fields(7) and sd-messages.h
are the sources for the fields.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from asyncio.subprocess import Process
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import attrs

from vllm_startup._log.splitter import MAX_LINE_BYTES, LineSplitter
from vllm_startup.causes._launchers import NOT_STARTED
from vllm_startup.probes._exits import Exit
from vllm_startup.targets._commands import Commands
from vllm_startup.targets._target import TargetError

HISTORY_ENTRIES: Final = 10_000
"""Read of what was there before: a start says 200 lines, and 5,000 with debug messages."""

_STARTING: Final = "7d4958e842da4a758f6c1cdc7b36dcc5"  # SD_MESSAGE_UNIT_STARTING
_STARTED: Final = "39f53479d3a045ac8e11786248231fbf"  # SD_MESSAGE_UNIT_STARTED
_PROCESS_EXIT: Final = "98e322203f7a4ed290d09fe03c09fe15"  # SD_MESSAGE_UNIT_PROCESS_EXIT
_UNIT_SUCCESS: Final = "7ad2d189f7e94e70a38c781354912448"  # SD_MESSAGE_UNIT_SUCCESS
_UNIT_FAILURE: Final = "d9b373ed55a64feb8242e02dbe79a49c"  # SD_MESSAGE_UNIT_FAILURE_RESULT
_UNIT_SKIPPED: Final = "0e4284a0caca4bfc81c0bb6786972673"  # SD_MESSAGE_UNIT_SKIPPED
_COREDUMP: Final = "fc2e22bc6ee647b6b90729ab34a250b1"  # SD_MESSAGE_COREDUMP
_REFUSALS: Final = ("dependency", "assert", "timeout", "invalid", "unsupported", "once")
"""How a job ends without the unit having been started (`job_result_table` of systemd)."""
_MAIN: Final = "ExecStart"
_EXECUTOR: Final = "("  # a program's name in brackets, until it is that program
_NEW_S: Final = 60.0
_FIELDS: Final = (
    *("MESSAGE", "MESSAGE_ID", "SYSLOG_IDENTIFIER", "SYSLOG_PID", "_COMM", "_PID", "_HOSTNAME"),
    *("UNIT", "USER_UNIT", "INVOCATION_ID", "USER_INVOCATION_ID", "_SYSTEMD_INVOCATION_ID"),
    *("COMMAND", "EXIT_CODE", "EXIT_STATUS"),
    *("JOB_TYPE", "JOB_RESULT"),
)
# With --all, a message of bytes takes four characters a byte; journald's own limit is 48 KiB a line.
_OF_SYSTEM: Final = ("UNIT={} _UID=0", "COREDUMP_UNIT={} _UID=0", "OBJECT_SYSTEMD_UNIT={} _UID=0")
_OF_USERS: Final = ("USER_UNIT={}", "COREDUMP_USER_UNIT={} _UID=0")
_LONGEST_ENTRY_BYTES: Final = 4 * 1024 * 1024
_READ_BYTES: Final = 64 * 1024
_HISTORY_LIMIT_S: Final = 30.0
_NO_PERMISSION: Final = ("insufficient permissions", "not seeing messages from other users")


@attrs.frozen(kw_only=True)
class Entry:
    """One entry of a unit's journal.

    Attributes:
        cursor: Its place in the journal.
        at_s: When the journal took it, in seconds since the Unix epoch.
        text: Its message, which may have several lines; None without one.
        writer: The program and its process id, as a log's prefix names them.
        by_manager: Whether the service manager says it about the unit.
        invocation: The start that it belongs to; None where nothing tells.
        starts: Whether it says that the unit is being started, or is.
        announces: Whether it says that it is being started.
        ends: Whether it says that the main process, or all of the unit, has ended.
        refuses: Whether it says that systemd does not start the unit, though it was asked to.
        exit: How a process ended that systemd had started, if that is what it says.
        command: The setting that named that process: ``ExecStart``, ``ExecStartPre``, ...
    """

    cursor: str
    at_s: float
    text: str | None = None
    host: str = "localhost"
    writer: tuple[str, int] = ("unknown", 0)
    by_manager: bool = False
    invocation: str | None = None
    starts: bool = False
    announces: bool = False
    ends: bool = False
    refuses: bool = False
    exit: Exit | None = None
    command: str | None = None

    @property
    def by_executor(self) -> bool:
        """Whether the process says it that systemd turns into the program: it could not be run."""
        return self.writer[0].startswith(_EXECUTOR)

    @property
    def closes(self) -> bool:
        """Whether it tells of the end of a start: of its main process, or of all of it."""
        return self.ends and (self.exit is None or self.command == _MAIN)

    def lines(self) -> list[str]:
        """The lines of a log that it stands for."""
        if self.text is None:
            return []
        stamp = datetime.fromtimestamp(self.at_s, UTC).isoformat(timespec="microseconds")
        program, pid = self.writer
        return [f"{stamp} {self.host} {program}[{pid}]: {line}" for line in _cut(self.text)]


def parse(line: str) -> Entry | None:
    """Read one entry as ``journalctl --output=json`` prints it; None where it is none."""
    try:
        fields = json.loads(line)
        cursor, at_s = fields["__CURSOR"], int(fields["__REALTIME_TIMESTAMP"]) / 1e6
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    unit = _first(fields.get("UNIT")) or _first(fields.get("USER_UNIT"))
    message_id = _first(fields.get("MESSAGE_ID"))
    text = _text(fields.get("MESSAGE"))
    refuses = unit is not None and _is_refusal(fields, message_id, text or "")
    starts = unit is not None and message_id in (_STARTING, _STARTED) and not refuses
    if unit and text and (starts or refuses):
        text = _naming(unit, text) if starts else f"{unit}: {NOT_STARTED}{text}"
    writer = _writer(fields)
    return Entry(
        cursor=str(cursor),
        at_s=at_s,
        text=text,
        host=_word(_first(fields.get("_HOSTNAME")) or "localhost"),
        writer=writer,
        by_manager=unit is not None and not writer[0].startswith(_EXECUTOR),
        invocation=_invocation(fields),
        starts=starts,
        announces=starts and message_id == _STARTING,
        ends=unit is not None and message_id in (_PROCESS_EXIT, _UNIT_SUCCESS, _UNIT_FAILURE),
        refuses=refuses,
        exit=_exit(fields) if unit is not None and message_id == _PROCESS_EXIT else None,
        command=_first(fields.get("COMMAND")),
    )


def _is_refusal(fields: dict[str, Any], message_id: str | None, text: str) -> bool:
    if message_id == _STARTED:  # told of a job that is done, though a condition was not met
        return " was skipped because " in text or text.startswith("Condition check resulted in ")
    if message_id == _UNIT_SKIPPED:  # by ExecCondition=
        return True
    return _first(fields.get("JOB_TYPE")) == "start" and _first(fields.get("JOB_RESULT")) in _REFUSALS


# --- fields -----------------------------------------------------------------------------------


def _text(value: Any) -> str | None:
    """A field's text: bytes come as numbers, and a field that was there twice as a list of both."""
    match value:
        case str():
            return value
        case [int(), *_]:
            return bytes(byte & 0xFF for byte in value).decode("utf-8", "replace")
        case [_, *_]:
            return "\n".join(filter(None, map(_text, value)))
        case _:
            return None


def _first(value: Any) -> str | None:
    text = _text(value)
    return text.partition("\n")[0] if text else None


def _writer(fields: dict[str, Any]) -> tuple[str, int]:
    program = _first(fields.get("SYSLOG_IDENTIFIER")) or _first(fields.get("_COMM")) or "unknown"
    pid = _first(fields.get("_PID")) or _first(fields.get("SYSLOG_PID")) or ""
    return _word(program), int(pid) if pid.isascii() and pid.isdigit() and len(pid) < 10 else 0


def _word(text: str) -> str:
    """As it can stand in a line's prefix."""
    return "".join(char if char.isalnum() or char in "._@/()-" else "_" for char in text[:64]) or "unknown"


def _invocation(fields: dict[str, Any]) -> str | None:
    # Of systemd's own entries the first two are of the unit, the last of the service manager's.
    if _first(fields.get("MESSAGE_ID")) == _COREDUMP:
        return None  # that of the unit which saved the core
    return (
        _first(fields.get("INVOCATION_ID"))
        or _first(fields.get("USER_INVOCATION_ID"))
        or _first(fields.get("_SYSTEMD_INVOCATION_ID"))
    )


def _exit(fields: dict[str, Any]) -> Exit | None:
    return exit_of(_first(fields.get("EXIT_CODE")), _first(fields.get("EXIT_STATUS")))


def exit_of(code: str | None, status: str | None) -> Exit | None:
    """An exit from systemd's words for it: ``exited``, ``killed`` or ``dumped``, and a number."""
    if status is None or not status.isdigit():
        return None
    if code == "exited":
        return Exit(code=int(status))
    return Exit(signal=int(status)) if code in ("killed", "dumped") else None


def _naming(unit: str, text: str) -> str:
    """What systemd says of a start, with the unit's name as well as its description, as 249 and newer do."""
    verb, _, what = text.partition(" ")
    return text if unit in text else f"{verb} {unit} - {what}"


def _cut(text: str) -> list[str]:
    text = text.removesuffix("\n")
    if len(text) * 4 <= MAX_LINE_BYTES:
        return text.split("\n")
    return LineSplitter().feed(text.encode("utf-8", "replace") + b"\n")


# --- journalctl -------------------------------------------------------------------------------


@attrs.frozen
class Journal:
    """The journal of one unit.

    Attributes:
        unit: The unit's whole name.
        user: Whether it is a unit of the user's own service manager.
    """

    unit: str
    user: bool
    commands: Commands

    def check(self) -> None:
        """Make sure that it may be read.

        Raises:
            TargetError: It may not, or journalctl is not there.
        """
        done = self.commands.run(*self._command("--lines=1", quiet=False))
        hidden = any(words in done.stderr for words in _NO_PERMISSION)
        if hidden and not done.stdout.strip():
            raise TargetError(
                f"the journal of {self.unit} may not be read by this user: add it to the group"
                " systemd-journal or adm (sudo usermod -aG systemd-journal USER, then log in again), or"
                " run this as root"
            )

    def history(self) -> Sequence[Entry]:
        """The newest entries, the oldest first. It blocks.

        Raises:
            TargetError: They cannot be read.
        """
        done = self.commands.run(*self._command(f"--lines={HISTORY_ENTRIES}"), limit_s=_HISTORY_LIMIT_S)
        if done.code and not done.stdout:
            raise TargetError(f"journalctl failed on {self.commands.where}: {_last(done.stderr)}")
        return [entry for line in done.stdout.split("\n") if (entry := parse(line)) is not None]

    def follow(self, cursor: str | None) -> Coroutine[Any, Any, Process]:
        """Start to follow it behind a place; from its beginning without one.

        Raises:
            OSError: journalctl cannot be started.
        """
        place = () if cursor is None else (f"--after-cursor={cursor}",)
        return self.commands.start(*self._command("--follow", "--no-tail", *place))

    def _command(self, *options: str, quiet: bool = True) -> Iterator[str]:
        yield from ("journalctl", "--output=json", "--all", f"--output-fields={','.join(_FIELDS)}")
        yield from options
        if quiet:
            yield "--quiet"
        # --unit leaves out what systemd says of a program that it could not run. Anybody may write
        # UNIT=, but not with root's user id.
        for field in _OF_USERS if self.user else _OF_SYSTEM:
            yield from (*field.format(self.unit).split(), "+")
        yield f"{'_SYSTEMD_USER_UNIT' if self.user else '_SYSTEMD_UNIT'}={self.unit}"


class JournalEndedError(RuntimeError):
    """journalctl has ended, which it does not by itself."""


class JournalFollower:
    """Reads a journal on and on; where journalctl ends, it is started again from where it was.

    Args:
        journal: Which.
        cursor: The last entry that is known; None for none.
    """

    def __init__(self, journal: Journal, cursor: str | None) -> None:
        self._journal = journal
        self._cursor = cursor
        self._starting: asyncio.Task[Process] | None = None
        self._splitter = LineSplitter(_LONGEST_ENTRY_BYTES)

    async def read(self) -> list[Entry]:
        """Wait for further entries. Cancelling it loses none.

        Raises:
            JournalEndedError: journalctl has ended; the next call starts it again.
            OSError: It cannot be started.
        """
        if self._starting is None:
            self._splitter = LineSplitter(_LONGEST_ENTRY_BYTES)
            self._starting = asyncio.ensure_future(self._journal.follow(self._cursor))
        try:
            process = await asyncio.shield(self._starting)  # one that nobody knows of would stay
        except OSError:
            self._starting = None
            raise
        assert process.stdout is not None
        entries: list[Entry] = []
        while not entries:
            data = await process.stdout.read(_READ_BYTES)
            if not data:
                self._starting = None
                raise JournalEndedError(await self._ended(process))
            entries = self._parsed(self._splitter.feed(data))
        return entries

    async def aclose(self) -> None:
        """End journalctl."""
        starting, self._starting = self._starting, None
        if starting is None:
            return
        try:
            process = await starting
        except OSError:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await process.communicate()

    def _parsed(self, lines: Iterable[str]) -> list[Entry]:
        entries = [entry for line in lines if (entry := parse(line)) is not None]
        if entries:
            self._cursor = entries[-1].cursor
        return entries

    async def _ended(self, process: Process) -> str:
        _, said = await process.communicate()
        await self._journal.commands.check(process)
        why = _last(said.decode("utf-8", "replace")) or f"status {process.returncode}"
        return f"journalctl ended on {self._journal.commands.where}: {why}"


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip()[:200] if lines else ""


def failed_before_main(history: Iterable[Entry], start: str | None) -> Entry | None:
    """What systemd logged of ``ExecStartPre=`` of a start that came no further."""
    ends = [entry for entry in history if entry.by_manager and entry.ends and entry.invocation == start]
    if any(entry.closes and entry.exit is not None for entry in ends):  # its main process has ended
        return None
    return next((entry for entry in ends if not entry.closes), None)


def just_refused(history: Sequence[Entry], now: float) -> tuple[Sequence[Entry], Sequence[Entry]]:
    """The history of a unit that does not run, and its last words if they are that it was not started.

    Who waits for it has just tried to start it; what systemd refused long ago is of the past.

    Args:
        history: The entries, the oldest first.
        now: In seconds since the Unix epoch, by the clock of the unit's machine.
    """
    first = len(history)
    while first and history[first - 1].refuses and now - history[first - 1].at_s < _NEW_S:
        first -= 1
    return history[:first], history[first:]
