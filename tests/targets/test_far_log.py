"""A log file on another machine: the rules of a local one, through a shell that may end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from far import SHELLS, Near

from vllm_startup.probes import LogCaughtUp, LogLines, LogOpened, ProbeNote, Reading
from vllm_startup.targets._ssh.connection import ConnectionLostError
from vllm_startup.targets._ssh.log import FarLogProbe


@pytest.fixture(params=SHELLS)
def near(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Near]:
    made = Near(tmp_path, request.param)
    yield made
    made.close()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "the server's log.txt"


async def looked(probe: FarLogProbe, times: int = 1) -> list[Reading]:
    return [reading for _ in range(times) for reading in await probe.sample(0.0)]


def lines(readings: list[Reading]) -> list[str]:
    return [line for reading in readings if isinstance(reading, LogLines) for line in reading.lines]


def lose(probe: FarLogProbe) -> None:
    """End the shell there, as a connection does that is lost."""
    probe._files._shell._drop()


async def test_it_is_awaited_then_read_as_history_then_followed(near: Near, log: Path) -> None:
    probe = FarLogProbe(near, str(log), clock_ahead_s=lambda: 30.0)
    (missing,) = await looked(probe)
    assert isinstance(missing, ProbeNote)
    assert missing.code == "log_missing"
    assert await looked(probe) == []
    await probe.aclose()
    log.write_text("one\ntwo\n")
    os.utime(log, (1000, 2000))
    probe = FarLogProbe(near, str(log), clock_ahead_s=lambda: 30.0)
    assert await looked(probe) == [
        LogOpened(
            source=f"gpubox:{log}",
            stream=True,
            modified_at=2000.0,
            tail=("one", "two", ""),
            clock_ahead_s=30.0,
        ),
        LogLines(lines=("one", "two"), history=True),
        LogCaughtUp(),
    ]
    assert await looked(probe) == []
    assert probe.interval_s > 0
    with log.open("a") as file:
        file.write("three\nhal")
    assert await looked(probe) == [LogLines(lines=("three",))]
    assert await looked(probe) == [LogLines(partial="hal")]
    with log.open("a") as file:
        file.write("f\n")
    assert await looked(probe) == [LogLines(lines=("half",))]
    await probe.aclose()


async def test_it_says_when_what_it_held_already_has_been_told(near: Near, log: Path) -> None:
    log.write_text("x" * (2 << 20) + "\n")  # more than one piece
    probe = FarLogProbe(near, str(log), clock_ahead_s=lambda: 0.0)
    told: list[Reading] = []
    while LogCaughtUp() not in told:
        assert not probe.read
        told += await looked(probe)
    assert not probe.read  # it is only on its way
    await looked(probe, 2)
    assert probe.read
    await probe.aclose()


async def test_a_log_that_is_not_there_or_no_file_has_nothing_to_say(near: Near, tmp_path: Path) -> None:
    missing = FarLogProbe(near, str(tmp_path / "missing"), clock_ahead_s=lambda: 0.0)
    await looked(missing, 2)
    assert missing.read
    folder = FarLogProbe(near, str(tmp_path), clock_ahead_s=lambda: 0.0)
    near.down = True
    for _ in range(2):
        with pytest.raises(ConnectionLostError):
            await looked(folder)
    assert not folder.read
    near.down = False
    for _ in range(2):
        with pytest.raises(ValueError, match="is a directory"):
            await looked(folder)
    assert folder.read
    await missing.aclose()
    await folder.aclose()


async def test_nothing_is_lost_or_doubled_when_the_connection_is(near: Near, log: Path) -> None:
    log.write_text("before\n")
    probe = FarLogProbe(near, str(log), clock_ahead_s=lambda: 0.0)
    await looked(probe)
    lose(probe)
    near.down = True
    with pytest.raises(ConnectionLostError):
        await looked(probe)
    with log.open("a") as file:
        file.write("meanwhile\n")
    near.down = False
    assert await looked(probe, 2) == [LogLines(lines=("meanwhile",))]
    await probe.aclose()


async def test_what_a_login_shell_prints_is_none_of_it(tmp_path: Path, log: Path) -> None:
    near = Near(tmp_path, greeting="Welcome to gpubox\n")
    log.write_text("one\n")
    probe = FarLogProbe(near, str(log), clock_ahead_s=lambda: 0.0)
    assert lines(await looked(probe)) == ["one"]
    lose(probe)
    with log.open("a") as file:
        file.write("two\n")
    assert lines(await looked(probe)) == ["two"]
    await probe.aclose()
    near.close()


async def test_a_rotated_file_is_read_to_its_end_first_also_after_a_loss(near: Near, log: Path) -> None:
    log.write_text("one\n")
    probe = FarLogProbe(near, str(log), clock_ahead_s=lambda: 0.0)
    await looked(probe)
    for number in (1, 2):
        with log.open("a") as file:
            log.rename(f"{log}.{number}")
            file.write(f"last words {number}\n")
        log.write_text(f"new {number}\n")
        if number == 2:
            lose(probe)
        assert lines(await looked(probe, 4)) == [f"last words {number}", f"new {number}"]
    await probe.aclose()


async def test_a_truncated_file_is_read_anew(near: Near, log: Path) -> None:
    log.write_text("a long first line\n")
    probe = FarLogProbe(near, str(log), clock_ahead_s=lambda: 0.0)
    await looked(probe)
    log.write_text("short\n")
    assert lines(await looked(probe, 2)) == ["short"]
    await probe.aclose()


async def test_a_file_that_was_removed_while_nobody_held_it_is_told(tmp_path: Path, log: Path) -> None:
    near = Near(tmp_path, "bash")
    log.write_text("one\n")
    probe = FarLogProbe(near, str(log), clock_ahead_s=lambda: 0.0)
    await looked(probe)
    lose(probe)
    keep = tmp_path / "other"  # so that the inode is not given out again at once
    keep.write_text("again\n")
    log.unlink()
    keep.rename(log)
    readings = await looked(probe, 3)
    assert lines(readings) == ["again"]
    (note,) = [reading for reading in readings if isinstance(reading, ProbeNote)]
    assert note.code == "log_lines_missed"
    await probe.aclose()
    near.close()


async def test_what_is_no_file_or_not_ours_to_read(near: Near, tmp_path: Path) -> None:
    folder = FarLogProbe(near, str(tmp_path), clock_ahead_s=lambda: 0.0)
    with pytest.raises(ValueError, match="is a directory"):
        await looked(folder)
    await folder.aclose()
    if os.geteuid() == 0:
        return  # root may read everything
    hidden = tmp_path / "hidden"
    hidden.write_text("x")
    hidden.chmod(0)
    probe = FarLogProbe(near, str(hidden), clock_ahead_s=lambda: 0.0)
    with pytest.raises(PermissionError):
        await looked(probe)
    await probe.aclose()


async def test_a_backlog_comes_in_large_pieces(near: Near, log: Path) -> None:
    log.write_text("x" * 99 + "\n")
    with log.open("a") as file:
        file.writelines(f"line {i:093}\n" for i in range(25_000))
    probe = FarLogProbe(near, str(log), clock_ahead_s=lambda: 0.0)
    found: list[str] = []
    for _ in range(100):
        found += lines(await looked(probe))
        if probe.interval_s:
            break
    assert len(found) == 25_001
    assert found[-1] == f"line {24_999:093}"
    await probe.aclose()
