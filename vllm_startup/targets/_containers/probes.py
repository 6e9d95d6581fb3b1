"""What its engine tells of a container: its state, and when that changes."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import attrs

from vllm_startup._readings import ProcessExited, ProcessFound, Reading
from vllm_startup.targets._containers.engine import NoSuchContainerError
from vllm_startup.targets._containers.state import ContainerState
from vllm_startup.targets._containers.watch import EngineStream, Start, Watch

_POLL_S: Final = 5.0  # the engine's events wake it sooner
_IDLE_POLL_S: Final = 1.0  # while it does not run
_BLIND_POLL_S: Final = 0.5  # where they do not come
_EVENT_S: Final = 0.4  # Podman looks for its own events four times a second
_DOWN_S: Final = 0.5  # between two tries to reach an engine that does not answer
_LAST_WORDS_S: Final = 2.0  # as for a pipe that a grandchild holds open
_ALL_WORDS_S: Final = 30.0  # of a start that had ended before: its whole log is still to be read


class StateProbe:
    """Tells of the container's starts and ends, its health check and what its engine does with it.

    Args:
        watch: What it shares with the others.
        first: What was seen when the container was found, so that the engine is not asked again before
            anything is told.
    """

    name = "container"
    limit_s: float | None = None
    follows_restarts = True

    def __init__(self, watch: Watch, first: ContainerState | None = None) -> None:
        self._watch = watch
        self._first = first
        self._looks = 0
        self._looked_at = 0.0
        self._down = False
        self._untold: deque[Reading] = deque()
        self._found = False

    @property
    def interval_s(self) -> float:
        """0: a sample waits for news. While the engine does not answer, the time between tries."""
        return _DOWN_S if self._down else 0.0

    async def sample(self, now: float) -> Iterable[Reading]:
        """Look at the container, once there may be something new.

        Raises:
            EngineError: The engine refuses.
            TimeoutError: It does not answer in time.
            httpx.TransportError: It cannot be reached.
        """
        self._release()  # the watch has been told by now what the sample before saw
        if self._untold:
            await self._watch.last_words(_LAST_WORDS_S if self._looks > 1 else _ALL_WORDS_S)
            return self._until_an_end([self._late(self._untold.popleft())])
        if self._looks and not self._down:
            await self._watch.news(self._patience_s)
        life, self._down = self._watch.life, True
        life.begin_look()
        state, self._first = self._first or await self._inspected(), None
        await self._hear_of_end(state)
        self._down, self._looks = False, self._looks + 1
        self._looked_at = self._watch.wall
        self._untold.extend(life.look(state, wall=self._looked_at))
        return self._until_an_end([])

    async def aclose(self) -> None:
        """Close the connections to the engine."""
        await self._watch.engine.aclose()

    async def _hear_of_end(self, state: ContainerState | None) -> None:
        """Wait for the event of an end that was seen first: what was asked for is told before it."""
        watch = self._watch
        try:
            async with asyncio.timeout(_EVENT_S):
                while watch.listening and watch.life.ends(state) and watch.life.heard.exit_code is None:
                    await watch.news(_EVENT_S)
        except TimeoutError:
            pass

    @property
    def _patience_s(self) -> float:
        """How long the container is not looked at, if nothing is heard of it."""
        if self._watch.life.is_over:
            return _EVENT_S
        if not self._watch.alive:
            return _IDLE_POLL_S
        return _POLL_S if self._watch.listening else _BLIND_POLL_S

    def _until_an_end(self, readings: list[Reading]) -> list[Reading]:
        """What is told at once: an end waits for the log, which may still have to say why."""
        while self._untold and not _is_end(self._untold[0]):
            readings.append(self._untold.popleft())
        self._found |= any(isinstance(reading, ProcessFound) for reading in readings)
        return readings

    def _late(self, reading: Reading) -> Reading:
        """A reading that has waited for the log since it was seen."""
        if not isinstance(reading, ProcessExited) or reading.ago_s is None:
            return reading
        return attrs.evolve(reading, ago_s=reading.ago_s + max(0.0, self._watch.wall - self._looked_at))

    async def _inspected(self) -> ContainerState | None:
        """The container of that name, else the one that had it."""
        newest = self._watch.life.newest
        for name in [self._watch.name, *([newest.id] if newest is not None else [])]:
            try:
                return ContainerState.of(await self._watch.engine.get(f"/containers/{name}/json"))
            except NoSuchContainerError:
                continue
        return None

    def _release(self) -> None:
        watch, newest = self._watch, self._watch.life.newest
        if newest is None:
            return
        start = watch.start
        if self._found:
            self._found = False
            start = Start(
                id=newest.id,
                started=newest.started,
                since=newest.lines_since,
                tty=newest.tty,
                earlier=self._looks == 1,
            )
        watch.release(start, alive=newest.alive and not self._untold)


def _is_end(reading: Reading) -> bool:
    return isinstance(reading, ProcessExited) and reading.root


class EventsProbe:
    """Listens to the engine's events, so that what happens to the container is looked at when it happens."""

    name = "container events"
    limit_s: float | None = None

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._stream = EngineStream(watch.engine)
        self._rest = b""

    @property
    def interval_s(self) -> float:
        """0 while it listens."""
        return 0.0 if self._stream.open else _DOWN_S

    async def sample(self, now: float) -> Iterable[Reading]:
        """Listen for one piece. That the engine is gone is the other probe's to tell."""
        if not self._stream.open:
            filters = {"type": ["container"]}
            if not await self._stream.begin("/events", filters=filters):
                return ()
            self._rest, self._watch.listening = b"", True
            self._watch.wake()  # for what happened before
            return ()
        data = await self._stream.next()
        if not data:
            self._watch.listening = False
            self._watch.wake()
            return ()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)
        return ()

    async def aclose(self) -> None:
        """Listen no more."""
        await self._stream.aclose()

    def _take(self, line: bytes) -> None:
        try:
            event: dict[str, Any] = json.loads(line)
            actor = event["Actor"]
            attributes = actor.get("Attributes") or {}
            at = int(event["timeNano"]) / 1e9
        except (ValueError, KeyError, TypeError):
            return
        newest = self._watch.life.newest
        if newest is not None and actor.get("ID") == newest.id:
            self._watch.life.hear(str(event.get("Action", "")), attributes, at)
        elif attributes.get("name") != self._watch.name:
            return
        if not str(event.get("Action", "")).startswith("exec_"):  # of health checks, all the time
            self._watch.wake()
