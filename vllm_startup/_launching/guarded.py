"""A server under a guardian, seen from the program that started it."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

import attrs

from vllm_startup._blocking import BlockingRunner
from vllm_startup._launching.end_tree import GIVE_UP_S, Process, end_tree, living, read_process
from vllm_startup._launching.left_files import LeftFiles, places_of

_log = logging.getLogger("vllm_startup")

_GUARDIAN: Final = Path(__file__).with_name("guardian.py")
_SPARE_S: Final = 5.0  # what the guardian may take beyond the bounds that it keeps itself
_LEAVE_S: Final = 2.0  # from the last word of the guardian to its end: some ms
_POLL_S: Final = 0.1
_UNKNOWN_STATUS: Final = 255  # what asyncio's child watchers report for a status that nobody can tell


@attrs.frozen(kw_only=True)
class LeftProcess:
    """A process of the tree that could not be ended."""

    pid: int
    name: str


class ServerProcess:
    """The server's main process.

    Attributes:
        pid: Its process id. It leads a session and a process group of its own, of the same id.
        returncode: Its exit status, negative for a signal; None while it runs.
    """

    def __init__(self, pid: int, guarded: Guarded) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._guarded = guarded

    async def wait(self) -> int:
        """Wait for its end and return its exit status; 255 where nobody is left who knows it."""
        await self._guarded.told.wait()
        while self.returncode is None:
            if not self._guarded.runs():
                self.returncode = _UNKNOWN_STATUS
                break
            await asyncio.sleep(_POLL_S)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal; to it alone, and never to another process. Harmless once it has ended."""
        self._guarded.say(f"signal {int(number)}")

    def __repr__(self) -> str:
        return f"<ServerProcess {self.pid} returncode={self.returncode}>"


