"""Whether the server can bind its address, and who has it if not."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import attrs

from vllm_startup._preflight.facts import Facts
from vllm_startup._preflight.holders import described
from vllm_startup._preflight.launch import Asked
from vllm_startup._preflight.paths import is_folder
from vllm_startup._preflight.result import NotCheckedError
from vllm_startup.causes._arguments import InvalidArguments, file_missing
from vllm_startup.causes._base import Cause, Evidence
from vllm_startup.causes._host import port_in_use
from vllm_startup.probes._listener import holders_of, listeners_on_port, listening_unix_inodes

_DEFAULT_PORT = 8000
_PORTS = range(1, 65536)


def port(facts: Facts) -> Iterator[Cause]:
    """Whether the address is free, by binding it for a moment as vLLM does. Nothing listens meanwhile."""
    asked = facts.asked()
    arguments = asked.arguments
    if arguments.headless:
        raise NotCheckedError("a headless server listens nowhere")
    if arguments.multi_port:
        raise NotCheckedError("every rank has a port of its own")
    if arguments.uds is not None:
        yield from _unix(arguments.uds)
        return
    number = _number(asked)
    if number:  # 0: the kernel chooses a free one
        yield from _tcp(arguments.host or "", number)


def _number(asked: Asked) -> int:
    said = asked.word("--port")
    if said is None:
        return _DEFAULT_PORT
    if not (said.isascii() and said.isdigit()) or (int(said) not in _PORTS and int(said) != 0):
        raise NotCheckedError(f"--port {said} is no port")
    return int(said)


def _tcp(host: str, number: int) -> Iterator[Cause]:
    shown = f"[{host}]" if ":" in host else host or "0.0.0.0"
    address = f"{shown}:{number}"
    code = _bound(host, number)
    if code == errno.EADDRINUSE:
        yield attrs.evolve(port_in_use(address, "http"), evidence=_who(number))
    elif code == errno.EADDRNOTAVAIL:
        yield _refused("--host", host, f"{host} is no address of this machine")
    elif code in (errno.EACCES, errno.EPERM):
        yield _refused("--port", str(number), f"user id {os.getuid()} may not bind port {number}")


def _bound(host: str, number: int) -> int:
    """The error number with which an address refuses to be bound; 0 where it does not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            # As vLLM does: what a server left behind in TIME_WAIT is in nobody's way.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, number))
    except (socket.gaierror, UnicodeError) as error:
        raise NotCheckedError(f"--host {host} cannot be resolved: {error}") from error
    except OSError as error:
        return error.errno or 0
    return 0


def _refused(option: str, value: str, message: str) -> Cause:
    seen = Evidence(text=f"{option} {value}")
    return InvalidArguments(message=message, argument=option, evidence=(seen,), retryable=False)


def _who(number: int) -> tuple[Evidence, ...]:
    listeners = listeners_on_port(number)
    held = holders_of(listeners)
    told = {f"{_holder(held.get(inode))} listens on {address}" for inode, address in listeners.items()}
    if not told:
        told = {f"something has bound port {number}, and listens not yet or not here"}
    return tuple(Evidence(text=text) for text in sorted(told))


def _holder(pid: int | None) -> str:
    return "a process that is not ours to see" if pid is None else described(pid)


def _unix(path: str) -> Iterator[Cause]:
    """The path is bound as it is: also a file that a dead server left there is in the way."""
    try:
        is_socket = stat.S_ISSOCK(Path(path).lstat().st_mode)
    except FileNotFoundError:
        if not is_folder(Path(path).parent):
            yield attrs.evolve(
                file_missing(str(Path(path).parent)), evidence=(Evidence(text=f"--uds {path}"),)
            )
        return
    cause = port_in_use(path, "http")
    inodes = listening_unix_inodes(path)
    held = holders_of(inodes)
    if inodes:
        seen = sorted(f"{_holder(held.get(inode))} listens there" for inode in inodes)
        yield attrs.evolve(cause, evidence=tuple(Evidence(text=text) for text in seen))
    else:
        what = "a socket of which nobody listens here" if is_socket else "a file that is no socket"
        hint = f"remove it: rm {path}" if is_socket else "choose another --uds"
        yield attrs.evolve(cause, evidence=(Evidence(text=f"{path} is {what}"),), hint=hint)
