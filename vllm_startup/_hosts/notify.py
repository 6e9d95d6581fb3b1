"""systemd's notification protocol, for a unit with ``Type=notify`` (sd_notify(3), systemd.service(5)).

While something advances the start's timeout is extended, so that a finite ``TimeoutStartSec=`` is no guess
of how long a whole start may take. But ``systemctl daemon-reload`` makes systemd (252) forget what was
extended, and end a start that is older than the setting: only ``infinity`` is safe, with our stall limit.
"""

from __future__ import annotations

import os
import select
import socket
from array import array
from collections.abc import Mapping, MutableMapping
from typing import Final

from vllm_startup._hosts.standing import Standing

_SOCKET, _WATCHDOG, _WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
_EVERY_S: Final = 5.0  # between two messages that say little new
_LAST_S: Final = 1.0  # how long our end waits for a manager that is busy
_MICRO: Final = 1_000_000


class Notifier:
    """Tells a service manager how a server stands.

    Args:
        address: The manager's socket: a path, or ``@`` and a name.
        window_s: For how many seconds each sign of progress extends the start's timeout.
        watchdog_s: How often a healthy server has to be reported, in seconds; None for never.
    """

    def __init__(self, address: str, *, window_s: float, watchdog_s: float | None) -> None:
        self.watchdog_s = watchdog_s
        self.error: str | None = None  # why it could not be told, once
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._window_s = window_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._owed: list[str] = []
        self._unsent: str | None = None  # its queue was full
        self._told_at = float("-inf")
        self._told: Standing | None = None
        self._extended_at = float("-inf")

    def tell(self, standing: Standing, now: float) -> None:
        """Tell what is new.

        Args:
            standing: The newest.
            now: Seconds on a clock that never goes back.
        """
        before, self._told = self._told, standing
        if standing.state == "stopping" and (before is None or before.state != "stopping"):
            self._owed.append("STOPPING=1")
        if standing.started and not (before and before.started):
            self._owed.append("READY=1")
        changed = before is None or _gist(before) != _gist(standing)
        if self._owed or self._unsent or changed or now - self._told_at >= _EVERY_S:
            self._told_at = now
            extends = self._advanced(before, standing, now)
            more = [f"EXTEND_TIMEOUT_USEC={round(self._window_s * _MICRO)}"] if extends else []
            if self._send([*more, f"STATUS={standing.summary}"]) and extends:
                self._extended_at = now

    def alive(self) -> None:
        """Feed the manager's watchdog, if it asked for that: the server is well at this moment."""
        if self.watchdog_s is not None:
            self._send(["WATCHDOG=1"])

    def close(self) -> None:
        """Close the socket when the manager has read all of it, or after a second or two.

        A manager may leave out what it reads after its sender's end.
        """
        try:
            self._socket.settimeout(_LAST_S)
            if self._unsent is not None:
                self._socket.sendto(self._unsent.encode(), self._address)
            if self._told is not None and self.error is None:
                self._await_reading()
        except OSError:
            pass  # nobody listens any more
        self._socket.close()

    def _await_reading(self) -> None:
        """Wait until the manager lets go of a pipe that is handed to it (sd_notify_barrier(3))."""
        ours, theirs = os.pipe()
        try:
            passing = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [theirs]))
            self._socket.sendmsg([b"BARRIER=1"], [passing], 0, self._address)
        finally:
            os.close(theirs)
            select.select([ours], [], [], _LAST_S)
            os.close(ours)

    def _advanced(self, before: Standing | None, standing: Standing, now: float) -> bool:
        """Whether a start goes on, and anything of it has advanced since its timeout was last extended."""
        if standing.state != "starting":
            return False
        if before is None or before.phase is not standing.phase:
            return True
        return standing.quiet_s is not None and now - standing.quiet_s > self._extended_at

    def _send(self, lines: list[str]) -> bool:
        """Send these and what is owed, which stays owed if that fails: a queue is full, a manager away."""
        message = "\n".join([*self._owed, *lines])
        try:
            self._socket.sendto(message.encode(), self._address)
        except BlockingIOError:
            self._unsent = message
            return False
        except OSError as error:
            self.error = error.strerror or str(error)
            return False
        self._owed, self._unsent = [], None
        return True


def _gist(standing: Standing) -> tuple[str, ...]:
    """What is told at once when it is new: of what has failed the whole sentence, which hardly changes."""
    said = standing.summary if standing.state == "failed" else ""
    return standing.state, standing.phase.value, said


def take_notifier(environ: MutableMapping[str, str], *, window_s: float) -> Notifier | None:
    """The service manager's notifier, if there is one.

    What is meant for us is taken out of the environment: the server must not be taken for its sender.

    Raises:
        ValueError: ``NOTIFY_SOCKET`` is no address that is known here.
    """
    address = environ.pop(_SOCKET, None)
    watchdog_s = _watchdog_s(environ)
    for name in (_WATCHDOG, _WATCHDOG_PID):
        environ.pop(name, None)
    if address is None:
        return None
    if not address.startswith(("/", "@")) or len(address) < 2:
        raise ValueError(
            f"NOTIFY_SOCKET is {address!r}; only a path or an abstract name (@...) is known here"
        )
    return Notifier(address, window_s=window_s, watchdog_s=watchdog_s)


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """The manager's watchdog, unless it is another process's."""
    text, pid = environ.get(_WATCHDOG, ""), environ.get(_WATCHDOG_PID, str(os.getpid()))
    if not text.isdigit() or not int(text) or pid != str(os.getpid()):
        return None
    return int(text) / _MICRO
