"""A server on another machine, reached over SSH."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from vllm_startup._arguments import parse_command
from vllm_startup._log.splitter import LineSplitter
from vllm_startup._url import ServerAddress
from vllm_startup.probes._protocol import Probe
from vllm_startup.probes._system import Stat
from vllm_startup.targets._following import MainProcess
from vllm_startup.targets._place import MOST_BYTES, Heard, PlacedTarget, ProcessLooks
from vllm_startup.targets._ssh.connection import Connection
from vllm_startup.targets._ssh.gpus import FarGpuProbe
from vllm_startup.targets._ssh.log import FarFiles, FarLogProbe
from vllm_startup.targets._ssh.processes import FarProcessProbe
from vllm_startup.targets._ssh.shell import SshCommands
from vllm_startup.targets._ssh.system import FarSystem
from vllm_startup.targets._ssh.tunnel import SshTunnel
from vllm_startup.targets._target import Site, TargetError

if TYPE_CHECKING:
    from vllm_startup._arguments import ServerArguments
    from vllm_startup.targets._containers.engine_address import EngineAddress

# Those of Docker's and Podman's that are there and ours to use.
_SOCKETS: Final = (
    'r="${XDG_RUNTIME_DIR:-/run/user/$(id -u)}"; for s in "${DOCKER_HOST#unix://}" /var/run/docker.sock'
    ' "$r/docker.sock" "$r/podman/podman.sock" /run/podman/podman.sock;'
    ' do [ -S "$s" ] && [ -w "$s" ] && echo "$s"; done; :'
)

_SLICE_BYTES: Final = 1024 * 1024


class FarPlace:
    """Another machine, over one connection. Its process probe keeps that and closes it.

    Args:
        connection: How it is reached; it stands.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.commands = SshCommands(connection)
        self.system = FarSystem(connection)
        self._commands_seen = FarSystem(connection)  # `system` is the process probe's, in a thread of its own
        self.keeper: FarProcessProbe | None = None
        self._logs: list[FarLogProbe] = []

    def clock_ahead_s(self) -> float:
        """How far its clock is ahead of this machine's, in seconds."""
        return self.system.clock_ahead_s

    def look_at(
        self,
        main: MainProcess,
        *,
        gpus: Sequence[int | str] | None,
        heard: Heard | None = None,
        serves: bool = True,
    ) -> ProcessLooks:
        """What looks at the server's processes there."""
        keeper = self._keep(main, heard=heard, tree=serves)
        pid = main if serves else MainProcess()
        return ProcessLooks(probes=[keeper, self._gpu_probe(gpus, lambda: pid.pid, keeper)])

    def look_at_one(
        self, pid: int | None, *, gpus: Sequence[int | str] | None, seen: Stat | None
    ) -> Sequence[Probe]:
        """What looks at one process there and no other; without one, at the connection alone."""
        keeper = self._keep(MainProcess(pid), once=pid is not None, seen=seen)
        if pid is None and gpus is None:
            return [keeper]
        return [keeper, self._gpu_probe(gpus, lambda: pid, keeper)]

    def log_probe(self, path: str) -> Probe:
        """What follows a log file there."""
        probe = FarLogProbe(self.connection, path, clock_ahead_s=self.clock_ahead_s)
        self._logs.append(probe)
        return probe

    def read_log(self, path: str) -> Iterator[str]:
        """The lines of a file there, up to now."""
        files = FarFiles(self.connection, path)
        try:
            file = files.open(Path(path))
            splitter, offset = LineSplitter(), 0
            while data := file.pread(_SLICE_BYTES, offset):
                offset += len(data)
                yield from splitter.feed(data)
            yield from splitter.finish()
        finally:
            files.close()

    def engines(self, engine: str | None) -> Sequence[EngineAddress]:
        """Where container engines answer there, through tunnels."""
        from vllm_startup.targets._containers.engine_address import EngineAddress, parse_engine

        if engine is not None:
            named = parse_engine(engine)
            there = [named.uds or f"{named.host}:{named.port}"]
        else:
            there = self.commands.run("sh", "-c", _SOCKETS).stdout.splitlines()
        if not there:
            raise TargetError(
                f"no container engine that this user may use answers on {self.commands.where}: start one"
                " (systemctl start docker or podman.socket), or say where it is with engine="
            )
        tunnels = [SshTunnel(self.connection, path) for path in there]
        for tunnel in tunnels:
            tunnel.open()
        return [
            EngineAddress(uds=tunnel.path, found_by=f"{tunnel.there} on {self.commands.where}")
            for tunnel in tunnels
        ]

    def inner_pid(self, pid: int) -> int:
        """The number of a process there in the innermost namespace around it."""
        return self.system.inner_pid(pid)

    def arguments_of(self, pid: int) -> ServerArguments | None:
        """The own arguments of a process's server there."""
        seen = self._commands_seen
        seen.refresh([pid])
        for member in (pid, *sorted(seen.family([pid]) - {pid})):
            command = seen.arguments(member)
            found = parse_command(command, cwd=self._folder_of(member, command), read=self.head)
            if found is not None and not found.in_script:
                return found
        return None

    def head(self, path: str | Path) -> str:
        """The beginning of a file there."""
        done = self.commands.run("head", "-c", str(MOST_BYTES), "--", str(path))
        if done.code:
            raise OSError(done.stderr)
        return done.stdout

    def route(self, address: ServerAddress) -> SshTunnel:
        """The tunnel to an address there."""
        if address.uds is not None:
            return SshTunnel(self.connection, address.uds)
        host = f"[{address.host}]" if ":" in str(address.host) else address.host
        return SshTunnel(self.connection, f"{host}:{address.port}")

    def _keep(
        self,
        main: MainProcess,
        *,
        heard: Heard | None = None,
        tree: bool = True,
        once: bool = False,
        seen: Stat | None = None,
    ) -> FarProcessProbe:
        self.keeper = FarProcessProbe(
            self.connection,
            self.system,
            main,
            heard=heard,
            tree=tree,
            once=once,
            seen=seen,
            log_read=lambda: all(log.read for log in self._logs),
        )
        return self.keeper

    def _gpu_probe(
        self,
        gpus: Sequence[int | str] | None,
        pid: Callable[[], int | None],
        keeper: FarProcessProbe,
    ) -> FarGpuProbe:
        return FarGpuProbe(self.connection, gpus=gpus, pid=pid, tree_pids=lambda: keeper.pids)

    def _folder_of(self, pid: int, command: Sequence[str]) -> str | None:
        """Where relative paths of a process begin, if it names any that matter."""
        if not {"--config", "--uds"} & {word.partition("=")[0] for word in command}:
            return None
        done = self.commands.run("readlink", f"/proc/{pid}/cwd")
        return done.stdout.removesuffix("\n") or None


