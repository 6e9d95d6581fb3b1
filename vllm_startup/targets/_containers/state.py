"""What an engine says of a container, and what follows from one look to the next.

Nothing here asks anybody: a look goes in, readings come out.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import attrs

from vllm_startup._machine.signals import signal_name
from vllm_startup._readings import (
    LogLines,
    MemoryEvents,
    NotRestarted,
    ProbeNote,
    ProcessExited,
    ProcessFound,
    Reading,
)
from vllm_startup._redact import redact_command
from vllm_startup._text import clean

_SIGNALLED: Final = 128
"""What engines add to the number of the signal that ended the main process, as shells do."""

_LAST_SIGNAL: Final = 64
_MAIN: Final = 1
"""The main process's pid in the container, whose namespace of pids begins with it."""

_UNKNOWN_PID: Final = 0
_STOPPING: Final = "stopping"
# StartedAt is noted once the start is done: a machine under load has stamped lines 0.4 s before.
_MARGIN_S: Final = 1.0
_TIGHT_MARGIN_S: Final = 0.1  # where another start may have ended just before: its last lines are worse
# Who replaces a container removes it within this time, as docker rm --force does.
_NOT_RESTARTED_S: Final = 3.0
_STOPS: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})


@attrs.frozen(kw_only=True)
class ContainerState:
    """One look at a container.

    Attributes:
        name: Its name, without the slash that the API puts before it.
        status: ``created``, ``running``, ``paused``, ``restarting``, ``removing``, ``exited``, ``dead``;
            Podman's ``stopping`` too.
        pid: Its main process as the engine's machine numbers it; None while there is none.
        started: When it was started last, in the engine's own words; None if it never was.
        started_at: The same, in seconds since the Unix epoch.
        finished_at: When it last ended.
        error: Why it could not be started, in the engine's words.
        health: What its health check says; None without one.
        restarts: How often its engine has started it again.
        shares_pids: Whether its processes have the numbers that the engine's machine gives them.
    """

    id: str
    name: str
    status: str
    pid: int | None = None
    started: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    exit_code: int = 0
    oom_killed: bool = False
    error: str = ""
    health: str | None = None
    health_output: str = ""
    restarts: int = 0
    policy: str = "no"
    policy_limit: int = 0
    memory_bytes: int | None = None
    shares_pids: bool = False
    command: tuple[str, ...] = ()
    tty: bool = False
    stop_signal: int = signal.SIGTERM

    @property
    def alive(self) -> bool:
        """Whether its main process lives. While it waits to be started again, it does not."""
        return self.status in ("running", "paused", _STOPPING) and self.pid is not None

    @property
    def main_pid(self) -> int:
        """The main process's pid as its own log has it."""
        return self.pid or _MAIN if self.shares_pids else _MAIN

    @property
    def lines_since(self) -> float:
        """From when on its log's lines are those of its newest start, in seconds since the Unix epoch.

        The first lines can be stamped before ``StartedAt``, which the engine notes once it is done.
        """
        if self.started_at is None or self.finished_at is None:
            return 0.0
        if self.finished_at > self.started_at:  # of this start: when the one before ended is not known
            return self.started_at - (_TIGHT_MARGIN_S if self.restarts else _MARGIN_S)
        return self.started_at - min(_MARGIN_S, (self.started_at - self.finished_at) / 2)

    @classmethod
    def of(cls, inspected: Mapping[str, Any]) -> ContainerState:
        """Read the answer to ``GET /containers/NAME/json``."""
        state, host = inspected["State"], inspected.get("HostConfig") or {}
        config, policy = inspected.get("Config") or {}, host.get("RestartPolicy") or {}
        health = state.get("Health") or {}
        checks = health.get("Log") or ()
        started = moment(state.get("StartedAt"))
        return cls(
            id=inspected["Id"],
            name=str(inspected.get("Name", "")).removeprefix("/"),
            status=_status(state),
            pid=state.get("Pid") or None,
            started=state["StartedAt"] if started is not None else None,
            started_at=started,
            finished_at=moment(state.get("FinishedAt")),
            exit_code=int(state.get("ExitCode") or 0),
            oom_killed=bool(state.get("OOMKilled")),
            error=clean(str(state.get("Error") or "")),
            health=None if health.get("Status") in (None, "", "none") else health["Status"],
            health_output=clean(str(checks[-1].get("Output") or ""), 200) if checks else "",
            restarts=int(inspected.get("RestartCount") or 0),
            policy=policy.get("Name") or "no",
            policy_limit=int(policy.get("MaximumRetryCount") or 0),
            memory_bytes=host.get("Memory") or None,
            shares_pids=host.get("PidMode") == "host",
            command=(str(inspected.get("Path") or ""), *map(str, inspected.get("Args") or ())),
            tty=bool(config.get("Tty")),
            stop_signal=_signal_number(config.get("StopSignal")) or signal.SIGTERM,
        )


