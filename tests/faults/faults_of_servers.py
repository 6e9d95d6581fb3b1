"""What a server, its port, its process and its GPUs may do."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from stage import AFTER, Act, Fault, Stage, StandIn, comes_up, stays

MIB = 1 << 20
TOTAL = 80_000 * MIB

# --- answers --------------------------------------------------------------------------------


def answers(answer: str, *, then_healthy: bool = False) -> Act:
    """The server listens and answers so; for good, or until it is healthy."""

    async def act(stage: Stage) -> None:
        await comes_up(stage)
        await stage.server.do("answering", answer)
        if then_healthy:
            await asyncio.sleep(0.7)
            await stage.server.do("answering", "healthy")

    return act


SILENT = {"suspect": "the port listens, and nothing has answered yet"}


def _never(answer: str, kind: str, **fields: object) -> Fault:
    return Fault(
        name=f"/health: {answer}",
        then=answers(answer),
        outcome="timed_out",
        kind=kind,
        fields=fields,
        total_s=1.0,
    )


# --- the port -------------------------------------------------------------------------------


async def a_stranger_takes_the_port(stage: Stage) -> None:
    await stage.server.do("listen", stage.port, "unhealthy")
    await asyncio.sleep(0.3)
    await stage.server.do("let_go")
    await (await stage.another()).do("listen", stage.port)


async def a_stranger_has_the_port_for_a_while(stage: Stage) -> None:
    stranger = await stage.another()
    await stranger.do("listen", stage.port)
    await asyncio.sleep(0.3)
    await stranger.end()


async def says_it_all(stage: Stage) -> None:
    """The server's story without its port, which is another's."""
    await stage.say(*AFTER)
    await stage.seen_all()


# --- the process ----------------------------------------------------------------------------


async def its_pid_is_used_again(stage: Stage) -> None:
    """The server dies, and at once another process has its pid."""
    last = Path("/proc/sys/kernel/ns_last_pid")
    pid = stage.server.pid
    await stage.server.end()
    for _ in range(200):
        try:
            last.write_text(str(pid - 1))
        except OSError:
            pytest.skip("the next pid is not ours to choose")
        newer = await StandIn.start(stage.folder / "newer.log")
        stage.others.append(newer)
        if newer.pid == pid:
            await newer.do("listen", stage.port)
            return
    pytest.fail("no process got the pid again")


async def stopped_for_a_while(stage: Stage) -> None:
    os.kill(stage.server.pid, signal.SIGSTOP)
    await asyncio.sleep(1.3)
    os.kill(stage.server.pid, signal.SIGCONT)


async def killed(stage: Stage) -> None:
    os.kill(stage.server.pid, signal.SIGKILL)


# --- its GPUs -------------------------------------------------------------------------------


def gpus(stage: Stage, *lines: str) -> None:
    """Let the driver's stub show this from now on."""
    new = stage.folder / "gpus.new"
    shown = [f"gpu GPU-{number} {TOTAL} {500 * MIB} Stub" for number in range(2)]
    new.write_text("".join(f"{line}\n" for line in (*shown, *lines)))
    new.rename(stage.folder / "gpus")


async def two_gpus(stage: Stage) -> None:
    gpus(stage)


async def driver_lost_for_a_while(stage: Stage) -> None:
    await stage.reading("gpu_memory")
    gpus(stage, "fail nvmlDeviceGetMemoryInfo_v2 15")
    await stage.reading("probe_broken")
    gpus(stage)
    await stage.reading("probe_recovered")


async def driver_vanishes(stage: Stage) -> None:
    await stage.reading("gpu_memory")
    (stage.folder / "gpus").unlink()
    await stage.reading("probe_broken")


async def driver_hangs(stage: Stage) -> None:
    """It is not waited for: the watch has better things to do."""
    await stage.reading("gpu_memory")
    gpus(stage, "hang nvmlDeviceGetMemoryInfo_v2")
    await asyncio.sleep(1.0)


_by_command = functools.partial(Fault, by_command=True, before=two_gpus)

KILLED: dict[str, Any] = {"then": stays, "outcome": "failed", "kind": "process_killed"}

FAULTS: tuple[Fault, ...] = (
    _never("slow_loris", "timed_out", **SILENT),
    _never("silence", "timed_out", **SILENT),
    _never("endless_head", "unhealthy", status=None),
    _never("tls_garbage", "unhealthy", status=None),
    _never("hangs_up", "unhealthy", status=None),
    _never("redirect_loop", "unhealthy", status=307),
    _never("hostile", "unhealthy", status=500),
    _never("unhealthy", "unhealthy", status=503),
    Fault(name="/health: one_byte_pieces", then=answers("one_byte_pieces")),
    Fault(name="/health: endless_body", then=answers("endless_body")),
    Fault(name="/health: page", then=answers("page")),
    *(
        Fault(name=f"/health: {answer}, then healthy", then=answers(answer, then_healthy=True))
        for answer in ("redirect_loop", "tls_garbage", "hangs_up", "hostile", "unhealthy", "endless_head")
    ),
    Fault(
        name="port taken over in the middle",
        during=a_stranger_takes_the_port,
        then=says_it_all,
        outcome="timed_out",
        kind="foreign_server",
        warned=frozenset({"foreign_server"}),
        total_s=2.0,
    ),
    Fault(
        name="port of a stranger's for a while",
        during=a_stranger_has_the_port_for_a_while,
        warned=frozenset({"foreign_server"}),
    ),
    Fault(name="pid used again", during=its_pid_is_used_again, **KILLED),
    Fault(name="server killed", during=killed, **KILLED),
    Fault(
        name="server stopped for a while",
        during=stopped_for_a_while,
        warned=frozenset({"process_suspended"}),
    ),
    _by_command(name="driver vanishes", during=driver_vanishes, warned=frozenset({"probe_broken"})),
    _by_command(name="driver hangs", during=driver_hangs),
    _by_command(name="driver lost for a while", during=driver_lost_for_a_while),
)
