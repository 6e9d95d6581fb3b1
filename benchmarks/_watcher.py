"""A process whose cost is measured: one watch, one naive poll, or many of either.

Prints one JSON object at its end, where it has anything to say. ``one`` goes on until it is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from _bench import Json, poll_health

SETTLED_S = 3.0  # imports and first looks are done by then,
SETTLED_EACH_S = 0.005  # and so much later for each server

WaitFor = Callable[[str], Awaitable[object]]


def one(options: argparse.Namespace) -> None:
    url = f"http://127.0.0.1:{options.port}"
    if options.naive:
        poll_health(url, every_s=1.0, give_up_s=1e6)
        return
    import vllm_startup

    never = vllm_startup.Timeouts(stall=None)  # the stand-in stands still for longer than any server may
    asyncio.run(vllm_startup.wait_until_ready(url, pid=options.pid, log=options.log, timeouts=never))


def many(options: argparse.Namespace) -> None:
    ports = json.loads(sys.stdin.readline())
    begin = naive_waits if options.naive else our_waits
    print(json.dumps(asyncio.run(watch_many(begin, options.host, ports, options.quiet))))


async def watch_many(begin: Callable[[], WaitFor], host: str, ports: Sequence[int], quiet_s: float) -> Json:
    """Wait for all at once; take what the quiet part costs, and print a line when it is over."""
    wait = begin()
    noticed: dict[int, float] = {}

    async def follow(port: int) -> None:
        await wait(f"http://{host}:{port}")
        noticed[port] = time.monotonic()

    waits = asyncio.gather(*(follow(port) for port in ports))
    await asyncio.sleep(SETTLED_S + SETTLED_EACH_S * len(ports))
    began, used = time.monotonic(), time.process_time()
    await asyncio.sleep(quiet_s)
    quiet = {
        "start_cpu_s": used,
        "quiet_s": time.monotonic() - began,
        "quiet_cpu_s": time.process_time() - used,
    }
    print("quiet", flush=True)
    await waits
    return {**quiet, "noticed": noticed, "cpu_s": time.process_time()}


def our_waits() -> WaitFor:
    """The public call, told that no address is of this machine.

    An address that the kernel would send from is this machine's, so that nothing which can be simulated
    here counts as remote. This takes the one function that decides it out of the way.
    """
    import vllm_startup
    from vllm_startup.probes import _connect

    _connect._is_local = lambda family, sockaddr: False
    return vllm_startup.wait_until_ready


def naive_waits() -> WaitFor:
    """One client for all, and a request to each every second."""
    import httpx

    client = httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_connections=None), timeout=5)

    async def wait(url: str) -> None:
        while True:
            try:
                if (await client.get(f"{url}/health")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(1.0)

    return wait


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("one", "many"))
    parser.add_argument("--naive", action="store_true")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pid", type=int)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--quiet", type=float, default=10.0)
    options = parser.parse_args()
    {"one": one, "many": many}[options.role](options)


if __name__ == "__main__":
    main()
