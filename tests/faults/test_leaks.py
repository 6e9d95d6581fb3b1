"""The comparison that the fault table rests on sees each kind of thing that may stay behind."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from leaks import Leaks


@pytest.fixture
def leaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Leaks:
    monkeypatch.setattr("leaks.SETTLES_S", 0.05)
    return Leaks(tmp_path)


async def test_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leaks.SETTLES_S", 0.05)
    leaks = Leaks()
    task = asyncio.create_task(asyncio.sleep(60), name="left")
    assert leaks.later() == ["task left"]
    task.cancel()


def test_a_thread(leaks: Leaks) -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="left")
    thread.start()
    assert leaks.later() == ["thread left"]
    go.set()
    thread.join()
    assert leaks.later() == []


def test_a_process(leaks: Leaks) -> None:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
    assert [found.split()[:2] for found in leaks.later()] == [["process", str(process.pid)]]
    process.kill()
    process.wait()
    assert leaks.later() == []


def test_a_descriptor_and_a_socket(leaks: Leaks, tmp_path: Path) -> None:
    with (tmp_path / "left").open("w"), socket.socket():
        found = leaks.later()
    assert [what.partition(":")[0] for what in found] == [
        f"descriptor of {tmp_path / 'left'}",
        "descriptor of socket",
        f"file {tmp_path / 'left'}",
    ]


def test_a_second_one_of_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leaks.SETTLES_S", 0.05)
    (tmp_path / "log").touch()
    with (tmp_path / "log").open():
        leaks = Leaks(tmp_path)
        with (tmp_path / "log").open():
            assert leaks.later() == [f"descriptor of {tmp_path / 'log'}"]
