"""Runs one `GpuProbe` on the real binding, step by step, for a test that sets the library's path.

Standard input holds one JSON command a line, standard output one JSON answer a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from typing import Any

import attrs

from vllm_startup.probes._gpu import GpuProbe


async def main() -> None:
    probes: list[GpuProbe] = []
    for line in iter(sys.stdin.readline, ""):
        command = json.loads(line)
        try:
            answer = await act(probes, **command)
        except Exception as error:  # noqa: BLE001 - told to the test
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)


async def act(probes: list[GpuProbe], do: str, probe: int = 0, **arguments: Any) -> Any:
    match do:
        case "create":
            tree, environ = arguments.pop("tree", None), arguments.pop("environ", None)
            probes.append(
                GpuProbe(
                    **arguments,
                    tree_pids=None if tree is None else lambda: tree,
                    environ=None if environ is None else lambda: environ,
                )
            )
        case "sample":
            return await sample(probes[probe], **arguments)
        case "close":
            started = time.monotonic()
            await probes[probe].aclose()
            return {"took_s": time.monotonic() - started}
        case "threads":
            return [thread.name for thread in threading.enumerate()]
        case "fork":
            return fork(probes[probe])
    return None


async def sample(probe: GpuProbe, now: float, limit_s: float = 10.0) -> Any:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    try:
        async with asyncio.timeout(limit_s):
            readings = await probe.sample(now)
    except TimeoutError:
        return {"error": "TimeoutError", "ticks": ticks}
    finally:
        ticking.cancel()
    return [[type(reading).__name__, attrs.asdict(reading)] for reading in readings]


def fork(probe: GpuProbe) -> int:
    """Close the probe in a forked child, as a program that forks with a watch open might do."""
    child = os.fork()
    if child == 0:
        probe._reader.leave()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


asyncio.run(main())
