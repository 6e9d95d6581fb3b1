"""Await blocking calls that may never return: reads of ``/proc``, calls into a GPU driver."""

from __future__ import annotations

import asyncio
import errno
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class StillRunningError(RuntimeError):
    """The call before has not returned, so that no other can be made."""


class NoThreadError(OSError):
    """This process may have no further thread."""


def start_thread(target: Callable[..., object], name: str, *args: object) -> threading.Thread:
    """Start a daemon thread.

    Raises:
        NoThreadError: The limit on processes and threads is reached.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        message = (
            "no further thread can be started; raise the limit on processes and threads (ulimit -u,"
            " TasksMax= of a unit, the pids limit of a container)"
        )
        raise NoThreadError(errno.EAGAIN, message) from error
    return thread


class BlockingRunner:
    """Runs blocking calls in a daemon thread of its own, one at a time.

    The thread starts with the first call. A caller may be cancelled, or leave for good, while the
    call is stuck: the thread goes on, its late result is dropped, and as a daemon it does not keep
    the interpreter alive. `asyncio.to_thread` does not do that: its executor is joined at exit.

    Calls may come from several event loops and threads.

    Args:
        name: The thread's name, for people who look at a dump of a stuck process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._calls: SimpleQueue[_Call[Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closed = False

    @property
    def busy(self) -> bool:
        """Whether a call is running, also one whose caller has left."""
        return self._busy

    async def run(self, function: Callable[[], T]) -> T:
        """Call ``function`` in the thread and return what it returns.

        Raises:
            StillRunningError: The call before has not returned.
            NoThreadError: The thread cannot be started.
            RuntimeError: The runner is closed.
            BaseException: Whatever ``function`` raised.
        """
        return await self.submit(function)

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Start the call and return the future of the running loop that gets its result.

        Raises:
            StillRunningError: The call before has not returned.
            NoThreadError: The thread cannot be started.
            RuntimeError: The runner is closed, or no loop runs.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put(_Call(function, loop, future))
        return future

    def close(self) -> None:
        """Let the thread end when it is idle, or else when its call returns. Never blocks."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._calls.put(None)

    def _put(self, call: _Call[Any]) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError(f"runner {self._name!r} is closed")
            if self._busy:
                raise StillRunningError(f"the call before on {self._name!r} has not returned")
            if self._thread is None:
                self._thread = start_thread(self._work, self._name)
            self._busy = True
            self._calls.put(call)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run(self._free)
            del call  # an idle thread keeps no result alive

    def _free(self) -> None:
        self._busy = False


class _Call(Generic[T]):
    """One call, and the future by which one loop awaits it."""

    def __init__(
        self, function: Callable[[], T], loop: asyncio.AbstractEventLoop, future: asyncio.Future[T]
    ) -> None:
        self._function = function
        self._loop = loop
        self._future = future
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self, free: Callable[[], None]) -> None:
        """Make the call; ``free`` the runner before the result is told, for who calls again at once."""
        try:
            self._result = self._function()
        except StopIteration as error:
            # A future refuses StopIteration, and its awaiter would wait for ever.
            self._error = RuntimeError("the call raised StopIteration")
            self._error.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - it is raised again where the call is awaited
            self._error = error
        free()
        try:
            self._loop.call_soon_threadsafe(self._settle)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    def _settle(self) -> None:
        if self._future.done():
            return
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(cast("T", self._result))


def run_within(function: Callable[[], T], limit_s: float, *, name: str) -> T:
    """Call ``function`` in a daemon thread, and wait for it for so many seconds.

    Raises:
        NoThreadError: The thread cannot be started.
        TimeoutError: It has not returned. The thread goes on; as a daemon it keeps nobody.
        BaseException: Whatever ``function`` raised.
    """
    outcome: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def call() -> None:
        try:
            outcome.put((function(), None))
        except BaseException as error:  # noqa: BLE001 - it is raised again where the call is awaited
            outcome.put((None, error))

    start_thread(call, name)
    try:
        value, error = outcome.get(timeout=limit_s)
    except Empty:
        raise TimeoutError(f"{name} did not return within {limit_s:g} s") from None
    if error is not None:
        raise error
    return cast("T", value)
