"""Whether anything moves: the clock that tells slow from stuck."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import attrs

from vllm_startup._diagnosis.evidence import clean
from vllm_startup._machine.memory import MIB
from vllm_startup._readings import CacheSize, ProcessSample, ProcessTree
from vllm_startup._roles import Role, role_of

# Hung processes poll: a real hang used 0.005 s a second (vLLM 0.11.0). Over half a minute, less
# than a tenth of a core is no work.
_CPU_WINDOW_S = 30.0
_CPU_TRICKLE = 0.1
_CPU_SETTLE_S = 5.0  # a shorter look would take one busy moment for work
_HOST_NOISE_BYTES = 32 * MIB  # allocators breathe
_READ_NOISE_BYTES = MIB


@attrs.frozen(kw_only=True)
class Move:
    """The newest sign of progress."""

    at: float
    what: str


class Activity:
    """Folds everything that may move during one attempt.

    CPU time is told apart from the rest, since a spinning process uses it too: on its own it
    holds off a stall only for a while.
    """

    def __init__(self, began_at: float) -> None:
        self._last_at, self._last_what = began_at, "the watch began"
        self.cpu_at: float | None = None
        self.cores = 0.0
        self.read_at: float | None = None
        self.read_bytes = 0
        self.read_rate = 0.0
        self.suspended: dict[int, str] = {}
        self.traced: dict[int, str] = {}
        self.watched_since = began_at
        self._pauses: list[tuple[float, float]] = []
        self._cpu: deque[tuple[float, float]] = deque()
        self._before: dict[tuple[int, float], ProcessSample] = {}
        self._looked_at: float | None = None
        self._rss_anchor = 0
        self._read_anchor = 0
        self._read_anchor_at = began_at
        self._caches: dict[str, int] = {}
        self._counters: dict[str, tuple[float | None, float | None]] = {}

    @property
    def newest(self) -> Move:
        """The newest progress of any kind, in words that are safe to show."""
        if self.cpu_at is not None and self.cpu_at > self._last_at:
            return Move(at=self.cpu_at, what=f"CPU time ({self.cores:.1f} cores)")
        return Move(at=self._last_at, what=clean(self._last_what))

    def moved(self, at: float, what: str) -> None:
        """Note progress other than CPU time, in words that may be a line's own."""
        if at >= self._last_at:
            self._last_at, self._last_what = at, what
            self._pauses.clear()

    def counted(self, at: float, what: str, done: float | None, total: float | None) -> bool:
        """Note a counter. Returns whether it moved."""
        moved = self._counters.pop(what, None) != (done, total) or done is None
        self._counters[what] = (done, total)
        if moved:
            self.moved(at, what)
        return moved

    def counter(self) -> tuple[str, float, float | None] | None:
        """The newest counter of this phase, as (what, done, total); None without one."""
        newest = (item for item in reversed(self._counters.items()) if item[1][0] is not None)
        return next(((what, done, total) for what, (done, total) in newest if done is not None), None)

    def next_phase(self) -> None:
        """Leave the counters of the phase before."""
        self._counters.clear()

    def cache(self, at: float, reading: CacheSize) -> bool:
        """Note a cache's size. Returns whether it grew."""
        before = self._caches.get(reading.what)
        self._caches[reading.what] = reading.total_bytes
        grew = before is not None and reading.total_bytes > before
        if grew:
            self.moved(at, "download" if reading.what == "hub" else "compile cache")
        return grew

    def gpu(self, at: float, *, moved: bool) -> None:
        """Note that GPU memory was looked at."""
        if moved:
            self.moved(at, "GPU memory")

    def tree(self, at: float, reading: ProcessTree, *, joining: bool) -> None:
        """Note a scan of the process tree.

        While ranks are finding each other (``joining``) NCCL spins, and CPU time proves nothing.
        """
        current = {(p.pid, p.started_at): p for p in reading.processes}
        counted = () if joining else tuple(_working(reading))
        if self._looked_at is not None:
            self._note_new(at, current)
            self._note_cpu(at, counted)
            self._note_bytes(at, reading.processes)
        else:
            self._rss_anchor = sum(p.rss_bytes for p in reading.processes)
            self._read_anchor = sum(p.read_bytes or 0 for p in reading.processes)
            self._read_anchor_at = at
        self.suspended = {p.pid: p.name for p in reading.processes if p.status == "stopped"}
        self.traced = {p.pid: p.name for p in reading.processes if p.status == "tracing-stop"}
        self._before, self._looked_at = current, at

    def _note_new(self, at: float, current: dict[tuple[int, float], ProcessSample]) -> None:
        if new := [p for key, p in current.items() if key not in self._before]:
            self.moved(at, f"new process {new[-1].name}")

    def _note_cpu(self, at: float, counted: Iterable[ProcessSample]) -> None:
        used = sum(self._growth(p) for p in counted)
        self._cpu.append((at, used))
        while self._cpu and self._cpu[0][0] <= at - _CPU_WINDOW_S:
            self._cpu.popleft()
        window = max(at - self._cpu[0][0] + (at - self._looked_at if self._looked_at else 0.0), _CPU_SETTLE_S)
        self.cores = sum(seconds for _, seconds in self._cpu) / min(window, _CPU_WINDOW_S)
        if used > 0 and self.cores >= _CPU_TRICKLE:
            self.cpu_at = at

    def _growth(self, process: ProcessSample) -> float:
        before = self._before.get((process.pid, process.started_at))
        base = before.cpu_s + before.children_cpu_s if before else 0.0
        return max(0.0, process.cpu_s + process.children_cpu_s - base)

    def _note_bytes(self, at: float, processes: tuple[ProcessSample, ...]) -> None:
        rss = sum(p.rss_bytes for p in processes)
        if rss > self._rss_anchor + _HOST_NOISE_BYTES:
            self.moved(at, "host memory")
            self._rss_anchor = rss
        self._rss_anchor = min(self._rss_anchor, rss)
        read = sum(p.read_bytes or 0 for p in processes)
        if read > self._read_anchor + _READ_NOISE_BYTES:
            elapsed = at - self._read_anchor_at
            self.read_bytes += read - self._read_anchor
            self.read_rate = (read - self._read_anchor) / elapsed if elapsed > 0 else 0.0
            self.moved(at, "bytes read")
            self.read_at, self._read_anchor, self._read_anchor_at = at, read, at
        self._read_anchor = min(self._read_anchor, read)

    def quiet_until(self, stall: float, cpu_only: float | None) -> float:
        """When the attempt will have stalled, if nothing moves from now on."""
        last = max(self._last_at, self.watched_since)
        if self.cpu_at is not None and self.cpu_at > last:
            last = self.cpu_at if cpu_only is None else min(self.cpu_at, last + cpu_only)
        return last + self._unwatched(last) + stall

    def silent_s(self, at: float) -> float:
        """For how many seconds nothing has moved, without those in which nobody watched."""
        last = self.newest.at
        return at - last - self._unwatched(last)

    def forgive(self, ended_at: float, seconds: float) -> None:
        """Let a time in which nobody watched, and that ended at ``ended_at``, count for no stall."""
        self._pauses.append((ended_at, seconds))

    def _unwatched(self, since: float) -> float:
        return sum(seconds for ended_at, seconds in self._pauses if ended_at > since)


def _working(tree: ProcessTree) -> Iterable[ProcessSample]:
    """The processes whose CPU time means work.

    Before engines exist, all. Then the engines' descendants; an engine's core itself only while
    it has no workers, since it spins while they work (vLLM up to 0.17).
    """
    engines = {p.pid for p in tree.processes if role_of(p.name) is Role.ENGINE}
    workers = {p.pid for p in tree.processes if role_of(p.name) is Role.WORKER}
    if not engines and not workers:
        yield from tree.processes
        return
    parents = {p.pid: p.ppid for p in tree.processes}
    staffed = {p.ppid for p in tree.processes if p.pid in workers}
    for process in tree.processes:
        if process.pid in engines:
            if process.pid not in staffed:
                yield process
        elif _descends(process.pid, engines | workers, parents):
            yield process


def _descends(pid: int, ancestors: set[int], parents: dict[int, int]) -> bool:
    seen: set[int] = set()
    while pid not in seen:
        if pid in ancestors:
            return True
        seen.add(pid)
        pid = parents.get(pid, pid)
    return False
