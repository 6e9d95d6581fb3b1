"""Commands over a connection: run to their end, read while they run, or a shell that answers.

What is run there is written for any ``sh`` (dash, busybox's). The user's login shell only reads one line
of quoted words, so that it may be another one (fish, csh).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import shlex
import subprocess
import threading
import time
import uuid
import weakref
from asyncio.subprocess import Process
from functools import partial
from typing import Final

from vllm_startup._blocking import BlockingRunner
from vllm_startup._text import clean
from vllm_startup.targets._commands import Completed
from vllm_startup.targets._ssh.connection import Connection, ConnectionLostError
from vllm_startup.targets._target import TargetError

ANSWER_LIMIT_S: Final = 8.0
"""How long an answer may take: more than a lost packet or two, less than the limit of a sample."""

_LOCALE: Final = "LC_ALL=C.UTF-8"
_BEGIN_LIMIT_S: Final = 20.0
_SLICE_BYTES: Final = 256 * 1024
_MOST_BYTES: Final = 64 * 1024 * 1024
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_LOST: Final = 255

# Start-up files of the login shell may print; what follows the mark is the command's own.
_MARK: Final = "vllm-startup-begins"

# The command ends when we do, or the connection: then its standard input, which it does not get itself,
# is closed. An asynchronous list has none in POSIX, so that it is kept under another number.
_START: Final = f"""
    echo {_MARK}; exec 3<&0;
    env {_LOCALE} "$@" </dev/null 3<&- & p=$!;
    {{ cat <&3 >/dev/null; kill $p; }} >/dev/null 2>&1 & w=$!;
    exec 3<&-; wait $p; s=$?; kill $w;
