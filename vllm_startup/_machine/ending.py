"""How an attempt ends: which cause is the first, and when there is nothing more to learn.

A death is told before its last words are read, so the verdict waits for the log to fall silent;
and the exception waits until the processes are gone, so that a retry does not meet the port and
the GPUs still held.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from vllm_startup._machine.signals import CRASHES, SIGKILL, STOPS, signal_name
from vllm_startup._machine.told import Source, Told
from vllm_startup._readings import ProcessExited
from vllm_startup._roles import Role, role_of
from vllm_startup.causes import (
    Cause,
    Evidence,
    HostOutOfMemory,
    ProcessCrashed,
    ProcessKilled,
    ProcessVanished,
    ShutdownRequested,
    UnclassifiedError,
)
from vllm_startup.causes import ProcessExited as ExitedCause

FILE_QUIET_S = 0.25  # a file is complete when it has not grown for this long after the death
STREAM_LIMIT_S = 2.0  # a grandchild may hold the pipe open for ever, another server write on
_OPENING_S = 0.5
_STARVED_WITHIN_S = 2.0  # the counter is looked at every second and at a death, which is told at once
_COUNT_S = 0.01  # a death wakes the probe of the count, which the kernel raises before it kills
_MESSAGE_S = 0.05  # a message is written at once, and a file is looked at every 40 ms
_TOGETHER_S = 1.0  # deaths so close may be told in another order; vLLM kills what is left seconds later
_FOLLOWS_S = 0.1  # what ends without a word may only follow its parent, whose end is told a moment later
_DOUBT_S = 5.0  # the tree is looked at every second, and less often on a busy machine
_CHILD_DRAIN_S = 1.0  # vLLM needs about 0.1 s from a worker's death to the first line about it


class Ending:
    """Follows one attempt's end: deaths, last lines, processes that linger.

    Args:
        told: What the attempt's text says.
        source: The log that it stands in.
    """

    def __init__(self, told: Told, source: Source) -> None:
        self.root: ProcessExited | None = None
        self.root_at: float | None = None
        self.cause: Cause | None = None
        self.cause_at: float | None = None
        self.alive: set[int] = set()
        self._children: list[tuple[float, ProcessExited]] = []
        self._starved: tuple[float, int | None] | None = None
        self._count_due = float("-inf")
        self._told = told
        self._source = source

    def exited(self, at: float, reading: ProcessExited, *, counted: bool) -> None:
        """Note a death; ``counted`` where the kernel's count of kills for memory is watched."""
        self.alive.discard(reading.pid)
        if counted and _may_be_for_memory(reading):
            self._count_due = at + _COUNT_S
        if reading.root and self.root is None:
            self.root, self.root_at = reading, at
        elif not reading.root and self.root is None and _matters(reading):  # else it is what followed
            self._children.append((at, reading))

    def killed_for_memory(self, at: float, limit_bytes: int | None) -> None:
        """Note that the kernel has killed a process of the server's control group for memory."""
        self._starved = (at, limit_bytes)

    def take_deaths(self, other: Ending, *, of_children: bool) -> None:
        """Take over what was seen of processes that turned out to be this attempt's."""
        self.root, self.root_at, self.alive = other.root, other.root_at, other.alive
        self._children, self._count_due = other._children if of_children else [], other._count_due
        other.root = other.root_at = None
        other.alive, other._children = set(), []

    # --- when ----------------------------------------------------------------------------

    @property
    def died_at(self) -> float | None:
        """When the main process ended, which may be long before that was told; None while it lives."""
        if self.root is None or self.root_at is None:
            return None
        return self.root_at - (self.root.ago_s or 0.0)

    @property
    def drained_at(self) -> float | None:
        """When all is known that there is to know after the main process's death."""
        silent_at = self._silent_at
        return None if silent_at is None else max(silent_at, self._count_due)

    @property
    def _silent_at(self) -> float | None:
        """When the log will have said all that it has to say after the main process's death."""
        source = self._source
        if self.root_at is None:
            return None
        if source.ended:
            return self.root_at
        if not source.opened:  # a server that had died before the watch began: its log is opened soon
            early = self.root_at < source.since + _OPENING_S
            return self.root_at + FILE_QUIET_S if early else self.root_at
        if source.stream:
            return self.root_at + STREAM_LIMIT_S
        read_at = self._read_at(self.root_at)
        if source.behind:
            return read_at + STREAM_LIMIT_S
        last = max(read_at, source.line_at or read_at)
        return min(last + FILE_QUIET_S, read_at + STREAM_LIMIT_S)

    def _read_at(self, died_at: float) -> float:
        """From when on the last words can be awaited: a death may be told while old text is still read."""
        source = self._source
        return max(died_at, source.caught_up_at or source.history_at or died_at)

    @property
    def child_due(self) -> float | None:
        """When a child's death is judged, if the log names nothing better until then."""
        if not self._children or self.cause is not None:
            return None
        source, died_at = self._source, self._children[0][0]
        if not source.opened or source.ended:
            quiet = all(child.signal is None for _, child in self._children)
            silent_at = died_at + (_FOLLOWS_S if quiet else 0.0)
        elif source.behind:
            silent_at = self._read_at(died_at) + STREAM_LIMIT_S
        else:
            silent_at = self._read_at(died_at) + _CHILD_DRAIN_S
        return max(silent_at, self._count_due)

    @property
    def aftermath_due(self) -> float | None:
        """When an aftermath without a cause is taken as all that there is."""
        return None if self._told.fatal_at is None else self._told.fatal_at + _CHILD_DRAIN_S

    @property
    def doubt_due(self) -> float | None:
        """When words of a failure are believed, though nobody has seen who wrote them; None without doubt."""
        fatal_at = self._told.fatal_at
        return None if fatal_at is None or not self._told.doubted else fatal_at + _DOUBT_S

    @property
    def message_due(self) -> float | None:
        """When the last message of a start that has failed is taken to be whole, if no line follows."""
        fatal_at = self._told.fatal_at
        if fatal_at is None:
            return None
        return max(fatal_at, self._source.line_at or fatal_at) + _MESSAGE_S

    def close_at(self, exit_grace: float, *, raise_early: bool) -> float | None:
        """When the wait ends for good; None while nothing is wrong."""
        if self.cause_at is None:
            return None
        last = max(self.cause_at, self.drained_at or self.cause_at)
        gone = self.root_at is not None and not self.alive
        return last if gone or raise_early else max(last, self.cause_at + exit_grace)

    # --- why -----------------------------------------------------------------------------

    def fix(self, at: float, cause: Cause) -> None:
        """Settle on a cause."""
        self.cause = cause
        if self.cause_at is None:
            self.cause_at = at

    def improves(self, cause: Cause) -> bool:
        """Whether a cause says more than the one settled on."""
        if self.cause is None:
            return True
        return _weight(cause) > _weight(self.cause)

    def judge(self, now: float) -> Cause | None:
        """The cause, if it is sure by ``now`` that the start cannot succeed; None otherwise."""
        told = self._told
        if told.ruled_at is not None:
            return told.rule_cause
        if self.drained_at is not None and now >= self.drained_at:
            told.diagnosis.finish()
            return self._weigh(ended=True)
        if self.child_due is not None and now >= self.child_due:
            return self._weigh(ended=False)
        if told.fatal_at is None or told.strangers:  # in a shared log the words may be another server's
            return None
        if self.doubt_due is not None and now < self.doubt_due:
            return None
        if now >= told.fatal_at + _CHILD_DRAIN_S:
            return self._weigh(ended=True)
        cause = self._weigh(ended=False, silent=self.message_due is not None and now >= self.message_due)
        return None if cause is None or cause.confidence == "unknown" else cause

    def conclude(self, *, ended: bool) -> Cause | None:
        """The cause when nothing more will be seen; None where the start may have gone on."""
        ended = ended or self.root is not None
        dead = ended or bool(self._children) or self._told.fatal_at is not None
        return self.cause or (self._weigh(ended=ended) if dead else None)

    def _weigh(self, *, ended: bool, silent: bool = False) -> Cause | None:
        told = self._told.verdict(ended=ended or bool(self._children), quiet=silent)
        children = [(at, child) for at, child in self._children if not self._was_cleared_away(child)]
        killer = _first_violent(children)
        stopped = self.root is not None and _asked_by(self.root) is not None
        starved = killer is not None and isinstance(told, ProcessKilled) and self._was_starved(killer[1])
        if told is not None and told.confidence != "unknown" and not starved:
            first_word = self._told.root_at
            if killer is None or first_word is None or first_word <= killer[0] or _tells_of(told, killer[1]):
                return self._naming_who(told)
        followed = stopped or self._followed(children)  # a stop ends engines first
        quiet = children[0][1] if children and not followed else None
        child = killer[1] if killer else quiet
        if child is not None:
            return _with_evidence(self._death(child), told)
        if self.root is not None and ended and (told is None or self._was_starved(self.root)):
            asked = self._told.diagnosis.stopped if told is None and self.root.code == 0 else None
            return asked or _with_evidence(self._death(self.root), told)
        return told

    def _followed(self, children: Sequence[tuple[float, ProcessExited]]) -> bool:
        """Whether the first deaths are of processes that end with a main process which was killed."""
        if self.root is None or self.root_at is None or not children:
            return False
        if not self.root.signal and self.root.requested is None:
            return False
        return self.root_at - children[0][0] <= _FOLLOWS_S

    def _naming_who(self, told: Cause) -> Cause:
        """A crash whose words name no process, with the process that ended by the same signal."""
        if not isinstance(told, ProcessCrashed) or told.process is not None:
            return told
        ended = [child for _, child in self._children] + ([] if self.root is None else [self.root])
        match [child for child in ended if child.signal == told.signal and child.name]:
            case [only]:
                crashed = died(only)
                return attrs.evolve(crashed, evidence=(*told.evidence, *crashed.evidence))
        return told

    def _was_cleared_away(self, child: ProcessExited) -> bool:
        """Whether the server itself has ended a process, as it says."""
        told = self._told.diagnosis
        if child.signal == SIGKILL:
            return child.pid in told.killed
        return told.stopped is not None and (child.signal in STOPS or child.code == 0)

    def _death(self, reading: ProcessExited) -> Cause:
        return (
            starved(reading, self._starved[1])
            if self._starved and self._was_starved(reading)
            else died(reading, unread=self._source.unread)
        )

    def _was_starved(self, reading: ProcessExited) -> bool:
        """Whether the kernel's count of kills for memory went up at a death that fits."""
        at = (
            self.root_at
            if reading is self.root
            else next((t for t, r in self._children if r is reading), None)
        )
        if self._starved is None or at is None or abs(self._starved[0] - at) > _STARVED_WITHIN_S:
            return False
        return _may_be_for_memory(reading)


