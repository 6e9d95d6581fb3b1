"""Weak evidence: what the processes and the memory suggest while the log says nothing."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from vllm_startup._machine.activity import Activity
from vllm_startup._machine.memory import GIB, MIB, GpuTrack
from vllm_startup._phases import Phase
from vllm_startup._readings import CacheSize, Connection, ProcessTree
from vllm_startup._roles import Role, role_of

_QUIET_S = 2.0  # a log that has spoken more recently than this is not silent
_TALKATIVE_QUIET_S = 60.0  # nor is one that tells of its engines, within its usual silences (16 s were seen)
_SETTLE_S = 2.0  # at 1 s between scans, two looks agree
_PLATEAU_S = 60.0  # slow network reads pause for tens of seconds and look the same
_JUMP_S = 10.0  # the KV cache is taken in one go, in a second or two a device
_JUMP_SHARE = 0.05
_HOST_RISE_BYTES = 64 * MIB  # a worker of the CPU build has imported everything when it sets its title
_READ_BYTES = GIB
_READING_S = 10.0
_DEFAULT_UTILIZATION = 0.9  # vLLM's own default up to 0.33


@attrs.frozen(kw_only=True)
class Sign:
    """Weak evidence for a phase.

    Attributes:
        since: When it began: where the phase is dated to.
        due: When it has held for long enough, if nothing speaks against it.
        sure: Whether it may be taken at once when a later phase is proven anyway.
    """

    phase: Phase
    since: float
    due: float
    probe: str
    text: str
    sure: bool = True


@attrs.frozen(kw_only=True)
class _Seen:
    at: float
    probe: str
    text: str


class Signs:
    """Folds readings of one attempt into weak evidence."""

    def __init__(self) -> None:
        self.gpus = GpuTrack()
        self.utilization: float | None = None
        self.footprint: dict[str, int] = {}
        self.spoke_at: float | None = None
        self.talkative = False  # the log has told of the engines, so it will tell more
        self._first_record: _Seen | None = None
        self._engines: _Seen | None = None
        self._listening: _Seen | None = None
        self.unreachable: str | None = None
        self.refused = False  # a proxy or a tunnel listens from the start, and tells nothing
        self._host: _Seen | None = None
        self._titled_rss: dict[int, int] = {}
        self._read_anchor: int | None = None
        self._reads: _Seen | None = None
        self._download: _Seen | None = None
        self._jump: _Seen | None = None
        self._levels: list[tuple[float, int]] = []

    def record(self, at: float, text: str) -> None:
        """Note the first line in vLLM's own form."""
        self._first_record = self._first_record or _Seen(at=at, probe="log", text=text)

    def forget_log(self) -> None:
        """Drop what a log said that turned out to be another attempt's."""
        self._first_record = self.spoke_at = self.utilization = None
        self.talkative = False

    def tree(self, at: float, probe: str, reading: ProcessTree) -> None:
        """Note titled processes, their memory and what they read."""
        own = [p for p in reading.processes if role_of(p.name) in (Role.ENGINE, Role.WORKER)]
        if not own:
            return
        self._engines = self._engines or _Seen(at=at, probe=probe, text=f"process {own[0].name} appeared")
        for process in own:
            titled = self._titled_rss.setdefault(process.pid, process.rss_bytes)
            if self._host is None and process.rss_bytes - titled >= _HOST_RISE_BYTES:
                self._host = _Seen(at=at, probe=probe, text=f"memory of {process.name} rises")
        self._note_reads(at, probe, sum(p.read_bytes or 0 for p in own))

    def _note_reads(self, at: float, probe: str, read: int) -> None:
        if self._read_anchor is None:
            self._read_anchor = read
        if self._reads is None and read - self._read_anchor >= _READ_BYTES:
            self._reads = _Seen(at=at, probe=probe, text="engine processes read files")

    def cache(self, at: float, probe: str, reading: CacheSize, *, grew: bool) -> None:
        """Note downloads of an engine that exists already."""
        if grew and reading.what == "hub" and self._engines is not None and self._download is None:
            self._download = _Seen(at=at, probe=probe, text="the hub cache grows")

    def connection(self, at: float, probe: str, reading: Connection) -> None:
        """Note that something listens."""
        self.refused |= reading.state == "refused"
        beyond = reading.state in ("unreachable", "timed_out")
        self.unreachable = (reading.detail or reading.state) if beyond else None
        if reading.state != "listening":
            self._listening = None
        elif reading.owner != "foreign" and self._listening is None:
            self._listening = _Seen(at=at, probe=probe, text="the port listens")

    def gpu(self, at: float, probe: str) -> None:
        """Note a jump of memory, after `gpus` has taken the reading."""
        used = sum(d.used for d in self.gpus.devices.values())
        total = sum(d.total for d in self.gpus.devices.values())
        self._levels = [(t, u) for t, u in self._levels if t >= at - _JUMP_S] + [(at, used)]
        began, least = min(self._levels, key=lambda level: (level[1], -level[0]))
        filled = self.gpus.filled(self.utilization or _DEFAULT_UTILIZATION)
        if self._jump is None and filled and used - least >= _JUMP_SHARE * total:
            self._jump = _Seen(at=began, probe=probe, text=f"memory jumped: {self.gpus.describe()}")

    @property
    def listening_since(self) -> float | None:
        """Since when something that may be the server listens on its port."""
        return self._listening.at if self._listening else None

    def pending(self, now: float, reached: Phase, activity: Activity) -> list[Sign]:
        """The signs for phases beyond the one reached, in the order of the phases."""
        found = (s for s in self._all(now, reached, activity) if s.phase.order > reached.order)
        return sorted(found, key=lambda sign: (sign.phase.order, sign.due))

    def _all(self, now: float, reached: Phase, activity: Activity) -> Iterator[Sign]:
        if self._first_record:
            yield _sign(Phase.CONFIGURING, self._first_record)
        if self._engines:
            yield _sign(Phase.INITIALIZING, self._engines)
        if loading := self._loading():
            yield loading
        if plateau := self._plateau(now, activity):
            yield plateau
        if self._jump and reached is Phase.COMPILING:
            yield _sign(Phase.ALLOCATING_KV_CACHE, self._jump)
        if self._listening and self.refused:
            yield _sign(Phase.STARTING_SERVER, self._listening)

    def _loading(self) -> Sign | None:
        seen = [s for s in (self._reads, self._download) if s]
        if self.gpus.rise_since is not None:
            text = self.gpus.describe(self.footprint)
            seen.append(_Seen(at=self.gpus.rise_since, probe="gpu", text=f"memory rose: {text}"))
        elif self._host and not self.gpus.devices:
            seen.append(self._host)
        return _sign(Phase.LOADING_WEIGHTS, min(seen, key=lambda s: s.at)) if seen else None

    def _plateau(self, now: float, activity: Activity) -> Sign | None:
        still = self.gpus.still_since
        if still is None:
            return None
        since = max(still, activity.read_at + _READING_S if activity.read_at is not None else still)
        computing = (
            activity.cpu_at is not None and activity.cpu_at > since and now - activity.cpu_at < _PLATEAU_S
        )
        if not computing:
            return None
        likely = " (likely: its rise was not seen)" if self.gpus.inherited else ""
        return Sign(
            phase=Phase.COMPILING,
            since=still,
            due=max(since, self.spoke_at or since) + _PLATEAU_S,
            probe="gpu",
            text=f"memory stands still, the workers compute: {self.gpus.describe(self.footprint)}{likely}",
            sure=False,
        )

    def quiet_at(self) -> float:
        """When the log counts as silent if it says nothing more; minus infinity without a log."""
        if self.spoke_at is None:
            return float("-inf")
        return self.spoke_at + (_TALKATIVE_QUIET_S if self.talkative else _QUIET_S)


def _sign(phase: Phase, seen: _Seen) -> Sign:
    return Sign(phase=phase, since=seen.at, due=seen.at + _SETTLE_S, probe=seen.probe, text=seen.text)
