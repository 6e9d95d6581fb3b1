"""``vllm-startup demo``: the README's first command."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_tools import run, words_of
from trees import eventually

SPEED = ("--speed", "4")
MARK = "DEMO_TEST"


def simulated() -> list[str]:
    """The command lines of living processes that these tests started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={os.getpid()}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            pass  # it is gone, or another user's
    return found


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(MARK, str(os.getpid()))
    yield
    assert simulated() == []


@pytest.mark.parametrize(
    ("scenario", "status", "headline"),
    [
        ("ready", 0, r"ready after \d+\.\d s"),
        ("out-of-memory", 1, r"failed in loading_weights after \d+\.\d s: gpu_out_of_memory"),
        ("killed", 1, r"failed in loading_weights after \d+\.\d s: process_killed"),
        ("hang", 3, r"stalled in initializing after \d+\.\d s"),
    ],
)
async def test_a_scenario(scenario: str, status: int, headline: str) -> None:
    began = time.monotonic()
    found = await run("demo", *SPEED, scenario, "--json")

    assert found.status == status
    assert re.search(f"^{headline}$", found.err, re.MULTILINE)
    assert found.err.startswith("a simulated vLLM server: ")
    assert "NVIDIA" not in found.err
    assert json.loads(found.out)["facts"]["vllm_version"] == "0.32.0"
    assert time.monotonic() - began < 15


async def test_ready_is_what_is_shown_first() -> None:
    found = await run("demo", *SPEED, "--vllm", "0.17.1")

    assert (found.status, found.out) == (0, "")
    phases = re.findall(r"^ +\d+\.\d s  (\w+) ", found.err[: found.err.index("ready after")], re.MULTILINE)
    assert [phase for phase in phases if phase != "tier"] == [
        "launching", "configuring", "initializing", "loading_weights", "compiling", "allocating_kv_cache",
        "warming_up", "starting_server", "ready",
    ]  # fmt: skip


async def test_events(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    await run("demo", *SPEED, "--events", str(events))

    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert (told[0]["event"], told[-1]["event"], told[-1]["outcome"]) == ("attempt_started", "ended", "ready")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_an_interruption_leaves_nothing(number: signal.Signals, status: int) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words_of("demo"), stdout=pipe, stderr=pipe)
    assert process.stderr is not None
    while b"configuring" not in await asyncio.wait_for(process.stderr.readline(), 20):
        pass
    process.send_signal(number)
    _, errors = await asyncio.wait_for(process.communicate(), 20)

    assert process.returncode == status
    assert errors.decode().splitlines()[-1] == f"interrupted by {number.name}"


@pytest.mark.parametrize("phase", ["launching", "configuring", "loading_weights", "compiling", "warming_up"])
async def test_its_own_sudden_death_leaves_nothing(phase: str, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *words_of("demo", *SPEED), stderr=asyncio.subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert process.stderr is not None
    while phase.encode() not in await asyncio.wait_for(process.stderr.readline(), 20):
        pass
    process.kill()
    await process.wait()

    assert await asyncio.to_thread(eventually, lambda: not simulated())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["explode"], ["--speed", "0"], ["--speed", "fast"], ["--vllm", "0.1"]])
async def test_wrong_usage(arguments: list[str]) -> None:
    assert (await run("demo", *arguments)).status == 2
