"""What a target is, and what it answers when it is asked where its server runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import attrs

from vllm_startup.probes._protocol import Probe

if TYPE_CHECKING:
    from vllm_startup._url import ServerAddress
    from vllm_startup.probes._tunnel import Route


class TargetError(ValueError):
    """The target cannot be watched: it does not exist, or may not be looked at.

    The message names it and the fix.
    """


def _unknown() -> None:
    return None


def _nothing() -> None:
    pass


@attrs.frozen(kw_only=True)
class Site:
    """Where a target's server was found, and what looks at it there.

    Attributes:
        name: What was found, for people: ``unit vllm.service``, ``container vllm``.
        url: Returns where its server listens or will listen, None where nothing tells. It is asked
            where the caller names no address, and ``own_url`` does not tell.
        own_url: Returns what the running server's own arguments say of it, None while they are not there
            yet: it is asked again and again then, from a thread. None: nobody can tell better than ``url``.
        start: Returns what tells the newest start that the probes have told of from others. The next one
            may listen elsewhere: ``own_url`` and ``url`` are asked again then, from a thread. None: they
            are not.
        probes: What looks at it, but for its health. At least one that follows restarts has an
            attribute ``follows_restarts = True``.
        tree_pids: Returns the server's processes on this machine, for telling whose socket listens;
            None: nobody can tell.
        runs: Returns whether anything of the server runs; while it does not, an answer at its address
            is a stranger's. None: it does, as far as is known.
        route: Makes the tunnel to an address of this kind; None where this machine reaches it. It is
            asked where the caller names no address, or one on loopback: that is the other machine's.
        close: Releases what the probes do not, where the site is not watched after all. It may be called
            more than once, and from any thread.
    """

    name: str
    probes: Sequence[Probe]
    url: Callable[[], str | None] = _unknown
    own_url: Callable[[], str | None] | None = None
    start: Callable[[], object] | None = None
    tree_pids: Callable[[], Collection[int]] | None = None
    runs: Callable[[], bool] | None = None
    route: Callable[[ServerAddress], Route] | None = None
    close: Callable[[], None] = _nothing

    def locate(self, *, gpus: Iterable[int | str] | None = None) -> Site:
        """Itself: a site is a target that has been located."""
        return self


@runtime_checkable
class Target(Protocol):
    """A server that something else runs, found by the name that it has there."""

    def locate(self, *, gpus: Iterable[int | str] | None = None) -> Site:
        """Find it, and say what looks at it.

        It may block for as long as asking takes (milliseconds on this machine, seconds over a
        network), and gives up by itself.

        Args:
            gpus: The GPUs that it may use, where the caller knows; as of `wait_until_ready`.

        Raises:
            TargetError: It cannot be watched.
        """
        ...


@runtime_checkable
class LoggedTarget(Target, Protocol):
    """A target whose log can be read back, for ``vllm-startup diagnose``."""

    def read_log(self) -> Iterable[str]:
        """Its newest starts' lines up to now, the oldest first, without their newlines. It may block.

        Raises:
            TargetError: It cannot be read.
        """
        ...
