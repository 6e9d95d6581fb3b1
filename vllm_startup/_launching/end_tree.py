"""A tree of processes: who belongs to it on Linux, and how all of it is ended.

It is used by the guardian, which imports next to nothing, and so does this module.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from vllm_startup._launching.left_files import LeftFiles

KILL_AFTER_S: Final = 8.0
"""From SIGTERM to SIGKILL. A ready vLLM ends in 1 to 5 s; an engine that initialises ignores SIGTERM."""

GIVE_UP_S: Final = 15.0
"""From SIGKILL to "could not be ended": hundreds of GB of pinned memory take seconds to be freed."""

_TRACKERS_S: Final = 2.0
"""How long Python's resource trackers are spared: they unlink what killed processes left in /dev/shm."""

_TRACKER: Final = b"multiprocessing.resource_tracker"
PAUSE_S: Final = 0.02
_SCAN_SHARE: Final = 0.2  # of the time of an ending goes into scans at most; one takes 10 us a process


class Process(NamedTuple):
    """A process that is not mistaken for another with the same pid.

    Attributes:
        start: Its start in clock ticks since boot.
    """

    pid: int
    start: int
    parent: int
    session: int
    zombie: bool
    name: str


def read_process(pid: int) -> Process | None:
    """Read one process; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib would cost 3 MB
            text = file.read()
    except OSError:
        return None
    opening, closing = text.find(b"("), text.rfind(b")")  # the name between may hold anything
    fields = text[closing + 2 :].split()
    if len(fields) < 20:
        return None
    return Process(
        pid=pid,
        start=int(fields[19]),
        parent=int(fields[1]),
        session=int(fields[3]),
        zombie=fields[0] in b"ZXx",
        name=text[opening + 1 : closing].decode("utf-8", "replace"),
    )


def processes() -> dict[int, Process]:
    """Every process that we may see, by its pid."""
    try:
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208 - see above
    except OSError:
        return {}
    return {pid: process for pid in pids if (process := read_process(pid)) is not None}


def living(belongs: Callable[[Process], bool]) -> list[Process]:
    """Return the living processes that belong to the tree, or descend from one that does."""
    found = processes()
    known: dict[int, bool] = {}

    def inside(process: Process) -> bool:
        line: list[int] = []
        while process.pid not in known and process.pid not in line:
            if belongs(process):
                known[process.pid] = True
                break
            line.append(process.pid)
            if process.parent not in found:
                break
            process = found[process.parent]
        answer = known.get(process.pid, False)
        known.update(dict.fromkeys(line, answer))
        return answer

    return [process for process in found.values() if inside(process) and not process.zombie]


def send(process: Process, *numbers: int) -> None:
    """Send signals to this process and no other that has its pid by now."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # before Linux 5.3, or refused by a filter of system calls
        pidfd = -1
    try:
        found = read_process(process.pid)
        if found is None or found.start != process.start:
            return
        for number in numbers:
            if pidfd < 0:
                os.kill(process.pid, number)
            else:
                signal.pidfd_send_signal(pidfd, number)
    except OSError:
        pass  # it has ended; or it is another user's, and then it will be told as left
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def end_tree(
    find: Callable[[], list[Process]],
    *,
    kill_after: float,
    finished: Callable[[list[Process]], bool],
    files: LeftFiles,
    give_up: float = GIVE_UP_S,
    rest: Callable[[float], object] = time.sleep,
    kill_quickly: Callable[[], object] = lambda: None,
) -> list[Process]:
    """End processes: SIGTERM, later SIGKILL, also for those that appear meanwhile.

    Args:
        find: The living members.
        kill_after: Seconds from SIGTERM to SIGKILL.
        finished: Whether all is over, given what was found.
        files: Takes the files of those that end, and removes them.
        give_up: Seconds from SIGKILL to the end of the attempt.
        rest: Sleep for so many seconds, or less.
        kill_quickly: Kills those that fork faster than they are found.

    Returns:
        What could not be ended.
    """
    began = time.monotonic()
    asked: set[tuple[int, int]] = set()
    while True:
        looked = time.monotonic()
        members = find()
        over = time.monotonic() - began - kill_after
        done = finished(members)
        if done or over >= give_up:
            files.remove()
            return [] if done else members
        new = [member for member in members if (member.pid, member.start) not in asked]
        asked.update((member.pid, member.start) for member in new)
        files.note(member.pid for member in (new if over < 0 else members))
        if over < 0:
            _ask(new)
        else:
            _kill(members, spare_trackers=over < _TRACKERS_S)
            if over >= _TRACKERS_S:
                kill_quickly()
        pause = max(PAUSE_S, (time.monotonic() - looked) / _SCAN_SHARE)
        rest(min(pause, max(-over, PAUSE_S)) if over < 0 else pause)


def _ask(members: list[Process]) -> None:
    for member in members:
        # In this order: a stopped process finds the first when it goes on.
        send(member, signal.SIGTERM, signal.SIGCONT)


def _kill(members: list[Process], *, spare_trackers: bool) -> None:
    for member in members:
        if not (spare_trackers and _is_tracker(member)):
            send(member, signal.SIGKILL)


def _is_tracker(process: Process) -> bool:
    try:
        with open(f"/proc/{process.pid}/cmdline", "rb") as file:  # noqa: PTH123 - see above
            return _TRACKER in file.read()
    except OSError:
        return False
