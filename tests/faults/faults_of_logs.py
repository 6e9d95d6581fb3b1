"""What happens to log files and disks."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import scene
from stage import Fault, Stage, comes_up

MIB = 1 << 20
LONG_MIB = 100
GROWTH_MIB = 40
"""What the watcher may grow by while it reads a line of 100 MB."""


async def rotated(stage: Stage) -> None:
    await stage.seen_all()
    stage.log.rename(stage.folder / "vllm.log.1")
    await stage.say(scene.api("the last words to the old file"))
    await stage.server.do("reopen")


async def rotated_under_the_writer(stage: Stage) -> None:
    await stage.seen_all()
    stage.log.rename(stage.folder / "vllm.log.1")
    stage.log.touch()


async def truncated(stage: Stage) -> None:
    await stage.seen_all()
    os.truncate(stage.log, 0)
    await asyncio.sleep(0.1)  # what is overwritten between two looks nobody can see


async def deleted(stage: Stage) -> None:
    await stage.seen_all()
    stage.log.unlink()


async def _replaced_for_a_while(stage: Stage, make: Callable[[Path], object]) -> None:
    await stage.seen_all()
    aside = stage.folder / "aside"
    stage.log.rename(aside)
    make(stage.log)
    await stage.say(scene.api("nobody can read this yet"))
    await asyncio.sleep(0.2)
    stage.log.rmdir() if stage.log.is_dir() else stage.log.unlink()
    aside.rename(stage.log)


async def replaced_by_a_folder(stage: Stage) -> None:
    await _replaced_for_a_while(stage, Path.mkdir)


async def replaced_by_a_fifo(stage: Stage) -> None:
    await _replaced_for_a_while(stage, os.mkfifo)


async def a_folder_for_good(stage: Stage) -> None:
    await stage.seen_all()
    stage.log.rename(stage.folder / "aside")
    stage.log.mkdir()


async def binary(stage: Stage) -> None:
    noise = random.Random(7).randbytes(64 * 1024).replace(b"\n", b" ").replace(b"\r", b" ")
    with stage.log.open("ab") as log:
        log.write(b"odd " + noise + b"\n")


async def one_long_line(stage: Stage) -> None:
    stage.memory_bytes = psutil.Process().memory_info().rss
    with stage.log.open("ab") as log:
        log.write(b"odd ")
        for _ in range(LONG_MIB):
            log.write(b"x" * MIB)
            await asyncio.sleep(0)
        log.write(b"\n")


async def comes_up_without_growing(stage: Stage) -> None:
    await comes_up(stage)
    assert psutil.Process().memory_info().rss - stage.memory_bytes < GROWTH_MIB * MIB


def _small_disk(stage: Stage) -> Path:
    """A file system of 128 KiB."""
    place = stage.folder / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small file system")
    stage.clean_up.append(lambda: subprocess.run(["umount", "-l", str(place)], check=True))
    return place


def _fill(place: Path) -> Path:
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    return filler


async def log_on_a_small_disk(stage: Stage) -> None:
    place = _small_disk(stage)
    shutil.copy(stage.log, place)
    stage.log.unlink()
    stage.log.symlink_to(place / stage.log.name)
    await stage.server.do("reopen")


async def its_disk_is_full_for_a_while(stage: Stage) -> None:
    await stage.seen_all()
    filler = _fill(stage.folder / "small")
    line = scene.api("as long as there is room")
    while await stage.server.do("try_to_say", line):
        stage.said.append(line)
    filler.unlink()


async def record_on_a_small_disk(stage: Stage) -> None:
    stage.record = _small_disk(stage) / "record.jsonl"


async def its_disk_is_full(stage: Stage) -> None:
    _fill(stage.folder / "small")
    await stage.say(*[scene.api("more than what is left of the last page")] * 100)


async def flooded(stage: Stage) -> None:
    """Ten thousand lines a second, rotated in the middle."""
    said: list[str] = []
    for _ in range(2):
        count = await stage.server.do("flood", 10_000, 0.5)
        said += [f"(EngineCore pid=2) INFO flood {number}" for number in range(count)]
        stage.log.rename(stage.folder / f"vllm.log.{len(said)}")
        await stage.server.do("reopen")
    stage.said += said


BROKEN = frozenset({"probe_broken"})

FAULTS: tuple[Fault, ...] = (
    Fault(name="log rotated", during=rotated),
    Fault(name="log rotated, and the writer stays with the old file", during=rotated_under_the_writer),
    Fault(name="log truncated", during=truncated),
    Fault(name="log deleted", during=deleted, warned=frozenset({"log_missing"})),
    Fault(name="log a directory for a while", during=replaced_by_a_folder, warned=BROKEN),
    Fault(name="log a fifo for a while", during=replaced_by_a_fifo, warned=BROKEN),
    Fault(
        name="log a directory for good",
        during=a_folder_for_good,
        warned=BROKEN,
        whole_log=False,
    ),
    Fault(name="log binary", during=binary),
    Fault(name="a line of 100 MB", during=one_long_line, then=comes_up_without_growing),
    Fault(
        name="log on a disk that is full for a while",
        before=log_on_a_small_disk,
        during=its_disk_is_full_for_a_while,
    ),
    Fault(
        name="recording on a full disk",
        before=record_on_a_small_disk,
        during=its_disk_is_full,
        warned=frozenset({"recording_failed"}),
        records=False,
    ),
    Fault(name="10,000 lines a second", during=flooded),
)
