"""All who ask how the server is, kept going beside it from its first second to its last."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, MutableMapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from vllm_startup._blocking import BlockingRunner, StillRunningError
from vllm_startup._hosts import standing as s
from vllm_startup._hosts import termination
from vllm_startup._hosts.listener import StatusListener, bound
from vllm_startup._hosts.notify import Notifier, take_notifier
from vllm_startup._machine.reporting import Status
from vllm_startup._readings import Answer, Connection, Reading
from vllm_startup._report import StartupReport

if TYPE_CHECKING:
    from vllm_startup.probes._protocol import Probe

_LOOK_S: Final = 1.0
_ASK_S: Final = 5.0  # between two looks at a server that is ready
_WRITE_S: Final = 2.0  # a file system that hangs holds nobody up
_DEFAULT_WINDOW_S: Final = 600.0


@attrs.frozen(kw_only=True)
class Wanted:
    """Who asks.

    Attributes:
        listen: The host and port to answer on; None for none.
        termination_log: The file that gets the cause of a failed start; None for none.
        stall_s: How long a start may go without progress; None for as long as it likes.
    """

    listen: tuple[str, int] | None = None
    termination_log: str | None = None
    stall_s: float | None = None


class Hosts:
    """Tells them how the server stands, for as long as its block lasts.

    Making it takes the address to answer on, so that one in use is known before the server starts.

    Args:
        wanted: Who asks.
        environ: The environment; what is meant for us is taken out of it.
        warn: Called with one line for people when somebody cannot be told.

    Raises:
        OSError: The address cannot be listened on.
        ValueError: The environment names a service manager in a way that is not known here.
    """

    def __init__(
        self, wanted: Wanted, environ: MutableMapping[str, str], *, warn: Callable[[str], None]
    ) -> None:
        self._wanted = wanted
        self._warn = warn
        window_s = _DEFAULT_WINDOW_S if wanted.stall_s is None else wanted.stall_s
        self._notifier: Notifier | None = take_notifier(environ, window_s=window_s)
        self._standing = s.Standing()
        self._conditions = s.Conditions(time.time())
        self._status: Callable[[], Status] | None = None
        self._asks: Probe | None = None
        self._listener: StatusListener | None = None
        if wanted.listen is not None:
            listening: socket.socket = bound(*wanted.listen)
            self._listener = StatusListener(listening, standing=self._now, document=self._document)
        self._writer = BlockingRunner("vllm-startup termination log")
        self._task: asyncio.Task[None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether anybody asks while the server runs."""
        return self._notifier is not None or self._listener is not None

    async def __aenter__(self) -> Self:
        """Begin to tell."""
        if self._listener is not None:
            await self._listener.begin()
        if self.wanted:
            self._tell()
            self._task = asyncio.create_task(self._go_on(), name="vllm_startup:hosts")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._asks is not None:
            await self._asks.aclose()
        if self._listener is not None:
            await self._listener.aclose()
        if self._notifier is not None:
            self._notifier.close()
        self._writer.close()

    # --- what happens -----------------------------------------------------------------------

    def follow(self, status: Callable[[], Status]) -> None:
        """The start is watched from now on.

        Args:
            status: Says how it stands; RuntimeError while there is nothing to say.
        """
        self._status = status

    async def decided(self, report: StartupReport, asks: Callable[[], Probe] | None) -> None:
        """The start has ended, at least for now.

        Args:
            report: How.
            asks: Makes a probe of the server's health, if it has an address.
        """
        self._status = None
        self._standing = s.when_decided(self._standing, report)
        if self.wanted:
            self._tell()
        if report.outcome == "ready":
            self._asks = asks() if self.wanted and asks is not None else None
        elif self._wanted.termination_log is not None:
            await self._write(self._wanted.termination_log, report)

    def stopping(self) -> None:
        """The server was asked to stop."""
        self._status = None
        self._standing = s.when_stopping(self._standing)
        if self.wanted:
            self._tell()

    async def _write(self, path: str, report: StartupReport) -> None:
        try:
            async with asyncio.timeout(_WRITE_S):
                await self._writer.run(partial(termination.write, path, termination.message(report)))
        except (OSError, StillRunningError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else "the file system hangs"
            self._warn(f"the termination log {path!r} cannot be written: {why}")

    # --- what is told -----------------------------------------------------------------------

    async def _go_on(self) -> None:
        asked_at = float("-inf")
        while True:
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic()
            if self._asks is not None and now - asked_at >= self._pause_s:
                asked_at = now
                await self._ask(self._asks, now)
            self._tell()

    @property
    def _pause_s(self) -> float:
        watchdog_s = self._notifier.watchdog_s if self._notifier is not None else None
        return _ASK_S if watchdog_s is None else min(_ASK_S, watchdog_s / 4)

    async def _ask(self, asks: Probe, now: float) -> None:
        try:
            async with asyncio.timeout(asks.limit_s):
                answer = _newest(await asks.sample(now))
        except (OSError, TimeoutError):
            return  # nothing is known: a server under load answers late
        if answer is not None:
            self._standing = s.when_asked(self._standing, well=answer[0], detail=answer[1])

    def _now(self) -> s.Standing:
        """How it stands at this moment."""
        if self._status is not None:
            try:
                self._standing = s.while_watched(self._standing, self._status())
            except RuntimeError:
                pass  # the watch has not begun
        self._conditions.note(self._standing, time.time())
        return self._standing

    def _document(self) -> dict[str, Any]:
        return s.document(self._now(), self._conditions)

    def _tell(self) -> None:
        standing = self._now()
        notifier = self._notifier
        if notifier is None:
            return
        now = time.monotonic()
        notifier.tell(standing, now)
        notifier.alive(standing, now)
        if notifier.error is not None:
            self._warn(f"the service manager cannot be told how the server stands: {notifier.error}")
            notifier.close()
            self._notifier = None


def _newest(readings: Iterable[Reading]) -> tuple[bool, str | None] | None:
    """What the newest reading says of the server's health; None where it says nothing."""
    found: tuple[bool, str | None] | None = None
    for reading in readings:
        if isinstance(reading, Answer) and (reading.ok or reading.status is not None):
            found = reading.ok, reading.detail
        elif isinstance(reading, Connection) and reading.state in ("refused", "unreachable"):
            found = False, reading.detail
    return found