def moment(text: object) -> float | None:
    """A time as engines write it, in seconds since the Unix epoch; None for the year 1, their "never"."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return None if found.year == 1 else found.astimezone(UTC).timestamp()


def _status(state: Mapping[str, Any]) -> str:
    """Its state as one word: Docker says "running" of a container that waits for its next start."""
    for word in ("Restarting", "Paused", "Dead"):
        if state.get(word):
            return word.lower()
    return str(state.get("Status") or ("running" if state.get("Running") else "exited"))


def _signal_number(text: object) -> int | None:
    word = str(text or "").upper()
    if word.isdigit():
        return int(word)
    name = word if word.startswith("SIG") else f"SIG{word}"
    return int(getattr(signal, name)) if name in signal.Signals.__members__ else None


def _not_restarted(state: ContainerState) -> str | None:
    """Why its engine does not start a container again that ended by itself; None where it does."""
    policy, limit = state.policy, state.policy_limit
    if policy in ("always", "unless-stopped") or not state.policy:
        return None
    if policy != "on-failure":
        return f"the restart policy of container {state.name} is {policy!r}"
    if state.exit_code == 0:
        return f"the restart policy of container {state.name} is 'on-failure', and it ended with status 0"
    if limit and state.restarts >= limit:
        return f"the restart policy of container {state.name} allows for {limit} restarts"
    return None


class Heard:
    """What the engine's events said of the container, until the next look at it."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.starved = False
        self.starved_before_look = False
        """Whether that was known when the look began, so that it shows what came of it."""
        self.asked: int | None = None
        """The signal by which the engine was asked to stop it."""

    def take(self, action: str, attributes: Mapping[str, Any], stop_signal: int) -> None:
        """Take an event."""
        if action == "die":
            code = str(attributes.get("exitCode", ""))
            self.exit_code = int(code) if code.isdigit() else None
        elif action == "oom":
            self.starved = True
        elif action == "kill":
            number = _signal_number(attributes.get("signal"))
            self.asked = number if number in _STOPS or number == stop_signal else self.asked
        elif action == "stop":  # Podman's first word of it, Docker's last
            self.asked = self.asked or stop_signal


