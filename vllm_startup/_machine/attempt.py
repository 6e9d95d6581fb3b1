"""One start of the server: what its log says, what is seen of it, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from vllm_startup._diagnosis.diagnosis import Clue
from vllm_startup._diagnosis.evidence import MOST, clean
from vllm_startup._events import Because, Event, Outcome, PhaseEntered, ProgressSeen, TierReached
from vllm_startup._log.lines import Line
from vllm_startup._log.markers import FIRST_WINS, Fact, Means, Sighting, is_vllm_record
from vllm_startup._machine.activity import Activity
from vllm_startup._machine.course import Course, Ground, Span
from vllm_startup._machine.ending import Ending
from vllm_startup._machine.engines import Engine, Engines
from vllm_startup._machine.readiness import Readiness
from vllm_startup._machine.signs import Sign, Signs
from vllm_startup._machine.told import Source, Told
from vllm_startup._phases import Phase
from vllm_startup._readings import ProcessExited, Tier
from vllm_startup._roles import Role
from vllm_startup.causes import Cause

Emit = Callable[[Event], None]

_SERVER_PHASES = (Phase.CONFIGURING, Phase.STARTING_SERVER)
# Looking up an enum's member takes 0.2 us in Python 3.11, a name of the module nothing.
_OF_ENGINES = (Role.ENGINE, Role.WORKER)
_OF_SERVERS = (Role.API_SERVER,)
_START, _ADVANCE = Means.START, Means.ADVANCE
_OF_THE_SERVER = (Means.START, Means.SERVED, Means.SERVER_STARTING)
_NO_STEPS = (Means.FACT, Means.HEARTBEAT, Means.SHUTDOWN, Means.EXIT)
_SETTLING_S = 2.0  # until then a process may be found that what the log held is older than
_UNSEEN_S = 2.5  # the tree is looked at every second
_PROGRESS_EVERY_S = 0.2  # a bar that redraws a thousand times a second is no news each time


@attrs.frozen(kw_only=True)
class Dispute:
    """Evidence that speaks against what weaker evidence had claimed."""

    phase: Phase
    ground: Ground


@attrs.define(kw_only=True)
class Process:
    """A process of the server that has a role in it."""

    pid: int
    name: str
    exit: ProcessExited | None = None


@attrs.frozen(kw_only=True)
class Result:
    """How an attempt ended, and when."""

    outcome: Outcome
    cause: Cause | None
    at: float


class Attempt:
    """One start. ``told`` is what its log says; the rest is what other probes see of it."""

    def __init__(
        self, number: int, began_at: float, emit: Emit, source: Source, *, until: Tier, stable_for: float
    ) -> None:
        self.number = number
        self.began_at = began_at
        self.pid: int | None = None
        self.process_started_at: float | None = None
        self.course = Course(began_at)
        self.engines = Engines()
        self.facts: dict[str, Any] = {}
        self.disputed: list[Dispute] = []
        self.told = Told()
        self.signs = Signs()
        self.activity = Activity(began_at)
        self.readiness = Readiness(until, stable_for)
        self.processes: dict[int, Process] = {}
        self.names: dict[int, str] = {}
        """Engines and workers as the log names them, by their pids there."""
        self._strange = False
        self._unseen: dict[int, float] = {}
        """Who has spoken, since when, and was not seen in the tree."""
        self.ending = Ending(self.told, source)
        self._source = source
        self.result: Result | None = None
        self._emit = emit
        self._progress_told: dict[str, float] = {}

    # --- what the log says ---------------------------------------------------------------

    def hear(
        self,
        line: Line,
        sightings: tuple[Sighting, ...],
        at: float,
        clues: Sequence[Clue] | None = None,
    ) -> None:
        """Take a parsed line and what its text means; ``clues`` as for `Told.hear`."""
        if self.told.wants_record:
            self._look_for_record(line, at)
        if line.pid is not None and line.process is not None and line.role in _OF_ENGINES:
            self.names[line.pid] = line.process
        for sighting in sightings:
            self._sighted(sighting, at)
        self.told.hear(line, at, clues)

    def _look_for_record(self, line: Line, at: float) -> None:
        found = is_vllm_record(line) and line.role not in _OF_ENGINES
        self.told.looked_for_record(found=found)
        if found:
            self.signs.record(at, clean(line.message) or "vLLM's first line")

    def _sighted(self, sighting: Sighting, at: float) -> None:
        means, phase, role = sighting.means, sighting.marker.phase, sighting.line.role
        if sighting.facts:
            self._learn(sighting.facts)
        if means in _NO_STEPS:
            if means is Means.HEARTBEAT:
                self.told.heartbeat = sighting.marker.name
            return
        ground = Ground(probe="log", text=_words(sighting), at=at)
        if phase in _SERVER_PHASES or means in _OF_THE_SERVER:
            if role not in _OF_ENGINES and phase is not None:
                self.advance(phase, at, ground)
            if means is Means.SERVED:
                if self.told.served_at is not None:
                    return  # a server that is up logs each request, our own too: that moves nothing
                self.told.served_at = at
        elif role not in _OF_SERVERS:
            self._engine_sighted(sighting, at, ground)
        self._moved(sighting, ground)

    def _learn(self, facts: dict[str, Fact]) -> None:
        for name, value in facts.items():
            if name not in FIRST_WINS or name not in self.facts:
                self.facts[name] = value
        utilization = facts.get("gpu_memory_utilization")
        if isinstance(utilization, float):
            self.signs.utilization = utilization

    def _moved(self, sighting: Sighting, ground: Ground) -> None:
        marker, at = sighting.marker, ground.at
        self.told.heartbeat = None
        if marker.progress is None:
            self.activity.moved(at, ground.text)
        elif self.activity.counted(at, marker.progress, sighting.done, sighting.total):
            self._emit_progress(at, marker.progress, sighting.done, sighting.total)

    def _engine_sighted(self, sighting: Sighting, at: float, ground: Ground) -> None:
        marker, line = sighting.marker, sighting.line
        pid = line.pid if line.role in _OF_ENGINES else None
        engine = self.engines.find(line.process, line.role, pid)
        if engine is None:
            return
        self.signs.talkative |= line.level == "INFO"
        if sighting.means is _ADVANCE:
            if marker.phase is not None:
                self._engine_reached(engine, marker.phase, at, ground)
            return
        phase = marker.phase
        if sighting.means is Means.COMPILE_OR_WARM_UP:
            phase = Phase.WARMING_UP if engine.kv_sized else Phase.COMPILING
        engine.kv_sized |= sighting.means is Means.KV_SIZED
        engine.joined |= sighting.means is Means.DIST_INIT
        if phase is not None:
            self._engine_reached(engine, phase, at, ground)
        if sighting.means is Means.ENGINE_READY:
            engine.ready = True
            if self.engines.ready and self.readiness.engine(at):
                self._emit(TierReached(at=at, elapsed_s=self.elapsed(at), tier="engine"))

    def _engine_reached(self, engine: Engine, phase: Phase, at: float, ground: Ground) -> None:
        self._dispute(phase, ground)
        if phase.order > engine.phase.order:
            engine.phase = phase
        least = self.engines.phase
        if least is not None:
            self.advance(least, at, ground)

    # --- how far it has come -------------------------------------------------------------

    def advance(self, phase: Phase, at: float, ground: Ground) -> None:
        """Take strong evidence for a phase."""
        if phase.order <= self.course.phase.order and self.course.spans:
            self.course.confirm(phase, ground)
            self._dispute(phase, ground)
            return
        for sign in self.signs.pending(at, self.course.phase, self.activity):
            if sign.sure and sign.phase.order < phase.order and sign.since < at:
                self._enter(sign.phase, sign.since, _ground(sign), weak=True)
        self._enter(phase, at, ground, weak=False)

    def weigh(self, now: float) -> None:
        """Take the weak evidence that has held for long enough by ``now``."""
        for sign in self.signs.pending(now, self.course.phase, self.activity):
            if max(sign.due, self.signs.quiet_at()) <= now:
                self._enter(sign.phase, sign.since, _ground(sign), weak=True)

    def next_weighing(self, now: float) -> float | None:
        """When weak evidence will have held for long enough; None where there is none."""
        pending = self.signs.pending(now, self.course.phase, self.activity)
        return min((max(sign.due, self.signs.quiet_at()) for sign in pending), default=None)

    def launched(self, ground: Ground) -> None:
        """Take it that the process exists, which may be learned after its log has spoken."""
        self._tell(self.course.precede(ground) or self.course.enter(Phase.LAUNCHING, self.began_at, ground))

    def _enter(self, phase: Phase, at: float, ground: Ground, *, weak: bool) -> None:
        self._tell(self.course.enter(phase, at, ground, weak=weak))

    def _tell(self, span: Span | None) -> None:
        if span is not None:
            self.activity.next_phase()
            because, elapsed_s = self.because(span.because[0]), self.elapsed(span.started_at)
            self._emit(
                PhaseEntered(at=span.started_at, elapsed_s=elapsed_s, phase=span.phase, because=because)
            )

    def because(self, ground: Ground) -> Because:
        """Evidence as it is told."""
        return Because(probe=ground.probe, text=ground.shown, at_s=self.elapsed(ground.at))

    def _dispute(self, phase: Phase, ground: Ground) -> None:
        spans = self.course.spans
        if not spans or not spans[-1].weak or phase.order >= spans[-1].phase.order:
            return
        if all(dispute.phase is not phase for dispute in self.disputed):
            self.disputed.append(Dispute(phase=phase, ground=ground))

    def count(self, at: float, what: str, done: float | None, total: float | None) -> None:
        """Take a counter from a rule of the caller's."""
        what = clean(what)
        if self.activity.counted(at, what, done, total):
            self._emit_progress(at, what, done, total)

    def _emit_progress(self, at: float, what: str, done: float | None, total: float | None) -> None:
        complete = done is not None and done == total
        if not complete and at - self._progress_told.get(what, float("-inf")) < _PROGRESS_EVERY_S:
            return
        self._progress_told[what] = at
        event = ProgressSeen(
            at=at, elapsed_s=self.elapsed(at), phase=self.course.phase, what=what, done=done, total=total
        )
        self._emit(event)

    def knows(self, pid: int) -> bool:
        """Whether a process has spoken for this attempt, or was seen in it."""
        return (
            pid == self.pid
            or pid in self.processes
            or pid in self.engines.by_pid
            or pid in self.told.banners.values()
        )

    def has_written(self, pid: int) -> bool:
        """Whether a line of this attempt's names a process as its writer."""
        return pid in self.names or pid in self.mains

    def is_strangers(self, line: Line, at: float, *, starts: bool, history: bool) -> bool:
        """Whether another server wrote the line, beside the watched one, which lives: they share a log.

        That can be told where the log and the probes use the same pids. A line without one is taken for
        the same server's as the line before it.
        """
        pid = line.pid
        if not self.speaks or self.told.over:
            return False
        if starts and pid is not None and line.process in self.told.banners and pid not in self.ending.alive:
            self.told.strangers.add(pid)
        if pid is not None and not history and not self.owns(pid):
            self._unseen.setdefault(pid, at)
            self.told.doubted = True
        if self.told.strangers and pid is not None:
            self._strange = not self.owns(pid)
        return self._strange

    def looked(self, at: float) -> None:
        """Note that the tree was looked at: who has spoken for a while and is not in it is a stranger."""
        for pid, since in list(self._unseen.items()):
            if self.owns(pid):
                del self._unseen[pid]
            elif at - since > _UNSEEN_S:
                self.told.strangers.add(pid)
        self.told.doubted = bool(self._unseen)

    @property
    def speaks(self) -> bool:
        """Whether the watched server, which lives, has begun to write here, with the pids that probes see."""
        return self.ending.root is None and not self.ending.alive.isdisjoint(self.mains)

    def owns(self, pid: int) -> bool:
        """Whether the probes have seen it in the watched server's tree."""
        return pid in self.ending.alive or pid in self.processes

    def strangers_before(self, pid: int | None) -> set[int]:
        """Main processes of other servers that have spoken here, where the watched one's begins: ``pid``."""
        if pid not in self.ending.alive or self.ending.root is not None:
            return set()
        return set() if any(map(self.owns, self.mains)) else self.mains | self.told.strangers

    def meet(self, earlier: Attempt) -> None:
        """Note that the server of an attempt before goes on to write, beside the watched one."""
        told = earlier.told
        dead = told.over or told.exit is not None or told.diagnosis.fatal or earlier.ending.root is not None
        if self.speaks and not dead:
            self.told.strangers |= earlier.mains

    def go_on(self, earlier: Attempt) -> None:
        """Be the same server's as an attempt before, which ended where another server's lines began."""
        self.facts, self.engines, self.names = earlier.facts, earlier.engines, earlier.names
        self.told.banners |= {name: pid for name, pid in earlier.told.banners.items() if pid is not None}
        self.told.announced |= earlier.told.announced
        if earlier.course.spans:
            span = earlier.course.spans[-1]
            self.advance(span.phase, span.started_at, span.because[0])

    @property
    def mains(self) -> set[int]:
        """The main processes that have begun here, as far as the log tells their pids."""
        return {pid for pid in self.told.banners.values() if pid is not None}

    def hear_late(self, line: Line, at: float) -> None:
        """Take a line that is read after this attempt's end: it may say why it ended."""
        self.told.hear(line, at)
        cause = self.ending.judge(at)
        if self.result is not None and cause is not None and self.ending.improves(cause):
            self.result = attrs.evolve(self.result, cause=cause)

    def finish(self, at: float, outcome: Outcome, cause: Cause | None) -> None:
        """End, once and for all."""
        if self.result is None:
            at = self.dated(at)
            if outcome != "ready":
                self.course.fail(at)
            self.course.close(at)
            self.result = Result(outcome=outcome, cause=cause, at=at)

    @property
    def held_due(self) -> float | None:
        """When the engine tier will have held, if the engines live on and nothing more is learned.

        What the log held already is not taken for the watched server's before its process had the
        time to be found.
        """
        due, source = self.readiness.due, self._source
        if due is None or "health" in self.readiness.reached:
            return due
        if self.told.over:
            return None
        if source.history_at is None or (source.caught_up and self.pid is not None):
            return due
        return max(due, source.history_at + _SETTLING_S)

    def held(self, at: float) -> bool:
        """Whether the chosen tier has been met without a miss for as long as asked."""
        if self.readiness.until != "engine":
            return self.readiness.held
        due = self.held_due
        return due is not None and due <= at

    @property
    def is_elsewhere(self) -> bool:
        """Whether the log says that the server is up, and its address refuses to connect."""
        up = self.told.served_at is not None and not self.told.over
        return up and self.signs.refused and self.signs.listening_since is None and self.readiness.unanswered

    def elapsed(self, at: float) -> float:
        """Seconds since this attempt began."""
        return round(at - self.began_at, 6)

    def dated(self, at: float) -> float:
        """A moment at which this attempt is looked at; its end, where that was before anybody watched."""
        root, died_at = self.ending.root, self.ending.died_at
        if root is None or root.ago_s is None or died_at is None:
            return at
        return min(at, max(died_at, self.course.entered_at, self.began_at))

    def bind(self, pid: int, started_at: float | None, began_at: float) -> None:
        """Tie this attempt to the live process."""
        self.pid, self.process_started_at = pid, started_at
        self.date(began_at)

    def date(self, began_at: float) -> None:
        """Set when this attempt began, which may be learned late."""
        self.began_at = began_at
        self.course.date(began_at)

    def take_sight(self, other: Attempt, *, deaths: bool) -> None:
        """Take over what probes see of the live process, which turned out to be this attempt's.

        Args:
            other: The attempt that it was taken for.
            deaths: Whether those of its engines and workers are this attempt's as well.
        """
        self.signs, self.activity, self.readiness = other.signs, other.activity, other.readiness
        self.ending.take_deaths(other.ending, of_children=deaths)
        self.processes, other.processes = other.processes, {}
        self.signs.forget_log()
        self.readiness.forget_log()
        if other.pid is not None:
            self.bind(other.pid, other.process_started_at, other.began_at)
            for span in other.course.spans[:1]:
                self._enter(span.phase, other.began_at, span.because[0], weak=False)
        other.signs, other.pid, other.process_started_at = Signs(), None, None
        if other.told.first_at is not None:
            other.date(other.told.first_at)

    def glance(self, sightings: tuple[Sighting, ...], at: float) -> None:
        """Take what an unfinished progress bar shows."""
        for sighting in sightings:
            if sighting.marker.progress is not None:
                self._sighted(sighting, at)


def _words(sighting: Sighting) -> str:
    """What a line said, not yet cleaned; a banner is a drawing with the version in it."""
    if sighting.means is _START and "vllm_version" in sighting.facts:
        return f"banner of vLLM {sighting.facts['vllm_version']}"
    return sighting.line.message[:MOST]


def _ground(sign: Sign) -> Ground:
    return Ground(probe=sign.probe, text=sign.text, at=sign.since)
