"""A server that systemd runs as a unit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from vllm_startup.targets._commands import Commands, LocalCommands
from vllm_startup.targets._following import FollowingProbe, MainProcess
from vllm_startup.targets._journal import Journal
from vllm_startup.targets._supervised import SupervisedProcess
from vllm_startup.targets._systemctl import Systemctl, UnitState, output_file
from vllm_startup.targets._target import Site, TargetError
from vllm_startup.targets._transcript import recent, written
from vllm_startup.targets._unit import UnitProbe

if TYPE_CHECKING:
    from vllm_startup.probes import TreeProbe
    from vllm_startup.probes._protocol import Probe


_SCRIPT_WORDS: Final = 3  # bash -l /opt/start-vllm.sh
_SCRIPT_BYTES: Final = 64 * 1024


@attrs.frozen
class SystemdUnit:
    """A server that systemd runs on this machine. `systemd` makes it.

    Attributes:
        unit: Its name, with or without ``.service``.
        user: Whether it is a unit of this user's own service manager.
    """

    unit: str
    user: bool = attrs.field(default=False, kw_only=True)
    _commands: Commands = attrs.field(factory=LocalCommands, kw_only=True)

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
        unit = UnitProbe(state, systemctl, journal, main, log=path is None)
        tree = _tree(main)
        return Site(
            name=f"unit {state.name}",
            url=lambda: _url(state),
            probes=[unit, *_log_file(path), *_process_probes(state, main, unit, tree, gpus)],
            tree_pids=None if state.starts_container else lambda: _pids(tree, main),
        )

    def read_log(self) -> Iterator[str]:
        """The lines of its newest starts, the oldest first.

        Raises:
            TargetError: As of `locate`.
            OSError: It logs to a file that cannot be read.
        """
        systemctl = self._systemctl()
        state = systemctl.find(self.unit)
        path = _log_path(systemctl, state)
        if path is not None:
            return _lines_of(path)
        journal = self._journal(state, needed=True)
        assert journal is not None
        return iter(written(state.name, recent(journal.history())))

    def _systemctl(self) -> Systemctl:
        return Systemctl(self._commands, self.user)

    def _journal(self, state: UnitState, *, needed: bool) -> Journal | None:
        """Its journal; None where that may not be read, and is no log."""
        journal = Journal(state.name, self.user, self._commands)
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


# --- where its log is, and its address ----------------------------------------------------------


def _log_path(systemctl: Systemctl, state: UnitState) -> str | None:
    """The file that its output goes to; None for the journal, and where that cannot be told."""
    if not state.to_file:
        return None
    return state.output.partition(":")[2] or output_file(systemctl.cat(state.name), state.name)


def _lines_of(path: str) -> Iterator[str]:
    with Path(path).open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            yield line.removesuffix("\n")


def _url(state: UnitState) -> str | None:
    from vllm_startup._arguments import parse_command, url_of_process

    if state.main_pid is not None and (url := url_of_process(state.main_pid)) is not None:
        return url
    for command in (state.command, *_script(state.command)):
        found = parse_command(command, environ=state.environment)
        if found is not None:
            return found.url
    return None


def _script(command: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The commands of the script that a command runs, if it runs one."""
    for word in command[:_SCRIPT_WORDS]:
        try:
            with Path(word).open("rb") as file:
                text = file.read(_SCRIPT_BYTES)
        except OSError:
            continue
        if b"\0" not in text:
            yield ("sh", "-c", text.decode("utf-8", "replace"))


# --- what looks at it -----------------------------------------------------------------------------


def _log_file(path: str | None) -> list[Probe]:
    from vllm_startup.probes import LogFileProbe

    return [] if path is None else [LogFileProbe(path)]


def _tree(main: MainProcess) -> FollowingProbe[TreeProbe]:
    from vllm_startup.probes import TreeProbe

    return FollowingProbe("tree", main, TreeProbe)


def _pids(tree: FollowingProbe[TreeProbe], main: MainProcess) -> Collection[int]:
    """The processes of the start that is watched."""
    if tree.probe is not None:
        return tree.probe.pids
    return () if main.pid is None else (main.pid,)


def _process_probes(
    state: UnitState,
    main: MainProcess,
    unit: UnitProbe,
    tree: FollowingProbe[TreeProbe],
    gpus: Iterable[int | str] | None,
) -> list[Probe]:
    from vllm_startup.probes import CacheProbe, CgroupProbe, GpuProbe, ProcessProbe

    root = FollowingProbe("process", main, lambda pid: SupervisedProcess(ProcessProbe(pid), unit))
    chosen = None if gpus is None else list(gpus)
    GpuProbe(gpus=chosen)  # refuses nonsense now
    if state.starts_container:  # what its client does says nothing of the server
        return [root, GpuProbe(gpus=chosen)]
    return [
        root,
        tree,
        FollowingProbe(
            "gpu", main, lambda pid: GpuProbe(gpus=chosen, pid=pid, tree_pids=lambda: _pids(tree, main))
        ),
        FollowingProbe("caches", main, CacheProbe),
        FollowingProbe("cgroup", main, CgroupProbe),
    ]
