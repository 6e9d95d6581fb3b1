"""One multiplexed connection to another machine, by the user's own OpenSSH client.

Its configuration, keys, agent, jump hosts and host-key checks are left as they are. What is added: it
never asks (``BatchMode``), notices a dead link, and listens on a socket in a folder of ours, through
which every further command and forwarded socket goes (``ControlMaster``).

The master's own session is a ``cat`` that reads a pipe of ours. When this process ends, however it does,
the pipe closes, the ``cat`` ends, and the master with it: no client is left behind, here or there.
"""

from __future__ import annotations

import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import attrs

from vllm_startup._blocking import start_thread
from vllm_startup._text import clean
from vllm_startup.targets._ssh.errors import explained
from vllm_startup.targets._ssh.master import Held, drain, output, private_folder
from vllm_startup.targets._target import TargetError

CONNECT_LIMIT_S: Final = 30.0
"""For a connection with its jump hosts and slow name services; OpenSSH's own is that of TCP, minutes."""

_ALIVE_S: Final = 5
_ALIVE_COUNT: Final = 3
_FIRST_RETRY_S: Final = 1.0
_SLOWEST_RETRY_S: Final = 30.0
_LAST_WORDS_S: Final = 3.0  # a session ends before the master has said why
_WORDS: Final = 50  # lines of the client's own that are kept
_MOST_GREETING_BYTES: Final = 256 * 1024

_HELLO: Final = "vllm-startup-is-here"
_GREETING: Final = f"exec sh -c 'echo {_HELLO}; exec cat >/dev/null'"

_MASTER: Final = (
    *("-M", "-T", "-o", "BatchMode=yes", "-o", "ControlPersist=no", "-o", "ClearAllForwardings=yes"),
    *("-o", "RemoteCommand=none", "-o", "StreamLocalBindUnlink=yes", "-o", "LogLevel=INFO"),
    *("-o", f"ServerAliveInterval={_ALIVE_S}", "-o", f"ServerAliveCountMax={_ALIVE_COUNT}"),
    *("-o", f"ConnectTimeout={CONNECT_LIMIT_S:.0f}"),
)
# A client that finds no master would connect by itself, past the configuration: its proxy stops that.
_CLIENT: Final = ("-F", "none", "-T", "-o", "ProxyCommand=false", "-o", "LogLevel=ERROR")


class ConnectionLostError(TargetError, ConnectionError):
    """The other machine cannot be reached now. The connection is made again as soon as it can be."""


@attrs.define
class _Tunnel:
    """Where a tunnel begins, and in which life of the client it was opened."""

    path: str
    generation: int = 0


class Closable(Protocol):
    """What goes over a connection."""

    def close(self) -> None:
        """End it. It may be called more than once, and never blocks."""
        ...


