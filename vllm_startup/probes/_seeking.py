"""The health of a server whose address is not known yet, or may be another one after its next start."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from vllm_startup._blocking import BlockingRunner, NoThreadError
from vllm_startup._readings import AddressFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vllm_startup._readings import Reading
    from vllm_startup.probes._health import HealthProbe

_log = logging.getLogger("vllm_startup")

FIRST_S: Final = 0.5
LAST_S: Final = 5.0
"""How long between two questions, at first and at most: vLLM imports for longer before it can listen."""


class SeekingProbe:
    """Asks for the health at the address that is likely, until the server's own is found.

    Args:
        likely: Where to ask meanwhile.
        found: Whether that is the server's own.
        find: Returns the server's address, None while nothing tells. It may block, and raise.
        find_anew: Returns the address of a new start, and whether that is its own; as ``find``.
        make: Makes the probe of an address.
        start: Returns what tells a start of the server from the next; None: it has but one.
    """

    def __init__(
        self,
        likely: str,
        *,
        found: bool = False,
        find: Callable[[], str | None],
        find_anew: Callable[[], tuple[str, bool]],
        make: Callable[[str], HealthProbe],
        start: Callable[[], object] | None = None,
    ) -> None:
        self._url = likely
        self._find = find
        self._find_anew = find_anew
        self._make = make
        self._start = start or _the_only_one
        self._newest = self._start()
        self._restarts = start is not None
        self._probe = make(likely)
        self._runner = BlockingRunner("vllm-startup url")
        self._question: asyncio.Future[tuple[str | None, bool]] | None = None
        self._asked_of: object = None
        self._pause_s = FIRST_S
        self._ask_at = 0.0
        self._found = found
        self._anew = False

    @property
    def name(self) -> str:
        """``health``."""
        return self._probe.name

    @property
    def interval_s(self) -> float:
        """That of the probe of the address."""
        return self._probe.interval_s

    @property
    def limit_s(self) -> float:
        """That of the probe of the address."""
        return self._probe.limit_s

    def glance(self, now: float) -> bool:
        """Whether there is an answer, a question is due, or the address may have something new."""
        news = self._answered or self._due(now) or self._start() != self._newest
        return news or self._probe.glance(now)

    async def sample(self, now: float) -> Iterable[Reading]:
        """Move to the server's own address where it was found, else look at the one that is asked.

        Raises:
            OSError: This process has no file descriptors left.
        """
        self._meet(self._start(), now)
        if self._answered and (url := self._answer()) is not None and url != self._url:
            await self._move(url)
            return [AddressFound(url=url)]
        if self._due(now):
            self._ask_at, self._pause_s = now + self._pause_s, min(2 * self._pause_s, LAST_S)
            self._question, self._asked_of = self._asked(), self._newest
        return await self._probe.sample(now)

    async def aclose(self) -> None:
        """Close the probe of the address, and let the thread end."""
        self._runner.close()
        await self._probe.aclose()

    def _meet(self, start: object, now: float) -> None:
        """Look for the address of a new start, from the beginning."""
        if start != self._newest:
            self._newest, self._anew, self._found = start, True, False
            self._ask_at, self._pause_s = now, FIRST_S

    @property
    def _answered(self) -> bool:
        return self._question is not None and self._question.done()

    def _due(self, now: float) -> bool:
        return not self._found and self._question is None and now >= self._ask_at

    def _asked(self) -> asyncio.Future[tuple[str | None, bool]] | None:
        try:
            return self._runner.submit(self._find_anew if self._anew else self._own)
        except NoThreadError as error:
            _log.debug("the server's address cannot be looked for: %s", error)
            return None

    def _own(self) -> tuple[str | None, bool]:
        url = self._find()
        return url, url is not None

    def _answer(self) -> str | None:
        question, self._question = self._question, None
        assert question is not None
        try:
            url, certain = question.result()
        except (OSError, ValueError, RuntimeError) as error:
            _log.debug("the server's address cannot be looked for: %s", error)
            return None
        if self._asked_of != self._newest:  # a start has begun since
            return None
        self._found, self._anew = certain, False
        if certain and not self._restarts:
            self._runner.close()
        return url

    async def _move(self, url: str) -> None:
        old, self._url = self._probe, url
        self._probe = self._make(url)
        await old.aclose()


def _the_only_one() -> object:
    return None