class Life:
    """Follows a container through its starts.

    Args:
        name: What it is called, for people.
        watched: Returns whether its processes are seen on this machine, so that a death of one of them
            is told by somebody else.
    """

    def __init__(self, name: str, *, watched: Callable[[], bool]) -> None:
        self.heard = Heard()
        self._name = name
        self._watched = watched
        self._newest: ContainerState | None = None
        self._alive = False
        self._lived = False
        """Whether the newest start was seen alive."""
        self._ended_at: float | None = None
        self._noted: set[str] = set()
        self._health: str | None = None

    @property
    def newest(self) -> ContainerState | None:
        """The last look at its newest start; None before there was one."""
        return self._newest

    @property
    def is_over(self) -> bool:
        """Whether an end was heard of that was not seen yet."""
        return self._alive and self.heard.exit_code is not None

    def ends(self, state: ContainerState | None) -> bool:
        """Whether a look shows an end that was not told yet."""
        return self._alive and not (state is not None and state.alive)

    def hear(self, action: str, attributes: Mapping[str, Any], at: float) -> None:
        """Take an event of its engine's.

        Args:
            action: What happened.
            attributes: What the engine says of it.
            at: When it happened, in seconds since the Unix epoch.
        """
        newest = self._newest
        if newest is None or newest.started_at is None or at >= newest.started_at:
            self.heard.take(action, attributes, newest.stop_signal if newest else signal.SIGTERM)

    def begin_look(self) -> None:
        """Note that a look begins: what is heard from now on may be later than what it shows."""
        self.heard.starved_before_look = self.heard.starved

    def look(self, state: ContainerState | None, *, wall: float) -> list[Reading]:
        """Take a look.

        Args:
            state: What was seen; None where there is no such container.
            wall: The engine's time, in seconds since the Unix epoch.
        """
        if state is None:
            return self._removed(wall)
        readings: list[Reading] = []
        known = self._newest
        if known is None or (state.id, state.started) != (known.id, known.started):
            if self._alive:  # its end was missed: only what was heard of it tells how
                readings += self._ended(wall, code=self.heard.exit_code)
            readings += self._began(state, wall, first=known is None)
        self._newest = state
        if state.status == _STOPPING:  # Podman's event of it comes late or never
            self.heard.asked = self.heard.asked or state.stop_signal
        self._lived |= state.alive
        readings += self._remarks(state)
        if self._alive and not state.alive:
            readings += self._ended(wall, code=state.exit_code, state=state)
        readings += self._left_alone(state, wall)
        if self.heard.starved_before_look and self._alive and not self._watched():
            self.heard.starved = self.heard.starved_before_look = False
            readings += [*self._memory(), self._killed_inside()]
        return readings

    # --- starts and ends -------------------------------------------------------------------

    def _began(self, state: ContainerState, wall: float, *, first: bool) -> list[Reading]:
        self.heard = Heard()
        self._newest = state
        self._health = self._ended_at = None
        self._lived = False
        self._noted.clear()
        if state.started_at is None and not state.error:
            text = f"{self._called} was created and not started yet"
            return [ProbeNote(code="container_not_started", text=text, awaits=True)]
        self._alive = True
        age_s = None if state.started_at is None else max(0.0, wall - state.started_at)
        found = ProcessFound(
            pid=state.main_pid,
            started_at=state.started_at,
            age_s=age_s,
            command=tuple(redact_command(state.command)),
        )
        if not first or not state.restarts:
            return [found]
        text = f"the engine has started {self._called} again {state.restarts} times before"
        return [found, self._note("container_restarted", text)]

    def _ended(self, wall: float, *, code: int | None, state: ContainerState | None = None) -> list[Reading]:
        newest = self._newest
        assert newest is not None
        self._alive, self._ended_at = False, wall
        readings: list[Reading] = []
        if state is not None and state.error:
            readings.append(LogLines(lines=(f"Error: {state.error}",)))
        starved = self.heard.starved or (state is not None and state.oom_killed)
        exited = attrs.evolve(self._exited(newest, code), ago_s=self._ago_s(state, wall))
        if starved:
            readings += self._memory()
            killed = exited.signal == signal.SIGKILL and exited.requested is None
            if not killed and not self._watched():
                readings.append(self._killed_inside())
        if self.heard.asked is not None:
            name = signal_name(self.heard.asked)
            text = f"{self._called} was told to stop ({name}), and ended with status {code}"
            readings.append(self._note("container_stopped", text))
        return [*readings, exited]

    def _exited(self, newest: ContainerState, code: int | None) -> ProcessExited:
        number = None
        if code is not None and _SIGNALLED < code <= _SIGNALLED + _LAST_SIGNAL:
            number, code = code - _SIGNALLED, None
        return ProcessExited(
            pid=newest.main_pid,
            name=self._called,
            code=code,
            signal=number,
            root=True,
            # What ended it is the request, also where the engine lost patience and sent a KILL.
            requested=self.heard.asked,
        )

    def _ago_s(self, state: ContainerState | None, wall: float) -> float | None:
        """How long ago a start ended that was never seen alive."""
        if self._lived or state is None or state.finished_at is None:
            return None
        return max(0.0, wall - state.finished_at)

    def _removed(self, wall: float) -> list[Reading]:
        readings = self._ended(wall, code=self.heard.exit_code) if self._alive else []
        text = f"{self._called} is gone; one of the same name would be taken for its next start"
        return [*readings, *self._once("container_removed", text)]

    def _memory(self) -> list[Reading]:
        """A kill for memory, as the control group's count would tell it."""
        limit = self._newest.memory_bytes if self._newest is not None else None
        return [MemoryEvents(oom_kills=kills, limit_bytes=limit) for kills in (0, 1)]

    def _killed_inside(self) -> ProcessExited:
        name = f"a process of {self._called}"
        return ProcessExited(pid=_UNKNOWN_PID, name=name, signal=signal.SIGKILL)

    # --- what else is worth telling --------------------------------------------------------

    @property
    def _called(self) -> str:
        return f"container {self._name}"

    def _remarks(self, state: ContainerState) -> list[Reading]:
        readings: list[Reading] = []
        if state.status == "paused":
            text = f"{self._called} is paused: nothing in it runs until it is unpaused"
            readings += self._once("container_paused", text)
        else:
            self._noted.discard("container_paused")
        if state.status == "dead":
            text = f"{self._called} is dead: its engine failed to remove it"
            readings += self._once("container_dead", text)
        return [*readings, *self._health_remark(state)]

    def _health_remark(self, state: ContainerState) -> list[Reading]:
        before, self._health = self._health, state.health
        if state.health == before or state.health is None:
            return []
        if state.health != "unhealthy" and before != "unhealthy":
            return []  # "starting" and then "healthy" is as it should be
        said = f": {state.health_output}" if state.health_output else ""
        text = f"the health check of {self._called} says {state.health}{said}"
        return [self._note("container_health", text)]

    def _left_alone(self, state: ContainerState, wall: float) -> list[Reading]:
        """Tell that nobody starts it again, once it was not replaced either."""
        if self._ended_at is None or wall - self._ended_at < _NOT_RESTARTED_S or state.status != "exited":
            return []
        self._ended_at = None
        if self.heard.asked is not None:  # by somebody who may start it again
            text = f"{self._called} was stopped, and nobody has started it again: docker start {self._name}"
            return [self._note("container_left_stopped", text)]
        reason = _not_restarted(state)
        return [] if reason is None else [NotRestarted(reason=reason)]

    def _once(self, code: str, text: str) -> list[Reading]:
        if code in self._noted:
            return []
        return [self._note(code, text)]

    def _note(self, code: str, text: str) -> ProbeNote:
        self._noted.add(code)
        return ProbeNote(code=code, text=text)
