"""Options that name a server which something else runs: `wait` and `diagnose` share them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from vllm_startup._cli._status import UsageError

if TYPE_CHECKING:
    from vllm_startup.targets import LoggedTarget, PlacedTarget

_FOUND_BY_TARGETS: Final = ("pid", "log")


def add_targets(group: argparse._ArgumentGroup) -> None:
    """Add what is found by the name that it has with whatever runs it."""
    group.add_argument("--unit", metavar="U", help="a systemd unit: its journal, its processes, its restarts")
    group.add_argument(
        "--user", action="store_true", help="the unit is one of this user's own service manager"
    )
    group.add_argument(
        "--container", metavar="C", help="a container of Docker or Podman, by its name or its Compose service"
    )
    group.add_argument(
        "--engine", metavar="URL",
        help="where the container's engine answers: unix:///path, tcp://host:port; by default as docker"
        " and podman find it",
    )  # fmt: skip
    group.add_argument(
        "--ssh", metavar="HOST",
        help="all of that on another machine, which ssh reaches without a password: a name from your ssh"
        " configuration, user@host",
    )  # fmt: skip


def target_of(options: argparse.Namespace) -> LoggedTarget | None:
    """The target that the options name; None where they name none.

    Raises:
        UsageError: They contradict each other.
    """
    named = [name for name in _TARGETS if getattr(options, name) is not None]
    if options.user and options.unit is None:
        raise UsageError("--user says whose unit it is; name it with --unit")
    if options.engine is not None and options.container is None:
        raise UsageError("--engine says where a container's engine answers; name it with --container")
    if not named:
        return None if options.ssh is None else _process_there(options)
    first, *others = (f"--{name}" for name in named)
    if others:
        raise UsageError(f"{first} and {others[0]} name two targets; give one of them")
    for name in _FOUND_BY_TARGETS:
        if getattr(options, name, None) is not None:
            given = "FILE" if options.command == "diagnose" else f"--{name}"
            raise UsageError(f"{first} finds process and log by itself; leave {given} away")
    try:
        target = _TARGETS[named[0]](options)
        if options.ssh is None:
            return target
        from vllm_startup.targets import ssh

        return ssh(options.ssh, target)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _unit(options: argparse.Namespace) -> PlacedTarget:
    from vllm_startup.targets import systemd

    return systemd(options.unit, user=options.user)


def _container(options: argparse.Namespace) -> PlacedTarget:
    from vllm_startup.targets import container

    return container(options.container, engine=options.engine)


def _process_there(options: argparse.Namespace) -> LoggedTarget:
    """A process or a log on another machine."""
    from vllm_startup.targets import ssh

    pid, log = getattr(options, "pid", None), options.log
    if pid is None and log is None:
        files = "FILE" if options.command == "diagnose" else "--pid P, --log FILE"
        raise UsageError(f"--ssh says on which machine; say what to look at there: --unit U, {files}")
    if log == "-":
        raise UsageError("standard input is on this machine; with --ssh, give the path of a log there")
    return ssh(options.ssh, pid=pid, log=log)


_TARGETS: Final[dict[str, Callable[[argparse.Namespace], PlacedTarget]]] = {
    "unit": _unit,
    "container": _container,
}
"""What makes the target of each option."""
