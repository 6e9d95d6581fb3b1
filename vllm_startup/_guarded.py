"""A server under a guardian, seen from the program that started it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import attrs

from vllm_startup._blocking import BlockingRunner
from vllm_startup._end_tree import GIVE_UP_S, Process, end_tree, living, read_process

T = TypeVar("T")

_GUARDIAN: Final = Path(__file__).with_name("_guardian.py")
_SPARE_S: Final = 5.0  # what the guardian may take beyond the bounds that it keeps itself
_LEAVE_S: Final = 2.0  # from the last word of the guardian to its end: some ms
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
        """Wait for its end and return its exit status."""
        await self._guarded.exited.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal; to it alone, and never to another process. Harmless once it has ended."""
        self._guarded.say(f"signal {int(number)}")

    def __repr__(self) -> str:
        return f"<ServerProcess {self.pid} returncode={self.returncode}>"


class Guarded:
    """The guardian of one server, to be used from one event loop."""

    def __init__(self) -> None:
        self.process: ServerProcess | None = None
        self.exited = asyncio.Event()
        self._start = 0
        self._guardian: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._text = b""
        self._failed: tuple[int, str] | None = None
        self._left: list[LeftProcess] | None = None
        self._answered = asyncio.Event()
        self._ended = asyncio.Event()
        self._closed = asyncio.Event()

    async def start(
        self, command: Sequence[str], *, environ: Mapping[str, str], cwd: str | None, output: int
    ) -> ServerProcess:
        """Start the server.

        Args:
            command: The program and its arguments.
            environ: All of its environment.
            cwd: Its working directory.
            output: A file descriptor for what it prints.

        Raises:
            OSError: It cannot be started.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._guardian = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(_GUARDIAN), str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        self._socket = ours
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, self._read)
        try:
            await loop.sock_sendall(ours, _request(command, environ, cwd))
        except OSError:
            pass  # it has died: said below
        await self._answered.wait()
        if self.process is not None:
            return self.process
        if self._failed is None:
            raise OSError("the process that was to start and guard the server died")
        raise _start_error(*self._failed, command[0], cwd)

    def say(self, line: str) -> None:
        """Tell the guardian something."""
        if self._socket is None:
            return
        try:
            self._socket.send(f"{line}\n".encode())
        except OSError:
            pass  # it is gone, and everything that it could do for us

    async def end(self, kill_after: float) -> list[LeftProcess]:
        """End the whole tree, also when this is cancelled meanwhile; the cancellation follows.

        Args:
            kill_after: Seconds from SIGTERM to SIGKILL.

        Returns:
            What could not be ended.
        """
        return await uninterrupted(self._end(kill_after))

    async def _end(self, kill_after: float) -> list[LeftProcess]:
        self.say(f"end {kill_after:f}")
        try:
            async with asyncio.timeout(kill_after + GIVE_UP_S + _SPARE_S):
                await self._ended.wait()
        except TimeoutError:
            pass
        if self._left is None:
            self._left = await self._end_unguarded(kill_after)
        await self._leave()
        return self._left

    async def release(self) -> None:
        """Leave the server alone for good; the guardian ends and gives it to the system."""
        await uninterrupted(self._leave())

    async def _leave(self) -> None:
        if self._socket is not None:
            self._close_socket()
        guardian = self._guardian
        if guardian is None:
            return
        try:
            async with asyncio.timeout(_LEAVE_S):
                while guardian.poll() is None:
                    await asyncio.sleep(0.002)
        except TimeoutError:
            guardian.kill()
            guardian.wait()

    async def _end_unguarded(self, kill_after: float) -> list[LeftProcess]:
        """Do the guardian's work when it was killed itself: what left the session is not found then."""
        if self._guardian is not None and self._guardian.poll() is None:
            self._guardian.kill()
        if self.process is None:
            return []
        runner = BlockingRunner("vllm-startup end")
        try:
            left = await runner.run(partial(_end_session, self.process.pid, self._start, kill_after))
        finally:
            runner.close()
        return [LeftProcess(pid=process.pid, name=process.name) for process in left]

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
            self._on_close()
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
        if self.process.returncode is None:
            self.process.returncode = returncode
        self.exited.set()

    def _on_close(self) -> None:
        """The guardian is gone: as it should be, or killed."""
        self._close_socket()
        self._answered.set()
        self._ended.set()
        if self.process is not None and self.process.returncode is None:
            asyncio.get_running_loop().create_task(self._poll_exit())

    async def _poll_exit(self) -> None:
        assert self.process is not None
        while (found := read_process(self.process.pid)) and found.start == self._start and not found.zombie:
            await asyncio.sleep(0.1)
        self._on_exit(_UNKNOWN_STATUS)

    def _close_socket(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
