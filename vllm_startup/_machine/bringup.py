"""What is known of a bring-up: every reading is folded in here, by kind."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar

import attrs

from vllm_startup import _readings as r
from vllm_startup._events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    Outcome,
    TierReached,
)
from vllm_startup._log.lines import Line
from vllm_startup._machine.attempt import Attempt, Process
from vllm_startup._machine.callers_rules import apply_rule
from vllm_startup._machine.chronicle import Chronicle
from vllm_startup._machine.course import Ground
from vllm_startup._machine.ending import died
from vllm_startup._machine.history import HistoryClock
from vllm_startup._machine.lives import Lives
from vllm_startup._machine.notices import Notices
from vllm_startup._machine.readiness import NOT_HERE
from vllm_startup._machine.terms import Terms
from vllm_startup._machine.told import Source
from vllm_startup._machine.whose import has_failed, is_left_over, is_of_the_past, overtaken
from vllm_startup._phases import Phase
from vllm_startup._roles import Role, role_of
from vllm_startup._rules import Rule
from vllm_startup.causes import Cause

_WAITING_HELPS_LITTLE = (200, 401, 403, 404)  # a model that is not served, a key that is wrong
_SERVER = "vllm"  # the server's main process, until it takes a title
_LISTENS_S = 3.0  # uvicorn listens within milliseconds after it said that it is up


class Bringup:
    """Folds readings into attempts. It decides nothing about the wait."""

    def __init__(self, terms: Terms, history: HistoryClock, emit: Callable[[Event], None]) -> None:
        self.terms = terms
        self.source = Source(since=history.called_at)
        self.notices = Notices(self._emit, lambda at: self.attempt.elapsed(at))
        self._history = history
        self._sink = emit
        self._in_history = False
        self._held: list[Event] = []  # what an attempt of the past did is no news
        self._work_probes: set[str] = set()
        self._first_seen: dict[int, float] = {}
        self._bound: r.ProcessFound | None = None
        self._tree: r.ProcessTree | None = None
        self._lives = Lives()
        self._log_modified_at: float | None = None
        self._oom_kills: int | None = None
        self.given_up = False
        self.runs_since: float | None = history.called_at
        """Since when there may be something that runs; None while it is only awaited."""
        self.url = terms.url
        self.chronicle = Chronicle(self._begin, terms.rules, self._rule_on_line)
        self.chronicle.begin(history.called_at)

    # --- what is known -------------------------------------------------------------------

    @property
    def attempt(self) -> Attempt:
        """The newest attempt."""
        return self.chronicle.current

    @property
    def armed(self) -> bool:
        """Whether a probe works that sees silent work, and there may be some."""
        return self.runs_since is not None and bool(self._work_probes - self.notices.broken.keys())

    @property
    def fallen_at(self) -> float | None:
        """When GPU memory was given back, by processes that are gone as far as is seen; None otherwise."""
        samples = self._tree.processes if self._tree else ()
        if any(role_of(p.name) in (Role.ENGINE, Role.WORKER) and p.status != "zombie" for p in samples):
            return None
        gpus = self.attempt.signs.gpus
        risen_at, fallen_at = gpus.rise_since, gpus.fallen_at
        if self._tree is None or risen_at is None or fallen_at is None:
            return fallen_at
        return fallen_at if self._lives.ended_with(risen_at, fallen_at) else None

    def warn(self, at: float, code: str, text: str) -> None:
        """Tell something once that does not end the wait."""
        self.notices.warn(at, code, text)

    def take(self, at: float, probe: str, reading: r.Reading) -> None:
        """Fold in a reading."""
        handler = self._HANDLERS.get(type(reading))
        if handler is not None:
            handler(self, at, probe, reading)
        for rule in self.terms.rules:
            if rule.literal is None:
                self._apply(rule, reading, at)

    # --- attempts ------------------------------------------------------------------------

    def _begin(self, at: float, previous: Attempt | None, strangers: AbstractSet[int]) -> Attempt:
        number = previous.number + 1 if previous else 1
        self.given_up = False
        attempt = Attempt(
            number, at, self._emit, self.source, until=self.terms.until, stable_for=self.terms.stable_for
        )
        attempt.told.strangers |= strangers
        if previous:
            self._leave(previous, attempt, at)
        self._emit(AttemptStarted(at=at, elapsed_s=0.0, attempt=attempt.number, pid=attempt.pid))
        return attempt

    def _leave(self, old: Attempt, new: Attempt, at: float) -> None:
        """Close the attempt before; what is seen live goes on with the new one where that one was not its."""
        if self._in_history:
            self._held.clear()
        if self._in_history or new.told.strangers:
            new.take_sight(old, deaths=self._in_history)
        outcome, cause = self._judged(old)
        ended_at = old.told.served_at if outcome == "ready" else old.told.ended_at
        self.close(old, at if ended_at is None else min(at, ended_at), outcome, cause)

    def _judged(self, old: Attempt) -> tuple[Outcome, Cause | None]:
        """How an attempt ended that another one follows."""
        told = old.told
        told.diagnosis.finish()
        cause = old.ending.conclude(ended=True)
        if told.served_at is not None and (cause is None or cause.kind != "port_in_use"):
            return "ready", None
        if cause is None and told.exit is not None and told.exit != (None, None):
            code, signal = told.exit
            cause = died(
                r.ProcessExited(pid=old.pid or 0, name="the server", code=code, signal=signal, root=True)
            )
        return ("failed" if cause or told.exit else "unfinished"), cause

    def close(self, attempt: Attempt, at: float, outcome: Outcome, cause: Cause | None) -> None:
        """End an attempt that another one follows, or may follow."""
        if attempt.result is not None:
            return
        attempt.finish(at, outcome, cause)
        elapsed_s = attempt.elapsed(attempt.dated(at))
        event = AttemptEnded(at=at, elapsed_s=elapsed_s, attempt=attempt.number, outcome=outcome, cause=cause)
        if not self._in_history:
            self._emit(event)

    def _emit(self, event: Event) -> None:
        if self._in_history:
            self._held.append(event)
        else:
            self._sink(event)

    # --- the log -------------------------------------------------------------------------

    def _log_opened(self, _at: float, _probe: str, reading: r.LogOpened) -> None:
        self.source.opened, self.source.stream = True, reading.stream
        self.source.held_before = reading.modified_at is not None
        self._history.anchor(reading.tail, reading.modified_at, reading.clock_ahead_s)
        self._log_modified_at = reading.modified_at

    def _log_lines(self, at: float, _probe: str, reading: r.LogLines) -> None:
        if reading.history:
            self._in_history = True
            self._history.look_ahead(reading.lines, at)
            self.chronicle.hear(reading.lines, lambda line: self._history.when(line, at), history=True)
            self._leave_history()
            self.source.history_at = at
            self.attempt.signs.spoke_at = at  # more may follow: nothing weak is taken before it has
            return
        spoke = self.chronicle.hear(reading.lines, lambda _: at, history=False)
        for pid in self.attempt.told.strangers:
            self.warn(
                at, "log_shared", f"another server, process {pid}, writes into the same log: it is left out"
            )
        if reading.partial is not None:
            self.chronicle.glance(reading.partial, at)
        self.source.line_at = at
        self._runs(at)
        if spoke:
            self.attempt.signs.spoke_at = at

    def _leave_history(self) -> None:
        self._in_history = False
        held, self._held = self._held, []
        for event in held:
            self._emit(event)

    def _own_log_begins(self, at: float, _probe: str, _reading: r.OwnLogBegins) -> None:
        attempt = self.attempt
        if attempt.told.stamped_at is not None or has_failed(attempt.told):
            self._leave_to_the_past(at if attempt.pid is None else attempt.began_at)

    def _log_caught_up(self, at: float, _probe: str, _reading: r.LogCaughtUp) -> None:
        self.source.caught_up_at = at
        self._settle_history(at)

    def _settle_history(self, at: float) -> None:
        """Leave what the log held to the past if the live process is another one.

        Asked when the history has been read and when the process is found, whichever comes later.
        """
        attempt, bound = self.attempt, self._bound
        if bound is None or not self.source.caught_up:
            return
        if (own := overtaken(self.chronicle.attempts)) is not None:
            later = self.chronicle.attempts[self.chronicle.attempts.index(own) + 1 :]
            self._leave_to_the_past(attempt.began_at, strangers=set().union(*(each.mains for each in later)))
            self.attempt.go_on(own)
        elif attempt.told.holds_history and not attempt.told.live:
            if is_of_the_past(attempt, bound, self._log_modified_at):
                self._leave_to_the_past(attempt.began_at)
            elif has_failed(attempt.told):
                text = "the log already holds a failure of this process, which lives"
                self.warn(at, "failure_in_history", text)

    def _leave_to_the_past(self, at: float, *, strangers: AbstractSet[int] = frozenset()) -> None:
        """Go on with a new attempt: what the log has told so far is not the live process's."""
        self._in_history = True
        self.chronicle.begin(at, strangers=strangers)
        self._leave_history()

    def _log_ended(self, at: float, _probe: str, _reading: r.LogEnded) -> None:
        self.source.ended = True
        told = self.attempt.told
        if self._bound is None and not told.over and told.verdict(ended=True) is None:
            self.warn(at, "log_ended", "the log has ended; if the server wrote it itself, the server is gone")

    # --- processes -----------------------------------------------------------------------

    def _process_found(self, at: float, probe: str, reading: r.ProcessFound) -> None:
        self._bound = reading
        self._first_seen.clear()
        dead = self.attempt.ending.root_at is not None  # nobody had found its process in time
        if self.attempt.pid is not None or dead:  # else its banner was read before its process was found
            self.chronicle.begin(at - (reading.age_s or 0.0))
        self.attempt.bind(reading.pid, reading.started_at, self._began_at(at, reading))
        self._runs(at)
        self.attempt.ending.alive.add(reading.pid)
        self.attempt.launched(Ground(probe=probe, text=f"process {reading.pid} exists", at=at))
        self._settle_history(at)

    def _began_at(self, at: float, reading: r.ProcessFound) -> float:
        if reading.age_s is not None:
            return at - reading.age_s
        spoke_at = self.attempt.told.first_at
        return at if spoke_at is None else min(at, spoke_at)

    def _process_tree(self, at: float, probe: str, reading: r.ProcessTree) -> None:
        attempt = self.attempt
        self._runs(at)
        self._works(at, probe)
        self._tree = reading
        self._lives.look(at, reading.processes)
        attempt.ending.alive = {p.pid for p in reading.processes if p.status not in ("zombie", "dead")}
        if attempt.ending.root_at is None and reading.processes and not attempt.course.spans:
            attempt.launched(Ground(probe=probe, text="the process exists", at=at))
        known_stopped = set(attempt.activity.suspended)
        attempt.activity.tree(at, reading, joining=attempt.engines.joining)
        for sample in reading.processes:
            self._first_seen.setdefault(sample.pid, at)
            attempt.engines.appear(sample.pid, sample.ppid, sample.name)
            if role_of(sample.name) is not None or sample.pid == reading.root:
                attempt.processes.setdefault(
                    sample.pid, Process(pid=sample.pid, name=sample.name)
                ).name = sample.name
        attempt.looked(at)
        attempt.signs.tree(at, probe, reading)
        for pid in attempt.activity.suspended.keys() - known_stopped:
            name = attempt.activity.suspended[pid]
            self.warn(at, "process_suspended", f"process {name} (pid {pid}) is suspended by a signal")

    def _process_exited(self, at: float, _probe: str, reading: r.ProcessExited) -> None:
        logged = self.attempt.names.get(reading.pid)
        if logged is not None and not reading.root and role_of(reading.name) is None:
            reading = attrs.evolve(reading, name=logged)  # killed soon after it took its title
        known = self.attempt.processes.setdefault(reading.pid, Process(pid=reading.pid, name=reading.name))
        if role_of(known.name) is None and not reading.root:
            known.name = reading.name
        known.exit = reading
        seen_at = self._first_seen.pop(reading.pid, None)
        if not reading.root and is_left_over(reading.pid, seen_at, self.chronicle.attempts):
            self.attempt.ending.alive.discard(reading.pid)
            return
        if not reading.root and reading.code and reading.name == _SERVER and not self.source.opened:
            text = (
                f"process {reading.pid} ({reading.name}) ended with status {reading.code}, and what had"
                f" started it goes on; {self.source.unread}"
            )
            self.warn(at, "server_ended", text)
        self.attempt.ending.exited(at, reading, counted=self._oom_kills is not None)

    def _not_restarted(self, at: float, _probe: str, reading: r.NotRestarted) -> None:
        self.given_up = True
        if self.terms.restarts:
            self.warn(at, "not_restarted", f"the server is not started again: {reading.reason}")

    def _runs(self, at: float) -> None:
        """Note that what was awaited has been started."""
        if self.runs_since is None:
            self.runs_since = at
            self.attempt.activity.moved(at, "the server was started")

    # --- silent work ---------------------------------------------------------------------

    def _works(self, at: float, probe: str) -> None:
        if not self.armed:
            self.attempt.activity.watched_since = at
        self._work_probes.add(probe)

    def _gpu_memory(self, at: float, probe: str, reading: r.GpuMemory) -> None:
        if not reading.gpus:
            return
        self._works(at, probe)
        signs = self.attempt.signs
        signs.footprint = self.terms.earlier.footprint if self.terms.earlier else {}
        self.attempt.activity.gpu(at, moved=signs.gpus.feed(at, reading))
        signs.gpu(at, probe)

    def _cache_size(self, at: float, probe: str, reading: r.CacheSize) -> None:
        self._works(at, probe)
        self.attempt.signs.cache(at, probe, reading, grew=self.attempt.activity.cache(at, reading))

    def _memory_events(self, at: float, _probe: str, reading: r.MemoryEvents) -> None:
        if self._oom_kills is not None and reading.oom_kills > self._oom_kills:
            self.attempt.ending.killed_for_memory(at, reading.limit_bytes)
        self._oom_kills = reading.oom_kills

    # --- the port ------------------------------------------------------------------------

    def _address_found(self, _at: float, _probe: str, reading: r.AddressFound) -> None:
        self.url = reading.url
        self.attempt.readiness.lost()

    def _connection(self, at: float, probe: str, reading: r.Connection) -> None:
        attempt = self.attempt
        attempt.signs.connection(at, probe, reading)
        if reading.state != "listening":
            attempt.readiness.lost()
            if attempt.is_elsewhere and at - (attempt.told.served_at or at) > _LISTENS_S:
                self.warn(at, "not_listening", NOT_HERE)
        elif reading.owner == "foreign":
            self._foreign(at, reading.owner_pid)
        elif reading.owner == "tree" and not self.source.comes(at):  # what it holds tells of earlier phases
            attempt.advance(Phase.STARTING_SERVER, at, Ground(probe=probe, text="the port listens", at=at))

    def _answer(self, at: float, probe: str, reading: r.Answer) -> None:
        attempt = self.attempt
        if reading.owner == "foreign":
            self._foreign(at, reading.owner_pid)
        elif reading.tier != "health" and not reading.ok and reading.status in _WAITING_HELPS_LITTLE:
            self.warn(at, "tier_refused", f"tier {reading.tier}: {reading.detail or reading.status}")
        if attempt.readiness.answered(at, reading):
            self._emit(TierReached(at=at, elapsed_s=attempt.elapsed(at), tier=reading.tier))
        ours = reading.ok or (reading.owner == "tree" and reading.status is not None)
        if reading.owner != "foreign" and ours and not self.source.comes(at):
            since = attempt.signs.listening_since
            ground = Ground(probe=probe, text=f"{reading.tier} answered {reading.status}", at=at)
            attempt.advance(Phase.STARTING_SERVER, at if since is None else since, ground)

    def _foreign(self, at: float, pid: int | None) -> None:
        self.attempt.readiness.owned(foreign=True, pid=pid)
        owner = f"process {pid}, which is not" if pid is not None else "a process outside"
        text = (
            f"the port belongs to {owner} the watched server; if that is a proxy, give no address: the"
            " server is asked at its own then"
        )
        self.warn(at, "foreign_server", text)

    # --- the watch -----------------------------------------------------------------------

    def _probe_broken(self, at: float, probe: str, reading: r.ProbeBroken) -> None:
        self.notices.broke(at, probe, reading.error)

    def _probe_recovered(self, at: float, probe: str, _reading: r.ProbeRecovered) -> None:
        if probe in self.notices.broken and not self.armed:
            self.attempt.activity.watched_since = at
        self.notices.recovered(at, probe)

    def _probe_note(self, at: float, _probe: str, reading: r.ProbeNote) -> None:
        if reading.awaits:
            self.runs_since = None
        if reading.code == "log_missing":
            self.source.missing = True
        self.warn(at, reading.code, reading.text)

    def _watch_paused(self, at: float, _probe: str, reading: r.WatchPaused) -> None:
        self.warn(at, "watch_paused", f"the watcher did not run for {reading.paused_s:.1f} s")

    # --- rules of the caller's -----------------------------------------------------------

    def _rule_on_line(self, rule: Rule, line: Line, at: float) -> None:
        self._apply(rule, line, at)

    def _apply(self, rule: Rule, subject: Any, at: float) -> None:
        apply_rule(rule, subject, at, self.attempt, history=self._in_history, warn=self.warn)

    _HANDLERS: ClassVar[dict[type[r.Reading], Callable[..., None]]] = {
        r.LogOpened: _log_opened,
        r.LogLines: _log_lines,
        r.OwnLogBegins: _own_log_begins,
        r.LogCaughtUp: _log_caught_up,
        r.LogEnded: _log_ended,
        r.ProcessFound: _process_found,
        r.ProcessTree: _process_tree,
        r.ProcessExited: _process_exited,
        r.NotRestarted: _not_restarted,
        r.GpuMemory: _gpu_memory,
        r.CacheSize: _cache_size,
        r.MemoryEvents: _memory_events,
        r.AddressFound: _address_found,
        r.Connection: _connection,
        r.Answer: _answer,
        r.ProbeBroken: _probe_broken,
        r.ProbeRecovered: _probe_recovered,
        r.ProbeNote: _probe_note,
        r.WatchPaused: _watch_paused,
    }
