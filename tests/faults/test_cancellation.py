"""A wait is cancelled at every turn of the event loop, and left in every way: nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from leaks import Leaks
from stage import AFTER, BEFORE, StandIn, always, free_port

import vllm_startup
from vllm_startup import StartupReport, Timeouts

MOST_TURNS = 2_000
"""More than any wait here takes."""


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that calls back at the beginning of each of its turns."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.at_turn: Callable[[int], object] = lambda turn: None
        self.unnoticed: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.unnoticed.append(context))

    def _run_once(self) -> None:
        self.turns += 1
        self.at_turn(self.turns)
        super()._run_once()  # type: ignore[misc]  # asyncio's own


class Server:
    """A server that is healthy, and watched by everything, in a loop that counts."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "vllm.log"
        self.record = folder / "record.jsonl"
        self.port = free_port()
        self.runner = asyncio.Runner()
        self.stand_in = self.runner.run(self._start())

    async def _start(self) -> StandIn:
        stand_in = await StandIn.start(self.log)
        await stand_in.do("say", *BEFORE, *AFTER)
        await stand_in.do("listen", self.port)
        return stand_in

    def end(self) -> None:
        self.runner.run(self.stand_in.end())
        self.runner.close()

    async def wait(self, **further: Any) -> StartupReport:
        return await vllm_startup.wait_until_ready(
            f"http://127.0.0.1:{self.port}",
            pid=self.stand_in.pid,
            log=self.log,
            record=self.record,
            on_event=lambda _: None,
            timeouts=Timeouts(20),
            **further,
        )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path)
    yield found
    found.end()


def cancelled_at(server: Server, turns: frozenset[int]) -> BaseException | StartupReport:
    """How a wait ends that is cancelled at these turns of its loop."""
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, CountingLoop)
        leaks = Leaks()

        async def main() -> BaseException | StartupReport:
            task = asyncio.create_task(server.wait())
            begun = loop.turns
            loop.at_turn = lambda turn: task.cancel() if turn - begun in turns else None
            await asyncio.wait([task])
            loop.at_turn = lambda turn: None
            if task.cancelled():
                return asyncio.CancelledError()
            return task.exception() or task.result()

        ending = runner.run(main())
        gc.collect()
        assert loop.unnoticed == []
        assert leaks.later() == []
    return ending


@pytest.mark.parametrize("times", [1, 2, 5], ids=lambda times: f"{times} times in a row")
def test_a_wait_is_cancelled_at_every_turn(server: Server, times: int) -> None:
    assert isinstance(cancelled_at(server, frozenset()), StartupReport)  # which has imported everything
    for turn in range(1, MOST_TURNS):
        ending = cancelled_at(server, frozenset(range(turn, turn + times)))
        if isinstance(ending, StartupReport):
            assert turn > 5
            break
        assert isinstance(ending, asyncio.CancelledError)
    else:
        pytest.fail("the wait never ended by itself")


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt()], ids=lambda error: type(error).__name__
)
def test_a_rule_that_ends_the_program_leaves_nothing(server: Server, error: BaseException) -> None:
    def leave(_subject: object) -> None:
        raise error

    server.runner.run(server.wait())
    leaks = Leaks()
    with pytest.raises(type(error)), asyncio.Runner() as runner:
        runner.run(server.wait(rules=always(leave)))
    assert leaks.later() == []
