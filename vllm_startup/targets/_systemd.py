"""A server that systemd runs as a unit."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from vllm_startup.targets._target import Site


@attrs.frozen
class SystemdUnit:
    """A unit of the system's or of a user's service manager."""

    unit: str
    user: bool = attrs.field(default=False, kw_only=True)

    def locate(self, *, gpus: Iterable[int | str] | None = None) -> Site:
        """Ask systemd for it."""
        raise NotImplementedError

    def read_log(self) -> Iterable[str]:
        """What its journal holds."""
        raise NotImplementedError


def systemd(unit: str, *, user: bool = False) -> SystemdUnit:
    """A server that systemd runs as a unit."""
    return SystemdUnit(unit, user=user)
