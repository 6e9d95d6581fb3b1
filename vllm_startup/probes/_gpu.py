"""GPU memory in use, by NVML: the evidence that weights are being loaded while nothing is printed."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from vllm_startup._blocking import BlockingRunner, StillRunningError
from vllm_startup._readings import GpuMemory, GpuSample, ProbeNote, Reading
from vllm_startup.probes._environ import server_environment
from vllm_startup.probes._gpu_devices import GpuName, Selection, Target, check_gpus, choose, named_slices
from vllm_startup.probes._gpu_nvml import (
    GPU_IS_LOST,
    LIB_RM_VERSION_MISMATCH,
    NO_NVML,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    DriverError,
    Handle,
    Memory,
    NoNvmlError,
    Nvml,
    Session,
    code_of,
    import_nvml,
    list_devices,
    open_target,
    read_memory,
    read_owners,
    shared_session,
)

Environ: TypeAlias = Callable[[], Mapping[str, str]]
TreePids: TypeAlias = Callable[[], Collection[int] | None]
Owners: TypeAlias = Mapping[int, int | None]

INTERVAL_S = 1.0
SLOWEST_INTERVAL_S = 5.0
CPU_SHARE = 0.004
"""Of a core; the whole watcher has 0.01 (budget), and drivers differ widely in what a call costs."""

FIRST_RETRY_S = 1.0
SLOWEST_RETRY_S = 30.0
"""A driver that is being replaced is away for minutes; each try loads it and may take seconds."""

RELEASE_S = 1.0

_DROPPED = {
    NOT_SUPPORTED: ("gpu_memory_unsupported", "does not tell its memory (unified with the host's)"),
    NO_PERMISSION: (
        "gpu_memory_not_permitted",
        "does not let us read its memory; where MIG is on, name the slice's UUID in gpus=",
    ),
    NOT_FOUND: ("gpu_lost", "has gone: the driver listed it no longer"),
    GPU_IS_LOST: ("gpu_lost", "was lost: the driver could not reach it"),
}
"""Answers that concern one GPU: it is told once and left out, and the others are watched on."""


class GpuProbe:
    """Reads the memory in use on every GPU that the server may use.

    These are, in this order: ``gpus``; what the server's own ``CUDA_VISIBLE_DEVICES`` leaves; all.
    The environment is read again at each sample, since a launcher script may set it and then become
    the server. Where NVML is not there the probe says so once (`ProbeNote`) and ends.

    Args:
        gpus: NVML's indices (those of nvidia-smi), UUIDs (``GPU-…``, may be abbreviated) or MIG UUIDs.
        pid: The server's main process, for its environment.
        environ: Where to get that environment instead; an empty one means "not known".
        tree_pids: Returns the pids of the server's processes, to tell their memory from others'.
        interval_s: Seconds between samples. By default 1, and up to 5 where the driver's calls are so
            dear that they would cost more than 0.4 % of a core.
        limit_s: Seconds that one sample may take.
        nvml: What to use in place of `pynvml`.

    Raises:
        TypeError: ``gpus`` is no list of int and str.
        ValueError: An argument is out of range, or ``gpus`` holds what is no UUID.
    """

    def __init__(
        self,
        gpus: Iterable[GpuName] | None = None,
        pid: int | None = None,
        *,
        environ: Environ | None = None,
        tree_pids: TreePids | None = None,
        interval_s: float | None = None,
        limit_s: float | None = 10.0,
        nvml: Nvml | None = None,
    ) -> None:
        if pid is not None and pid <= 0:
            raise ValueError(f"pid must be positive, got {pid}")
        _check_seconds("interval_s", interval_s)
        _check_seconds("limit_s", limit_s)
        if environ is None and pid is not None:
            environ = functools.partial(server_environment, pid)
        names = None if gpus is None else check_gpus(gpus)
        self._reader = _Reader(names, environ, nvml)
        self._runner = BlockingRunner("vllm-startup-gpu")
        self._tree_pids = tree_pids
        self._asked_interval_s = interval_s
        self._limit_s = limit_s
        self._error: str | None = None
        self._retry_s = FIRST_RETRY_S
        self._retry_at = -math.inf
        self._closed = False

    @property
    def name(self) -> str:
        """``gpu``."""
        return "gpu"

    @property
    def interval_s(self) -> float:
        """Seconds between samples; it may grow with what the samples turn out to cost."""
        if self._asked_interval_s is not None:
            return self._asked_interval_s
        return min(max(INTERVAL_S, self._reader.cost_s / CPU_SHARE), SLOWEST_INTERVAL_S)

    @property
    def limit_s(self) -> float | None:
        """Seconds that one sample may take."""
        return self._limit_s

    async def sample(self, now: float) -> Iterable[Reading]:
        """Read every GPU once.

        Raises:
            DriverError: The driver failed, or did so lately and is not asked again yet.
            StillRunningError: A call of an earlier sample has not returned.
            StopAsyncIteration: There is nothing to see, now or later.
        """
        if self._closed:
            raise StopAsyncIteration
        if self._error is not None and now < self._retry_at:
            raise DriverError(self._error)
        tree = frozenset((self._tree_pids() if self._tree_pids is not None else None) or ())
        try:
            memory = await self._runner.run(functools.partial(self._reader.look, tree))
        except DriverError as error:
            self._put_off(str(error), now)
            raise
        self._error, self._retry_s = None, FIRST_RETRY_S
        readings: list[Reading] = [*self._reader.take_notes()]
        if memory is not None:
            readings.append(memory)
        elif self._reader.finished:
            await self.aclose()
        return readings

    async def aclose(self) -> None:
        """Release NVML, unless its driver is stuck: then the process's end does."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._reader.begin_close():
                async with asyncio.timeout(RELEASE_S):
                    await self._runner.run(self._reader.leave)
        except (StillRunningError, TimeoutError):
            pass  # the reader leaves by itself when the call returns
        finally:
            self._runner.close()

    def _put_off(self, error: str, now: float) -> None:
        self._error = error
        self._retry_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, SLOWEST_RETRY_S)


