"""Targets: servers that something else runs and may restart, such as a systemd unit or a container.

A target is asked where its server is (`Target.locate`), and answers with a `Site`: an address and
probes. The machine knows none of them. Bring your own with `Target`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_startup._lazy import exports

if TYPE_CHECKING:
    from vllm_startup.targets._containers.container import ContainerTarget, container
    from vllm_startup.targets._following import FollowingProbe, MainProcess
    from vllm_startup.targets._place import Place, PlacedTarget
    from vllm_startup.targets._ssh.ssh import SshTarget, ssh
    from vllm_startup.targets._target import LoggedTarget, Site, Target, TargetError
    from vllm_startup.targets._units.systemd import SystemdUnit, systemd

__all__ = [
    "ContainerTarget",
    "FollowingProbe",
    "LoggedTarget",
    "MainProcess",
    "Place",
    "PlacedTarget",
    "Site",
    "SshTarget",
    "SystemdUnit",
    "Target",
    "TargetError",
    "container",
    "ssh",
    "systemd",
]

_HOMES = {
    **dict.fromkeys(("ContainerTarget", "container"), "_containers.container"),
    **dict.fromkeys(("FollowingProbe", "MainProcess"), "_following"),
    **dict.fromkeys(("Place", "PlacedTarget"), "_place"),
    **dict.fromkeys(("SshTarget", "ssh"), "_ssh.ssh"),
    **dict.fromkeys(("SystemdUnit", "systemd"), "_units.systemd"),
    **dict.fromkeys(("LoggedTarget", "Site", "Target", "TargetError"), "_target"),
}

__getattr__ = exports(__name__, _HOMES)