"""
_RUN: Final = f"{_START} echo; echo {_MARK} $s"


def far_line(script: str, *arguments: str) -> str:
    """One line for the login shell that runs a script, whose own lines end where a blank may stand."""
    return "exec " + shlex.join(["sh", "-c", " ".join(script.split("\n")), "sh", *arguments])


class SshCommands:
    """Runs commands on another machine.

    Args:
        connection: How it is reached.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # Which of the connections a command went over.
        self._started: weakref.WeakKeyDictionary[Process, int] = weakref.WeakKeyDictionary()

    @property
    def where(self) -> str:
        """The machine, for people."""
        return self._connection.destination

    def run(self, *argv: str, limit_s: float = 10.0) -> Completed:
        """Run a command to its end. It blocks.

        Raises:
            ConnectionLostError: There is no connection; a TargetError.
            TargetError: It is not there, or took too long.
        """
        self._connection.check()
        generation = self._connection.generation
        held, guard = os.pipe()
        try:
            done = subprocess.run(
                self._connection.client(far_line(_RUN, *argv)),
                stdin=held,
                capture_output=True,
                timeout=limit_s,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired as error:
            if _MARK.encode() not in (error.output or b""):
                raise ConnectionLostError(f"{self.where} gives no answer") from error
            raise TargetError(f"{argv[0]} gave no answer within {limit_s:g} s on {self.where}") from error
        finally:
            os.close(held)
            os.close(guard)
        stdout, stderr = _text(done.stdout), _text(done.stderr)
        head, _, rest = stdout.partition(f"{_MARK}\n")
        out, mark, status = rest.rpartition(f"\n{_MARK} ")
        if not mark:
            self._connection.await_loss(generation)
            raise TargetError(_ended(self.where, stderr or head))
        self._connection.heard()
        code = int(status)
        if code == _NOT_FOUND:
            raise TargetError(f"{argv[0]} is not installed on {self.where}")
        if code == _NOT_EXECUTABLE:
            raise TargetError(f"{argv[0]} cannot be run on {self.where}: {clean(stderr)}")
        return Completed(code, out, stderr)

    async def start(self, *argv: str) -> Process:
        """Start a command whose output is read while it runs. It ends there when it is killed here.

        Raises:
            ConnectionLostError: There is no connection; an OSError.
            OSError: It cannot be started.
        """
        self._connection.check()
        generation = self._connection.generation
        process = await asyncio.create_subprocess_exec(
            *self._connection.client(far_line(_START + "exit $s", *argv)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            await self._skip_to_mark(process, generation)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        self._started[process] = generation
        return process

    async def _skip_to_mark(self, process: Process, generation: int) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(_BEGIN_LIMIT_S):
                await process.stdout.readuntil(f"{_MARK}\n".encode())
        except TimeoutError as error:
            raise self._connection.silence(asked_at) or OSError("the command does not start") from error
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            words = _text(await process.stderr.read(4096))
            await self._await_loss(generation)
            raise OSError(_ended(self.where, words)) from error
        self._connection.heard()

    async def check(self, process: Process) -> None:
        """Raise `ConnectionLostError` if a command has ended since the connection did, or is about to."""
        if process.returncode == _LOST and process in self._started:
            await self._await_loss(self._started[process])

    async def _await_loss(self, generation: int) -> None:
        runner = BlockingRunner("vllm_startup-ssh-check")
        try:
            await runner.run(partial(self._connection.await_loss, generation))
        finally:
            runner.close()


class Shell:
    """A shell on another machine that answers requests, one at a time; for use by several threads.

    It is started when it is needed, and again after it has ended.

    Args:
        connection: How the machine is reached.
        script: Reads lines from its standard input: a number, and a request. After the answer to each it
            prints, on a line of its own, ``#`` and the number.
        arguments: Those of the script.
    """

    def __init__(self, connection: Connection, script: str, *arguments: str) -> None:
        self._connection = connection
        self._line = far_line(f"echo; echo {_MARK}; {script}", *arguments)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._token = uuid.uuid4().hex
        self._count = 0
        self._buffer = bytearray()
        self._awaited: bytes | None = None
        self._closed = False
        self._over = 0  # which of the connections it goes over
        connection.carry(self)

    def ask(self, request: str = "", *, limit_s: float = ANSWER_LIMIT_S) -> bytes:
        """Ask, and wait for the answer. It blocks.

        An answer that came too late is thrown away by the next call, which waits for it first.

        Raises:
            ConnectionLostError: There is no connection, or nothing comes over it.
            TimeoutError: This answer does not come, while others do.
            OSError: The shell has ended.
        """
        with self._lock:
            self._connection.check()
            if self._process is not None and self._over != self._connection.generation:
                self._drop()  # it went with the connection, which somebody has made anew
            try:
                return self._asked(request, limit_s)
            except ConnectionLostError:
                if self._over == self._connection.generation:
                    raise
            return self._asked(request, limit_s)  # it was made anew before we saw that it was lost

    def _asked(self, request: str, limit_s: float) -> bytes:
        asked_at = time.monotonic()
        deadline = asked_at + limit_s
        self._open()
        try:
            if self._awaited is not None:  # the mark of its beginning, or an answer that came too late
                self._read(self._awaited, deadline)
            self._count += 1
            number = f"{self._token}-{self._count}"
            self._awaited = f"\n#{number}\n".encode()
            self._send(f"{number} {request}\n".encode())
            answer = self._read(self._awaited, deadline)
        except TimeoutError as error:
            raise self._connection.silence(asked_at) or error from None
        self._connection.heard()
        return answer

    def close(self) -> None:
        """End the shell, also while it is asked. Never blocks."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
            if self._lock.acquire(blocking=False):
                self._drop()
                self._lock.release()

    def _open(self) -> None:
        self._connection.check()
        if self._closed:
            raise OSError("the shell is closed")
        if self._process is not None:
            return
        self._over = self._connection.generation
        self._process = subprocess.Popen(
            self._connection.client(self._line),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        self._buffer.clear()
        self._awaited = f"\n{_MARK}\n".encode()
        if self._closed:  # meanwhile, when there was nothing to end yet
            self._drop()
            raise OSError("the shell is closed")

    def _send(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._process.stdin.fileno(), view) :]
        except OSError:
            self._end()

    def _read(self, mark: bytes, deadline: float) -> bytes:
        """What comes before a mark."""
        assert self._process is not None
        assert self._process.stdout is not None
        searched = 0
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while (at := self._buffer.find(mark, searched)) < 0:
                searched = max(0, len(self._buffer) - len(mark))
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise TimeoutError("no answer in time")
                data = os.read(self._process.stdout.fileno(), _SLICE_BYTES)
                if not data or len(self._buffer) > _MOST_BYTES:
                    self._end()
                self._buffer += data
        answer = bytes(self._buffer[:at])
        del self._buffer[: at + len(mark)]
        self._awaited = None
        return answer

    def _end(self) -> None:
        """Raise what ended the shell."""
        words = self._drop()
        self._connection.await_loss(self._over)
        raise OSError(_ended(self._connection.destination, words))

    def _drop(self) -> str:
        process, self._process = self._process, None
        self._awaited = None
        if process is None:
            return ""
        process.kill()
        _, err = process.communicate()
        return _text(err)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _ended(where: str, words: str) -> str:
    if "Session open refused" in words:
        return (
            f"sshd on {where} allows too few sessions on one connection: raise MaxSessions in its sshd_config"
            " (10 unless it is set)"
        )
    said = clean(words)
    return f"the shell on {where} ended" + (f": {said}" if said else "")
