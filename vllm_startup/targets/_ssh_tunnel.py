"""A tunnel over an SSH connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_startup.targets._connection import Connection


class ForwardingForbiddenError(OSError):
    """The other machine's sshd lets no tunnel through."""


class SshTunnel:
    """A unix socket here that leads to an address on the other machine (a `Route`)."""

    def __init__(self, connection: Connection, there: str, path: str) -> None:
        self.there = there
        self.path = path
        self.generation = 0
        self._connection = connection

    def open(self) -> None:
        """Open it if it is not open. It blocks."""
        self._connection.open_tunnel(self)

    def refusal(self) -> str | None:
        """What the other machine said about the newest connection that led nowhere.

        Raises:
            ForwardingForbiddenError: It lets nobody through.
        """
        said = self._connection.refusal()
        if said is not None and "prohibited" in said:
            raise ForwardingForbiddenError(
                f"sshd on {self._connection.destination} forwards nothing to {self.there} ({said}): allow it"
                " (AllowTcpForwarding, PermitOpen), or give a url that this machine reaches"
            )
        return said
