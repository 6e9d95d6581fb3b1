"""Shows what dead vLLM servers left behind, and ends it when it is told to."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs

from vllm_startup._blocking import run_within
from vllm_startup._events import SCHEMA
from vllm_startup._json import json_text, to_json
from vllm_startup._launching.end_tree import KILL_AFTER_S, Process, end_tree, living
from vllm_startup._launching.left_files import LeftFiles
from vllm_startup._orphans import Orphan, orphans
from vllm_startup._report import WarningReport
from vllm_startup._versions import versions
from vllm_startup.probes._gpu_look import GpuLook, look
from vllm_startup.probes._gpu_nvml import DriverError, NoNvmlError

_GPU_LIMIT_S: Final = 5.0
_RETURN_S: Final = 5.0  # a driver frees a process's memory within a second of its end
_POLL_S: Final = 0.2
_ALL_GPUS: Final[Mapping[str, str]] = {}


@attrs.frozen(kw_only=True)
class Leftover:
    """A process that a dead server left.

    Attributes:
        name: ``VLLM::EngineCore`` and the like, or what it is otherwise.
        user: The id of its user.
        age_s: Seconds since it was started.
        gpu_bytes: What it holds on which GPU, by nvidia-smi's index, as far as the driver tells.
        ended: Whether it was ended; False too where only a look was asked for.
    """

    pid: int
    name: str
    user: int
    age_s: float
    gpu_bytes: Mapping[int, int | None] = attrs.field(factory=dict)
    ended: bool = False


@attrs.frozen(kw_only=True)
class GpuReturn:
    """Memory in use on one GPU that a leftover held; ``after_bytes`` is None where nothing was ended."""

    index: int
    uuid: str
    before_bytes: int
    total_bytes: int
    after_bytes: int | None = None


@attrs.frozen(kw_only=True)
class Cleanup:
    """What dead servers left behind, and what became of it.

    Attributes:
        processes: All that was found, parents before what they started.
        gpus: The GPUs on which any of it held memory.
        warnings: What could not be seen or done.
    """

    processes: tuple[Leftover, ...] = ()
    gpus: tuple[GpuReturn, ...] = ()
    warnings: tuple[WarningReport, ...] = ()

    @property
    def left(self) -> tuple[Leftover, ...]:
        """The processes that are still there."""
        return tuple(process for process in self.processes if not process.ended)

    @property
    def ok(self) -> bool:
        """Whether nothing is left."""
        return not self.left

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            **{field.name: to_json(getattr(self, field.name)) for field in attrs.fields(type(self))},
            "versions": versions(),
        }

    def to_json(self, indent: int | None = None) -> str:
        """The result as JSON text."""
        return json_text(self.to_dict(), indent)


def cleanup(*, kill: bool = False, kill_after: float = KILL_AFTER_S) -> Cleanup:
    """Find the processes of dead vLLM servers, and end them if ``kill`` says so.

    Only vLLM's own are found, and what they started; none of a server that lives. Only this user's
    are ended, everybody's by root. Each is ended by SIGTERM, then SIGKILL, and never mistaken for
    another process that has its pid by then.

    Args:
        kill: Whether to end them.
        kill_after: Seconds from SIGTERM to SIGKILL.

    Raises:
        NotImplementedError: This is no Linux.
        ValueError: ``kill_after`` is negative.
    """
    if sys.platform != "linux":
        raise NotImplementedError("cleanup needs Linux's /proc")
    if not kill_after >= 0:
        raise ValueError(f"kill_after must be 0 or more seconds, not {kill_after!r}")
    found = orphans()
    before, warnings = _gpus() if found else (None, [])
    held = _held_by(found, before)
    ended = set[int]()
    after = None
    if kill and found:
        ours = [orphan for orphan in found if os.geteuid() in (0, orphan.user)]
        left = {process.pid for process in _end(ours, kill_after)}
        ended = {orphan.pid for orphan in ours} - left
        if any(held.values()):
            after = _returned(before, ended)
        if len(ours) < len(found):
            text = "some are another user's, and only that user or root may end them"
            warnings.append(WarningReport(code="other_users", text=text))
    return Cleanup(
        processes=tuple(_told(orphan, held, orphan.pid in ended) for orphan in found),
        gpus=_gpu_returns(before, after, held),
        warnings=tuple(warnings),
    )


def _end(orphans_: Sequence[Orphan], kill_after: float) -> list[Process]:
    """End them and all that descend from them; return what could not be ended."""
    known = {(orphan.pid, orphan.process.start) for orphan in orphans_}

    def find() -> list[Process]:
        members = living(lambda process: (process.pid, process.start) in known)
        known.update((member.pid, member.start) for member in members)  # their parents may end first
        return members

    return end_tree(find, files=LeftFiles(0), kill_after=kill_after, finished=lambda members: not members)


def _told(orphan: Orphan, held: Mapping[int, Mapping[int, int | None]], ended: bool) -> Leftover:
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME) - orphan.process.start / os.sysconf("SC_CLK_TCK")
    return Leftover(
        pid=orphan.pid,
        name=orphan.name,
        user=orphan.user,
        age_s=max(0.0, up_s),
        gpu_bytes=held.get(orphan.pid, {}),
        ended=ended,
    )


# --- the GPUs' memory -----------------------------------------------------------------------


def _gpus() -> tuple[GpuLook | None, list[WarningReport]]:
    try:
        return run_within(partial(look, _ALL_GPUS), _GPU_LIMIT_S, name="vllm_startup-cleanup-gpus"), []
    except NoNvmlError:
        return None, []  # there is no GPU that could be held
    except (DriverError, TimeoutError) as error:
        return None, [WarningReport(code="gpus_unknown", text=f"who holds GPU memory is not known: {error}")]


def _held_by(found: Sequence[Orphan], seen: GpuLook | None) -> dict[int, dict[int, int | None]]:
    """What each process holds on each GPU."""
    gpus = seen.gpus if seen is not None else ()
    return {
        orphan.pid: {gpu.index: gpu.holders[orphan.pid] for gpu in gpus if orphan.pid in gpu.holders}
        for orphan in found
    }


def _returned(before: GpuLook | None, ended: set[int]) -> GpuLook | None:
    """The GPUs when the driver has let go of the ended processes, or after some seconds."""
    deadline = time.monotonic() + _RETURN_S
    while before is not None:
        seen, _ = _gpus()
        holds = seen is not None and any(not ended.isdisjoint(gpu.holders) for gpu in seen.gpus)
        if not holds or time.monotonic() >= deadline:
            return seen
        time.sleep(_POLL_S)
    return None


def _gpu_returns(
    before: GpuLook | None, after: GpuLook | None, held: Mapping[int, Mapping[int, int | None]]
) -> tuple[GpuReturn, ...]:
    touched = {index for gpus in held.values() for index in gpus}
    later = {gpu.uuid: gpu.used_bytes for gpu in after.gpus} if after is not None else {}
    return tuple(
        GpuReturn(
            index=gpu.index,
            uuid=gpu.uuid,
            before_bytes=gpu.used_bytes,
            total_bytes=gpu.used_bytes + gpu.free_bytes,
            after_bytes=later.get(gpu.uuid),
        )
        for gpu in (before.gpus if before is not None else ())
        if gpu.index in touched and gpu.used_bytes is not None and gpu.free_bytes is not None
    )
