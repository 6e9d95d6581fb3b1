"""The state machine of a wait: readings with times in, events and a next deadline out.

It reads no clock, file or socket. Everything that depends on time happens at a deadline that
`StartupMachine.next_deadline` tells beforehand, and is dated to it, so that neither more ticks
nor later ones change the report: a replay of the same observations gives the same one.
"""

from __future__ import annotations

from collections.abc import Iterator

from vllm_startup._events import CauseFound, Ended, Event, Outcome
from vllm_startup._machine.attempt import Attempt
from vllm_startup._machine.bringup import Bringup
from vllm_startup._machine.course import Ground
from vllm_startup._machine.earlier import differences
from vllm_startup._machine.history import HistoryClock
from vllm_startup._machine.limits import Limits, limit_cause
from vllm_startup._machine.terms import Terms
from vllm_startup._members import check_members
from vllm_startup._phases import Phase
from vllm_startup._readings import Observation, WatchPaused
from vllm_startup.causes import Cause, Evidence, ProcessVanished, RestartLoop

_ARMING_S = 5.0  # the first look at a tree, or at a driver that has to wake up, takes a second or two
_LATE_S = 5.0  # no server is ready so soon after its start
_FALL_S = 3.0  # GPU memory is given back process by process


class StartupMachine:
    """Follows a bring-up to its end. `feed` and `tick` return what became known.

    Args:
        terms: What was asked for.
        called_at: When the wait began, on the clock of the observations, in seconds.
        wall: The same moment in seconds since the Unix epoch; None where unknown.
        utc_offset_s: The local time zone's offset from UTC, for stamps in logs.
    """

    def __init__(
        self, terms: Terms, *, called_at: float = 0.0, wall: float | None = None, utc_offset_s: float = 0.0
    ) -> None:
        self.terms = terms
        self.called_at = called_at
        self.wall = wall
        self.outcome: Outcome | None = None
        self.cause: Cause | None = None
        self.now = called_at
        self._events: list[Event] = []
        self._done: dict[str, float] = {}
        self._newest = 1
        self._limits = Limits(timeouts=terms.timeouts, called_at=called_at, forgiven_s=-terms.waited_s)
        history = HistoryClock(called_at=called_at, wall=wall, utc_offset_s=utc_offset_s)
        self.bringup = Bringup(terms, history, self._events.append)

    @property
    def attempt(self) -> Attempt:
        """The newest attempt."""
        return self.bringup.attempt

    def feed(self, observation: Observation) -> list[Event]:
        """Take what a probe saw.

        Raises:
            TypeError: The reading is not as its class declares; nothing was concluded from it.
        """
        check_members(observation.reading)
        at = max(observation.at, self.now)
        if isinstance(observation.reading, WatchPaused):
            self._limits.forgive(observation.reading.paused_s, self.attempt.course.phase)
            self.attempt.activity.forgive(at, observation.reading.paused_s)
        self._run_to(at)
        if self.outcome is None:
            self.bringup.take(at, observation.probe, observation.reading)
            self._settle(at)
            self._run_to(at)
        return self._drain()

    def tick(self, now: float) -> list[Event]:
        """Let time pass."""
        self._run_to(now)
        return self._drain()

    def finish(self, now: float, *, ended: bool) -> list[Event]:
        """Note that no more observations will come (the end of a recording).

        Args:
            now: When it ended.
            ended: Whether the server is known to have ended too.
        """
        self._run_to(now)
        if self.outcome is None:
            self.bringup.chronicle.finish()
            cause = self.attempt.ending.conclude(ended=ended)
            self.end(self.now, "failed" if cause else "unfinished", cause)
        return self._drain()

    @property
    def next_deadline(self) -> float | None:
        """When something will happen even if no probe sees anything; None for never."""
        if self.outcome is not None:
            return None
        return min((at for at, _ in self._deadlines()), default=None)

    @property
    def next_limit(self) -> tuple[float, str] | None:
        """The limit that ends the wait if nothing happens, as (when, its name); None for none."""
        return None if self.outcome else self._limits.next(self.attempt, armed=self.bringup.armed)

    @property
    def hurry(self) -> bool:
        """Whether a death is being judged, so that every probe should look often."""
        ending = self.attempt.ending
        return self.outcome is None and (ending.root_at is not None or ending.child_due is not None)

    def _drain(self) -> list[Event]:
        events = list(self._events)
        self._events.clear()
        return events

    # --- time ----------------------------------------------------------------------------

    def _run_to(self, now: float) -> None:
        while self.outcome is None and (due := min(self._deadlines(), default=None)) and due[0] <= now:
            at, what = due
            self._done[what] = at
            self.now = max(self.now, at)
            self._happen(self.now, what)
        if self.outcome is None:
            self.now = max(self.now, now)

    def _deadlines(self) -> Iterator[tuple[float, str]]:
        """What will happen when. What has happened is gone until its time changes."""
        for what, at in self._plans():
            if at is not None and self._done.get(what) != at:
                yield at, what

    def _plans(self) -> Iterator[tuple[str, float | None]]:
        attempt, ending = self.attempt, self.attempt.ending
        if limit := self._limits.next(attempt, armed=self.bringup.armed):
            yield f"limit {limit[1]}", limit[0]
        since = self.bringup.runs_since
        if self.terms.timeouts.stall is not None and since is not None and not self.bringup.armed:
            yield "unarmed", since + _ARMING_S
        if attempt.result is not None:
            return  # another one is awaited
        yield "drained", ending.drained_at
        yield "close", ending.close_at(self.terms.exit_grace, raise_early=self.terms.raise_early)
        if ending.cause is None:
            yield "child", ending.child_due
            yield "message", ending.message_due
            yield "aftermath", ending.aftermath_due
            yield "doubt", ending.doubt_due
            yield "held", attempt.held_due
            yield "weigh", attempt.next_weighing(self.now)
            fallen_at = self.bringup.fallen_at
            yield "fallen", None if fallen_at is None else fallen_at + _FALL_S

    def _happen(self, at: float, what: str) -> None:
        if what.startswith("limit "):
            outcome, cause = limit_cause(
                self.attempt,
                what.removeprefix("limit "),
                at,
                self.terms.timeouts,
                broken=self.bringup.notices.broken,
            )
            known = self.attempt.ending.cause if self.attempt.result is None else None
            self.end(at, "failed" if known else outcome, known or cause)
        elif what == "unarmed":
            text = "no probe sees silent work, so a stall cannot be told from a slow start"
            self.bringup.warn(at, "stall_unarmed", text)
        elif what == "weigh":
            self.attempt.weigh(at)
        elif what == "fallen":
            self._found(at, _memory_fell(self.attempt))
        elif what == "close":
            self._settle(at)  # the last words may be due at the same time
            self._close(at)
        else:
            self._settle(at)

    # --- what it means for the wait ------------------------------------------------------

    def _settle(self, at: float) -> None:
        if self.attempt.number != self._newest:
            self._newest = self.attempt.number
            self._followed(at)
        ending = self.attempt.ending
        if self.outcome is not None:
            return
        if (result := self.attempt.result) is not None:
            if self.bringup.given_up:
                self._fail(at, result.cause)
            return
        cause = ending.judge(at)
        if cause is not None and ending.improves(cause):
            self._found(at, cause)
        elif ending.root_at is None and ending.cause is None and self.attempt.held(at):
            self._ready(at)

    def _ready(self, at: float) -> None:
        tier = self.terms.until
        held = f" for {self.terms.stable_for:g} s" if self.terms.stable_for else ""
        ground = Ground(probe="health" if tier != "engine" else "log", text=f"tier {tier} held{held}", at=at)
        self.attempt.advance(Phase.READY, at, ground)
        late_s = self.called_at - self.attempt.began_at
        if tier != "engine" and late_s > _LATE_S and not self.attempt.signs.refused:
            text = f"it answered already when the watch began, {late_s:.0f} s after its start"
            self.bringup.warn(at, "ready_before_watch", text)
        self.end(at, "ready", None)

    def _found(self, at: float, cause: Cause) -> None:
        self.attempt.ending.fix(at, cause)
        elapsed_s = self.attempt.elapsed(self.attempt.dated(at))
        event = CauseFound(at=at, elapsed_s=elapsed_s, cause=cause)
        self._events.append(event)

    def _close(self, at: float) -> None:
        attempt, cause = self.attempt, self.attempt.ending.cause
        if len(self._failures()) < self.terms.restarts and not self.bringup.given_up:
            self.bringup.close(attempt, at, "failed", cause)
        elif cause is not None:
            self._fail(at, cause)

    def _followed(self, at: float) -> None:
        """End where the newest attempt follows on a death too many, and came before that was judged."""
        failures = self._failures()
        if len(failures) > self.terms.restarts:
            self.attempt.finish(at, "unfinished", None)
            self.end(at, "failed", _loop(failures) if self.terms.restarts else failures[-1])

    def _failures(self) -> list[Cause]:
        """Why the attempts before the newest one failed, those that were watched."""
        died = [a for a in self.bringup.chronicle.attempts[:-1] if a.ending.root is not None]
        return [a.result.cause for a in died if a.result is not None and a.result.cause is not None]

    def _fail(self, at: float, cause: Cause | None) -> None:
        failures = self._failures() if self.terms.restarts else []
        self.end(at, "failed", _loop([*failures, cause]) if failures and cause else cause)

    def end(self, at: float, outcome: Outcome, cause: Cause | None) -> None:
        """End the wait. Who judges a log by its text alone says so from outside."""
        attempt = self.attempt
        attempt.finish(at, outcome, cause)
        for code, text in differences(attempt, self.terms.earlier) if self.terms.earlier else ():
            self.bringup.warn(at, code, text)
        self.outcome, self.cause = outcome, cause
        elapsed_s = attempt.elapsed(attempt.dated(at))
        self._events.append(Ended(at=at, elapsed_s=elapsed_s, outcome=outcome, cause=cause))


def _loop(causes: list[Cause]) -> Cause:
    times = "once" if len(causes) == 2 else f"{len(causes) - 1} times"
    text = f"the server was restarted {times} and failed again: {causes[-1].message}"
    return RestartLoop(
        message=text, restarts=len(causes) - 1, causes=tuple(causes), retryable=causes[-1].retryable
    )


def _memory_fell(attempt: Attempt) -> Cause:
    text = f"GPU memory is back at its baseline: {attempt.signs.gpus.describe()}"
    return ProcessVanished(
        message="the engines are gone: their GPU memory was given back, and nothing says why",
        evidence=(Evidence(text=text),),
        confidence="likely",
    )
