"""Calls the caller's hook from a thread of its own, so that it can neither stop nor slow the wait."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import queue
import threading
from collections.abc import Callable
from functools import partial

from vllm_startup._blocking import NoThreadError, start_thread
from vllm_startup._events import Event

_log = logging.getLogger("vllm_startup")

_DRAIN_S = 1.0  # a hook that takes longer for what is left loses it


class Hook:
    """A queue of events in front of a callable."""

    def __init__(self, function: Callable[[Event], object]) -> None:
        if not callable(function):
            raise TypeError(f"on_event must be callable with one event, not {function!r}")
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
            raise TypeError(
                f"on_event must be a plain function, not the coroutine function {function!r};"
                " a coroutine follows Startup.events() instead"
            )
        self._function = function
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._over: Callable[[], object] = lambda: None
        self._failed = False
        self._starved = False

    def put(self, event: Event) -> None:
        """Hand over an event. Returns at once."""
        self._queue.put(event)
        if self._thread is None:
            self._start()

    async def aclose(self) -> None:
        """Let the hook see what is left, but not for long."""
        if self._thread is None:
            return
        loop = asyncio.get_running_loop()
        seen = asyncio.Event()
        self._over = partial(loop.call_soon_threadsafe, seen.set)
        self._queue.put(None)
        try:
            async with asyncio.timeout(_DRAIN_S):
                await seen.wait()
        except TimeoutError:
            _log.warning("on_event has not returned; the events that it has not seen are lost to it")

    def _start(self) -> None:
        try:
            self._thread = start_thread(self._run, "vllm_startup:on_event")
        except NoThreadError as error:
            if not self._starved:
                _log.warning("on_event sees nothing yet: %s", error.strerror)
            self._starved = True

    def _run(self) -> None:
        try:
            self._call()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._over()

    def _call(self) -> None:
        while (event := self._queue.get()) is not None:
            try:
                _refuse_coroutine(self._function(event))
            except BaseException:  # noqa: BLE001 - the caller's hook may raise anything; the wait goes on
                if not self._failed:
                    _log.exception(
                        "on_event raised; it is called all the same, and further errors are not logged"
                    )
                self._failed = True


def _refuse_coroutine(given: object) -> None:
    """Tell of a hook that could not be seen to be asynchronous, such as a lambda around one."""
    if inspect.iscoroutine(given):
        given.close()
        raise TypeError("on_event returned a coroutine, which nobody awaits; use a plain function")
