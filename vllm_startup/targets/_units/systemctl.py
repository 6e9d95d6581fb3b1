"""What ``systemctl`` tells of a unit, parsed, and what it says when it refuses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from vllm_startup.probes._exits import Exit
from vllm_startup.targets._commands import Commands, Completed
from vllm_startup.targets._target import TargetError
from vllm_startup.targets._units.journal import exit_of

_PROPERTIES: Final = (
    *("Id", "Type", "LoadState", "LoadError", "ActiveState", "SubState", "Result", "Job", "NRestarts"),
    *("InvocationID", "MainPID", "ExecMainPID", "ExecMainCode", "ExecMainStatus", "ExecStart"),
    *("Environment", "StandardOutput", "StandardError", "LogLevelMax"),
)
_SHELLS: Final = ("sh", "bash", "dash", "zsh", "ksh", "ash")
_CONTAINERS: Final = ("docker", "podman", "nerdctl")
_TO_FILES: Final = ("file:", "append:", "truncate:")
_NOTICE: Final = 5  # syslog(3): the level at which systemd logs how a process ended, or a higher one
_CODES: Final = {"1": "exited", "2": "killed", "3": "dumped"}  # CLD_EXITED, CLD_KILLED, CLD_DUMPED
_SUFFIXES: Final = (
    "socket",
    "timer",
    "target",
    "mount",
    "path",
    "device",
    "swap",
    "automount",
)
_NEAR: Final = 3


_BEFORE_MAIN: Final = ("condition", "start-pre", "auto-restart", "auto-restart-queued")
"""The states of a service (systemd's `service_state_table`) in which its main process is still to come."""


@attrs.frozen(kw_only=True)
class UnitState:
    """A unit at one moment, in systemd's words.

    Attributes:
        name: Its whole name; that of the unit itself where it was asked for by an alias.
        loaded: ``loaded``, ``not-found``, ``masked``, ``bad-setting``, ...
        error: Why it could not be loaded.
        active: ``active``, ``activating``, ``inactive``, ``failed``, ...
        sub: ``running``, ``start-pre``, ``auto-restart``, ``dead``, ...
        result: ``success``, ``exit-code``, ``signal``, ``oom-kill``, ``start-limit-hit``, ...
        queued: Whether a job is about to change it.
        restarts: How often systemd has restarted it by itself.
        invocation: The start that it is in, or was in last.
        main_pid: Its main process; None while there is none.
        last_pid: The main process that it has, or had last.
        exit: How that ended; None while it lives, or where there was none.
        command: Its ``ExecStart=``.
        environment: Its ``Environment=``, which ``EnvironmentFile=`` is no part of.
        output: Where its standard output goes.
        errors: Where its standard error goes; ``inherit`` for the same place.
        hushed: Whether its ``LogLevelMax=`` keeps from the journal what systemd says of a failure.
    """

    name: str
    loaded: str = "loaded"
    error: str = ""
    active: str = "inactive"
    sub: str = "dead"
    result: str = "success"
    queued: bool = False
    restarts: int = 0
    invocation: str | None = None
    main_pid: int | None = None
    last_pid: int | None = None
    exit: Exit | None = None
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = attrs.field(factory=dict)
    output: str = "journal"
    errors: str = "inherit"
    hushed: bool = False

    @property
    def program(self) -> str:
        """The name of the program that it starts."""
        return self.command[0].rpartition("/")[2] if self.command else ""

    @property
    def over(self) -> bool:
        """Whether it does not run, and nothing is about to start it."""
        return self.active in ("inactive", "failed") and not self.queued

    @property
    def fails_aloud(self) -> bool:
        """Whether it has failed, and the journal is to tell of it."""
        return self.active == "failed" and not self.hushed

    @property
    def idle(self) -> bool:
        """Whether no process of it can be the server: it waits to be started, or is prepared."""
        return self.main_pid is None and (self.active in ("inactive", "failed") or self.sub in _BEFORE_MAIN)

    @property
    def starts_container(self) -> bool:
        """Whether its main process is only the client of a container's engine."""
        return self.program in _CONTAINERS

    @property
    def to_file(self) -> bool:
        """Whether its output goes to a file instead of the journal."""
        return self.output in ("file", "append", "truncate") or self.output.startswith(_TO_FILES)

    @property
    def overwrites(self) -> bool:
        """Whether each start writes over the output of the one before, from the file's beginning."""
        return self.output == "file" or self.output.startswith("file:")


def parse_state(text: str) -> UnitState:
    """Read what ``systemctl show`` prints of one unit."""
    given: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name in _PROPERTIES:
            given.setdefault(name, value)
    code = given.get("ExecMainCode", "")
    return UnitState(
        name=given.get("Id", ""),
        loaded=given.get("LoadState", ""),
        error=given.get("LoadError", ""),
        active=given.get("ActiveState", ""),
        sub=given.get("SubState", ""),
        result=given.get("Result", ""),
        queued=given.get("Job", "") not in ("", "0"),
        restarts=_number(given.get("NRestarts")) or 0,
        invocation=given.get("InvocationID") or None,
        main_pid=_number(given.get("MainPID")) or None,
        last_pid=_number(given.get("ExecMainPID")) or None,
        exit=exit_of(_CODES.get(code, code), given.get("ExecMainStatus")),
        command=_command(given.get("ExecStart", "")),
        environment=_environment(given.get("Environment", "")),
        output=given.get("StandardOutput", ""),
        errors=given.get("StandardError", ""),
        hushed=_number(given.get("LogLevelMax")) in range(_NOTICE),
    )


def output_file(unit_files: str, unit: str) -> str | None:
    """The file that a unit's output goes to, by the text of its files; None where that does not tell.

    ``systemctl show`` tells that it is a file, and not which.

    Args:
        unit_files: What ``systemctl cat`` prints: drop-ins last, whose settings win.
        unit: The unit's whole name, for ``%i`` and the like.
    """
    found = re.findall(
        r"^\s*StandardOutput\s*=\s*(?:file|append|truncate):(/.*?)\s*$", unit_files, re.MULTILINE
    )
    return _specified(found[-1], unit) if found else None


def _specified(path: str, unit: str) -> str | None:
    """A path with the specifiers filled in that follow from a unit's name (systemd.unit(5))."""
    stem = unit.rpartition(".")[0]
    prefix, _, instance = stem.partition("@")
    known = {"%": "%", "n": unit, "N": stem, "p": prefix, "i": instance}
    unknown = [letter for letter in re.findall(r"%(.)", path) if letter not in known]
    return None if unknown else re.sub(r"%(.)", lambda found: known[found[1]], path)


def _command(text: str) -> tuple[str, ...]:
    """The words of ``{ path=/bin/vllm ; argv[]=/bin/vllm serve m ; … }``, in which no quotes are left."""
    _, found, rest = text.partition("argv[]=")
    words = rest.partition(" ; ignore_errors=")[0].split(" ") if found else []
    if words and words[0].rpartition("/")[2] in _SHELLS and "-c" in words[1:3]:
        at = words.index("-c") + 1  # a shell's script is one word, blanks and all
        words = [*words[:at], " ".join(words[at:])]
    return tuple(words)


def _environment(text: str) -> dict[str, str]:
    import shlex

    try:
        words = shlex.split(text)
    except ValueError:
        return {}
    return {name: value for name, equals, value in (word.partition("=") for word in words) if equals}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


# --- systemctl --------------------------------------------------------------------------------


@attrs.frozen
class Systemctl:
    """A service manager, asked through ``systemctl``.

    Attributes:
        user: Whether it is the user's own.
    """

    commands: Commands
    user: bool = False

    def find(self, name: str) -> UnitState:
        """The unit of a name that a person gave. It blocks.

        Raises:
            TargetError: There is none that could be watched; the message says what to do.
        """
        unit = _whole_name(name)
        done = self._run("show", f"--property={','.join(_PROPERTIES)}", "--", unit)
        if done.code:
            raise TargetError(self._refused(unit, done))
        state = parse_state(done.stdout)
        if state.loaded == "not-found" and state.active in ("inactive", ""):
            near = self._near(unit)
            meant = f"did you mean {' or '.join(near)}?" if near else "systemctl list-units --all lists them"
            user = "" if self.user else "; for one of a user's own service manager give user=True"
            raise TargetError(
                f"unit {unit} does not exist on {self.commands.where}: {meant}{'' if near else user}"
            )
        if state.loaded == "masked":
            raise TargetError(f"unit {unit} is masked, so that it cannot start: systemctl unmask {unit}")
        if state.loaded not in ("loaded", "not-found"):
            why = state.error.partition(" ")[2].strip('"') or state.loaded
            raise TargetError(f"unit {unit} cannot be loaded: {why}: systemd-analyze verify {unit}")
        return state

    def show(self, unit: str) -> UnitState:
        """The state of a unit that is known. It blocks for some milliseconds.

        Raises:
            TargetError: systemd does not answer.
        """
        done = self._run("show", f"--property={','.join(_PROPERTIES)}", "--", unit)
        if done.code:
            raise TargetError(self._refused(unit, done))
        return parse_state(done.stdout)

    def cat(self, unit: str) -> str:
        """The text of its files; empty where they cannot be read."""
        done = self._run("cat", "--", unit)
        return "" if done.code else done.stdout

    def _run(self, verb: str, *arguments: str) -> Completed:
        manager = ("--user",) if self.user else ()
        return self.commands.run("systemctl", *manager, "--no-pager", verb, *arguments)

    def _near(self, unit: str) -> list[str]:
        listings = (
            self._run("list-units", "--all", "--type=service", "--plain", "--no-legend"),
            self._run("list-unit-files", "--type=service", "--no-legend"),
        )
        lines = [line.split() for done in listings for line in done.stdout.splitlines() if line.strip()]
        return near(unit, {words[0] for words in lines if "not-found" not in words[1:2]})

    def _refused(self, unit: str, done: Completed) -> str:
        said = " ".join(done.stderr.split())[:300]
        if "not been booted with systemd" in said:
            where = self.commands.where
            return f"systemd does not run on {where}, so that it has no units: give pid= and log="
        if "Failed to connect to" in said or "not defined" in said:
            if self.user:
                return (
                    "this user's own service manager cannot be reached: run this as the user whose unit it"
                    f" is, with XDG_RUNTIME_DIR=/run/user/UID set (systemctl --user says: {said})"
                )
            return f"systemd cannot be reached on {self.commands.where}: {said}"
        return f"systemctl does not show {unit}: {said}"


def near(unit: str, names: Sequence[str] | set[str]) -> list[str]:
    """The names that may have been meant, the likeliest first."""
    import difflib

    stem = unit.removesuffix(".service")
    stems = {name.removesuffix(".service"): name for name in sorted(names)}
    alike = difflib.get_close_matches(stem, stems, n=_NEAR, cutoff=0.6)
    holding = [other for other in stems if stem.partition("@")[0] in other and other not in alike]
    return [stems[other] for other in (*alike, *holding)][:_NEAR]


def _whole_name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"unit must be a unit's name such as 'vllm.service', not {name!r}")
    if not name or name.startswith("-") or any(char in "*?[]/ " or not char.isprintable() for char in name):
        raise TargetError(f"unit must be the name of one service, such as vllm.service, not {name[:80]!r}")
    stem, dot, suffix = name.rpartition(".")
    if dot and suffix in ("scope", "slice"):
        raise TargetError(
            f"unit {name} is a {suffix}, which others fill with processes: give the server's --pid"
        )
    if dot and suffix in _SUFFIXES:
        raise TargetError(f"unit {name} is a {suffix}, which runs nothing: name the service, {stem}.service")
    unit = name if dot and suffix == "service" else f"{name}.service"
    if unit.endswith("@.service"):
        stem = unit.removesuffix(".service")
        raise TargetError(f"unit {unit} is a template: name an instance of it, such as {stem}NAME.service")
    return unit
