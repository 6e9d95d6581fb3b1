"""A program that launches a server and leaves it in some way; it says what happens in lines of JSON.

Usage: python caller.py JSON, an object of the fields of `Errand`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, Literal

import attrs

from vllm_startup import Event, PhaseEntered, Server, StartupError, Timeouts, launch

LIMIT_S = 300.0
EXIT_GRACE_S = 3.0

Way = Literal["leave", "hold", "cancel", "raise", "SIGKILL", "SIGTERM", "SIGINT", "detach", "fail"]


@attrs.frozen(kw_only=True)
class Errand:
    """What the program is to do.

    Attributes:
        command: The server.
        environment: Its environment.
        place: Its working directory.
        log: The file that it prints to.
        way: How the block is left: in good order, by a cancellation, by an exception of the caller's own,
            not at all (by a signal), detached, by the server's failure; or when standard input ends.
        phase: In which phase; it is reached by a wait.
        within_s: How long the phase has lasted then.
    """

    command: list[str]
    environment: Mapping[str, str]
    place: str
    log: str
    way: Way
    phase: str
    within_s: float = 0.0


class OfTheCaller(Exception):
    """The caller's own."""


def tell(**words: Any) -> None:
    print(json.dumps(words), flush=True)


async def run(errand: Errand) -> None:
    """Launch, wait, leave."""
    reached = asyncio.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, PhaseEntered):
            tell(phase=event.phase)
            if event.phase == errand.phase:
                reached.set()

    async with launch(
        errand.command,
        env=errand.environment,
        cwd=errand.place,
        log=errand.log,
        on_event=on_event,
        exit_grace=EXIT_GRACE_S,
    ) as server:
        tell(pid=server.pid)
        waiting = asyncio.create_task(server.wait_until_ready(timeouts=Timeouts(LIMIT_S)))
        if errand.way == "fail":
            await waiting
        await asyncio.wait({waiting, asyncio.create_task(reached.wait())}, return_when="FIRST_COMPLETED")
        if errand.phase != "ready":
            await asyncio.sleep(errand.within_s)
        await leave(errand, server, waiting)


async def leave(errand: Errand, server: Server, waiting: asyncio.Task[Any]) -> None:
    match errand.way:
        case "leave":
            tell(outcome=(await waiting).outcome)
        case "hold":
            tell(outcome=(await waiting).outcome)
            await asyncio.to_thread(sys.stdin.read)
        case "cancel":
            asyncio.get_running_loop().call_soon(main_task().cancel)
            await waiting
        case "raise":
            raise OfTheCaller
        case "SIGKILL" | "SIGTERM" | "SIGINT":
            os.kill(os.getpid(), signal.Signals[errand.way])
            await waiting
        case "detach":
            await waiting
            server.detach()


def main_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def main() -> None:
    errand = Errand(**json.loads(sys.argv[1]))
    try:
        asyncio.run(run(errand))
    except asyncio.CancelledError:
        tell(raised="cancelled")
    except StartupError as error:
        tell(raised=error.cause.kind, notes=getattr(error, "__notes__", []))
    except OfTheCaller:
        tell(raised="the caller's own")


if __name__ == "__main__":
    main()