class _Reader:
    """The blocking half of the probe: all of it but the properties runs in the runner's thread."""

    def __init__(self, gpus: Sequence[GpuName] | None, environ: Environ | None, nvml: Nvml | None) -> None:
        self._gpus = gpus
        self._environ = environ if gpus is None else None
        self._nvml = nvml
        self._session: Session | None = None
        self._epoch = 0
        self._selection: Selection | None = None
        self._targets: tuple[Target, ...] = ()
        self._handles: dict[Target, Handle] = {}
        self._lost: dict[Target, Exception] = {}
        self._said: set[ProbeNote] = set()
        self._notes: list[ProbeNote] = []
        self._closing = False
        self.finished = False
        self.cost_s = 0.0

    def take_notes(self) -> list[ProbeNote]:
        """Return what has to be said, also by a call that nobody awaited to its end."""
        notes, self._notes = self._notes, []
        return notes

    def begin_close(self) -> bool:
        """Make a call that runs the last one; return whether there is something to release."""
        self._closing = True
        return self._session is not None

    def leave(self) -> None:
        """Give up our share of NVML, in this process: a forked child has none to give up."""
        if self._nvml is not None:  # pragma: no branch - None only when closed while it is imported
            shared_session(self._nvml).leave(self)

    def look(self, tree: Collection[int]) -> GpuMemory | None:
        """Return what is in use now; None when there is no GPU to tell about.

        Raises:
            DriverError: The driver failed; the next call starts over with it.
        """
        try:
            return self._look(tree)
        except NoNvmlError as error:
            self.finished = True
            self._say("nvml_unavailable", f"no NVIDIA driver to ask ({error}), so GPU memory is not watched")
            return None
        finally:
            if self._closing:
                self.leave()

    def _look(self, tree: Collection[int]) -> GpuMemory | None:
        if self._nvml is None:
            self._nvml = import_nvml()
        try:
            self._enter(self._nvml)
            self._choose(self._nvml)
            before = time.thread_time()
            memory = self._read_all(self._nvml, tree)
            self.cost_s = time.thread_time() - before
        except self._nvml.NVMLError as error:
            if self._session is not None:
                self._session.renew(self._epoch)
            raise DriverError(_describe(error)) from error
        return memory

    def _enter(self, nvml: Nvml) -> None:
        session = shared_session(nvml)
        try:
            epoch = session.enter(self)
        except nvml.NVMLError as error:
            if self._session is None and code_of(error) in NO_NVML:
                raise NoNvmlError(str(error)) from error
            raise
        if session is not self._session or epoch != self._epoch:
            self._session, self._epoch, self._handles = session, epoch, {}
            self._open(nvml)

    def _choose(self, nvml: Nvml) -> None:
        """Choose the GPUs, at first and whenever the server's environment says something new."""
        environ = self._environ() if self._environ is not None else {}
        known = self._selection if self._selection is not None else Selection()
        selection = Selection.of(environ) if environ else known
        if selection == self._selection:
            return
        devices = list_devices(nvml, named_slices(self._gpus, selection))
        choice = choose(devices, self._gpus, selection)
        for note in choice.notes:
            self._say(note.code, note.text)
        self._targets, self._selection = choice.targets, selection
        self._lost.clear()
        self._open(nvml)

    def _open(self, nvml: Nvml) -> None:
        self._handles = {}
        for target in self._targets:
            try:
                self._handles[target] = open_target(nvml, target)
            except nvml.NVMLError as error:
                self._judge(target, error)

    def _read_all(self, nvml: Nvml, tree: Collection[int]) -> GpuMemory | None:
        seen: list[tuple[Target, Memory, Owners | None]] = []
        for target, handle in list(self._handles.items()):
            try:
                memory = read_memory(nvml, handle)
                owners = read_owners(nvml, handle) if tree else None
            except nvml.NVMLError as error:
                self._judge(target, error)
                continue
            self._lost.pop(target, None)
            if memory.total:
                seen.append((target, memory, owners))
            else:
                self._drop(target, NOT_SUPPORTED)
        if not self._handles:
            self._end_empty()
            return None
        ours = any(owners and not owners.keys().isdisjoint(tree) for _, _, owners in seen)
        return GpuMemory(gpus=tuple(_sample(*one, tree if ours else ()) for one in seen))

    def _end_empty(self) -> None:
        for error in self._lost.values():
            raise error  # silence would look like nothing to see; the driver is tried again
        self.finished = self._environ is None

    def _judge(self, target: Target, error: Exception) -> None:
        """Drop the GPU that an error concerns; raise what may concern the whole driver."""
        code = code_of(error)
        first = target not in self._lost
        if code in (NOT_FOUND, GPU_IS_LOST):
            self._lost[target] = error
        # A new initialisation may bring a lost GPU back; the second time the others go on without it.
        if code not in _DROPPED or (code == GPU_IS_LOST and first):
            raise error
        self._drop(target, code)

    def _drop(self, target: Target, code: int) -> None:
        self._handles.pop(target, None)
        note, text = _DROPPED[code]
        self._say(note, f"GPU {target.index} ({target.uuid}) {text}")

    def _say(self, code: str, text: str) -> None:
        note = ProbeNote(code=code, text=text)
        if note not in self._said:
            self._said.add(note)
            self._notes.append(note)


def _sample(target: Target, memory: Memory, owners: Owners | None, tree: Collection[int]) -> GpuSample:
    return GpuSample(
        index=target.index,
        uuid=target.uuid,
        used_bytes=memory.used,
        total_bytes=memory.total,
        tree_bytes=tree_bytes(owners, tree),
    )


def tree_bytes(owners: Owners | None, tree: Collection[int]) -> int | None:
    """Sum what the tree holds on one GPU; None when it is not told, for any process of the tree.

    ``tree`` is empty when the driver names none of its processes on any GPU: then the pids are
    those of another namespace, or of none, and 0 would be a guess.
    """
    if owners is None or not tree:
        return None
    sizes = [size for pid, size in owners.items() if pid in tree]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _describe(error: Exception) -> str:
    code = code_of(error)
    hint = ""
    if code == LIB_RM_VERSION_MISMATCH:
        hint = "; the driver was replaced under running programs, which see it after a restart"
    return f"NVML failed: {error} (code {code}){hint}"


def _check_seconds(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number of seconds, got {value}")