def _first_violent(children: Sequence[tuple[float, ProcessExited]]) -> tuple[float, ProcessExited] | None:
    """The first death by a signal; none where vLLM follows another process's end with it."""
    if not children:
        return None
    latest = children[0][0] + _TOGETHER_S
    return next(((at, child) for at, child in children if child.signal and at <= latest), None)


def _tells_of(told: Cause, death: ProcessExited) -> bool:
    """Whether words that came after a death say who has brought it about."""
    return isinstance(told, ShutdownRequested) and told.signal == death.signal


def _weight(cause: Cause) -> tuple[int, bool, bool]:
    """How much a cause says: of equal confidence, one that a rule knows, or that names who crashed."""
    sure = ("unknown", "likely", "certain").index(cause.confidence)
    nameless = isinstance(cause, ProcessCrashed) and cause.process is None
    return sure, not isinstance(cause, UnclassifiedError), not nameless


def _asked_by(reading: ProcessExited) -> int | None:
    """The signal by which the main process was asked to end; None where it was not."""
    if not reading.root:
        return None
    return reading.requested or (reading.signal if reading.signal in STOPS else None)


def _may_be_for_memory(reading: ProcessExited) -> bool:
    if reading.requested is not None:
        return False
    return reading.signal == SIGKILL or (reading.signal is None and reading.code is None)


