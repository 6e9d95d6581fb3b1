"""A deployment script: start a service, wait for it, try again or go back where it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import vllm_startup
from vllm_startup import StartupError, StartupReport, StartupTimeout, Timeouts


class Service(Protocol):
    """What the script deploys."""

    url: str

    def start(self) -> int:
        """Start the new version. Returns the main process's id."""
        ...

    def stop(self) -> None:
        """Stop it, if it runs."""
        ...

    def roll_back(self, why: str) -> None:
        """Bring the old version back."""
        ...


async def deploy(
    service: Service,
    *,
    attempts: int = 3,
    wait: Callable[..., Awaitable[StartupReport]] = vllm_startup.wait_until_ready,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> StartupReport | None:
    """Deploy the new version; None when the old one had to be brought back.

    Tests hand over ``wait`` and ``sleep``.
    """
    for attempt in range(1, attempts + 1):
        pid = service.start()
        try:
            return await wait(service.url, pid=pid, timeouts=Timeouts(1800, loading_weights=900))
        except StartupTimeout as error:
            service.stop()
            service.roll_back(str(error))
            return None
        except StartupError as error:
            if not error.cause.retryable or attempt == attempts:
                service.roll_back(error.cause.message)
                return None
            await sleep(30 * attempt)
    return None
