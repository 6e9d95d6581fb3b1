"""A tunnel over an SSH connection."""

from __future__ import annotations

from vllm_startup.targets._ssh.connection import Connection


class ForwardingForbiddenError(OSError):
    """The other machine's sshd lets no tunnel through."""


class SshTunnel:
    """A unix socket here that leads to an address on the other machine (a `Route`); it lasts over reconnects.

    Args:
        connection: The connection.
        there: ``host:port``, or the path of a unix socket, as seen there.
    """

    def __init__(self, connection: Connection, there: str) -> None:
        self.there = there
        self.path = connection.near_end(there)
        self._connection = connection

    def open(self) -> None:
        """Open it if it is not open. It blocks."""
        self._connection.open_tunnel(self.there)

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