def _matters(child: ProcessExited) -> bool:
    """Whether a start cannot succeed without this process.

    Engines and workers, whatever their status (vLLM's workers swallow the exception and exit with
    0). Compilers and the like come and go; but nobody kills them for no reason.
    """
    if role_of(child.name) in (Role.ENGINE, Role.WORKER):
        return True
    return child.signal == SIGKILL or (role_of(child.name) is not None and child.code != 0)


def died(reading: ProcessExited, *, unread: str | None = None) -> Cause:
    """The cause that a death alone tells; ``unread``: what to do about a log that could say more."""
    name, pid, number = reading.name or "process", reading.pid, reading.signal
    evidence = (Evidence(text=_words(reading), process=name),)
    if (asked_by := _asked_by(reading)) is not None:
        message = f"the server was asked to stop by {signal_name(asked_by)} before it was ready"
        return ShutdownRequested(message=message, signal=asked_by, evidence=evidence, retryable=True)
    if number in CRASHES:
        message = f"{name} crashed with {signal_name(number or 0)}"
        return ProcessCrashed(message=message, signal=number, process=name, evidence=evidence)
    if number is not None:
        message = f"{name} was ended by {signal_name(number)}"
        return ProcessKilled(message=message, signal=number, process=name, evidence=evidence)
    if reading.code is None:
        message = f"{name} (pid {pid}) is gone, and nobody can tell how it ended"
        return ProcessVanished(message=message, process=name, pid=pid, evidence=evidence, confidence="likely")
    why = unread or "no line says why"
    message = f"{name} exited with status {reading.code} before the server was ready, and {why}"
    return ExitedCause(message=message, exit_code=reading.code, evidence=evidence, confidence="unknown")


def starved(reading: ProcessExited, limit_bytes: int | None) -> Cause:
    """The cause of a death for which the kernel counted a kill for memory."""
    limit = f" (limit {limit_bytes / (1 << 30):.1f} GiB)" if limit_bytes is not None else ""
    certain = reading.signal == SIGKILL
    return HostOutOfMemory(
        message=f"the kernel killed {reading.name} for memory: its control group was out of it{limit}",
        process=reading.name,
        evidence=(
            Evidence(text=_words(reading), process=reading.name),
            Evidence(text=f"the control group's count of kills for memory went up{limit}"),
        ),
        confidence="certain" if certain else "likely",
        hint="raise the memory limit of the container, pod or unit, or load with fewer processes at once"
        if certain
        else None,
    )


def _words(reading: ProcessExited) -> str:
    if reading.requested is not None:
        how = _words(attrs.evolve(reading, requested=None)).removeprefix(f"pid {reading.pid} ")
        return f"pid {reading.pid} was asked to end by {signal_name(reading.requested)}, and {how}"
    if reading.signal is not None:
        return f"pid {reading.pid} was ended by {signal_name(reading.signal)}"
    if reading.code is not None:
        return f"pid {reading.pid} exited with status {reading.code}"
    return f"pid {reading.pid} is gone"


def _with_evidence(cause: Cause, told: Cause | None) -> Cause:
    return cause if told is None else attrs.evolve(cause, evidence=(*cause.evidence, *told.evidence))