class Guarded:
    """The guardian of one server, to be used from one event loop.

    Args:
        program: What the guardian runs.
        patience_s: From SIGKILL to the moment when the guardian itself is given up.
    """

    def __init__(self, program: Path = _GUARDIAN, *, patience_s: float = GIVE_UP_S + _SPARE_S) -> None:
        self._program = program
        self._patience_s = patience_s
        self.process: ServerProcess | None = None
        self.told = asyncio.Event()
        self._start = 0
        self._kill_after = 0.0
        self._files = LeftFiles(0)
        self._guardian: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._text = b""
        self._failed: tuple[int, str] | None = None
        self._left: list[LeftProcess] | None = None
        self._answered = asyncio.Event()
        self._ended = asyncio.Event()
        self._closed = asyncio.Event()

    async def start(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        cwd: str | None,
        output: int,
        errors: int | None = None,
        stdin: int | None = None,
        kill_after: float,
    ) -> ServerProcess:
        """Start the server.

        Args:
            command: The program and its arguments.
            environ: All of its environment.
            cwd: Its working directory.
            output: A file descriptor for what it prints.
            errors: One for its standard error, if that is another.
            stdin: One for its standard input, if it has any.
            kill_after: Seconds from SIGTERM to SIGKILL when the tree is ended, whoever ends it.

        Raises:
            OSError: It cannot be started.
        """
        self._kill_after = kill_after
        encoded = {os.fsencode(name): os.fsencode(value) for name, value in environ.items()}
        self._files = LeftFiles(time.time(), places_of(encoded))
        ours, theirs = socket.socketpair()
        try:
            with theirs, _file_of(_request(command, environ, cwd, kill_after)) as request:
                passed = (theirs.fileno(), request.fileno())
                self._guardian = subprocess.Popen(  # noqa: ASYNC220 - asyncio forks in the loop too
                    [sys.executable, "-I", "-S", str(self._program), *map(str, (*passed, os.getpid()))],
                    stdin=subprocess.DEVNULL if stdin is None else stdin,
                    stdout=output,
                    stderr=output if errors is None else errors,
                    pass_fds=passed,
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        self._socket = ours
        ours.setblocking(False)
        asyncio.get_running_loop().add_reader(ours, self._read)
        await self._answered.wait()
        if self.process is not None:
            return self.process
        if self._failed is None:
            raise OSError("the process that was to start and guard the server died")
        raise _start_error(*self._failed, command[0], cwd)

    def say(self, line: str) -> None:
        """Tell the guardian something."""
        control = self._socket
        if control is None:
            return
        try:
            control.send(os.fsencode(f"{line}\n"))
        except OSError:
            pass  # it is gone, and everything that it could do for us

    def note_store(self, path: bytes) -> None:
        """Note a store that the output names: the guardian reads logs, no pipes. From any thread."""
        if self._files.note_store(path):
            self.say(f"store {os.fsdecode(path)}")

    def remove_files(self) -> None:
        """Remove what was noted too late for the guardian; when all output of an ended tree was read."""
        if self._left == []:
            self._files.remove()

    async def end(self) -> list[LeftProcess]:
        """End the whole tree. A cancellation takes effect when that is done.

        Returns:
            What could not be ended.
        """
        if self._guardian is None:
            return []
        self.say("end")
        async with Uncancelled() as patience:
            await patience.wait(self._ended, self._kill_after + self._patience_s)
            if self._left is None:
                self._left = await self._end_unguarded(patience)
            if self._left:
                _log.error("%s", describe(self._left))  # a cancellation has no room for it
            await self._leave(patience)
        return self._left

    async def release(self) -> None:
        """Leave the server alone for good; the guardian ends and gives it to the system."""
        self.say("release")
        async with Uncancelled() as patience:
            await self._leave(patience)

    async def _leave(self, patience: Uncancelled) -> None:
        """Let the guardian end, and take its status."""
        if self._guardian is None:
            return
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_WR)
        if not await patience.wait(self._closed, _LEAVE_S):
            self._guardian.kill()
        self._close()
        self._guardian.wait()  # the socket closes in the last microseconds of a process

    async def _end_unguarded(self, patience: Uncancelled) -> list[LeftProcess]:
        """Do the guardian's work when it was killed itself: what left the session is not found then."""
        if self._guardian is not None:
            self._guardian.kill()
        if self.process is None:
            return []
        runner = BlockingRunner("vllm-startup end")
        done = asyncio.Event()
        ending = runner.submit(
            partial(_end_session, self.process.pid, self._start, self._kill_after, self._files)
        )
        ending.add_done_callback(lambda _: done.set())
        await patience.wait(done, None)
        runner.close()
        return [LeftProcess(pid=process.pid, name=process.name) for process in ending.result()]

    def runs(self) -> bool:
        """Whether the server's main process is there, by a look."""
        found = read_process(self.process.pid) if self.process is not None else None
        return found is not None and found.start == self._start and not found.zombie

    # --- what the guardian says -----------------------------------------------------------

    def _read(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(4096)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._close()
            return
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            self._hear(line.decode("ascii", "replace"))

    def _hear(self, line: str) -> None:
        word, _, value = line.partition(" ")
        match word:
            case "started":
                pid, _, start = value.partition(" ")
                self.process, self._start = ServerProcess(int(pid), self), int(start)
                self._answered.set()
            case "failed":
                number, _, place = value.partition(" ")
                self._failed = (int(number), place)
                self._answered.set()
            case "exited":
                self._on_exit(os.waitstatus_to_exitcode(int(value)))
            case "gone":
                self._left = []
                self._ended.set()
            case "left":
                pairs = [entry.partition(" ") for entry in value.split("\t")]
                self._left = [LeftProcess(pid=int(pid), name=name) for pid, _, name in pairs]
                self._ended.set()

    def _on_exit(self, returncode: int) -> None:
        assert self.process is not None
        self.process.returncode = returncode
        self.told.set()

    def _close(self) -> None:
        """Hear nothing any more; all who wait are woken."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        for event in (self._answered, self._ended, self._closed, self.told):
            event.set()


class Uncancelled:
    """Waits that a cancellation does not end: it is raised when the block is left."""

    def __init__(self) -> None:
        self._cancelled: asyncio.CancelledError | None = None

    async def __aenter__(self) -> Self:
        """Hold cancellations back."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise the one that came."""
        if self._cancelled is not None and error is None:
            raise self._cancelled

    async def wait(self, event: asyncio.Event, limit_s: float | None) -> bool:
        """Wait for an event, for so many seconds at most; return whether it came."""
        loop = asyncio.get_running_loop()
        until = None if limit_s is None else loop.time() + limit_s
        while not event.is_set():
            try:
                async with asyncio.timeout_at(until):
                    await event.wait()
            except TimeoutError:
                return event.is_set()
            except asyncio.CancelledError as error:
                self._cancelled = error
        return True


def describe(left: Sequence[LeftProcess]) -> str:
    """What could not be ended, for people."""
    named = ", ".join(f"{process.pid} ({process.name})" for process in left)
    return f"processes of the server could not be ended: {named}; a driver or a file system may hold them"


def _file_of(data: bytes) -> IO[bytes]:
    """A file without a name that holds ``data``, in memory where there is such a thing: it has secrets."""
    if sys.platform == "linux":
        file: IO[bytes] = open(os.memfd_create("vllm-startup"), "w+b")  # noqa: PTH123, SIM115 - the caller closes it
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(data)
    file.seek(0)
    return file


def _request(command: Sequence[str], environ: Mapping[str, str], cwd: str | None, kill_after: float) -> bytes:
    """What the guardian is asked: see there."""
    entries = [f"{name}={value}" for name, value in environ.items()]
    parts = [f"{kill_after:f}", cwd or "", str(len(command)), *command, *entries]
    return b"\0".join(os.fsencode(part) for part in parts)


def _start_error(number: int, place: str, program: str, cwd: str | None) -> OSError:
    name = cwd if place == "cwd" else program
    missing = place == "command" and number == errno.ENOENT and "/" not in program
    text = "not found on PATH" if missing else os.strerror(number)
    return OSError(number, f"the server cannot be started: {place}: {text}", name)


def _end_session(leader: int, start: int, kill_after: float, files: LeftFiles) -> list[Process]:
    """End what is left of a session: the leader's descendants, and all that never left it."""

    def belongs(process: Process) -> bool:
        if process.pid == leader:
            return process.start == start
        return process.session == leader and process.start >= start

    empty = 0

    def finished(members: list[Process]) -> bool:
        # A parent may have ended between the looks at its child and at itself: two looks tell.
        nonlocal empty
        empty = 0 if members else empty + 1
        return empty > 1

    return end_tree(lambda: living(belongs), kill_after=kill_after, finished=finished, files=files)
