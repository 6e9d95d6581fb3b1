"""The life of the server's processes: deaths are told when they happen, not when they are looked for."""

from __future__ import annotations

import asyncio
import subprocess
import time
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, Protocol, cast

from vllm_startup._blocking import BlockingRunner, StillRunningError
from vllm_startup._readings import ProbeNote, ProcessExited, ProcessFound, Reading
from vllm_startup._redact import redact_command
from vllm_startup._roles import TITLE_PREFIX
from vllm_startup.probes._exits import Exit, ExitWatch, Watched
from vllm_startup.probes._family import Member, Scan, family_of
from vllm_startup.probes._system import Stat, System, existing, exists, this_system

if TYPE_CHECKING:
    from collections.abc import Iterable

# An engine imports for 5 to 20 s before it can die of anything of interest; a second finds it. It is
# a little more than `TreeProbe` waits, so that there is mostly a scan of that to take over.
_DISCOVERY_S: Final = 1.1
# Workers are started one after the other: where one is new, its siblings are about to be.
_SIBLINGS_S: Final = 0.2
# Where there is no pidfd. A look at a process costs some 10 us on Linux, 50 us through psutil.
_POLL_S: Final = 0.1
# asyncio's child watcher sets the return code from a thread some ms after the kernel tells the death.
_RETURNCODE_TRIES: Final = 10
_RETURNCODE_PAUSE_S: Final = 0.005
# The first look reads a command line, which hangs while the process holds its memory map's lock.
_DESCRIBE_LIMIT_S: Final = 1.0
# A fork that is about to exec still shows its parent's command line; helpers are gone by then.
_SETTLED_S: Final = 1.0

# What may stand at the end of "vllm serve … | tee vllm.log &", and is then the shell's $!.
_READERS: Final = frozenset({"awk", "cat", "cronolog", "grep", "logger", "rotatelogs", "sed", "tee", "ts"})

_SPAWNED: Final = "from multiprocessing.spawn import spawn_main"
# vLLM's and Python's own servants: they come, go and are killed in healthy starts.
_HELPERS: Final = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "vllm.model_executor.models.registry",
    "torch/_inductor/compile_worker",
)


