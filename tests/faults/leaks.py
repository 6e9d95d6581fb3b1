"""What a process holds, before and after: whatever is there afterwards and was not before has leaked."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil

SETTLES_S = 5.0
"""A thread that was told to end may be in its last call still."""


def _descriptors() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a listing holds a descriptor of its own
        try:
            target = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 - text such as socket:[123]
        except OSError:
            continue
        yield f"descriptor of {target}"


def _processes() -> Iterator[str]:
    for child in psutil.Process().children(recursive=True):
        try:
            yield f"process {child.pid} {child.name()}"
        except psutil.NoSuchProcess:
            continue


def _tasks() -> Iterator[str]:
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no loop runs
        return
    yield from (f"task {task.get_name()}" for task in tasks if task is not asyncio.current_task())


def held(folders: tuple[Path, ...]) -> Counter[str]:
    """Tasks, threads, processes, descriptors (sockets among them) and files in folders for temporary ones."""
    return Counter(
        [
            *_tasks(),
            *(f"thread {thread.name}" for thread in threading.enumerate()),
            *_processes(),
            *_descriptors(),
            *(f"file {file}" for folder in folders for file in folder.rglob("*")),
        ]
    )


class Leaks:
    """Compares what is held with what was held when this was made."""

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._before = held(folders)

    def now(self) -> list[str]:
        """What has come since, counted once a thing."""
        return sorted((held(self._folders) - self._before).elements())

    def later(self) -> list[str]:
        """What has come since and does not go within some seconds. A loop stands still meanwhile."""
        ends = time.monotonic() + SETTLES_S
        while (found := self.now()) and time.monotonic() < ends:
            time.sleep(0.01)
        return found
