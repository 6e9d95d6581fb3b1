"""Whether the memory of the GPUs came back when a server had ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from vllm_startup._readings import GpuMemory
from vllm_startup.probes._protocol import Probe

_log = logging.getLogger("vllm_startup")

_BEFORE_S: Final = 5.0  # a server imports for longer than this before it touches a GPU
_POLL_S: Final = 0.2
_LOOKS: Final = 25  # 5 s; a driver frees a process's memory within a second of its end
_SLACK_BYTES: Final = 256 * 1024 * 1024  # what other users of a GPU may come and go with
_GIB: Final = 1024**3


class GpuRelease:
    """Compares what is in use after a server with what was in use before it.

    Args:
        probe: Reads the server's GPUs.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._before: dict[str, int] = {}
        self._looking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Look at what is in use before the server uses any, without keeping anybody waiting."""
        self._looking = asyncio.create_task(self._look_before(), name="vllm_startup:gpus before")

    async def wait(self) -> list[str]:
        """Wait until as much is free as before, for some seconds at most.

        Returns:
            What is not free, in words; it is logged as a warning too.
        """
        held: dict[str, str] = {}
        if self._before:
            for _ in range(_LOOKS):
                if not (held := self._held(await self._look())):
                    break
                await asyncio.sleep(_POLL_S)
        for text in held.values():
            _log.warning("%s", text)
        return list(held.values())

    async def aclose(self) -> None:
        """Let go of the driver."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
        await self._probe.aclose()

    async def _look_before(self) -> None:
        for reading in await self._look():
            if isinstance(reading, GpuMemory):
                self._before = {gpu.uuid: gpu.used_bytes for gpu in reading.gpus}

    async def _look(self) -> Iterable[object]:
        try:
            async with asyncio.timeout(_BEFORE_S):
                return tuple(await self._probe.sample(asyncio.get_running_loop().time()))
        except Exception as error:  # noqa: BLE001 - whatever a driver does, the server has ended
            _log.debug("GPU memory was not read: %r", error)
            return ()

    def _held(self, readings: Iterable[object]) -> dict[str, str]:
        held = {}
        for reading in readings:
            for gpu in reading.gpus if isinstance(reading, GpuMemory) else ():
                more = gpu.used_bytes - self._before.get(gpu.uuid, gpu.used_bytes)
                if more > _SLACK_BYTES:
                    held[gpu.uuid] = (
                        f"GPU {gpu.index} ({gpu.uuid}) holds {more / _GIB:.1f} GiB more than before the"
                        " server was started, though all its processes have ended"
                    )
        return held
