"""The log of a container, through its engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

from vllm_startup._readings import LogLines, LogOpened, ProbeNote, Reading
from vllm_startup.probes._log import MAX_LINES, batches
from vllm_startup.targets._containers.engine import EngineError, NoSuchContainerError
from vllm_startup.targets._containers.lines import LogDecoder, Overlap
from vllm_startup.targets._containers.watch import EngineStream, Start, Watch

_CONFLICT: Final = 409  # it is being removed
_IDLE_S: Final = 5.0
_DOWN_S: Final = 0.5  # between two tries to reach an engine that does not answer
_RECONNECT_S: Final = 0.1
# Docker, of the drivers none, syslog, gelf and others: "configured logging driver does not support reading".
_UNREADABLE: Final = "does not support reading"


class LogProbe:
    """Reads the log of the newest start: what it holds already as history, then whatever is added."""

    name = "log"
    limit_s: float | None = None

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._stream = EngineStream(watch.engine)
        self._decoder = LogDecoder(tty=False)
        self._overlap = Overlap()
        self._ready: deque[Reading] = deque([LogOpened(source=f"container {watch.name}")])
        self._start: Start | None = None
        self._unfinished: str | None = None
        self._history = False
        self._final = False
        self._complete = False
        self._pause_s = 0.0

    @property
    def interval_s(self) -> float:
        """0: a sample waits for lines."""
        return self._pause_s

    async def sample(self, now: float) -> Iterable[Reading]:
        """Wait for lines, and return a bounded number of them."""
        if not self._ready:
            await self._step()
        return [self._ready.popleft()] if self._ready else ()

    async def aclose(self) -> None:
        """Read no more."""
        await self._stream.aclose()

    async def _step(self) -> None:
        start, self._pause_s = self._watch.start, 0.0
        if self._stream.open:
            await self._read()
        elif start is None or (self._complete and start == self._start):
            self._watch.read(start)  # all of it has been told by now
            await self._watch.moved(_IDLE_S)
        else:
            await self._open(start)

    async def _open(self, start: Start) -> None:
        since: float | None = start.since
        if start == self._start:
            since = self._overlap.since(self._unfinished) or since
            self._overlap.again()
        else:
            self._overlap, self._history = Overlap(), start.earlier
        self._start, self._decoder = start, LogDecoder(tty=start.tty)
        # A container that has ended by now has said at the end of this stream all that it will say.
        self._final = not self._watch.alive and not self._history
        until = self._watch.until
        try:
            began = await self._stream.begin(
                f"/containers/{start.id}/logs",
                stdout=True,
                stderr=True,
                timestamps=True,
                follow=not self._history and not self._final,
                since=f"{since:.6f}" if since else None,
                until=f"{until:.6f}" if until else None,
            )
        except EngineError as error:
            self._refused(error)
            return
        self._complete = False
        if not began:
            self._pause_s = _DOWN_S

    async def _read(self) -> None:
        history, texts = self._history, list[str]()
        while data := await self._next():
            lines = self._overlap.new(self._decoder.feed(data), self._decoder.oldest_unfinished)
            texts += [line.dated if history else line.text for line in lines]
            if not history or len(texts) >= MAX_LINES:
                break  # a history comes at once and whole, a line a piece
        self._unfinished = self._decoder.oldest_unfinished
        self._ready.extend(batches(texts, history=history))
        if not data:
            self._ended()
        elif not history and (partial := self._decoder.partial()):
            self._ready.append(LogLines(partial=partial))

    async def _next(self) -> bytes:
        """The next piece; none at the end, and where the start has ended that is followed.

        Podman goes on with the next start where that comes soon, as if it were the same one.
        """
        if self._history or self._final:
            return await self._stream.next()
        following = self._watch.start == self._start and self._watch.alive
        piece = asyncio.ensure_future(self._stream.next())
        moved = asyncio.ensure_future(self._watch.moved(_IDLE_S))
        try:
            while following and not piece.done():
                await asyncio.wait((piece, moved), return_when=asyncio.FIRST_COMPLETED)
                following = self._watch.start == self._start and self._watch.alive
                if moved.done():
                    moved = asyncio.ensure_future(self._watch.moved(_IDLE_S))
            if piece.done():
                return piece.result()
        finally:
            piece.cancel()
            moved.cancel()
            await asyncio.gather(piece, moved, return_exceptions=True)
        await self._stream.aclose()
        return b""

    def _ended(self) -> None:
        """After a history comes what was added to it; after a stream that broke, its rest."""
        if self._stream.broken:
            self._pause_s = _RECONNECT_S
        elif self._history:
            self._history = False
        elif self._final:
            self._complete = True
        elif self._watch.alive:
            self._pause_s = _RECONNECT_S  # its end is about to be told

    def _refused(self, error: EngineError) -> None:
        """There is no log to read: the container is gone, or its engine keeps none, which is said once."""
        self._complete = True
        if isinstance(error, NoSuchContainerError) or error.status == _CONFLICT:
            return
        fix = "; run the container with another --log-driver (json-file, local, journald)"
        text = f"the log of container {self._watch.name} cannot be read: {error}"
        text += fix if _UNREADABLE in str(error) else ""
        self._ready.append(ProbeNote(code="log_unreadable", text=text))
