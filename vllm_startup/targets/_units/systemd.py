"""A server that systemd runs as a unit."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

import attrs

from vllm_startup.targets._following import MainProcess
from vllm_startup.targets._here import Here
from vllm_startup.targets._place import Place
from vllm_startup.targets._target import Site, TargetError
from vllm_startup.targets._units.journal import Entry, Journal
from vllm_startup.targets._units.mourned import LAST_WORDS_S, LATE_WORDS_S
from vllm_startup.targets._units.systemctl import Systemctl, UnitState, output_file
from vllm_startup.targets._units.transcript import recent, written
from vllm_startup.targets._units.unit import UnitProbe

_SCRIPT_WORDS: Final = 3  # bash -l /opt/start-vllm.sh


@attrs.frozen
class SystemdUnit:
    """A server that systemd runs on this machine. `systemd` makes it.

    Attributes:
        unit: Its name, with or without ``.service``.
        user: Whether it is a unit of this user's own service manager.
    """

    unit: str
    user: bool = attrs.field(default=False, kw_only=True)
    _place: Place = attrs.field(factory=Here, kw_only=True)

    def at(self, place: Place) -> SystemdUnit:
        """The unit of that name on another machine."""
        return attrs.evolve(self, place=place)

    def locate(self, *, gpus: Iterable[int | str] | None = None) -> Site:
        """Find the unit, and say what looks at it. It blocks for some 50 ms.

        Args:
            gpus: The GPUs that it may use, instead of what its environment says.

        Raises:
            TargetError: There is no such unit, or it or its journal may not be read; the message
                says what to do.
        """
        systemctl = self._systemctl()
        state = systemctl.find(self.unit)
        path = _log_path(systemctl, state)
        journal = self._journal(state, needed=path is None)
        main = MainProcess(state.main_pid)
        clock = self._place.clock_ahead_s
        unit = UnitProbe(state, systemctl, journal, main, log=path is None, clock_ahead_s=clock)
        chosen = None if gpus is None else list(gpus)
        serves = not state.starts_container
        looks = self._place.look_at(main, gpus=chosen, heard=unit.ended, serves=serves)
        return Site(
            name=f"unit {state.name}",
            url=lambda: self._url(unit.state),
            own_url=lambda: self._own_url(unit.state),
            start=lambda: unit.state.invocation,
            probes=[unit, *([] if path is None else [self._place.log_probe(path)]), *looks.probes],
            tree_pids=looks.tree_pids,
            runs=lambda: not unit.state.idle,
        )

    def read_log(self) -> Iterator[str]:
        """The lines of its newest starts, the oldest first. It blocks, longer where one has just ended.

        Raises:
            TargetError: As of `locate`.
            OSError: It logs to a file that cannot be read.
        """
        systemctl = self._systemctl()
        state = systemctl.find(self.unit)
        path = _log_path(systemctl, state)
        if path is not None and (lines := self._written_to(path)) is not None:
            return lines
        journal = self._journal(state, needed=True)
        assert journal is not None
        entries = recent(journal.history())
        until = time.monotonic() + LATE_WORDS_S
        while state.fails_aloud and not _closed(entries, state) and time.monotonic() < until:
            time.sleep(LAST_WORDS_S)
            entries = recent(journal.history())
        if entries and self._is_fresh(entries[-1]):
            time.sleep(LAST_WORDS_S)
            entries = recent(journal.history())
        return iter(written(state.name, entries))

    def _written_to(self, path: str) -> Iterator[str] | None:
        """The lines of a file; None where there is none, as of a unit that systemd could not start."""
        lines = self._place.read_log(path)
        try:
            first = next(lines, None)
        except FileNotFoundError:
            return None
        return chain(() if first is None else (first,), lines)

    def _is_fresh(self, entry: Entry) -> bool:
        """Whether what was written at the same time may not be in the journal yet."""
        return time.time() + self._place.clock_ahead_s() - entry.at_s < LAST_WORDS_S

    def _systemctl(self) -> Systemctl:
        return Systemctl(self._place.commands, self.user)

    def _url(self, state: UnitState) -> str | None:
        from vllm_startup._arguments import parse_command

        for command in (state.command, *self._script(state.command)):
            found = parse_command(command, environ=state.environment, read=self._place.head)
            if found is not None:
                return found.url
        return None

    def _own_url(self, state: UnitState) -> str | None:
        found = None if state.main_pid is None else self._place.arguments_of(state.main_pid)
        return None if found is None else found.url

    def _script(self, command: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """The commands of the script that a command runs, if it runs one."""
        for word in command[:_SCRIPT_WORDS]:
            try:
                text = self._place.head(word)
            except OSError:
                continue
            if "\0" not in text:
                yield ("sh", "-c", text)

    def _journal(self, state: UnitState, *, needed: bool) -> Journal | None:
        """Its journal; None where that may not be read, and is no log."""
        journal = Journal(state.name, self.user, self._place.commands)
        try:
            journal.check()
        except TargetError:
            if needed:
                raise
            return None
        return journal


def systemd(unit: str, *, user: bool = False) -> SystemdUnit:
    """A server that systemd runs on this machine: its journal, its processes, its restarts.

    What systemd starts again is found again, so that ``restarts=`` may be given. A unit that does not
    run yet is awaited. Its log is its journal, or the file that its standard output goes to. The journal
    of the system's units is readable for root and the members of the groups ``systemd-journal`` and
    ``adm``.

    Args:
        unit: Its name: ``vllm``, ``vllm.service``, ``vllm@qwen.service``.
        user: Whether it is a unit of this user's own service manager (``systemctl --user``).

    Returns:
        What `wait_until_ready` takes as ``target``; that is when the unit is looked for.
    """
    return SystemdUnit(unit, user=user)


def _closed(entries: Iterable[Entry], state: UnitState) -> bool:
    """Whether the journal holds the end of a unit's newest start."""
    return any(entry.closes and entry.invocation == state.invocation for entry in entries)


# --- where its log is ----------------------------------------------------------


def _log_path(systemctl: Systemctl, state: UnitState) -> str | None:
    """The file that its output goes to; None for the journal, and where that cannot be told."""
    if not state.to_file:
        return None
    return state.output.partition(":")[2] or output_file(systemctl.cat(state.name), state.name)
