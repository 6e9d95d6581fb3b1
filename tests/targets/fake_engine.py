"""A small engine that answers as Docker does, where Podman, with which the rest is tested, differs."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

API = "1.47"
NOW = float(int(time.time()) - 100)
NEVER = "0001-01-01T00:00:00Z"
ID = "4f1c" * 16


def stamp(at: float) -> str:
    """A time as Docker writes it."""
    whole = datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{round((at % 1) * 1e9):09d}Z"


def frame(text: str, *, stream: int = 1) -> bytes:
    """What one write becomes in a log without a terminal."""
    data = text.encode()
    return bytes((stream, 0, 0, 0)) + len(data).to_bytes(4, "big") + data


def inspected(name: str = "vllm", **state: Any) -> dict[str, Any]:
    """A container as ``GET /containers/NAME/json`` tells it: it runs, unless said otherwise."""
    return {
        "Id": ID,
        "Name": f"/{name}",
        "Path": "vllm",
        "Args": ["serve", "Qwen/Qwen3-8B"],
        "RestartCount": 0,
        "State": {
            "Status": "running",
            "Running": True,
            "Paused": False,
            "Restarting": False,
            "OOMKilled": False,
            "Dead": False,
            "Pid": 1 << 30,  # of another machine: there is none such here
            "ExitCode": 0,
            "Error": "",
            "StartedAt": stamp(NOW),
            "FinishedAt": NEVER,
            **state,
        },
        "Config": {"Tty": False, "Env": ["PATH=/usr/bin"], "WorkingDir": "/", "Labels": {}},
        "HostConfig": {
            "NetworkMode": "host",
            "PidMode": "",
            "Memory": 64 << 30,
            "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        },
        "NetworkSettings": {"Ports": {}, "Networks": {}},
    }


def ended(code: int, **state: Any) -> dict[str, Any]:
    """The state of a container that has ended."""
    end = {"Status": "exited", "Running": False, "Pid": 0, "ExitCode": code, "FinishedAt": stamp(NOW + 60)}
    return {**end, **state}


class FakeEngine:
    """Tells what it is given.

    Attributes:
        containers: What it knows, by name.
        lines: The log of all, oldest first: when, and a frame.
        cut: How many bytes go into one piece of a stream.
        breaks: After how many bytes the next streams of a log break in the middle.
        refusal: What it says instead of a log.
        slow_s: How long it takes to begin with a log.
    """

    def __init__(self) -> None:
        self.url = ""
        self.containers: dict[str, dict[str, Any]] = {"vllm": inspected()}
        self.lines: list[tuple[float, bytes]] = []
        self.cut = 4096
        self.breaks: list[int] = []
        self.slow_s = 0.0
        self.refusal: tuple[int, str] | None = None
        self.requests: list[str] = []
        self._events: list[bytes] = []
        self._changed = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()

    def say(self, text: str, *, at: float = NOW + 1, stream: int = 1) -> None:
        """Add a line to the log."""
        self.lines.append((at, frame(f"{stamp(at)} {text}\n", stream=stream)))
        self._change()

    def become(self, name: str = "vllm", **state: Any) -> None:
        """Change the state of a container."""
        self.containers[name]["State"].update(state)
        self._change()

    def tell(self, action: str, *, name: str = "vllm", at: float = NOW + 60, **attributes: str) -> None:
        """Tell an event."""
        actor = {
            "ID": self.containers.get(name, {"Id": ID})["Id"],
            "Attributes": {"name": name, **attributes},
        }
        event = {"Type": "container", "Action": action, "Actor": actor, "timeNano": int(at * 1e9)}
        self._events.append(json.dumps(event).encode() + b"\n")
        self._change()

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[FakeEngine]:
        """Listen on a socket."""
        server = await asyncio.start_unix_server(self._meet, path)
        self.url = f"unix://{path}"
        try:
            yield self
        finally:
            server.close()
            await self._leave()

    @asynccontextmanager
    async def listening_on_tcp(self, context: ssl.SSLContext | None = None) -> AsyncIterator[FakeEngine]:
        """Listen on a port."""
        server = await asyncio.start_server(self._meet, "127.0.0.1", 0, ssl=context)
        self.url = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            await self._leave()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    async def _leave(self) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            answer = asyncio.create_task(self._answer(head.split()[1].decode(), writer))
            left = asyncio.create_task(reader.read())
            await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
            answer.cancel()
            left.cancel()
            await asyncio.gather(answer, left, return_exceptions=True)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _answer(self, target: str, writer: asyncio.StreamWriter) -> None:
        self.requests.append(target)
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        path = unquote(parts.path).removeprefix(f"/v{API}")
        match path.strip("/").split("/"):
            case ["_ping"]:
                self._send(writer, 200, b"OK", kind="text/plain")
            case ["events"]:
                await self._stream(writer, self._tell_events())
            case ["containers", "json"]:
                listed = [
                    {"Id": each["Id"], "Names": [each["Name"]], "Labels": each["Config"]["Labels"]}
                    for each in self.containers.values()
                ]
                self._send(writer, 200, json.dumps(listed).encode())
            case ["containers", name, "json"] if (found := self._find(name)) is not None:
                self._send(writer, 200, json.dumps(found).encode())
            case ["containers", name, "logs"] if (found := self._find(name)) is not None:
                await asyncio.sleep(self.slow_s)
                if self.refusal is not None:
                    status, message = self.refusal
                    self._send(writer, status, json.dumps({"message": message}).encode())
                else:
                    await self._stream(writer, self._read_log(found, query), breaks=True)
            case _:
                message = {"message": f"No such container: {path.split('/')[2]}"}
                self._send(writer, 404, json.dumps(message).encode())

    def _find(self, name: str) -> dict[str, Any] | None:
        for known, found in self.containers.items():
            if name in (known, found["Id"], found["Id"][:12]):
                return found
        return None

    async def _tell_events(self) -> AsyncIterator[bytes]:
        told = len(self._events)
        while True:
            while told < len(self._events):
                yield self._events[told]
                told += 1
            await self._changed.wait()

    async def _read_log(self, found: dict[str, Any], query: dict[str, str]) -> AsyncIterator[bytes]:
        since, until = float(query.get("since", 0)), float(query.get("until", "inf"))
        told = 0
        while True:
            while told < len(self.lines):
                at, data = self.lines[told]
                told += 1
                if since <= at <= until:
                    yield data
            if query.get("follow", "0") == "0" or not found["State"]["Running"]:
                return
            await self._changed.wait()

    async def _stream(
        self, writer: asyncio.StreamWriter, pieces: AsyncIterator[bytes], *, breaks: bool = False
    ) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        left = self.breaks.pop(0) if breaks and self.breaks else None
        async for piece in pieces:
            for start in range(0, len(piece), self.cut):
                part = piece[start : start + self.cut]
                if left is not None and len(part) > left:
                    writer.write(f"{len(part):x}\r\n".encode() + part[:left])
                    await writer.drain()
                    return
                left = None if left is None else left - len(part)
                writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                await writer.drain()
        writer.write(b"0\r\n\r\n")

    def _send(
        self, writer: asyncio.StreamWriter, status: int, body: bytes, *, kind: str = "application/json"
    ) -> None:
        head = (f"HTTP/1.1 {status} X", f"Api-Version: {API}", f"Content-Type: {kind}")
        length = f"Content-Length: {len(body)}"
        writer.write("\r\n".join((*head, length, "", "")).encode() + body)
