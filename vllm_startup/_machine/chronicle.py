"""Splits a log into attempts and gives each line to the one that it belongs to.

One log can hold several starts: a service that was restarted appends. An attempt begins at a
supervisor's start line, at a new banner, at a new main process, or with the first line after an
exit. Unprefixed lines before a banner belong to the start that it announces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache

from vllm_startup._diagnosis.diagnosis import Clue, Diagnosis
from vllm_startup._log.lines import Line, LineReader
from vllm_startup._log.markers import MARKERS, Marker, Means, Sighting, sight
from vllm_startup._log.triggers import Triggers, searchable
from vllm_startup._machine.attempt import Attempt
from vllm_startup._machine.signals import signal_number
from vllm_startup._machine.told import Told
from vllm_startup._rules import Rule

Begin = Callable[[float, Attempt | None, AbstractSet[int]], Attempt]
Timed = Callable[[Line], float]

_Telling = Marker | Clue | None
"""What is worth reading a line for; None: a rule of the caller's."""

# To look up an enum's member takes 0.2 us in Python 3.11, and these are for every line.
_START, _HEARTBEAT, _EXIT, _SERVED = Means.START, Means.HEARTBEAT, Means.EXIT, Means.SERVED

_LOOSE_LINES = 500  # a traceback of a start that died before its banner
_BESIDE = 10  # servers that may write into one log at the same time, one a GPU and some
# In this order systemd tells of one start. It says "Started" when a unit of Type=notify is ready.
_YOUNG_S = 1.0  # and a little after the process's first lines, if these were quick
_ANNOUNCED = {"systemd_starting": 1, "systemd_started": 2}


class Chronicle:
    """The attempts of a log, the newest last. The first one is begun before anything is heard."""

    def __init__(
        self, begin: Begin, rules: Sequence[Rule], found: Callable[[Rule, Line, float], None]
    ) -> None:
        self._begin = begin
        self._found = found
        theirs = [(rule.literal, rule) for rule in rules if rule.literal is not None]
        self._rules = Triggers(theirs, anywhere=(literal for literal, _ in theirs)) if theirs else None
        self._triggers = _triggers(tuple(literal for literal, _ in theirs))
        self._reader = LineReader()
        self._loose: deque[tuple[Line, float]] = deque(maxlen=_LOOSE_LINES)
        self.attempts: list[Attempt] = []

    @property
    def current(self) -> Attempt:
        """The newest attempt."""
        return self.attempts[-1]

    def begin(self, at: float, *, strangers: AbstractSet[int] = frozenset()) -> Attempt:
        """Begin a new attempt.

        Args:
            at: When.
            strangers: The main processes of other servers to whom the attempt before belongs, although
                the watched process was taken for it: that one goes on with the new one.
        """
        self._loose.clear()
        self.attempts.append(self._begin(at, self.attempts[-1] if self.attempts else None, strangers))
        return self.current

    def hear(self, lines: Iterable[str], timed: Timed, *, history: bool) -> bool:
        """Take whole lines. Returns whether any was more than a heartbeat."""
        spoke = False
        skipped = 0
        find = self._triggers.find
        close_look = self._close_look()  # only lines that are taken change it
        for text in lines:
            found = find(searchable(text))
            if found and history and not close_look and self._is_known(found):
                found = []
            if found or close_look:
                self._reader.skip(skipped)
                skipped = 0
                spoke |= self._take(text, found, timed, history=history)
                close_look = self._close_look()
            else:
                skipped += 1
                spoke = True
        self._reader.skip(skipped)
        return spoke

    def glance(self, partial: str, at: float) -> None:
        """Look at an unfinished line: a bar that redraws itself. It is no line yet."""
        if self._triggers.find(searchable(partial)):
            for line in self._reader.read(partial, complete=False):
                if line.bar:
                    self.current.glance(sight(line), at)

    def finish(self) -> None:
        """Note that the log has ended: what stands after the last exit may be a start of its own."""
        if self._loose and self.current.told.over:
            self._settle_loose()
        self.current.told.diagnosis.finish()

    def _is_known(self, found: list[_Telling]) -> bool:
        """Whether a line tells only that requests are served, as millions do, where that is known."""
        if self.attempts[-1].told.served_at is None:
            return False
        return all(isinstance(each, Marker) and each.means is _SERVED for each in found)

    def _close_look(self) -> bool:
        told = self.attempts[-1].told
        return told.over or told.wants_record or told.diagnosis.busy

    def _take(self, text: str, found: list[_Telling], timed: Timed, *, history: bool) -> bool:
        spoke = False
        markers = [each for each in found if isinstance(each, Marker)]
        clues = [each for each in found if isinstance(each, Clue)]
        for line in self._reader.read(text):
            at = timed(line)
            sightings = sight(line, markers)
            self._fold(line, sightings, clues, at, history=history)
            spoke |= not _any_means(sightings, _HEARTBEAT)
        return spoke

    def _fold(
        self, line: Line, sightings: tuple[Sighting, ...], clues: list[Clue], at: float, *, history: bool
    ) -> None:
        attempt = self.attempts[-1]
        starts = _any_means(sightings, _START)
        if attempt.is_strangers(line, at, starts=starts, history=history):
            return
        if not starts and (earlier := self._earlier_of(line)) is not None:
            attempt.meet(earlier)
            earlier.hear_late(line, at)
            return
        if starts and self._starts_anew(attempt, line, sightings, at):
            attempt = self._start_over(at, strangers=attempt.strangers_before(line.pid))
        elif attempt.told.reaped and line.outer_pid in attempt.told.writers:
            pass  # the journal takes lines from the server and from systemd by two ways
        elif attempt.told.over and not _closing(sightings, line):
            if line.process is None and not _of_a_start(sightings):
                self._loose.append((line, at))
                return
            attempt = self._start_over(at)
        if history and attempt.pid is None and not attempt.told.lines:
            attempt.date(min(at, attempt.began_at))
        attempt.told.only_history &= history
        attempt.told.holds_history |= history
        attempt.told.live |= not history and (line.process is not None or line.stamp_s is not None)
        self._note_start(attempt.told, line, sightings, starts=starts)
        attempt.hear(line, sightings, at, clues)
        for rule in self._rules.find(line.text) if self._rules is not None else ():
            self._found(rule, line, at)
        self._note_exit(attempt, line, sightings, at)

    def _earlier_of(self, line: Line) -> Attempt | None:
        """The attempt before of which a process wrote the line: it is read late, or its server lives on."""
        current, pid = self.attempts[-1], line.pid
        if pid is None or len(self.attempts) < 2 or current.knows(pid):
            return None
        earlier = next((each for each in self.attempts[-2:-_BESIDE:-1] if each.knows(pid)), None)
        if earlier is None:
            return None
        # A container's pids begin anew with each start of it.
        mains, before = current.told.banners.values(), earlier.told.banners.values()
        return None if any(main is not None and main in before for main in mains) else earlier

    def _starts_anew(self, attempt: Attempt, line: Line, sightings: tuple[Sighting, ...], at: float) -> bool:
        told = attempt.told
        if line.process == "systemd":
            if told.unit_step is None:
                same = bool(told.banners) and told.first_at is not None and at - told.first_at < _YOUNG_S
            else:
                same = told.unit_step < _step(sightings)
            return told.lines > 0 and (told.over or not same)
        if told.over:
            return True
        if line.process not in told.banners:
            return False
        # A container's main process has the same pid each time, and prints each of its banners once.
        again = not told.announced.isdisjoint(_announcements(line, sightings))
        return again or line.pid is None or told.banners[line.process] != line.pid

    def _note_start(self, told: Told, line: Line, sightings: tuple[Sighting, ...], *, starts: bool) -> None:
        if line.process != "systemd":
            if line.outer_pid is not None:
                told.writers.add(line.outer_pid)
            if starts:
                told.banners.setdefault(line.process, line.pid)
                told.announced |= _announcements(line, sightings)
        elif starts:
            told.unit_step = _step(sightings)

    def _note_exit(self, attempt: Attempt, line: Line, sightings: tuple[Sighting, ...], at: float) -> None:
        for sighting in sightings:
            if sighting.means is _EXIT:
                if self._loose:
                    attempt = self._settle_loose() or attempt
                attempt.told.over = True
                attempt.told.over_at = at if attempt.told.over_at is None else attempt.told.over_at
                attempt.told.reaped = line.process == "systemd"
                how = (sighting.exit_code, signal_number(sighting.exit_signal))
                if attempt.told.exit is None or how != (None, None):  # what follows may tell less
                    attempt.told.exit = how
                attempt.told.diagnosis.finish()

    def _start_over(self, at: float, *, strangers: AbstractSet[int] = frozenset()) -> Attempt:
        loose = tuple(self._loose)
        attempt = self.begin(loose[0][1] if loose else at, strangers=strangers)
        for line, loose_at in loose:
            attempt.hear(line, sight(line), loose_at)
        return attempt

    def _settle_loose(self) -> Attempt | None:
        """Unprefixed lines after an exit: a start that died before its banner, or mere leftovers."""
        trial = Diagnosis()
        for line, _ in self._loose:
            trial.feed(line)
        trial.finish()
        if trial.verdict(ended=True) is None:
            self._loose.clear()
            return None
        return self._start_over(self._loose[0][1])


