"""Whether there is shared memory, and room and permission where caches are written."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from vllm_startup._preflight.check_model import hub_places, is_cached
from vllm_startup._preflight.facts import Facts
from vllm_startup._preflight.launch import Asked
from vllm_startup._preflight.parallel import workers_of_an_engine
from vllm_startup._preflight.paths import exists, is_folder
from vllm_startup._preflight.result import NotCheckedError
from vllm_startup.causes._base import Cause, Evidence
from vllm_startup.causes._host import disk_full, path_not_writable, shared_memory_too_small
from vllm_startup.probes._cache import compile_folders

_MIB: Final = 1024**2
SHARED_MEMORY: Final = "/dev/shm"
_QUEUE_CHUNKS: Final = 10
_CHUNK_MIB: Final = 16
"""vLLM 0.32: the queue to the workers has ten chunks of ``VLLM_MQ_MAX_CHUNK_BYTES_MB``."""
_ROOM_MIB: Final = 100
"""A compile cache of one small model takes more than this."""


def shared_memory(facts: Facts, *, place: str = SHARED_MEMORY) -> Iterator[Cause]:
    """Whether ``/dev/shm`` holds the queue between the processes of a server on several GPUs."""
    workers = workers_of_an_engine(facts.asked())
    if sys.platform != "linux":
        raise NotCheckedError(f"shared memory is elsewhere on {sys.platform}")
    if workers == 1:
        return
    wanted = _queue_bytes(facts.server().environ)
    cause = attrs.evolve(shared_memory_too_small(), confidence="likely")
    try:
        found = os.statvfs(place)
    except FileNotFoundError:
        yield attrs.evolve(cause, evidence=(Evidence(text=f"{place} is not there"),))
        return
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    if free < wanted:
        seen = (
            f"{free // _MIB} of {total // _MIB} MiB are free; the queue to {workers} workers takes"
            f" {wanted // _MIB} MiB, and NCCL more"
        )
        yield attrs.evolve(cause, evidence=(Evidence(text=seen),))
    elif not _may_write(place):
        yield path_not_writable(place, errno.EACCES)


def caches(facts: Facts) -> Iterator[Cause]:
    """Whether vLLM's cache and, for a model that is not there yet, the hub's may be written and have room."""
    server, asked = facts.server(), facts.asked()
    if server.other_user is not None:
        raise NotCheckedError(f"{server.other_user} starts it as another user")
    told = set[str]()
    for folder in _written(server.environ, asked, server.own_cwd):
        cause = _unfit(folder)
        if cause is not None and cause.message not in told:
            told.add(cause.message)
            yield cause


def _written(environ: Mapping[str, str], asked: Asked, cwd: str) -> Iterator[str]:
    """The folders that are written to in every start of this kind."""
    home = environ.get("HOME") or _home()
    vllm, *_ = compile_folders(environ, home=home)
    yield _absolute(vllm, cwd)
    name, places = asked.arguments.model, hub_places(asked, {**environ, "HOME": home})
    if _is_on_hub(name, cwd) and not is_cached(str(name), places):
        yield _absolute(places[-1], cwd)


def _absolute(folder: str, cwd: str) -> str:
    return os.path.normpath(os.path.join(cwd, folder)).replace("//", "/")  # noqa: PTH118 - links stay


def _is_on_hub(name: str | None, cwd: str) -> bool:
    if name is None or "://" in name or name.count("/") > 1 or name.startswith(("/", ".", "~")):
        return False
    return not exists(Path(cwd, name))


def _unfit(folder: str) -> Cause | None:
    """Why a folder cannot be written to, by the nearest one above it that exists."""
    there = next((each for each in (Path(folder), *Path(folder).parents) if exists(each)), Path("/"))
    seen = f"{folder} would be made in {there}" if str(there) != folder else f"{there} is there"
    if not is_folder(there):
        return attrs.evolve(
            path_not_writable(folder, errno.ENOTDIR),
            evidence=(Evidence(text=f"{there} is no folder"),),
            confidence="likely",
        )
    if not _may_write(there):
        read_only = os.statvfs(there).f_flag & os.ST_RDONLY
        why = "its file system is read-only" if read_only else f"user id {os.geteuid()} may not write there"
        return attrs.evolve(
            path_not_writable(folder, errno.EROFS if read_only else errno.EACCES),
            evidence=(Evidence(text=f"{seen}; {why}"),),
            confidence="likely",
        )
    found = os.statvfs(there)
    free = found.f_bavail * found.f_frsize
    no_inodes = bool(found.f_files) and not found.f_favail
    if free < _ROOM_MIB * _MIB or no_inodes:
        what = "no more files can be made" if no_inodes else f"{free // _MIB} MiB are free"
        return attrs.evolve(
            disk_full(folder), evidence=(Evidence(text=f"{what} in {there}"),), confidence="likely"
        )
    return None


def _may_write(place: str | Path) -> bool:
    effective = os.access in os.supports_effective_ids
    return os.access(place, os.W_OK | os.X_OK, effective_ids=effective)


def _queue_bytes(environ: Mapping[str, str]) -> int:
    said = environ.get("VLLM_MQ_MAX_CHUNK_BYTES_MB", "")
    return (int(said) if said.isdigit() else _CHUNK_MIB) * _MIB * _QUEUE_CHUNKS


def _home() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"