class ChildProcess(Protocol):
    """A `subprocess.Popen` or `asyncio.subprocess.Process`, whose owner goes on owning it."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    @property
    def returncode(self) -> int | None:
        """Its exit status, a negative signal, or None while it is not known."""
        ...


def worth_telling(member: Member, now: float) -> bool:
    """The one rule for whose end is told: the main process, vLLM's own, and what may become one of them.

    A compile starts thousands of short-lived helpers whose ends mean nothing. An engine or worker,
    though, is a plain Python for 5 to 20 s before it sets its title, and may be killed in that time.

    Args:
        member: A process of the tree.
        now: The monotonic clock.
    """
    if member.parent is None or member.titled:
        return True
    line = " ".join(member.arguments)
    if not line or any(helper in line for helper in _HELPERS):
        return False
    if _SPAWNED in line:
        return True
    if now - member.seen_at < _SETTLED_S:
        return False
    # What a wrapper started (sh, uv, numactl), or a worker that was forked instead of spawned.
    forked = member.arguments == member.parent.arguments
    return member.parent.parent is None or (forked and worth_telling(member.parent, now))


class ProcessProbe:
    """Tells that the main process was found, then the end of it and of each process that matters.

    On Linux each end is an event (a pidfd); elsewhere processes are looked at every 0.1 s. The status
    comes from the kernel, which tells it to non-parents from Linux 6.15 on, and before that while the
    parent has not asked for it; else it stays unknown. `worth_telling` says whose end is told.
    The probe is finished when all of them have ended.

    Args:
        pid: The server's main process, started by somebody else.
        process: The same, started by this program. It stays the caller's: it is never waited for.
        name: The probe's name in reports.
        system: Where facts about processes come from; this machine's when None.

    Raises:
        TypeError: ``pid`` is no number, or ``process`` no process.
        ValueError: Both or neither are given, or no such process exists.
    """

    interval_s: float = 0.0
    limit_s: float | None = None

    def __init__(
        self,
        pid: int | None = None,
        *,
        process: ChildProcess | None = None,
        name: str = "process",
        system: System | None = None,
    ) -> None:
        if (pid is None) == (process is None):
            raise ValueError("give either pid= or process=, one of them")
        self.name = name
        self._system = system or this_system()
        self._process = process
        self._pid, stat = _main_process(pid, process, self._system)
        self._stat = stat
        self._root = Watched(self._pid, stat and stat.identity)
        self._family = None if stat is None else family_of(stat.identity, system)
        self._runner = BlockingRunner(f"vllm_startup-{name}-{self._pid}")
        self._watch = ExitWatch(self._system, self._on_exit)
        self._names: dict[Watched, str] = {self._root: stat.program if stat else ""}
        self._ended: set[Watched] = set()
        self._exits: list[Reading] = []
        self._error: BaseException | None = None
        self._scanning: asyncio.Future[Scan] | None = None
        self._scan_at = float("-inf")
        self._scan_age_s = _DISCOVERY_S / 2
        self._scan_ourselves = True
        self._wake = asyncio.Event()
        self._retry: asyncio.TimerHandle | None = None
        self._found = False
        self._root_told = False
        self._finished = False
        self._closed = False

    async def sample(self, now: float) -> Iterable[Reading]:
        """Tell who was found; from the second call on, wait until somebody has ended."""
        if not self._found:
            readings = await self._find()
            self._found = True
            return [*readings, *self._take()]
        while not self._exits:
            self._raise_error()
            if self._finished:
                raise StopAsyncIteration
            self._start_scan()
            await self._rest()
            self._watch.poll()
        return self._take()

    async def aclose(self) -> None:
        """Stop watching; the processes go on."""
        self._closed = True
        self._watch.close()
        if self._retry is not None:
            self._retry.cancel()
        self._runner.close()

    # --- the main process -----------------------------------------------------------------

    async def _find(self) -> list[Reading]:
        if self._root not in self._watch and self._root not in self._ended:
            self._watch_root()
        if self._stat is None:
            return [ProcessFound(pid=self._pid), *self._note_hidden()]
        try:
            async with asyncio.timeout(_DESCRIBE_LIMIT_S):
                return await self._runner.run(partial(self._describe, self._stat))
        except (TimeoutError, StillRunningError):
            return [ProcessFound(pid=self._pid, started_at=self._stat.started_at)]

    def _watch_root(self) -> None:
        if self._process is not None and self._process.returncode is not None:
            # Reaped: the pid may be another's by now.
            self._on_exit(self._root, Exit.of_returncode(self._process.returncode))
        else:
            self._watch.add(self._root)

    def _note_hidden(self) -> list[Reading]:
        if self._root in self._ended:
            return []
        text = f"process {self._pid} is hidden from this user: it is watched for life alone"
        return [ProbeNote(code="process_unreadable", text=text)]

    def _describe(self, stat: Stat) -> list[Reading]:
        found = ProcessFound(
            pid=stat.pid,
            started_at=stat.started_at,
            age_s=self._system.age_s(stat),
            command=redact_command(self._system.arguments(stat.pid)),
        )
        notes: list[Reading] = []
        program = PurePath(found.command[0]).name if found.command else ""
        if program in _READERS:
            text = (
                f"process {stat.pid} is {program}, which reads what another program writes: $! is the last"
                " process of a pipe; give the server's own"
            )
            notes.append(ProbeNote(code="process_is_reader", text=text))
        if not self._system.readable(stat.pid) and exists(stat.pid):
            text = f"process {stat.pid} is another user's: its I/O and its environment are not seen"
            notes.append(ProbeNote(code="process_unreadable", text=text))
        return [found, *notes]

    # --- ends -----------------------------------------------------------------------------

    def _on_exit(self, watched: Watched, how: Exit | None) -> None:
        self._ended.add(watched)
        if how is None and watched == self._root and self._process is not None:
            self._ask_owner(self._process, _RETURNCODE_TRIES)
        else:
            self._tell(watched, how or Exit())

    def _ask_owner(self, process: ChildProcess, tries: int) -> None:
        """Take the status from the object that reaped the process, which may still be about to."""
        returncode = process.poll() if isinstance(process, subprocess.Popen) else process.returncode
        if returncode is not None:
            self._tell(self._root, Exit.of_returncode(returncode))
        elif tries == 0:
            self._tell(self._root, Exit())
        else:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(_RETURNCODE_PAUSE_S, self._ask_owner, process, tries - 1)

    def _tell(self, watched: Watched, how: Exit) -> None:
        is_root = watched == self._root
        name = self._last_name(watched)
        self._exits.append(
            ProcessExited(pid=watched.pid, name=name, code=how.code, signal=how.signal, root=is_root)
        )
        # One more scan tells whether anybody is left.
        self._scan_at, self._scan_ourselves = float("-inf"), True
        self._root_told = self._root_told or is_root
        self._finished = self._root_told and self._family is None
        self._wake.set()

    def _last_name(self, watched: Watched) -> str:
        """Its name, also when it took vLLM's title after it was looked at last."""
        name = self._names.pop(watched)
        if name.startswith(TITLE_PREFIX):
            return name
        try:
            stat = self._system.stat(watched.pid)
        except OSError:
            return name
        renamed = stat and stat.identity == watched.identity and stat.program.startswith(TITLE_PREFIX)
        return stat.program if stat and renamed else name

    def _take(self) -> list[Reading]:
        exits, self._exits = self._exits, []
        return exits

    # --- the others -----------------------------------------------------------------------

    def _start_scan(self) -> None:
        """Look for new members in the thread: a scan that hangs delays no news of a death.

        Where another probe has just looked at the same family, what it saw serves this one, too.
        """
        now = time.monotonic()
        if self._family is None or self._scanning is not None or now < self._scan_at:
            return
        latest = None if self._scan_ourselves else self._family.latest
        if latest is not None and latest.at + _DISCOVERY_S > now:
            self._choose(latest)
            return
        scan = partial(self._family.scan, max_age_s=self._scan_age_s)
        try:
            self._scanning = self._runner.submit(scan)
        except StillRunningError:
            return
        self._scan_at, self._scan_ourselves = now + _DISCOVERY_S, False
        self._scanning.add_done_callback(partial(self._on_scan, root_told=self._root_told))

    def _on_scan(self, scanning: asyncio.Future[Scan], *, root_told: bool) -> None:
        self._scanning = None
        self._error = None if scanning.cancelled() else scanning.exception()
        if self._closed or scanning.cancelled():
            return
        if self._error is None:
            self._choose(scanning.result())
            self._finished = root_told and len(self._watch) == 0
        self._wake.set()

    def _choose(self, scan: Scan) -> None:
        if not self._scan_ourselves:  # else somebody ended meanwhile, and another look is due at once
            self._scan_at, self._scan_age_s = scan.at + _DISCOVERY_S, _DISCOVERY_S / 2
        present = {Watched(member.process.pid, member.process): member for member in scan.members}
        for watched, member in present.items():
            if watched in self._watch:
                self._names[watched] = member.name
            elif watched not in self._ended and worth_telling(member, scan.at):
                self._names[watched] = member.name
                self._watch.add(watched)
                self._scan_at, self._scan_age_s = time.monotonic() + _SIBLINGS_S, _SIBLINGS_S / 2
                self._scan_ourselves = True
        self._ended &= {self._root, *present}

    async def _rest(self) -> None:
        """Wait until something has happened or is due."""
        due_s = self._scan_at - time.monotonic()
        pause_s = _POLL_S if self._watch.must_poll else due_s if 0 < due_s < _DISCOVERY_S else _DISCOVERY_S
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


def _main_process(pid: int | None, process: ChildProcess | None, system: System) -> tuple[int, Stat | None]:
    if process is None:
        return cast("int", pid), existing(cast("int", pid), system)
    if not isinstance(getattr(process, "pid", None), int) or not hasattr(process, "returncode"):
        raise TypeError(f"process must be a Popen or an asyncio process, not {process!r}")
    return process.pid, None if process.returncode is not None else system.stat(process.pid)
