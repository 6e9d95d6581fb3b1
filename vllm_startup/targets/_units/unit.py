"""The probe of a systemd unit: its journal as the log, its main process, and how that ends.

What systemd logs about the unit wakes the look at its state, so that the look itself can be rare.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import attrs

from vllm_startup._blocking import BlockingRunner
from vllm_startup._readings import (
    LogLines,
    MemoryEvents,
    NotRestarted,
    ProbeNote,
    ProcessExited,
    Reading,
)
from vllm_startup.probes._log import batches
from vllm_startup.targets._following import MainProcess
from vllm_startup.targets._units.journal import (
    Entry,
    Journal,
    JournalFollower,
    failed_before_main,
    just_refused,
)
from vllm_startup.targets._units.mourned import Mourned, clock
from vllm_startup.targets._units.remarks import of_output, of_state, of_waiting, times
from vllm_startup.targets._units.systemctl import Systemctl, UnitState
from vllm_startup.targets._units.transcript import Transcript, as_history, recent

# Where the journal says nothing (LogLevelMax=). A look is two processes' 5 ms of CPU: 0.1 % of a core.
_LOOK_S: Final = 5.0
_LOOK_SOON_S: Final = 0.05  # systemd writes several lines at once
# A death is judged when the log has been quiet for 0.25 s, and systemd restarts after 0.1 s by
# default: what is of the next start waits until the one before has been judged.
_HOLD_S: Final = 0.5
# "systemctl stop" and then "start", as scripts do it, is a restart too.
_GONE_FOR_S: Final = 2.0
# A state is new at once, what the journal tells of it is 0.25 s late, and more on a busy machine.
_BEHIND_S: Final = 2.0
_FIRST_RETRY_S: Final = 0.25
_SLOWEST_RETRY_S: Final = 5.0


class UnitProbe:
    """Follows a systemd unit from start to start.

    It tells the journal as the log (what was there before as history), how the main process of each
    start ended, and that no restart will come. It sets which process is the main one.

    Args:
        state: The unit, as it was found.
        systemctl: Its service manager.
        journal: Its journal; None where that may not be read.
        main: What it sets.
        log: Whether the journal is the server's log, too.
        clock_ahead_s: Returns how far the clock of the unit's machine is ahead of this one's.
    """

    name: str = "unit"
    limit_s: float | None = None
    follows_restarts: bool = True

    def __init__(
        self,
        state: UnitState,
        systemctl: Systemctl,
        journal: Journal | None,
        main: MainProcess,
        *,
        log: bool,
        clock_ahead_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._clock_ahead_s = clock_ahead_s
        self._state = state
        self._unit = state.name
        self._systemctl = systemctl
        self._journal = journal
        self._main = main
        self._log = log
        self._runner = BlockingRunner(f"vllm_startup-unit-{state.name}")
        self._transcript = Transcript(state.name)
        self._follower: JournalFollower | None = None
        self._reading: asyncio.Task[list[Entry]] | None = None
        self._woken = asyncio.Event()
        self._ready: deque[Reading] = deque()
        self._noted: set[str] = set()
        self._begun = False
        self._look_at = 0.0
        self._retry_s = 0.0
        # Starts by their invocations: the newest one, that of the process which is followed, the one whose
        # end has been told, and the one whose end the journal had told before the watch.
        self._start: str | None = None
        self._followed: str | None = None
        self._dead: str | None = None
        self._told: str | None = None
        self._told_at = 0.0
        self._coming: tuple[str | None, float] = (None, 0.0)
        self._mourned: Mourned | None = None
        self._prepared: Entry | None = None
        self._writer: tuple[str | None, int] = (None, 0)
        self._held: list[Entry] = []
        self._hold_until: float | None = None
        self._over_since: float | None = None
        self._given_up = False
        self._refused = False

    @property
    def interval_s(self) -> float:
        """0: a sample waits for something to happen. More after one that failed."""
        return self._retry_s

    async def sample(self, now: float) -> Iterable[Reading]:
        """Tell the history and what is; from then on, wait until something happens.

        Raises:
            RuntimeError: journalctl has ended; it is started again.
            TargetError: systemd does not answer; it is asked again.
            OSError: journalctl cannot be started; it is tried again.
        """
        failed_before = self._retry_s > 0
        self._retry_s = min(max(_FIRST_RETRY_S, self._retry_s * 2), _SLOWEST_RETRY_S)
        if not self._begun:
            await self._begin()
        elif failed_before:
            await self._look()  # whoever waits is to hear that it works again
        while not self._ready and not failed_before:
            await self._wait()
            if self._due(self._look_at):
                await self._look()
            self._bury()
            self._release()
        self._retry_s = 0.0
        return self._take()

    async def aclose(self) -> None:
        """End journalctl."""
        self._runner.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._follower is not None:
            await self._follower.aclose()

    @property
    def state(self) -> UnitState:
        """The last look at it."""
        return self._state

    def ended(self, reading: ProcessExited) -> bool:
        """Hear of a process's end from who watches it. Returns whether it is to be told at once.

        That of the main process is told when the journal has told its last words, and how it ended,
        which systemd knows even where the kernel does not tell others.
        """
        if not reading.root:
            return True
        self._look_soon(0.0)
        start = self._followed or self._start
        if start == self._start and (start is None or start != self._dead):  # else the journal was faster
            self._mourn(reading, start)
        return False

    # --- the beginning --------------------------------------------------------------------

    async def _begin(self) -> None:
        history: Sequence[Entry] = ()
        if self._journal is not None:
            history = recent(await self._runner.run(self._journal.history))
            self._follower = JournalFollower(self._journal, history[-1].cursor if history else None)
        # Later than the history: a start that began and failed since the unit was found would have its words
        # taken for an earlier one's. What the history does not have yet, the follower brings.
        state = self._state = await self._runner.run(partial(self._systemctl.show, self._unit))
        ahead_s = self._clock_ahead_s()
        news: Sequence[Entry] = ()
        if state.over:
            history, news = just_refused(history, time.time() + ahead_s)
        if self._log:
            self._ready.extend(as_history(self._unit, history, self._transcript, clock_ahead_s=ahead_s))
        for entry in history:
            self._note_writer(entry)
            if entry.closes and (self._told is None or entry.invocation != self._told):
                self._told, self._told_at = entry.invocation, entry.at_s
        self._prepared = failed_before_main(history, state.invocation)
        self._begun = True
        self._note(of_output(state, log=self._log))
        if not self._log:  # else it is told with the log
            start = state.invocation
            self._hear(entry for entry in history if entry.by_executor and entry.invocation == start)
        self._hear(news)
        self._look_at = clock() + _LOOK_S
        self._meet(state)

    def _take(self) -> list[Reading]:
        """What is to be told, at most one batch of lines at once."""
        taken: list[Reading] = []
        while self._ready:
            taken.append(self._ready.popleft())
            if isinstance(taken[-1], LogLines):
                break
        return taken

    # --- waiting --------------------------------------------------------------------------

    async def _wait(self) -> None:
        """Wait for the journal, for a word of the process's watcher, or until a look is due."""
        if self._follower is not None and self._reading is None:
            self._reading = asyncio.ensure_future(self._follower.read())
        waking = asyncio.ensure_future(self._woken.wait())
        until = self._hold_until if self._mourned is None else self._mourned.due(log=self._log)
        due = self._look_at if until is None else min(self._look_at, until)
        try:
            awaited = {waking} if self._reading is None else {waking, self._reading}
            pause_s = max(0.0, due - clock())
            await asyncio.wait(awaited, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
        self._woken.clear()
        if self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            self._hear(reading.result())

    def _look_soon(self, pause_s: float) -> None:
        self._look_at = min(self._look_at, clock() + pause_s)
        self._woken.set()

    def _due(self, at: float) -> bool:
        return at <= clock()

    # --- the journal ----------------------------------------------------------------------

    def _hear(self, entries: Iterable[Entry]) -> None:
        lines: list[str] = []
        refusals: list[str] = []
        for entry in entries:
            if self._is_of_the_next(entry):
                self._held.append(entry)
                continue
            self._note_writer(entry)
            if entry.by_manager:
                self._look_soon(_LOOK_SOON_S)
                self._manager_said(entry)
            self._refused |= entry.refuses
            if entry.refuses or (entry.by_executor and not self._log):
                refusals += entry.lines()
            else:
                lines += self._transcript.lines(entry)
        if self._mourned is None:
            lines += self._transcript.finish()
        self._tell_lines(lines)
        self._ready.extend(batches(refusals))  # where its log is a file, too

    def _tell_lines(self, lines: list[str]) -> None:
        if self._log:
            self._ready.extend(batches(lines))

    def _is_of_the_next(self, entry: Entry) -> bool:
        """Whether an entry waits until the start before it has been judged."""
        if self._hold_until is None:
            return False
        if entry.invocation is None:
            return entry.by_manager and (entry.starts or bool(self._held))
        return entry.invocation != self._start

    def _note_writer(self, entry: Entry) -> None:
        """Note who writes first in a start: its main process, most often."""
        if entry.invocation is not None and not entry.by_manager and entry.invocation != self._writer[0]:
            self._writer = (entry.invocation, entry.writer[1])

    def _manager_said(self, entry: Entry) -> None:
        """Take what systemd logged about the unit."""
        if entry.starts and entry.invocation is not None:
            self._start = entry.invocation
        start = self._start or entry.invocation
        if not entry.ends or entry.invocation != start or start == self._dead:
            return
        if not entry.closes:
            self._prepared = entry  # if it was ExecStartPre=, the main process is not started
            return
        mourned = self._mourned or self._mourn(self._end_of(start), start)
        mourned.hear(entry.exit)
        self._learn_of_prepared()

    def _hold(self) -> None:
        self._hold_until = clock() + _HOLD_S

    def _release(self) -> None:
        """Let the next start be told."""
        if self._hold_until is None or self._mourned is not None or not self._due(self._hold_until):
            return
        self._hold_until = None
        held, self._held = self._held, []
        self._hear(held)
        self._look_soon(0.0)

    # --- the end of a start ----------------------------------------------------------------

    def _mourn(self, reading: ProcessExited, start: str | None) -> Mourned:
        """Take the end of a start's main process, which is told when all of it is known."""
        self._start = start
        told = self._journal is not None and not self._state.hushed and start != self._told
        self._mourned = Mourned.now(reading, told=told)
        self._hold()
        return self._mourned

    def _end_of(self, start: str | None) -> ProcessExited:
        """The end of a main process that nobody has watched to its end."""
        pid = self._main.pid if self._followed == start else None
        if pid is None and self._state.invocation == start:
            pid = self._state.last_pid
        if pid is None and self._writer[0] == start:
            pid = self._writer[1]
        return ProcessExited(pid=pid or 0, name=self._state.program, root=True)

    def _learn_of_prepared(self) -> None:
        """Take the end of ``ExecStartPre=`` for the end of a start that has come no further."""
        prepared = self._prepared
        if self._mourned is not None and prepared is not None and self._followed != self._start:
            self._mourned.learn(prepared.exit, f"{prepared.command}=")

    def _bury(self) -> None:
        """Tell of an end, once there is nothing more to wait for."""
        mourned = self._mourned
        if mourned is None or not self._due(mourned.due(log=self._log)):
            return
        self._tell_lines(self._transcript.finish())
        self._ready.append(self._dated(mourned.reading))
        self._mourned = None
        self._dead = self._start
        self._hold()

    def _dated(self, end: ProcessExited) -> ProcessExited:
        """An end with its time, where the journal had told of it before the watch began."""
        if self._told is None or self._start != self._told:
            return end
        now = time.time() + self._clock_ahead_s()
        return attrs.evolve(end, ago_s=max(0.0, now - self._told_at))

    # --- the state ------------------------------------------------------------------------

    async def _look(self) -> None:
        self._look_at = clock() + _LOOK_S
        self._meet(await self._runner.run(partial(self._systemctl.show, self._unit)))

    def _meet(self, state: UnitState) -> None:
        """Take the unit's state."""
        self._state = state
        if self._mourned is not None:
            if state.invocation == self._start or state.last_pid == self._mourned.reading.pid:
                self._mourned.learn(state.exit)
            self._learn_of_prepared()
            self._look_soon(_LOOK_SOON_S)
        if self._hold_until is None and not state.over and state.invocation != self._dead:
            self._follow(state)
        if not state.over:
            self._over_since, self._given_up, self._refused = None, False, False
        elif self._start is None and state.active != "failed" and not self._refused:
            self._note(of_waiting(state))
        elif self._mourned is None and self._hold_until is None:
            self._is_over(state)
        self._note(of_state(state, restarted_before=self._dead is None))

    def _follow(self, state: UnitState) -> None:
        """Follow a start."""
        if state.invocation != self._start:
            if not self._is_next(state.invocation):
                return
            self._start, self._prepared = state.invocation, None
        if state.main_pid is not None:
            self._followed = state.invocation
            self._main.pid = state.main_pid

    def _is_next(self, start: str | None) -> bool:
        """Whether the journal, which comes later than the state, has told of the starts before this one."""
        if self._follower is None or self._start is None:
            return True
        if start != self._coming[0]:
            self._coming = (start, clock() + _BEHIND_S)
        due = self._coming[1]
        self._look_soon(max(_LOOK_SOON_S, due - clock()))
        return self._due(due)

    def _is_over(self, state: UnitState) -> None:
        """Tell of a unit that does not run, and that systemd does not start again."""
        if self._over_since is None:
            self._over_since = clock()
            if not self._log and state.result == "oom-kill":
                self._ready.extend((MemoryEvents(oom_kills=0), MemoryEvents(oom_kills=1)))
            start = state.invocation or self._start
            if not self._refused and (start is None or start != self._dead):
                self._mourn(self._end_of(start), start)
                self._look_soon(0.0)
                return
        if self._given_up:
            return
        if self._due(self._over_since + _GONE_FOR_S):
            self._given_up = True
            text = f"{self._unit} is {state.active} ({state.result}) after {times(state.restarts)}"
            self._ready.append(NotRestarted(reason=text))
        else:
            self._look_soon(_GONE_FOR_S / 4)

    def _note(self, notes: Iterable[ProbeNote]) -> None:
        for note in notes:
            if note.code not in self._noted:
                self._noted.add(note.code)
                self._ready.append(note)
