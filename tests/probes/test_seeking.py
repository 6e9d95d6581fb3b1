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

    def __init__(self, find: Callable[[], str | None], *, found: bool = False) -> None:
        self.asked = 0
        self.start = 1
        self.likely = LIKELY
        self.made: list[Looking] = []
        self._find = find
        self.probe = SeekingProbe(
            LIKELY,
            found=found,
            find=self._count,
            find_anew=self._anew,
            make=self._make,
            start=lambda: self.start,
        )

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

    def _anew(self) -> tuple[str, bool]:
        own = self._count()
        return own or self.likely, own is not None

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


async def test_a_new_start_is_looked_for_at_its_own_address() -> None:
    answers = iter([OWN])
    lab = Lab(lambda: next(answers), found=True)
    assert [await lab.look(now) for now in (0.0, 100.0)] == [at(LIKELY)] * 2
    assert lab.asked == 0
    lab.start = 2
    assert lab.probe.glance(100.0)
    assert await lab.look(100.0) == at(LIKELY)
    assert await lab.look(100.0) == [AddressFound(url=OWN)]
    assert [await lab.look(now) for now in (100.1, 200.0)] == [at(OWN)] * 2
    assert lab.asked == 1
    await lab.probe.aclose()


async def test_until_a_new_starts_own_address_is_found_the_likely_one_is_asked_as_it_is_by_then() -> None:
    answers = iter([None, None, LIKELY])
    lab = Lab(lambda: next(answers), found=True)
    lab.start, lab.likely = 2, OWN
    seen = [await lab.look(now) for now in (0.0, 0.1, 0.6, 0.7, 1.6, 1.7, 1.8)]
    assert seen == [
        at(LIKELY),
        [AddressFound(url=OWN)],
        at(OWN),
        at(OWN),
        at(OWN),
        [AddressFound(url=LIKELY)],
        at(LIKELY),
    ]
    await lab.probe.aclose()


async def test_an_answer_about_the_start_before_is_none() -> None:
    answers = iter([OWN, LIKELY])
    lab = Lab(lambda: next(answers))
    await lab.look(0.0)
    lab.start = 2
    assert await lab.look(0.1) == at(LIKELY)
    assert [await lab.look(now) for now in (0.2, 100.0)] == [at(LIKELY)] * 2
    assert lab.asked == 2
    await lab.probe.aclose()


async def test_an_error_about_a_new_start_is_asked_about_again() -> None:
    def find() -> str | None:
        if lab.asked == 1:
            raise OSError("the engine is away")
        return OWN

    lab = Lab(find, found=True)
    lab.start = 2
    assert [await lab.look(now) for now in (0.0, 0.1)] == [at(LIKELY)] * 2
    assert await lab.look(FIRST_S) == at(LIKELY)
    assert await lab.look(FIRST_S) == [AddressFound(url=OWN)]
    await lab.probe.aclose()
