"""All who ask how the server is, kept going beside it from its first second to its last."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, MutableMapping
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
from vllm_startup._readings import Answer, Connection
from vllm_startup._report import StartupReport
from vllm_startup._text import described

if TYPE_CHECKING:
    from vllm_startup.causes import Cause
    from vllm_startup.probes._protocol import Probe

_LOOK_S: Final = 1.0
_ASK_S: Final = 5.0  # between two looks at a server that is ready
_SILENT_S: Final = 30.0  # a server under load answers late: one without an answer for so long is not ready
_CATCH_UP_S: Final = 5.0  # a new watch of an old start reads its log again
_WRITE_S: Final = 2.0  # a file system that hangs holds nobody up
_DEFAULT_WINDOW_S: Final = 600.0
_MOST_SAMPLES: Final = 4
_AFTER_US_S: Final = 30.0
"""So much later than our own stall limit the manager's timeout comes: we end the server, and say why."""


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

    Making it takes the address to answer on, so that one in use is known before the server starts, and
    tells the service manager that we are here.

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
        self._notifier: Notifier | None = take_notifier(environ, window_s=window_s + _AFTER_US_S)
        self._standing = s.Standing()
        self._warned = False
        self._conditions = s.Conditions(time.time())
        self._status: Callable[[], Status] | None = None
        self._caught_up_at = 0.0
        self._asks: Probe | None = None
        self._heard_at = float("-inf")
        self._written = False
        self._listener: StatusListener | None = None
        if wanted.listen is not None:
            listening: socket.socket = bound(*wanted.listen)
            self._listener = StatusListener(listening, standing=self._now, document=self._document)
        self._writer = BlockingRunner("vllm-startup termination log")
        self._task: asyncio.Task[None] | None = None
        self._tell()

    @property
    def wanted(self) -> bool:
        """Whether anybody asks while the server runs."""
        return self._notifier is not None or self._listener is not None

    async def __aenter__(self) -> Self:
        """Begin to tell."""
        if self._listener is not None:
            await self._listener.begin()
        if self.wanted:
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
        self._close()

    def _close(self) -> None:
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
        self._caught_up_at = time.monotonic() + _CATCH_UP_S

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
            self._heard_at = time.monotonic()
            self._asks = asks() if self.wanted and asks is not None else None
            if self._written:
                await self._write("")  # it stalled, and went on
        else:
            await self._write(termination.message(report))

    def refused(self, cause: Cause) -> None:
        """The server is not started, since its start would fail for this cause; nothing follows."""
        self._standing = s.when_refused(cause)
        self._tell()
        if self._listener is not None:
            self._listener.close()
        asyncio.run(self._write(termination.cause_message(cause)))
        self._close()

    def stopping(self) -> None:
        """The server was asked to stop."""
        self._stop("stopping")

    def ended(self, how: str) -> None:
        """The server has ended. Whether anybody had asked for that is known already.

        Args:
            how: In words, such as ``exited with status 1``.
        """
        self._stop(f"the server {how} after it was ready" if self._standing.started else f"the server {how}")

    def _stop(self, why: str) -> None:
        self._status = None
        self._standing = s.when_stopping(self._standing, why)
        if self.wanted:
            self._tell()

    async def _write(self, text: str) -> None:
        """Write the termination log, if there is one."""
        path = self._wanted.termination_log
        if path is None:
            return
        self._written = True
        try:
            async with asyncio.timeout(_WRITE_S):
                await self._writer.run(partial(termination.write, path, text))
        except (OSError, StillRunningError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else "the file system hangs"
            self._warn(f"the termination log {path!r} cannot be written: {why}")

    # --- what is told -----------------------------------------------------------------------

    async def _go_on(self) -> None:
        watchdog_s = self._notifier.watchdog_s if self._notifier is not None else None
        often_s = float("inf") if watchdog_s is None else watchdog_s / 4
        asked_at = float("-inf")
        while True:
            await asyncio.sleep(min(_LOOK_S, often_s))
            well = self._asks is None
            if self._asks is not None and time.monotonic() - asked_at >= min(_ASK_S, often_s):
                asked_at = time.monotonic()
                well = await self._ask(self._asks)
            self._tell()
            if well and self._standing.ready and self._notifier is not None:
                self._notifier.alive()

    async def _ask(self, asks: Probe) -> bool:
        """Ask a server that was ready; whether it answered well just now."""
        try:
            async with asyncio.timeout(asks.limit_s):
                answer = await _answer(asks)
        except (OSError, TimeoutError):
            answer = None
        except Exception as error:  # noqa: BLE001 - a fault of the probe's is none of the server's
            self._warn(f"internal error, the server is not asked any more: {described(error)}")
            self._asks = None
            await asks.aclose()
            return True
        now = time.monotonic()
        if answer is not None:
            self._heard_at = now
        elif now - self._heard_at >= _SILENT_S:
            answer = False, f"nothing for {now - self._heard_at:.0f} s"
        if answer is not None:
            self._standing = s.when_asked(self._standing, well=answer[0], detail=answer[1])
        return answer is not None and answer[0]

    def _now(self) -> s.Standing:
        """How it stands at this moment."""
        if self._status is not None:
            try:
                catching_up = time.monotonic() < self._caught_up_at
                self._standing = s.while_watched(self._standing, self._status(), catching_up=catching_up)
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
        notifier.tell(standing, time.monotonic())
        if notifier.error is not None and not self._warned:
            self._warned = True
            self._warn(f"the service manager cannot be told how the server stands: {notifier.error}")


async def _answer(asks: Probe) -> tuple[bool, str | None] | None:
    """What the server answers, well or not, and a detail; None where it says nothing."""
    found: tuple[bool, str | None] | None = None
    for _ in range(_MOST_SAMPLES):  # the probe may look at the port in one, and ask in the next
        for reading in await asks.sample(time.monotonic()):
            if isinstance(reading, Answer) and (reading.ok or reading.status is not None):
                found = reading.ok, reading.detail
            elif isinstance(reading, Connection) and reading.state in ("refused", "unreachable"):
                found = False, reading.detail
        if asks.interval_s > 0:
            break
    return found