@attrs.frozen
class SshTarget:
    """Another target on another machine, or a process or a log there; from `ssh`."""

    host: str
    target: PlacedTarget | None = None
    pid: int | None = attrs.field(default=None, kw_only=True)
    log: str | None = attrs.field(default=None, kw_only=True)
    options: tuple[str, ...] = attrs.field(default=(), kw_only=True)

    def locate(self, *, gpus: Iterable[int | str] | None = None) -> Site:
        """Connect, and find it there."""
        connection = Connection(self.host, self.options)
        connection.connect()
        try:
            place = FarPlace(connection)
            site = self._site(place, gpus)
            url, own_url = _asked(site.url), _asked_at_first(site.own_url)  # here, where it may take its time
            keeper = () if place.keeper is not None else place.look_at_one(None, gpus=None, seen=None)
        except BaseException:
            connection.close()
            raise
        return attrs.evolve(
            site,
            url=url,
            own_url=own_url,
            name=f"{site.name} on {self.host}",
            probes=[*site.probes, *keeper],
            tree_pids=None,
            route=place.route,
            close=connection.close,
        )

    def read_log(self) -> Iterator[str]:
        """Its newest starts' lines up to now, as the target there gives them; or the log file's."""
        connection = Connection(self.host, self.options)
        connection.connect()
        try:
            place = FarPlace(connection)
            if self.target is not None:
                yield from self.target.at(place).read_log()
            else:
                yield from place.read_log(self.log or "")
        except OSError as error:
            reason = error.strerror or str(error)
            raise TargetError(f"the log on {self.host} cannot be read: {reason}") from error
        finally:
            connection.close()

    def _site(self, place: FarPlace, gpus: Iterable[int | str] | None) -> Site:
        if self.target is not None:
            return self.target.at(place).locate(gpus=gpus)
        seen = None if self.pid is None else self._seen(place.system, self.pid)
        chosen = None if gpus is None else list(gpus)
        logs = [] if self.log is None else [place.log_probe(self.log)]
        return Site(
            name=f"log {self.log}" if self.pid is None else f"process {self.pid}",
            probes=[*place.look_at_one(self.pid, gpus=chosen, seen=seen), *logs],
            own_url=None if self.pid is None else partial(_own_url, place, self.pid),
        )

    def _seen(self, system: FarSystem, pid: int) -> Stat:
        """The process, which must be there."""
        try:
            system.refresh([pid])
            stat = system.stat(pid)
            status = system.read(f"{pid}/status")
        except OSError as error:
            raise TargetError(str(error)) from error
        leader = status.partition(b"\nTgid:")[2].split(b"\n", 1)[0].strip().decode()
        if stat is None and leader and leader != str(pid):
            raise TargetError(f"pid {pid} on {self.host} is a thread of process {leader}: give that one")
        if stat is None or stat.ended:
            raise TargetError(
                f"pid {pid} does not exist on {self.host}: give the id of the vllm process there while it"
                " runs"
            )
        return stat


