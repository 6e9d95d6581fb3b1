from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from cli_terminal import Terminal
from cli_tools import Serve, Server, free_port

SERVER = Path(__file__).with_name("fake_server.py")


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Starts fake servers, which end with the test."""
    running: list[Server] = []

    async def start(
        lines: Sequence[str], *, hold: bool = False, listen: bool = False, status: int | None = None
    ) -> Server:
        script = json.dumps({"hold": hold, "lines": lines, "listen": listen, "exit": status})
        port, log = free_port(), tmp_path / f"server{len(running)}.log"
        words = [sys.executable, str(SERVER), script, "vllm", "serve", "tiny", "--port", str(port)]
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.PIPE, stdout=output, stderr=output
            )
        running.append(Server(process, port, log))
        return running[-1]

    yield start
    for server in running:
        if server.process.returncode is None:
            server.process.kill()
        await server.process.wait()


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Opens terminals, each with a command; they are closed with the test."""
    made: list[Terminal] = []

    def make(*command: str, **environ: str) -> Terminal:
        made.append(Terminal(*command, **environ))
        return made[-1]

    yield make
    for each in made:
        each.close()
