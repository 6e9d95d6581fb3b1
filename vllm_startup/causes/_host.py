"""HostResource: something of the host ran out, is taken or may not be used."""

from __future__ import annotations

from typing import Literal

import attrs

from vllm_startup.causes._arguments import InvalidArguments
from vllm_startup.causes._base import Cause
from vllm_startup.causes._remedies import elsewhere
from vllm_startup.causes._rules import CauseRule, Found


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HostResource(Cause):
    """Something of the host ran out, is taken or may not be used."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HostOutOfMemory(HostResource):
    """The kernel, the container or Ray killed a process for host memory.

    Attributes:
        process: Which one.
    """

    process: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SharedMemoryTooSmall(HostResource):
    """``/dev/shm`` is too small for NCCL, PyTorch or vLLM's queues."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DiskFull(HostResource):
    """No space is left where something must be written.

    Attributes:
        path: Where.
    """

    path: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PathNotWritable(HostResource):
    """A path may not be written.

    Attributes:
        path: Which.
        errno: The operating system's number.
    """

    path: str | None = None
    errno: int | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PathNotReadable(HostResource):
    """A path may not be read.

    Attributes:
        path: Which.
        errno: The operating system's number.
    """

    path: str | None = None
    errno: int | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PortInUse(HostResource):
    """An address that vLLM wants to bind is taken.

    Attributes:
        address: Host and port, or a socket's path.
        purpose: What it was wanted for.
    """

    address: str | None = None
    purpose: Literal["http", "rendezvous"] | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class TooManyOpenFiles(HostResource):
    """The limit of open files was reached."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class UserNotFound(HostResource):
    """The process runs under a user id without an entry in the password file.

    Attributes:
        uid: The user id.
    """

    uid: int | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CpuResourceInsufficient(HostResource):
    """Too few cores, NUMA nodes, threads, or too little memory for the CPU build."""


# --- how they are told -------------------------------------------------------------------


def _said(found: Found) -> str:
    return found.error.text if found.error is not None else found.text


def _too_many_files(_: Found) -> Cause:
    return TooManyOpenFiles(
        message="the limit of open files was reached",
        hint="raise it: ulimit -n 65536 (systemd: LimitNOFILE=65536, docker: --ulimit nofile=65536)",
        retryable=False,
    )


def shared_memory_too_small() -> SharedMemoryTooSmall:
    """``/dev/shm`` is too small, or is not there."""
    return SharedMemoryTooSmall(
        message="/dev/shm is too small",
        hint="docker: --ipc=host or --shm-size=16g; Kubernetes: an emptyDir with medium: Memory at /dev/shm",
        retryable=False,
    )


def disk_full(path: str | None) -> DiskFull:
    """No space is left at a path."""
    return DiskFull(
        message=f"no space is left{f' for {path}' if path else ' on a disk'}",
        hint=_room(path),
        path=path,
        retryable=False,
    )


def _room(path: str | None) -> str:
    moved = elsewhere(path)
    return "free space there, or " + moved if moved else "free space there (df -h)"


# Functions in which a file is opened to be written.
def path_not_readable(path: str, errno: int | None) -> PathNotReadable:
    """A path may not be read."""
    return PathNotReadable(message=f"{path} may not be read", path=path, errno=errno, retryable=False)


def path_not_writable(path: str | None, errno: int | None) -> PathNotWritable:
    """A path may not be written."""
    return PathNotWritable(
        message=f"{path or 'a path'} may not be written",
        hint=elsewhere(path),
        path=path,
        errno=errno,
        retryable=False,
    )


_HTTP = frozenset({"create_server_socket", "create_server_unix_socket", "setup_server", "startup"})


_FREE_PORT = {
    "http": "end the process that listens there, or choose another --port",
    "rendezvous": "end the other start, or set another VLLM_PORT (several nodes: --master-port); --port is "
    "not the one that clashes",
}


def _taken(found: Found, purpose: Literal["http", "rendezvous"] | None) -> Cause:
    host, port = found.word("host"), found.word("port")
    address = found.word("address") or (f"{host}:{port}" if host and port else port)
    if purpose is None:
        functions = found.error.functions if found.error is not None else ()
        purpose = "http" if _HTTP.intersection(functions) else None
    return port_in_use(address, purpose)


def port_in_use(address: str | None, purpose: Literal["http", "rendezvous"] | None) -> PortInUse:
    """An address that vLLM wants to bind is taken."""
    what = {"http": "the server's address", "rendezvous": "the address where the ranks meet"}.get(
        purpose or "", "an address that vLLM wants"
    )
    return PortInUse(
        message=f"{what}{f' {address}' if address else ''} is in use",
        hint=_FREE_PORT.get(purpose or ""),
        address=address,
        purpose=purpose,
        retryable=None,
    )


def user_not_found(uid: int | None) -> UserNotFound:
    """A user id has no entry in the password file."""
    return UserNotFound(
        message=f"user id {uid} has no entry in the password file",
        hint="set USER, HOME and TORCHINDUCTOR_CACHE_DIR, or add an entry for the user to /etc/passwd",
        uid=uid,
        retryable=False,
    )


def _cpu(found: Found) -> Cause:
    return CpuResourceInsufficient(message=_said(found), retryable=False)


def _no_threads(_: Found) -> Cause:
    return CpuResourceInsufficient(
        message="the process may not start any more threads: a limit of processes or of memory was reached",
        hint="raise it (ulimit -u and -v, docker: --pids-limit, systemd: TasksMax=), or OMP_NUM_THREADS=1",
        confidence="likely",
        retryable=False,
    )


def _no_such_address(found: Found) -> Cause | None:
    host = found.word("host")
    functions = found.error.functions if found.error is not None else ()
    if host is not None or _HTTP.intersection(functions):
        argument = "--host"
    elif "addr='" in found.text or "ZMQError" in found.text:
        argument = "VLLM_HOST_IP"
    else:
        return None
    return InvalidArguments(
        message=f"this machine has no address {host or 'such as the one it was told to use'}",
        hint=f"correct {argument}",
        argument=argument,
        confidence="likely",
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="while attempting to bind on address",
        pattern=r"bind on address \('(?P<host>[^']{1,64})', (?P<port>\d{1,5})[^)]{0,20}\): "
        r".{0,20}address already in use",
        where="both",
        build=lambda found: _taken(found, "http"),
        versions="uvicorn, asyncio",
    ),
    CauseRule(
        literal="Failed to bind the IP port. Reason: The IP address and port have been bound already",
        where="both",
        explains=("nccl_failed",),
        build=lambda found: _taken(found, "rendezvous"),
        versions="CANN 8",
    ),
    CauseRule(
        literal="EADDRINUSE",
        pattern=r"(?:port: (?P<port>\d{1,5}))?",
        build=lambda found: _taken(found, "rendezvous"),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="already in use",
        pattern=r"[Aa]ddress already in use(?: \(addr='(?P<address>[^']{1,200})'\))?",
        build=lambda found: _taken(found, None),
        versions="Python, ZeroMQ",
    ),
    CauseRule(literal="Too many open files", build=_too_many_files, versions="glibc"),
    CauseRule(
        literal="Too many open files (",
        pattern=r"^Too many open files \([^()\n]{1,300}\.[ch]pp:\d{1,6}\)",
        where="line",
        ends=True,  # libzmq aborts
        build=_too_many_files,
        versions="libzmq 4",
    ),
    CauseRule(
        literal="getpwuid(): uid not found",
        pattern=r"uid not found: (?P<uid>\d+)",
        build=lambda found: user_not_found(found.number("uid")),
        versions="Python; torch 2.x",
    ),
    CauseRule(
        literal="No username set in the environment",
        build=lambda _: UserNotFound(
            message="the user of this process has no name: no entry in the password file, and no USER",
            hint="set USER, HOME and TORCHINDUCTOR_CACHE_DIR, or add an entry for the user to /etc/passwd",
            retryable=False,
        ),
        versions="Python 3.13",
    ),
    CauseRule(
        literal="Not enough allowed NUMA nodes",
        build=lambda found: CpuResourceInsufficient(
            message=found.error.text if found.error is not None else found.text,
            hint="lower the tensor, pipeline or data parallel size, or set VLLM_CPU_OMP_THREADS_BIND by hand",
            retryable=False,
        ),
        versions="0.18 to 0.33, CPU",
    ),
    CauseRule(
        literal="Available memory on node",
        pattern=r"Available memory on node \d+ \((?P<free>[\d.]+)/",
        build=_cpu,
        versions="0.28 to 0.33, CPU",
    ),
    CauseRule(literal="doesn't match local world size", build=_cpu, versions="0.28 to 0.33, CPU"),
    CauseRule(
        literal="port is already allocated",
        pattern=r"Bind for (?P<address>[^\s]{1,64}) failed: port is already allocated",
        where="line",
        ends=True,
        build=lambda found: _taken(found, "http"),
        versions="Docker 19 to 28",
    ),
    CauseRule(
        literal="received 0 items of ancdata",
        build=lambda found: attrs.evolve(_too_many_files(found), confidence="likely"),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(literal="can't start new thread", build=_no_threads, versions="Python"),
    CauseRule(
        literal="Resource temporarily unavailable",
        # ZeroMQ says it where nothing has come in time.
        pattern=r"^(?:BlockingIOError|OSError): \[Errno 11\] Resource|^ *what\(\): +Resource|"
        r"pthread_create failed|[Tt]hread creation failed",
        where="both",
        rank="weak",
        build=_no_threads,
        versions="glibc; OpenBLAS 0.3, libgomp, LLVM, gRPC",
    ),
    CauseRule(
        literal="assign requested address",
        pattern=r"(?:\('(?P<host>[^']{1,64})', (?P<port>\d{1,5})|[Cc]annot assign requested address)",
        where="both",
        build=_no_such_address,
        versions="glibc: uvicorn, asyncio, ZeroMQ",
    ),
    CauseRule(
        literal="permission denied",
        pattern=r"bind on address \('(?P<host>[^']{1,64})', (?P<port>\d{1,5})[^)]{0,20}\): permission denied",
        where="both",
        build=lambda found: InvalidArguments(
            message=f"only root may listen on port {found.word('port')}",
            hint="choose a --port from 1024 on",
            argument="--port",
            retryable=False,
        ),
        versions="uvicorn, asyncio",
    ),
    CauseRule(literal="No enough allowed NUMA nodes", build=_cpu, versions="0.10 to 0.17, CPU"),
    CauseRule(
        literal="of CPU memory reserved for it",
        pattern=r"The worker already uses ",
        build=_cpu,
        versions="0.33, CPU",
    ),
    CauseRule(
        literal="VLLM_CPU_NUM_OF_RESERVED_CPU (",
        pattern=r"\) should less than",
        build=_cpu,
        versions="0.10 to 0.18, CPU",
    ),
)