def _own_url(place: FarPlace, pid: int) -> str | None:
    found = place.arguments_of(pid)
    return None if found is None else found.url


def _asked(url: Callable[[], str | None]) -> Callable[[], str | None]:
    """The same, with its first answer, or the refusal for who wants one, known."""
    known: list[str | TargetError | None] = []
    try:
        known.append(url())
    except TargetError as error:
        known.append(error)

    def answer() -> str | None:
        first = known.pop() if known else url()
        if isinstance(first, TargetError):
            raise first
        return first

    return answer


def _asked_at_first(own_url: Callable[[], str | None] | None) -> Callable[[], str | None] | None:
    """The same, with its first answer known, unless the connection breaks just then."""
    if own_url is None:
        return None
    ask, known = own_url, list[str | None]()
    with contextlib.suppress(OSError):
        known.append(own_url())
    return lambda: known.pop() if known else ask()


def ssh(
    host: str,
    target: PlacedTarget | None = None,
    *,
    pid: int | None = None,
    log: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
) -> SshTarget:
    """A server on another machine, which is reached by the user's own OpenSSH client.

    Its configuration, keys, agent, jump hosts and host-key checks are left as they are, and it never asks.
    There, nothing is needed but Linux, a POSIX shell, coreutils, and what the target itself needs
    (``systemctl`` and ``journalctl``, or a container engine); GPUs are seen where there is
    ``nvidia-smi``. A lost connection is made again, and nothing of the log is lost or told twice.

    Health is asked for through the connection, unless an address is given that is not on loopback.

    Args:
        host: As ssh takes it: a name from its configuration, ``user@host``, ``ssh://user@host:port``.
        target: What runs the server there: `systemd` or `container`.
        pid: Instead of a target: its main process there.
        log: With ``pid`` or alone: its output, a file there. It may appear later.
        options: Further words for ssh, such as ``["-F", "FILE"]``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``host`` is none, or there is nothing to look at, or too much.
    """
    Connection(host)
    if (target is None) == (pid is None and log is None):
        raise ValueError("give either a target, as in ssh(host, systemd(unit)), or pid= and log=")
    if pid is not None and (isinstance(pid, bool) or not isinstance(pid, int)):
        raise TypeError(f"pid must be a process id, a whole number, not {pid!r}")
    if target is not None and not hasattr(target, "at"):
        raise TypeError(f"target must be one that can be on another machine, not {target!r}")
    path = None if log is None else os.fspath(log)
    return SshTarget(host, target, pid=pid, log=path, options=tuple(options))
