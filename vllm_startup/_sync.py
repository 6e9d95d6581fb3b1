"""Asynchronous functions for scripts that have no event loop, or have one that is busy."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from vllm_startup._blocking import start_thread

P = ParamSpec("P")
T = TypeVar("T")

_LEAVE_S = 5.0  # how long the loop may take to end after an interrupt


def in_own_loop(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """The same function, run to its end in a loop of its own.

    The loop runs in the calling thread, or in another one where the calling thread has a loop
    already (a notebook); that loop is blocked meanwhile. An interrupt (Ctrl-C) ends it there, too.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        work = function(*args, **kwargs)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(work)
        return _in_thread(work)

    call.__name__ = call.__qualname__ = f"{function.__name__}_sync"
    return call


def _in_thread(work: Coroutine[Any, Any, T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    over = threading.Event()  # a join that was interrupted takes the thread for ended (CPython 3.11)

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None
        running.append((asyncio.get_running_loop(), task))
        return await work

    def run() -> None:
        try:
            results.append(asyncio.run(cancellable()))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            errors.append(error)
        finally:
            over.set()

    thread = start_thread(run, "vllm_startup:sync")
    try:
        over.wait()
    except BaseException:  # KeyboardInterrupt
        for loop, task in running:
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(task.cancel)
        over.wait(_LEAVE_S)
        raise
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
