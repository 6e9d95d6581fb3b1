"""What the tests of the command line share."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs

BANNER = "(APIServer pid=7) INFO 11-30 14:06:44 [utils.py:233] vLLM API server version 0.32.0"
ENGINE = "(EngineCore pid=8) INFO 11-30 14:06:54 [c.py:1] Initializing a V1 LLM engine (v0.32) with config: x"
LOADING = "(Worker pid=9) INFO 11-30 14:07:00 [gpu_worker.py:1] Starting to load model /models/tiny..."
STARTED = "(APIServer pid=7) INFO:     Application startup complete."
UP = [BANNER, ENGINE, LOADING, STARTED]
FAILED = [
    f"(EngineCore pid=8) ERROR 11-30 14:07:20 [core.py:1510] {line}"
    for line in (
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        '  File "/a/b.py", line 3, in run',
        "    work()",
        "ValueError: No available memory for the cache blocks.",
    )
]


PYTHON = (sys.executable, "-I", "-S", "-c")
"""A Python that starts in some 15 ms."""

TELLS = """
import os, signal, sys, time
def tell(number, frame):
    os.write(1, signal.Signals(number).name.encode() + b"\\n")
    if number == signal.SIGTERM:
        sys.exit(7)
for name in sys.argv[1].split():
    signal.signal(getattr(signal, name), tell)
os.write(1, ("terminals %s\\n" % [os.isatty(fd) for fd in (0, 1, 2)]).encode())
if os.isatty(1):
    os.write(1, ("size %s %s\\n" % tuple(os.get_terminal_size(1))).encode())
while True:
    time.sleep(0.05)
"""
"""A program that says which signals it gets, and ends with 7 at SIGTERM."""


@attrs.frozen
class Server:
    """A fake server that runs."""

    process: asyncio.subprocess.Process
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def go(self) -> None:
        """Let a server that was held go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")


@attrs.frozen
class Result:
    """How a command ended."""

    status: int
    out: str
    err: str


Serve = Callable[..., Awaitable[Server]]
"""Starts a fake server: its lines, then what it does; see the fixture ``serve``."""


SERVER = Path(__file__).with_name("fake_server.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def unstamped(text: str) -> str:
    """Lines without their times, which the fake server sets to now."""
    return re.sub(r"\d\d-\d\d \d\d:\d\d:\d\d", "-", text)


def serving(
    lines: list[str], *, port: int | None = None, hold: bool = False, status: int | None = None
) -> list[str]:
    """The command of a fake server; it listens where there is a port, and ends where there is a status."""
    script = json.dumps({"hold": hold, "lines": lines, "listen": port is not None, "exit": status})
    address = port if port is not None else free_port()
    return [sys.executable, str(SERVER), script, "vllm", "serve", "tiny", "--port", str(address)]


def words_of(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "vllm_startup", *arguments]


async def run(
    *arguments: str, stdin: bytes = b"", begun: Callable[[], None] | None = None, **environ: str
) -> Result:
    """Run a command of ours to its end; call ``begun`` when it has said what it waits for."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *words_of(*arguments), stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **environ}
    )
    first = b""
    if begun is not None:
        assert process.stderr is not None
        first = await asyncio.wait_for(process.stderr.readline(), 30)
        begun()
    out, err = await asyncio.wait_for(process.communicate(stdin), 30)
    assert process.returncode is not None
    return Result(process.returncode, out.decode(), (first + err).decode())