class Connection:
    """One connection to one machine, made again when it is lost. For use by several threads.

    Whoever holds it calls `ensure` now and then; the others learn from `check` that it is lost.

    Args:
        destination: As ssh takes it: a name, ``user@host``, an ``ssh://`` URI.
        options: Further words for ssh, such as ``-F FILE``.

    Raises:
        ValueError: ``destination`` is none.
    """

    def __init__(self, destination: str, options: Sequence[str] = ()) -> None:
        self.destination = _checked(destination)
        self._options = tuple(options)
        self._lock = threading.Lock()
        self._held = Held()
        self._release = weakref.finalize(self, self._held.release)  # also when the program ends
        self._words: deque[str] = deque(maxlen=_WORDS)
        self._tunnels: dict[str, _Tunnel] = {}
        self._users: list[Closable] = []
        self._is_lost = False
        self._lost = "the client ended"
        self._retry_s = _FIRST_RETRY_S
        self._retry_at = 0.0
        self._closed = False
        self.generation = 0
        self.heard_at = float("-inf")

    # --- up and down ------------------------------------------------------------------------

    def connect(self) -> None:
        """Connect for the first time. It blocks, for `CONNECT_LIMIT_S` at the most.

        Raises:
            TargetError: It cannot be reached, or gives no shell. The message holds the fix.
        """
        with self._lock:
            self._held.folder = private_folder()
            try:
                self._connect()
            except BaseException:
                self._release()
                raise

    def ensure(self) -> None:
        """Connect again if the connection is lost and it is time to try.

        Raises:
            ConnectionLostError: It is still lost.
        """
        with self._lock:
            if self._alive():
                return
            self._note_loss()
            now = time.monotonic()
            if now < self._retry_at or self._closed:
                raise self._loss()
            self._retry_at = now + self._retry_s
            self._retry_s = min(2 * self._retry_s, _SLOWEST_RETRY_S)
            try:
                self._connect()
                for there, tunnel in self._tunnels.items():
                    if tunnel.generation:
                        self._open(there, tunnel)
            except TargetError as error:
                raise self._loss() from error
            self._is_lost, self._retry_s = False, _FIRST_RETRY_S

    def check(self) -> None:
        """Do nothing while the connection stands.

        Raises:
            ConnectionLostError: It is lost, or was until just now.
        """
        if not self._alive():
            with self._lock:  # which who makes it anew holds meanwhile
                if not self._alive():
                    self._note_loss()
                raise self._loss()

    def await_loss(self, generation: int) -> None:
        """Wait a moment for a connection to end, of which a session has told that it is about to.

        Args:
            generation: Which one: somebody else may have made it anew already.

        Raises:
            ConnectionLostError: It has.
        """
        deadline = time.monotonic() + _LAST_WORDS_S
        while self._alive() and self.generation == generation and time.monotonic() < deadline:
            time.sleep(0.02)
        if self.generation != generation:
            raise self._loss()
        self.check()

    def silence(self, since: float) -> ConnectionLostError | None:
        """What to raise for an answer that does not come; None where others came meanwhile.

        Args:
            since: When it was asked for, on the monotonic clock.
        """
        if self.heard_at > since:
            return None
        return ConnectionLostError(f"{self.destination} gives no answer")

    def heard(self) -> None:
        """Note that the other machine has answered."""
        self.heard_at = time.monotonic()

    def carry(self, user: Closable) -> None:
        """Let something that goes over the connection be closed with it."""
        self._users.append(user)

    def close(self) -> None:
        """End the connection with all that goes over it."""
        self._closed = True
        for user in self._users:
            user.close()
        with self._lock:
            self._release()

    # --- what goes over it ------------------------------------------------------------------

    def client(self, command: str) -> list[str]:
        """What to run here so that a command runs there."""
        return ["ssh", *_CLIENT, "-S", self._socket, "--", self.destination, command]

    def near_end(self, there: str) -> str:
        """The unix socket here that a tunnel to an address there begins at, once it is open.

        Args:
            there: ``host:port``, or the path of a unix socket, as seen there.
        """
        with self._lock:
            number = len(self._tunnels)
            return self._tunnels.setdefault(there, _Tunnel(f"{self._held.folder}/{number}")).path

    def open_tunnel(self, there: str) -> None:
        """Let the client listen at the near end, once in the life of a client.

        Raises:
            ConnectionLostError: There is no connection.
            TargetError: The client refuses.
        """
        self.check()
        with self._lock:
            self._open(there, self._tunnels[there])

    def refusal(self) -> str | None:
        """Why the newest connection through a tunnel led nowhere; None where nothing is told."""
        marks = (word.partition("open failed: ")[2] for word in reversed(self._words))
        return next((mark for mark in marks if mark), None)

    # --- the client -------------------------------------------------------------------------

    @property
    def _socket(self) -> str:
        return f"{self._held.folder}/c"

    def _alive(self) -> bool:
        master = self._held.master
        return master is not None and master.poll() is None

    def _connect(self) -> None:
        self._held.end_master()
        Path(self._socket).unlink(missing_ok=True)
        argv = ["ssh", *self._options, *_MASTER, "-S", self._socket, "--", self.destination, _GREETING]
        try:
            master = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us alone
            )
        except FileNotFoundError as error:
            text = "ssh is not installed on this machine; install OpenSSH's client (openssh-client)"
            raise TargetError(text) from error
        self._held.master = master
        try:
            self._await_greeting(master)
        except BaseException:
            self._held.end_master()
            raise
        self.generation += 1
        self.heard()

    def _await_greeting(self, master: subprocess.Popen[bytes]) -> None:
        assert master.stdout is not None
        assert master.stderr is not None
        out, err = b"", b""
        deadline = time.monotonic() + CONNECT_LIMIT_S
        for stream, data in output(master, deadline, lambda: self._closed):
            if stream is master.stdout:
                out += data
            else:
                err += data
            if f"{_HELLO}\n".encode() in out and Path(self._socket).exists():
                self._words = deque(maxlen=_WORDS)  # not the host's banner
                self._held.reader = start_thread(drain, "vllm-startup ssh", master.stderr, self._words)
                return
            if len(out) + len(err) > _MOST_GREETING_BYTES:
                break
        if self._closed:
            raise TargetError(f"{self.destination}: the connection was given up")
        status = master.poll()
        raise TargetError(explained(self.destination, status, _text(err), _text(out), CONNECT_LIMIT_S))

    def _open(self, there: str, tunnel: _Tunnel) -> None:
        if tunnel.generation == self.generation:
            return
        argv = ["ssh", *_CLIENT, "-S", self._socket, "-O", "forward", "-L", f"{tunnel.path}:{there}"]
        try:
            done = subprocess.run(
                [*argv, "--", self.destination],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=CONNECT_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ConnectionLostError(f"{self.destination} gives no answer") from error
        if done.returncode:
            why = clean(_text(done.stderr)) or f"status {done.returncode}"
            raise TargetError(f"ssh opens no tunnel to {there} on {self.destination}: {why}")
        tunnel.generation = self.generation

    # --- words ------------------------------------------------------------------------------

    def _note_loss(self) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        words = [word for word in self._words if "open failed" not in word]
        self._lost = clean(words[-1]) if words else "the client ended"

    def _loss(self) -> ConnectionLostError:
        return ConnectionLostError(f"the connection to {self.destination} is lost: {self._lost}")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _checked(destination: str) -> str:
    if not isinstance(destination, str):
        raise TypeError(f"host must be a string such as 'root@gpubox', not {destination!r}")
    wrong = not destination or destination.startswith("-") or not destination.isprintable()
    if wrong or " " in destination:
        raise TargetError(f"host must be a host as ssh takes it, such as root@gpubox, not {destination!r}")
    return destination
