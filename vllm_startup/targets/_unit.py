"""The probe of a systemd unit: its journal as the log, its main process, and how that ends.

What systemd logs about the unit wakes the look at its state, so that the look itself can be rare.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Final

import attrs

from vllm_startup._blocking import BlockingRunner
from vllm_startup._readings import (
    LogCaughtUp,
    LogLines,
    LogOpened,
    MemoryEvents,
    NotRestarted,
    ProbeNote,
    ProcessExited,
    Reading,
)
from vllm_startup.probes._exits import Exit
from vllm_startup.probes._log import TAIL_LINES, batches
from vllm_startup.probes._process import ProcessProbe
from vllm_startup.targets._following import MainProcess
from vllm_startup.targets._journal import Entry, Journal, JournalFollower
from vllm_startup.targets._systemctl import Systemctl, UnitState

# Where the journal says nothing (LogLevelMax=). A look is two processes' 5 ms of CPU: 0.1 % of a core.
_LOOK_S: Final = 5.0
_LOOK_SOON_S: Final = 0.05  # systemd writes several lines at once
# journald tells readers of new entries every 0.25 s (POST_CHANGE_TIMER_INTERVAL_USEC): the last words of
# a process come that much later than its end.
_LAST_WORDS_S: Final = 0.6
# A death is judged when the log has been quiet for 0.25 s, and systemd restarts after 0.1 s by
# default: what is of the next start waits until the one before has been judged.
_HOLD_S: Final = 0.5
# "systemctl stop" and then "start", as scripts do it, is a restart too.
_GONE_FOR_S: Final = 2.0
_FIRST_RETRY_S: Final = 0.25
_SLOWEST_RETRY_S: Final = 5.0


@attrs.define
class _Mourned:
    """The end of a main process that waits for the journal: for its last words, or for how it ended.

    Attributes:
        until: When that is not waited for any longer.
        heard: Whether the journal has told of it.
    """

    reading: ProcessExited
    until: float
    heard: bool = False

    @property
    def known(self) -> bool:
        return self.reading.code is not None or self.reading.signal is not None

    def learn(self, how: Exit | None) -> None:
        if how is not None and not self.known:
            self.reading = attrs.evolve(self.reading, code=how.code, signal=how.signal)


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
    """

    name: str = "unit"
    limit_s: float | None = None
    follows_restarts: bool = True

    def __init__(
        self, state: UnitState, systemctl: Systemctl, journal: Journal | None, main: MainProcess, *, log: bool
    ) -> None:
        self._state = state
        self._unit = state.name
        self._systemctl = systemctl
        self._journal = journal
        self._main = main
        self._log = log
        self._runner = BlockingRunner(f"vllm_startup-unit-{state.name}")
        self._follower: JournalFollower | None = None
        self._reading: asyncio.Task[list[Entry]] | None = None
        self._woken = asyncio.Event()
        self._ready: deque[Reading] = deque()
        self._noted: set[str] = set()
        self._begun = False
        self._look_at = 0.0
        self._retry_s = 0.0
        # Starts by their invocations: the newest one, that of the process which is followed, and the
        # one whose end has been told.
        self._start: str | None = None
        self._followed: str | None = None
        self._dead: str | None = None
        self._mourned: _Mourned | None = None
        self._prepared: Exit | None = None
        self._writer: tuple[str | None, int] = (None, 0)
        self._held: list[Entry] = []
        self._hold_until: float | None = None
        self._over_since: float | None = None
        self._given_up = False

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
            self._let_go()
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

    def ended(self, reading: ProcessExited) -> bool:
        """Hear of a process's end from who watches it. Returns whether it is to be told at once.

        That of the main process is told when the journal has told its last words, and how it ended,
        which systemd knows even where the kernel does not tell others.
        """
        if not reading.root:
            return True
        self._look_soon(0.0)
        if self._dead is not None and self._dead == self._start:
            return False  # the journal was faster
        mourned = _Mourned(reading, _clock() + _LAST_WORDS_S)
        if mourned.known and not self._log:
            self._bury()
            return True
        self._mourned = mourned
        self._hold()
        return False

    # --- the beginning --------------------------------------------------------------------

    async def _begin(self) -> None:
        history: Iterable[Entry] = ()
        if self._journal is not None:
            history = entries = await self._runner.run(self._journal.history)
            self._follower = JournalFollower(self._journal, entries[-1].cursor if entries else None)
            if self._log:
                self._tell_history(list(history))
        for entry in history:
            self._note_writer(entry)
        self._begun = True
        await self._look()

    def _tell_history(self, entries: list[Entry]) -> None:
        source = f"journal of {self._unit}"
        if not entries:
            self._ready.append(LogOpened(source=source))
            return
        lines = [line for entry in entries for line in entry.lines()]
        tail = tuple(lines[-TAIL_LINES:])
        self._ready.append(LogOpened(source=source, modified_at=entries[-1].at_s, tail=tail))
        self._ready.extend(batches(lines, history=True))
        self._ready.append(LogCaughtUp())

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
        until = self._mourned.until if self._mourned is not None else None
        due = min(at for at in (self._look_at, self._hold_until, until) if at is not None)
        try:
            awaited = {waking} if self._reading is None else {waking, self._reading}
            pause_s = max(0.0, due - _clock())
            await asyncio.wait(awaited, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
        self._woken.clear()
        if self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            self._hear(reading.result())

    def _look_soon(self, pause_s: float) -> None:
        self._look_at = min(self._look_at, _clock() + pause_s)
        self._woken.set()

    def _due(self, at: float) -> bool:
        return at <= _clock()

    # --- the journal ----------------------------------------------------------------------

    def _hear(self, entries: Iterable[Entry]) -> None:
        lines: list[str] = []
        told: list[Entry] = []
        for entry in entries:
            if self._is_of_the_next(entry):
                self._held.append(entry)
                continue
            lines += entry.lines()
            self._note_writer(entry)
            if entry.by_manager:
                self._look_soon(_LOOK_SOON_S)
                told.append(entry)
            if entry.ends:
                self._hold()
        if self._log:
            self._ready.extend(batches(lines))
        for entry in told:
            self._manager_said(entry)

    def _is_of_the_next(self, entry: Entry) -> bool:
        """Whether an entry waits until the start before it has been judged."""
        if self._hold_until is None:
            return False
        another = entry.invocation is not None and entry.invocation != self._start
        return entry.starts or another or (entry.by_manager and bool(self._held))

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
        if entry.exit is not None and not entry.main:
            self._prepared = entry.exit  # its main process is not started if this has failed
        elif self._mourned is not None:
            self._mourned.heard = True
            self._mourned.learn(entry.exit)
        elif entry.exit is not None:
            self._tell_end(entry.exit, start)

    def _hold(self) -> None:
        self._hold_until = _clock() + _HOLD_S

    def _release(self) -> None:
        """Let the next start be told."""
        if self._hold_until is None or self._mourned is not None or not self._due(self._hold_until):
            return
        self._hold_until = None
        held, self._held = self._held, []
        self._hear(held)
        self._look_soon(0.0)

    # --- the end of a start ----------------------------------------------------------------

    def _let_go(self) -> None:
        """Tell of an end that has waited for the journal, once there is nothing to wait for."""
        mourned = self._mourned
        if mourned is None:
            return
        if self._due(mourned.until) or (mourned.known and (mourned.heard or not self._log)):
            self._ready.append(mourned.reading)
            self._bury()

    def _tell_end(self, how: Exit, start: str | None) -> None:
        """Tell how a main process ended that nobody has watched to its end."""
        pid = self._main.pid if self._followed == start else None
        if pid is None and self._state.invocation == start:
            pid = self._state.last_pid
        if pid is None and self._writer[0] == start:
            pid = self._writer[1]
        name = self._state.program
        self._ready.append(
            ProcessExited(pid=pid or 0, name=name, code=how.code, signal=how.signal, root=True)
        )
        self._start = start
        self._bury()

    def _bury(self) -> None:
        self._mourned = None
        self._dead = self._start
        self._hold()

    # --- the state ------------------------------------------------------------------------

    async def _look(self) -> None:
        self._look_at = _clock() + _LOOK_S
        self._meet(await self._runner.run(partial(self._systemctl.show, self._unit)))

    def _meet(self, state: UnitState) -> None:
        """Take the unit's state."""
        self._state = state
        if self._mourned is not None and state.last_pid == self._mourned.reading.pid:
            self._mourned.learn(state.exit)
        if self._mourned is not None and not self._mourned.known:
            self._look_soon(_LOOK_SOON_S)
        if self._hold_until is None and not state.over and state.invocation != self._dead:
            self._follow(state)
        if not state.over:
            self._over_since, self._given_up = None, False
        elif self._start is None and state.active != "failed":
            text = (
                f"unit {self._unit} is {state.active}: it is awaited; systemctl start {self._unit} starts it"
            )
            self._note("unit_inactive", text)
        elif self._mourned is None:
            self._is_over(state)
        self._note_state(state)

    def _follow(self, state: UnitState) -> None:
        """Follow a start."""
        if state.invocation != self._start:
            self._start, self._prepared = state.invocation, None
        if state.main_pid is not None:
            self._followed = state.invocation
            self._main.pid = state.main_pid

    def _is_over(self, state: UnitState) -> None:
        """Tell of a unit that does not run, and that systemd does not start again."""
        if self._over_since is None:
            self._over_since = _clock()
            if not self._log and state.result == "oom-kill":
                self._ready.extend((MemoryEvents(oom_kills=0), MemoryEvents(oom_kills=1)))
            start = state.invocation or self._start
            if start is None or start != self._dead:
                self._tell_end(state.exit or self._prepared or Exit(), start)
        if self._given_up:
            return
        if self._due(self._over_since + _GONE_FOR_S):
            self._given_up = True
            text = f"{self._unit} is {state.active} ({state.result}) after {_times(state.restarts)}"
            self._ready.append(NotRestarted(reason=text))
        else:
            self._look_soon(_GONE_FOR_S / 4)

    def _note_state(self, state: UnitState) -> None:
        if state.restarts and self._dead is None:
            text = f"systemd had restarted {self._unit} {_times(state.restarts)} before this watch"
            self._note("unit_restarted", text)
        if state.loaded == "not-found":
            text = f"unit {self._unit} does not exist any more: its files were removed"
            self._note("unit_gone", text)

    def _note(self, code: str, text: str) -> None:
        if code not in self._noted:
            self._noted.add(code)
            self._ready.append(ProbeNote(code=code, text=text))


class SupervisedProcess:
    """The probe of a unit's main process, whose end systemd knows better.

    Args:
        probe: The probe of the process.
        unit: The probe of its unit.
    """

    def __init__(self, probe: ProcessProbe, unit: UnitProbe) -> None:
        self.name = probe.name
        self.interval_s = probe.interval_s
        self.limit_s = probe.limit_s
        self._probe = probe
        self._unit = unit

    async def sample(self, now: float) -> Iterable[Reading]:
        """What the process's probe sees, but for an end of the main process that it cannot tell whole."""
        seen = await self._probe.sample(now)
        return [r for r in seen if not isinstance(r, ProcessExited) or self._unit.ended(r)]

    async def aclose(self) -> None:
        """Close the process's probe."""
        await self._probe.aclose()


def _clock() -> float:
    return time.monotonic()


def _times(number: int) -> str:
    return "1 restart" if number == 1 else f"{number} restarts"
