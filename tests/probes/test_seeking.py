"""The health of a server whose address is found only later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import pairwise

from vllm_startup._readings import AddressFound, Connection, Reading
from vllm_startup.probes._health import HealthProbe
from vllm_startup.probes._seeking import FIRST_S, LAST_S, SeekingProbe

LIKELY, OWN = "http://127.0.0.1:1", "http://127.0.0.1:2"


class Looking(HealthProbe):
    """Says which address it looks at."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url
        self.closed = False

    async def sample(self, now: float) -> Iterable[Reading]:
        return [Connection(state="refused", detail=self.url)]

    async def aclose(self) -> None:
        self.closed = True
        await super().aclose()


class Lab:
    """A probe that seeks, and what it has made."""

    def __init__(self, find: Callable[[], str | None]) -> None:
        self.asked = 0
        self.made: list[Looking] = []
        self._find = find
        self.probe = SeekingProbe(LIKELY, find=self._count, make=self._make)

    async def look(self, now: float) -> list[Reading]:
        """Look, and let a question be answered."""
        seen = list(await self.probe.sample(now))
        while self.probe._runner.busy:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        return seen

    def _count(self) -> str | None:
        self.asked += 1
        return self._find()

    def _make(self, url: str) -> Looking:
        self.made.append(Looking(url))
        return self.made[-1]


def at(url: str) -> list[Reading]:
    return [Connection(state="refused", detail=url)]


async def test_it_moves_to_the_address_that_is_found() -> None:
    answers = iter([None, OWN])
    lab = Lab(lambda: next(answers))
    assert await lab.look(0.0) == at(LIKELY)
    assert await lab.look(FIRST_S) == at(LIKELY)
    assert lab.probe.glance(FIRST_S)
    assert await lab.look(FIRST_S) == [AddressFound(url=OWN)]
    assert lab.made[0].closed
    assert await lab.look(1000.0) == at(OWN)
    assert lab.asked == 2
    await lab.probe.aclose()
    assert lab.made[1].closed


async def test_the_likely_address_that_is_confirmed_is_no_news() -> None:
    lab = Lab(lambda: LIKELY)
    assert [await lab.look(now) for now in (0.0, 1.0, 100.0)] == [at(LIKELY)] * 3
    assert (lab.asked, len(lab.made)) == (1, 1)
    await lab.probe.aclose()


async def test_it_asks_less_and_less_often_and_bears_errors() -> None:
    def fails() -> str | None:
        raise OSError("the other machine is not there")

    lab = Lab(fails)
    asked_at: list[float] = []
    for tenth in range(300):
        before = lab.asked
        assert await lab.look(tenth / 10) == at(LIKELY)
        asked_at += [tenth / 10] * (lab.asked - before)
    pauses = [round(later - earlier, 1) for earlier, later in pairwise(asked_at)]
    assert pauses[0] == FIRST_S
    assert max(pauses) == pauses[-1] == LAST_S
    await lab.probe.aclose()