def _any_means(sightings: tuple[Sighting, ...], means: Means) -> bool:
    """Whether one of them means it. A loop: it runs several times a line, mostly over one sighting."""
    for sighting in sightings:  # noqa: SIM110 - any() takes three times as long
        if sighting.means is means:
            return True
    return False


def _announcements(line: Line, sightings: tuple[Sighting, ...]) -> set[tuple[str | None, str]]:
    """Who says by which line that it starts."""
    return {(line.process, s.marker.name) for s in sightings if s.means is Means.START}


def _step(sightings: tuple[Sighting, ...]) -> int:
    """How far in its start a unit is, by a line of systemd's that tells of one."""
    return max(_ANNOUNCED.get(sighting.marker.name, 0) for sighting in sightings)


def _of_a_start(sightings: tuple[Sighting, ...]) -> bool:
    """Whether a line without a prefix can only come from a start that is under way."""
    return any(s.phase is not None for s in sightings)


# Who goes on to speak of a start that has ended: Slurm ends the other nodes' tasks then.
_EPILOGUES = ("srun: ", "slurmstepd: ")


def _closing(sightings: tuple[Sighting, ...], line: Line) -> bool:
    if line.process == "systemd" or line.message.startswith(_EPILOGUES):
        return True
    return any(s.means in (Means.SHUTDOWN, Means.EXIT) for s in sightings)


@lru_cache(maxsize=4)  # building them takes 3 ms and 200 KiB, which is much for each of 1,000 servers
def _triggers(theirs: tuple[str, ...]) -> Triggers[_Telling]:
    known: tuple[Marker | Clue, ...] = (*MARKERS, *Diagnosis.clues())
    pairs: list[tuple[str, _Telling]] = [(each.literal, each) for each in known]
    return Triggers([*pairs, *((literal, None) for literal in theirs)], anywhere=theirs)
