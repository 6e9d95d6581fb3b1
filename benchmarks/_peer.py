"""One wait for the stand-in server, in one of the ways in which people wait.

Runs in the Python that has what the way needs; ``peers.py`` starts it. The modules are imported before the
server is started, so that their loading is no part of any delay. When the wait is over, one JSON object goes
to ``--result``: when (monotonic clock), whether it was for readiness, and what it said.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

LISTENS = "Application startup complete"


class Asked(argparse.Namespace):
    """What is waited for.

    Attributes:
        command: What starts the server.
        port: Where it will listen, on 127.0.0.1.
        log: Where its output goes.
        give_up: Seconds after which every wait ends.
        grace: Ours: how long a failed server's processes may take to be gone.
    """

    command: list[str]
    port: int
    log: Path
    give_up: float
    grace: float

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as output:
            return subprocess.Popen(self.command, stdout=output, start_new_session=True)


Wait = Callable[[], dict[str, Any] | None]
"""Starts the server and waits. Returns when it is ready, raises when it will not be."""


# --- ours ---------------------------------------------------------------------------------------


def ours(asked: Asked) -> Wait:
    """A server that somebody else has started: its pid, its log file, its address."""
    import asyncio

    import vllm_startup

    async def wait() -> dict[str, Any]:
        limits = vllm_startup.Timeouts(total=asked.give_up)
        pid = asked.start().pid
        return await _told(
            vllm_startup.watch(asked.url, pid=pid, log=asked.log, timeouts=limits, exit_grace=asked.grace)
        )

    _warm(vllm_startup)
    return lambda: asyncio.run(wait())


def ours_launch(asked: Asked) -> Wait:
    """A server that `launch` starts, whose output comes through a pipe."""
    import asyncio

    import vllm_startup

    told: list[float] = []

    def heard(event: object) -> None:
        if isinstance(event, vllm_startup.CauseFound):
            told.append(time.monotonic())

    async def wait() -> dict[str, Any]:
        result: dict[str, Any] = {"ready": True, "said": ""}
        begun = vllm_startup.launch(
            asked.command, url=asked.url, on_event=heard, exit_grace=asked.grace, kill_after=0
        )
        async with begun as server:
            try:
                await server.wait_until_ready(timeouts=vllm_startup.Timeouts(total=asked.give_up))
            except vllm_startup.StartupError as error:
                result = _failed(error)
            result["at"] = time.monotonic()
        return {**result, "told": told[0] if told else None}

    _warm(vllm_startup)
    return lambda: asyncio.run(wait())


async def _told(watch: Any) -> dict[str, Any]:
    import asyncio

    import vllm_startup

    async def cause() -> float | None:
        async for event in startup.events():
            if isinstance(event, vllm_startup.CauseFound):
                return time.monotonic()
        return None

    async with watch as startup:
        listening = asyncio.create_task(cause())
        try:
            await startup.wait_until_ready()
        except vllm_startup.StartupError as error:
            return {"at": time.monotonic(), **_failed(error), "told": await listening}
        return {"at": time.monotonic(), "ready": True, "said": ""}


def _failed(error: Any) -> dict[str, Any]:
    kind = None if error.cause is None else error.cause.kind
    return {"ready": False, "said": str(error), "kind": kind}


def _warm(package: Any) -> None:
    """Names are imported when they are asked for."""
    for name in package.__all__:
        getattr(package, name)


# --- polls of /health ---------------------------------------------------------------------------


def poll_1s(asked: Asked) -> Wait:
    """What everybody writes."""
    return _poll(asked, 1.0)


def poll_5s(asked: Asked) -> Wait:
    """The same, more patient: Kubernetes' probes ask every 10 s, many scripts every 5."""
    return _poll(asked, 5.0)


def _poll(asked: Asked, every_s: float) -> Wait:
    from _bench import poll_health

    def wait() -> None:
        asked.start()
        if poll_health(asked.url, every_s=every_s, give_up_s=asked.give_up) is None:
            raise TimeoutError("the server never answered")

    return wait


# --- vLLM's own loops ---------------------------------------------------------------------------


def vllm_tests(asked: Asked) -> Wait:
    """``RemoteOpenAIServer`` of vLLM's tests (tests/utils.py, commit 00749580a3e0), written again.

    No wheel holds that file, and importing it needs torch and vLLM. As there: a request with `requests`;
    when it fails, a look at the process, which counts as dead only if its code is not 0; 0.5 s; again.
    """
    import requests

    def wait() -> None:
        process = asked.start()
        began = time.monotonic()
        while True:
            try:
                if requests.get(f"{asked.url}/health").status_code == 200:
                    return
            except requests.RequestException:
                if process.poll():
                    raise RuntimeError("Server exited unexpectedly.") from None
                time.sleep(0.5)
                if time.monotonic() - began > asked.give_up:
                    raise RuntimeError("Server failed to start in time.") from None

    return wait


