"""The main job as one call: which probes look at the server, and what is waited for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from vllm_startup._blocking import BlockingRunner
from vllm_startup._clock import Clock
from vllm_startup._events import Event
from vllm_startup._readings import Tier
from vllm_startup._report import Baseline, StartupReport
from vllm_startup._rules import Rule
from vllm_startup._startup import Startup
from vllm_startup._sync import in_own_loop
from vllm_startup._timeouts import Timeouts
from vllm_startup._url import parse_url
from vllm_startup.probes._protocol import Probe

if TYPE_CHECKING:
    from asyncio.subprocess import Process as AsyncProcess

    from vllm_startup.probes import HealthProbe
    from vllm_startup.probes._stream import Reader
    from vllm_startup.probes._tunnel import Route
    from vllm_startup.targets._target import Site, Target

DEFAULT_URL = "http://127.0.0.1:8000"
"""Where ``vllm serve`` listens unless it is told otherwise."""

LogSource: TypeAlias = "str | os.PathLike[str] | Reader"
"""A path, or a stream: whatever `vllm_startup.probes.StreamProbe` takes."""


def watch(
    url: str | None = None,
    *,
    target: Target | None = None,
    process: subprocess.Popen[Any] | AsyncProcess | None = None,
    pid: int | None = None,
    log: LogSource | None = None,
    gpus: Iterable[int | str] | None = None,
    probes: Sequence[Probe] = (),
    rules: Sequence[Rule] = (),
    until: Tier = "health",
    stable_for: float = 0.0,
    model: str | None = None,
    api_key: str | None = None,
    verify: bool | str | os.PathLike[str] | None = None,
    timeouts: Timeouts | None = None,
    restarts: int = 0,
    exit_grace: float = 10.0,
    raise_early: bool = False,
    on_event: Callable[[Event], object] | None = None,
    record: str | os.PathLike[str] | None = None,
    baseline: Baseline | None = None,
    clock: Clock | None = None,
) -> Startup:
    """Make the watch that `wait_until_ready` waits on, to be entered with ``async with``.

    Its arguments and what it raises at once are those of `wait_until_ready`. A ``target`` is located
    here, which blocks for as long as asking takes: milliseconds on this machine, seconds over a network.
    """
    if target is not None and any(given is not None for given in (process, pid, log)):
        raise ValueError("give either target= or process=, pid= and log=: a target finds its own")
    if process is not None and pid is not None:
        raise ValueError("give either process= or pid=, not both: a process has its pid")
    if process is not None and not hasattr(process, "returncode"):
        raise TypeError(f"process must be a subprocess.Popen or an asyncio process, not {process!r}")
    if pid is not None and (isinstance(pid, bool) or not isinstance(pid, int)):
        raise TypeError(f"pid must be a process id, a whole number, not {pid!r}")
    if until == "engine" and log is None and target is None and not probes:
        raise ValueError("until='engine' needs log=: it is there that the engines say that they are ready")
    _refuse_unread_pipes(process, log)
    if record is not None and isinstance(log, str | os.PathLike) and _same_file(log, record):
        raise ValueError(f"record and log must be two files: a recording replaces what is in {str(record)!r}")
    if target is not None:
        _refuse_no_target(target)
    site = target.locate(gpus=gpus) if target is not None else _site_here(process, pid, log, gpus)
    try:
        looking = list(site.probes)
        address: str | None = None
        if url is not None or until != "engine":
            make = partial(
                _health_probe,
                until=until,
                model=model,
                api_key=api_key,
                verify=verify,
                site=site,
                own=url is None,
            )
            address, certain = (url, True) if url is not None else _address(site)
            fixed = url is not None or (certain and site.start is None)
            looking.append(make(address) if fixed else _seeking(address, site, make, found=certain))
        return Startup(
            [*looking, *probes],
            url=address,
            rules=rules,
            until=until,
            stable_for=stable_for,
            timeouts=timeouts,
            restarts=restarts,
            exit_grace=exit_grace,
            raise_early=raise_early,
            on_event=on_event,
            record=record,
            baseline=baseline,
            clock=clock,
        )
    except BaseException:
        site.close()
        raise


async def wait_until_ready(
    url: str | None = None,
    *,
    target: Target | None = None,
    process: subprocess.Popen[Any] | AsyncProcess | None = None,
    pid: int | None = None,
    log: LogSource | None = None,
    gpus: Iterable[int | str] | None = None,
    probes: Sequence[Probe] = (),
    rules: Sequence[Rule] = (),
    until: Tier = "health",
    stable_for: float = 0.0,
    model: str | None = None,
    api_key: str | None = None,
    verify: bool | str | os.PathLike[str] | None = None,
    timeouts: Timeouts | None = None,
    restarts: int = 0,
    exit_grace: float = 10.0,
    raise_early: bool = False,
    on_event: Callable[[Event], object] | None = None,
    record: str | os.PathLike[str] | None = None,
    baseline: Baseline | None = None,
    clock: Clock | None = None,
) -> StartupReport:
    """Wait until a vLLM server that something else started is ready.

    Args:
        url: Where it will listen: ``http://host:port``, ``https://``, ``unix:///path``. Without it,
            what the arguments of ``pid`` or ``process`` say, as soon as a script has come to them; until
            then, ``http://127.0.0.1:8000``.
        target: A server that something else runs and may restart, from `vllm_startup.targets`; instead
            of ``process``, ``pid`` and ``log``.
        process: The server, as a `subprocess.Popen` or an asyncio process, whose pipes (if any)
            somebody else reads.
        pid: The server's main process, instead of ``process``.
        log: Its output: a path (read from the start as history, then followed; awaited if it is
            missing) or a stream (drained to its end).
        gpus: Which GPUs it may use, as NVML indices or UUIDs, instead of what its own
            ``CUDA_VISIBLE_DEVICES`` says. GPUs are watched where ``pid``, ``process`` or ``gpus``
            is given.
        probes: Further probes.
        rules: Further rules on lines and readings.
        until: How much ready means: ``engine`` < ``health`` < ``model`` < ``inference``.
        stable_for: For how many seconds that must hold without a miss.
        model: The model that ``/v1/models`` must list; None for any.
        api_key: The key for ``/v1``, if the server asks for one. It is never shown.
        verify: Whether to check the server's certificate, or the path of CA certificates. None:
            not on loopback, else yes.
        timeouts: Limits; see `Timeouts`.
        restarts: How many deaths of the main process are tolerated; needs a target that finds the
            next one.
        exit_grace: How many seconds a failed start's processes may take to be gone.
        raise_early: Raise as soon as the cause is known, while processes may still hold the port.
        on_event: Called with every event, in order, from a thread of its own. It may raise.
        record: A file to which everything seen is written, secrets removed, for ``replay``.
        baseline: An earlier report of the same model, or its JSON file: what differs is a warning.
        clock: The time, for tests.

    Returns:
        Where the time went.

    Raises:
        StartupError: The start failed; ``error.cause`` says why.
        StartupTimeout: A limit ended the wait (`StartupStalled`: nothing had advanced).
        TargetError: The target cannot be watched; it is a ValueError.
        TypeError: An argument has the wrong type.
        ValueError: An argument makes no sense; the message names it and the fix.
        OSError: ``record`` cannot be created, or ``baseline`` cannot be read.
    """
    if target is not None:
        target = await located(target, gpus)
    startup = watch(
        url,
        target=target,
        process=process,
        pid=pid,
        log=log,
        gpus=gpus,
        probes=probes,
        rules=rules,
        until=until,
        stable_for=stable_for,
        model=model,
        api_key=api_key,
        verify=verify,
        timeouts=timeouts,
        restarts=restarts,
        exit_grace=exit_grace,
        raise_early=raise_early,
        on_event=on_event,
        record=record,
        baseline=baseline,
        clock=clock,
    )
    async with startup:
        return await startup.wait_until_ready()


wait_until_ready_sync = in_own_loop(wait_until_ready)


async def located(target: Target, gpus: Iterable[int | str] | None = None) -> Site:
    """Locate a target without keeping the event loop, also when asking takes for ever.

    A caller who is cancelled meanwhile leaves nothing behind: what is found then is closed.
    """
    runner = BlockingRunner("vllm_startup-locate")
    left = threading.Event()
    found: list[Site] = []

    _refuse_no_target(target)

    def locate() -> Site:
        site = target.locate(gpus=gpus)
        found.append(site)
        if left.is_set():
            site.close()
        return site

    try:
        return await runner.run(locate)
    except asyncio.CancelledError:
        left.set()
        for site in found:
            site.close()
        raise
    finally:
        runner.close()


def _refuse_no_target(target: object) -> None:
    if not hasattr(target, "locate"):
        raise TypeError(f"target must be one of vllm_startup.targets, as systemd('vllm'), not {target!r}")


def _site_here(
    process: subprocess.Popen[Any] | AsyncProcess | None,
    pid: int | None,
    log: LogSource | None,
    gpus: Iterable[int | str] | None,
) -> Site:
    """A process on this machine that the caller names, or none."""
    from vllm_startup.targets import Site

    number = process.pid if process is not None else pid
    probes = [*_process_probes(process, number, gpus), *_log_probes(log)]
    tree: Any = next((probe for probe in probes if probe.name == "tree"), None)
    lives = process is None or process.returncode is None
    return Site(
        name="this machine" if number is None else f"process {number}",
        url=partial(_url_of, number if lives else None),
        own_url=partial(_url_of, number, own=True) if lives and number is not None else None,
        probes=probes,
        tree_pids=None if tree is None else lambda: tree.pids,
    )


def _url_of(pid: int | None, *, own: bool = False) -> str | None:
    if pid is None:
        return None
    from vllm_startup._arguments import url_of_process

    return url_of_process(pid, own=own)


def _same_file(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    try:
        return Path(one).samefile(other)
    except OSError:  # one of them is not there yet
        return Path(one).absolute() == Path(other).absolute()


def _refuse_unread_pipes(process: subprocess.Popen[Any] | AsyncProcess | None, log: object) -> None:
    if process is None or isinstance(log, str | os.PathLike):  # somebody reads the pipe, and writes the file
        return
    for name in ("stdout", "stderr"):
        stream = getattr(process, name, None)
        if stream is not None and stream is not log:
            raise ValueError(
                f"process has {name}=PIPE: if nobody reads it, the server stops when it is full. Pass"
                f" log=process.{name}, or start the server with its output going to a file, or, if you"
                " read it yourself, pass pid=process.pid instead"
            )


def _process_probes(process: Any, pid: int | None, gpus: Iterable[int | str] | None) -> list[Probe]:
    from vllm_startup.probes import CacheProbe, CgroupProbe, GpuProbe, ProcessProbe, TreeProbe

    if pid is None:
        return [GpuProbe(gpus=gpus)] if gpus is not None else []
    root = ProcessProbe(process=process) if process is not None else ProcessProbe(pid)
    if process is not None and process.returncode is not None:  # its pid may be another's by now
        return [root]
    try:
        tree = TreeProbe(pid)
    except ValueError:  # it has ended since, which the first probe tells
        return [root]
    return [
        root,
        tree,
        GpuProbe(gpus=gpus, pid=pid, tree_pids=lambda: tree.pids),
        CacheProbe(pid),
        CgroupProbe(pid),
    ]


def _log_probes(log: LogSource | None) -> list[Probe]:
    from vllm_startup.probes import LogFileProbe, StreamProbe
    from vllm_startup.probes._log import OwnLog

    if log is None:
        return []
    if isinstance(log, str | os.PathLike):
        return [LogFileProbe(log, own_from=log.size if isinstance(log, OwnLog) else 0)]
    if isinstance(log, int):
        raise TypeError(
            f"log must be a path or a stream, not {log!r}; open a descriptor first: open({log!r}, 'rb')"
        )
    if isinstance(log, bytes):
        raise TypeError(f"log must be a path as str or os.PathLike, or a stream, not {log!r}")
    try:
        return [StreamProbe(log)]
    except TypeError as error:
        raise TypeError(f"log must be a path or a stream, not {log!r}") from error
    except ValueError as error:
        raise ValueError(f"log must be an open stream: {error}") from error


def _address(site: Site) -> tuple[str, bool]:
    """Where a server listens, and whether nothing will tell better."""
    own = None if site.own_url is None else site.own_url()
    return own or site.url() or DEFAULT_URL, own is not None or site.own_url is None


def _seeking(address: str, site: Site, make: Callable[[str], HealthProbe], *, found: bool) -> Probe:
    """For a server whose own arguments are not there yet, or whose next start may listen elsewhere."""
    from vllm_startup.probes._seeking import SeekingProbe

    return SeekingProbe(
        address,
        found=found,
        find=site.own_url or (lambda: None),
        find_anew=partial(_address, site),
        make=make,
        start=site.start,
    )


def _health_probe(
    url: str,
    *,
    until: Tier,
    model: str | None,
    api_key: str | None,
    verify: bool | str | os.PathLike[str] | None,
    site: Site,
    own: bool,
) -> HealthProbe:
    from vllm_startup.probes import HealthProbe

    return HealthProbe(
        url,
        until=until,
        model=model,
        api_key=api_key,
        verify=verify,
        tree_pids=site.tree_pids,
        runs=site.runs,
        route=_route(url, site, own=own),
    )


def _route(url: str, site: Site, *, own: bool) -> Route | None:
    """The tunnel to an address, where it is the site's own, or on the loopback of another machine."""
    if site.route is None:
        return None
    address = parse_url(url)
    return site.route(address) if own or address.loopback else None
