"""``vllm-startup run`` as a service manager and Kubernetes have it, in front of a simulated server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import attrs
import pytest

from vllm_startup import causes, probes
from vllm_startup._diagnosing import diagnose
from vllm_startup._hosts import hosts
from vllm_startup._hosts.hosts import Hosts, Wanted
from vllm_startup._phases import Phase
from vllm_startup.testing import simulated_server

READY = attrs.evolve(diagnose([]), outcome="ready", phase=Phase.READY, cause=None)
Start = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts ``run``; whatever is left of it ends with the test."""
    started: list[asyncio.subprocess.Process] = []

    async def begin(*words: str, **environ: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "vllm_startup", "run", *words,
            stdout=asyncio.subprocess.DEVNULL, stderr=pipe, env={**os.environ, **environ},
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found: int = listener.getsockname()[1]
        return found


class Answering:
    """A probe that says the same each time."""

    name = "answering"
    interval_s = 1.0
    limit_s = 1.0

    def __init__(self, says: list[probes.Reading] | Exception) -> None:
        self.says = says

    async def sample(self, now: float) -> list[probes.Reading]:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    async def aclose(self) -> None:
        pass


async def asked(port: int, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return int(head.split()[1]), body


async def answers(port: int) -> tuple[int, int, int]:
    startup, ready, live = [(await asked(port, path))[0] for path in ("/startupz", "/readyz", "/livez")]
    return startup, ready, live


async def until(port: int, wanted: tuple[int, int, int], within_s: float = 30) -> None:
    async with asyncio.timeout(within_s):
        while True:
            try:
                if await answers(port) == wanted:
                    return
            except OSError:
                pass  # it does not listen yet, or is being ended
            await asyncio.sleep(0.1)


async def test_a_good_start_as_both_have_it(start: Start, port: int, tmp_path: Path) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.setblocking(False)
    command = simulated_server(speed=4)
    process = await start(
        "--status-listen", str(port), "--", *command,
        NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="1500000",
    )  # fmt: skip
    await until(port, (503, 503, 200))
    await until(port, (200, 200, 200))
    status = json.loads((await asked(port, "/status"))[1])
    assert (status["state"], status["phase"], status["cause"]) == ("ready", "ready", None)
    assert [(each["type"], each["status"]) for each in status["conditions"]] == [
        ("Live", "True"),
        ("Started", "True"),
        ("Ready", "True"),
    ]
    await asyncio.sleep(2)
    process.send_signal(signal.SIGTERM)
    _, said = await process.communicate()
    heard = []
    with manager:
        while True:
            try:
                heard += manager.recv(65536).decode().split("\n")
            except BlockingIOError:
                break
    assert process.returncode == 0, said.decode()
    assert heard[0] == "EXTEND_TIMEOUT_USEC=630000000"  # 600 s, and time for us to end it ourselves
    assert heard.count("READY=1") == heard.count("STOPPING=1") == 1
    assert heard.index("READY=1") < heard.index("WATCHDOG=1") < heard.index("STOPPING=1")
    assert any(line.startswith("STATUS=loading weights") for line in heard)
    assert not any(line.startswith("EXTEND") for line in heard[heard.index("READY=1") :])


async def test_a_failed_start_leaves_its_cause(start: Start, port: int, tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    log.write_text("what an earlier container left, and longer than what comes now" * 20)
    process = await start(
        "--status-listen", str(port), "--termination-log", str(log), "--",
        *simulated_server("out-of-memory", speed=4),
    )  # fmt: skip
    await process.communicate()
    assert process.returncode != 0
    text = log.read_text()
    assert text.startswith("gpu_out_of_memory: ")
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert len(text.encode()) <= 4096


async def test_nobody_is_told_a_secret_or_hostile_text(start: Start, tmp_path: Path) -> None:
    secret, log = "hf_" + "aB3" * 11, tmp_path / "log"
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    lines = (
        "Traceback (most recent call last):\n"
        '  File "/x/vllm/engine/core.py", line 1, in run\n'
        "    main()\n"
        f"ValueError: \x1b]0;title\x07no access with token={secret} for \u202emodel\n"
    )
    (tmp_path / "said").write_text(lines)
    process = await start(
        "--termination-log", str(log), "--", "sh", "-c", f"cat {tmp_path / 'said'}; exit 1",
        NOTIFY_SOCKET=str(tmp_path / "notify"),
    )  # fmt: skip
    await process.communicate()
    manager.setblocking(False)
    told = log.read_text()
    with manager:
        try:
            while True:
                told += manager.recv(65536).decode()
        except BlockingIOError:
            pass
    assert told.count("no access with token=") >= 2
    assert secret not in told
    assert told.replace("\n", "").isprintable()
    assert log.stat().st_mode & 0o777 == 0o600


async def test_a_stalled_start_is_not_live_and_is_left_running(start: Start, port: int) -> None:
    process = await start(
        "--status-listen", str(port), "--stall", "2", "--on-stall", "report", "--",
        *simulated_server("hang", speed=4),
    )  # fmt: skip
    await until(port, (503, 503, 200))
    await until(port, (503, 503, 503))
    await asyncio.sleep(2)
    assert await answers(port) == (503, 503, 503)
    assert process.returncode is None
    status = json.loads((await asked(port, "/status"))[1])
    assert status["state"] == "stalled"


async def test_a_server_that_fails_after_it_was_ready_is_not_ready_any_more(start: Start, port: int) -> None:
    """vLLM answers 503 when its engine has died."""
    serves = (
        "import http.server, sys, time\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    answers = iter([200] * 2)\n"
        "    def do_GET(self):\n"
        "        self.send_response(next(self.answers, 503)); self.end_headers()\n"
        "    def log_message(self, *args): pass\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = str(listener.getsockname()[1])
    await start(
        "--status-listen", str(port), f"http://127.0.0.1:{theirs}", "--", sys.executable, "-c", serves, theirs
    )
    await until(port, (200, 200, 200))
    await until(port, (200, 503, 503))
    assert "answers no longer" in (await asked(port, "/readyz"))[1]


@pytest.mark.parametrize(
    ("says", "fed"),
    [
        ([probes.Answer(tier="health", ok=True, status=200)], True),
        ([probes.Answer(tier="health", ok=False, status=503)], False),
        ([probes.Answer(tier="health", ok=False, detail="no answer")], False),
        ([], False),
        (None, True),
    ],
    ids=["well", "503", "timeout", "nothing", "not-asked"],
)
async def test_the_watchdog_is_fed_by_good_answers_alone(
    says: list[probes.Reading] | None, fed: bool, tmp_path: Path
) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(environ["NOTIFY_SOCKET"])
        manager.setblocking(False)
        heard = []
        async with Hosts(Wanted(), environ, warn=pytest.fail) as ours:
            await ours.decided(READY, None if says is None else lambda: Answering(says))
            await asyncio.sleep(0.5)
            while True:
                try:
                    heard += manager.recv(65536).decode().split("\n")
                except BlockingIOError:
                    break
    assert "READY=1" in heard
    assert ("WATCHDOG=1" in heard) is fed


async def test_a_server_without_an_answer_for_long_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_LOOK_S", 0.01)
    monkeypatch.setattr(hosts, "_ASK_S", 0.02)
    monkeypatch.setattr(hosts, "_SILENT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    ours = Hosts(Wanted(listen=("127.0.0.1", port)), {}, warn=pytest.fail)
    async with ours:
        await ours.decided(READY, lambda: Answering([]))
        assert await answers(port) == (200, 200, 200)
        await until(port, (200, 503, 503))
        assert "answers no longer: nothing for" in (await asked(port, "/readyz"))[1]


async def test_a_probe_that_breaks_is_told_and_blames_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_LOOK_S", 0.01)
    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    ours = Hosts(Wanted(listen=("127.0.0.1", port)), {}, warn=told.append)
    async with ours:
        await ours.decided(READY, lambda: Answering(KeyError("broken")))
        async with asyncio.timeout(10):
            while not told:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert await answers(port) == (200, 200, 200)
    assert told == ["internal error, the server is not asked any more: KeyError('broken')"]


async def test_a_start_that_stalled_and_went_on_leaves_no_cause(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    ours = Hosts(Wanted(termination_log=str(log)), {}, warn=pytest.fail)
    async with ours:
        await ours.decided(
            attrs.evolve(READY, outcome="stalled", cause=causes.Stalled(message="silent")), None
        )
        assert log.read_text() == "stalled: silent\n"
        await ours.decided(READY, None)
        assert log.read_text() == ""


async def test_a_start_that_preflight_forbids_tells_everybody_why(
    start: Start, port: int, tmp_path: Path
) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    log = tmp_path / "log"
    process = await start(
        "--preflight", "--termination-log", str(log), "--status-listen", str(port), "--",
        str(tmp_path / "vllm"), "serve", "m", NOTIFY_SOCKET=str(tmp_path / "notify"),
    )  # fmt: skip
    await process.communicate()
    assert process.returncode == 1
    with manager:
        first, last = (manager.recv(65536).decode().split("\n") for _ in range(2))
    assert first == ["EXTEND_TIMEOUT_USEC=630000000", "STATUS=launching"]
    assert last[0].startswith("STATUS=not started: the program ")
    assert log.read_text().startswith("program_missing: the program ")


async def test_an_address_in_use_is_wrong_usage_and_starts_nothing(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = await start("--status-listen", str(port), "--", "touch", str(tmp_path / "started"))
        _, error = await process.communicate()
    assert process.returncode == 2
    assert f"--status-listen 127.0.0.1:{port} cannot be listened on: Address already in use" in error.decode()
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("text", ["host", "host:", "0", "70000", "::1:80", "-1"])
async def test_what_is_no_address_is_wrong_usage(start: Start, text: str) -> None:
    process = await start(f"--status-listen={text}", "--", "true")
    _, error = await process.communicate()
    assert process.returncode == 2
    assert "is no [HOST:]PORT, such as" in error.decode()


async def test_a_termination_log_that_cannot_be_written_is_told(start: Start, tmp_path: Path) -> None:
    process = await start("--termination-log", str(tmp_path / "no" / "file"), "--", "false")
    _, error = await process.communicate()
    assert process.returncode == 1
    assert "cannot be written: No such file or directory" in error.decode()


async def test_the_server_is_not_told_of_our_manager(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        file = tmp_path / "environment"
        process = await start(
            "--", "sh", "-c", f"env > {file}", NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="9"
        )
        await process.communicate()
    assert "NOTIFY_SOCKET" not in file.read_text()
    assert "WATCHDOG_USEC" not in file.read_text()