def vllm_sweep(asked: Asked) -> Wait:
    """``vllm bench sweep``'s `ServerProcess`: vllm/benchmarks/sweep/server.py as it is in the wheel."""
    from vllm.benchmarks.sweep.server import ServerProcess

    server = ServerProcess(asked.command, [], show_stdout=False)

    def wait() -> None:
        server.start()
        server.wait_until_ready(timeout=int(asked.give_up))

    return wait


def vllm_bench(asked: Asked) -> Wait:
    """``vllm bench serve``'s `wait_for_endpoint`: vllm/benchmarks/lib as it is in the wheel.

    Its only import of vLLM itself, ``vllm.logger``, is Python's `logging` here.
    """
    import asyncio

    import aiohttp
    from vllm.benchmarks.lib import endpoint_request_func as requesting
    from vllm.benchmarks.lib.ready_checker import wait_for_endpoint

    question = requesting.RequestFuncInput(
        prompt="a", api_url=f"{asked.url}/v1/completions", prompt_len=1, output_len=1, model="m"
    )

    async def wait() -> None:
        asked.start()
        async with aiohttp.ClientSession() as session:
            output = await wait_for_endpoint(
                requesting.async_request_openai_completions, question, session, int(asked.give_up)
            )
        if not output.success:
            raise ValueError(output.error)

    return lambda: asyncio.run(wait())


# --- libraries ----------------------------------------------------------------------------------


def mirakuru(asked: Asked) -> Wait:
    """`HTTPExecutor`, with GET: it asks with HEAD, to which vLLM says 405 for ever."""
    from mirakuru import HTTPExecutor

    def wait() -> None:
        with asked.log.open("wb") as output:
            HTTPExecutor(
                asked.command, f"{asked.url}/health", method="GET", timeout=asked.give_up, stdout=output
            ).start()

    return wait


class Container:
    """A process in the clothes of a container, as testcontainers' strategies ask for one."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._process = asked.start()
        self.attrs: dict[str, Any] = {}

    def get_container_host_ip(self) -> str:
        return "127.0.0.1"

    def get_exposed_port(self, port: int) -> int:
        return port

    def get_wrapped_container(self) -> Container:
        return self

    def get_logs(self) -> tuple[bytes, bytes]:
        return self._asked.log.read_bytes(), b""

    def reload(self) -> None:
        code = self._process.poll()
        state = {"Status": self.status, "ExitCode": code, "Error": ""}
        self.attrs = {"State": state}

    @property
    def status(self) -> str:
        return "running" if self._process.poll() is None else "exited"


def testcontainers_http(asked: Asked) -> Wait:
    """`HttpWaitStrategy` on a process, by an adapter."""
    from testcontainers.core.wait_strategies import HttpWaitStrategy

    strategy = HttpWaitStrategy(asked.port, "/health").with_startup_timeout(int(asked.give_up))
    return lambda: strategy.wait_until_ready(Container(asked))


def testcontainers_log(asked: Asked) -> Wait:
    """`LogMessageWaitStrategy` on a process, by an adapter."""
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy

    strategy = LogMessageWaitStrategy(LISTENS).with_startup_timeout(int(asked.give_up))
    return lambda: strategy.wait_until_ready(Container(asked))


def pytest_xprocess(asked: Asked) -> Wait:
    """`XProcess.ensure` with a pattern, without a test session around it."""
    import py
    from xprocess import ProcessStarter
    from xprocess.xprocess import XProcess

    class Starter(ProcessStarter):
        pattern = LISTENS
        timeout = asked.give_up
        args = asked.command

    quiet = SimpleNamespace(debug=lambda *words: None)
    place = py.path.local(asked.log.parent)  # noqa: PTH124 - what it asks for
    xprocess = XProcess(SimpleNamespace(), place, log=quiet)
    return lambda: xprocess.ensure("server", Starter)


WAYS: dict[str, Callable[[Asked], Wait]] = {
    way.__name__: way
    for way in (
        ours,
        ours_launch,
        poll_1s,
        poll_5s,
        vllm_tests,
        vllm_sweep,
        vllm_bench,
        mirakuru,
        testcontainers_http,
        testcontainers_log,
        pytest_xprocess,
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--give-up", type=float, required=True)
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args(namespace=Asked())
    wait = WAYS[asked.way](asked)
    result: dict[str, Any] = {"ready": True, "said": ""}
    try:
        found = wait()
    except Exception as error:  # noqa: BLE001 - whatever the way raises is what it says
        result = {"at": time.monotonic(), "ready": False, "said": f"{type(error).__name__}: {error}"}
    else:
        result["at"] = time.monotonic()
        result.update(found if isinstance(found, dict) else {})
    asked.result.write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # some ways would end or wait for the server on their way out


if __name__ == "__main__":
    main()
