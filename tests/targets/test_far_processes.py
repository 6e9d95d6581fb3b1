"""Processes of another machine, as a shell there tells them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from far import SHELLS, Near

from vllm_startup.probes import ProbeNote, ProcessExited, ProcessFound, ProcessTree, Reading
from vllm_startup.probes._system import ProcSystem, Stat
from vllm_startup.targets import MainProcess, TargetError
from vllm_startup.targets._ssh.connection import ConnectionLostError
from vllm_startup.targets._ssh.processes import FarProcessProbe
from vllm_startup.targets._ssh.system import FarSystem

PARENT = """
import multiprocessing, os, sys, time
def title(name):
    import ctypes
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
def worker():
    title("VLLM::Worker_TP0")
    print(os.getpid(), flush=True)
    time.sleep(600)
if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    child = multiprocessing.Process(target=worker)
    child.start()
    child.join()
    time.sleep(600)
"""


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Near]:
    made = Near(tmp_path)
    yield made
    made.close()


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    """A process, and its child that has vLLM's title."""
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    yield process.pid, int(process.stdout.readline())
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.communicate()


@pytest.mark.parametrize("shell", SHELLS)
def test_it_tells_what_proc_here_tells(tmp_path: Path, shell: str) -> None:
    near, here = Near(tmp_path, shell), ProcSystem()
    there = FarSystem(near)
    pid = os.getpid()
    there.refresh([pid])
    stat, own = there.stat(pid), here.stat(pid)
    assert stat is not None
    assert own is not None
    assert (stat.ppid, stat.program) == (own.ppid, own.program)
    assert stat.started_at == pytest.approx(own.started_at, abs=2)
    assert stat.rss_bytes == pytest.approx(own.rss_bytes, rel=0.2)
    assert stat.cpu_s == pytest.approx(own.cpu_s, abs=2)
    assert there.age_s(stat) == pytest.approx(here.age_s(own), abs=2)
    assert there.arguments(pid) == here.arguments(pid)
    assert there.readable(pid)
    assert there.read_bytes(pid) is not None
    assert set(there.pids()) >= {1, pid}
    assert there.arguments(1) == ()  # it is none of the server's: its arguments stay there
    assert there.clock_ahead_s == 0.0
    near.close()


@pytest.mark.parametrize("greeting", ["Welcome to gpubox\n", "Welcome\n\n#1 of its kind\n", "> "])
def test_what_a_login_shell_prints_is_no_answer(tmp_path: Path, greeting: str) -> None:
    near = Near(tmp_path, greeting=greeting)
    there = FarSystem(near)
    for _ in range(2):  # another shell greets again
        there.refresh([os.getpid()])
        stat = there.stat(os.getpid())
        assert stat is not None
        assert stat.ppid == os.getppid()
        assert there.clock_ahead_s == 0.0
        there._shell._drop()
    near.close()


def test_a_clock_there_that_is_wrong(near: Near) -> None:
    near.program("date", 'echo "$(( $(/bin/date +%s) + 3600 ))"')
    there = FarSystem(near)
    there.refresh([os.getpid()])
    stat = there.stat(os.getpid())
    own = ProcSystem().stat(os.getpid())
    assert stat is not None
    assert own is not None
    assert there.clock_ahead_s == pytest.approx(3600, abs=2)
    assert stat.started_at == pytest.approx(own.started_at + 3600, abs=2)  # by its own clock
    assert there.age_s(stat) == pytest.approx(ProcSystem().age_s(own), abs=2)


def test_a_process_stays_the_same_over_reconnects_and_none_does_over_a_reboot(near: Near) -> None:
    near.program(
        "date", f"n=$(cat {near.bin}/n || echo 0); echo $((n + 1)) >{near.bin}/n; echo $((1796000000 + n))"
    )
    there = FarSystem(near)
    there.refresh([os.getpid()])
    before = there.stat(os.getpid())
    near.generation += 1
    there.refresh([os.getpid()])
    again = there.stat(os.getpid())
    assert before is not None
    assert again is not None
    assert again.identity == before.identity  # although `date` moved on since
    assert there._machine is not None
    there._machine = there._machine._replace(boot_id=b"another")
    near.generation += 1
    there.refresh([os.getpid()])
    rebooted = there.stat(os.getpid())
    assert rebooted is not None
    assert rebooted.identity != before.identity


def test_a_machine_without_proc(near: Near) -> None:
    near.program("head", "exit 1")
    near.program(
        "sh",
        "exec /bin/bash -c 'echo; echo vllm-startup-begins;"
        ' while read -r n f; do echo 1; echo; printf "\\n#%s\\n" "$n"; done\'',
    )
    with pytest.raises(TargetError, match="gpubox shows no processes in /proc; only Linux"):
        FarSystem(near).refresh([1])


# --- the probe ------------------------------------------------------------------------------


def probe(near: Near, pid: int | None, **terms: object) -> tuple[FarProcessProbe, MainProcess]:
    main = MainProcess(pid)
    return FarProcessProbe(near, FarSystem(near), main, **terms), main  # type: ignore[arg-type]


def of(kind: type[Reading], readings: list[Reading]) -> list[Reading]:
    return [reading for reading in readings if isinstance(reading, kind)]


async def test_it_finds_the_process_and_its_tree(near: Near, family: tuple[int, int]) -> None:
    parent, child = family
    looking, _ = probe(near, parent)
    readings = list(await looking.sample(0.0))
    (found,) = of(ProcessFound, readings)
    assert isinstance(found, ProcessFound)
    assert (found.pid, found.command[0]) == (parent, sys.executable)
    assert found.age_s is not None
    assert 0 <= found.age_s < 30
    (tree,) = of(ProcessTree, readings)
    assert isinstance(tree, ProcessTree)
    assert {p.pid: p.name for p in tree.processes}[child] == "VLLM::Worker_TP"
    assert looking.pids == {parent, child}
    assert of(ProcessFound, list(await looking.sample(1.0))) == []
    await looking.aclose()


def has_ended(pid: int) -> bool:
    stat = ProcSystem().stat(pid)
    return stat is None or stat.ended


async def test_ends_are_told_the_main_process_first(near: Near, family: tuple[int, int]) -> None:
    parent, child = family
    looking, _ = probe(near, parent, once=True)
    await looking.sample(0.0)
    os.killpg(parent, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while not all(has_ended(pid) for pid in (parent, child)):
        assert time.monotonic() < deadline
    exits = of(ProcessExited, list(await looking.sample(1.0)))
    assert [(e.pid, e.root) for e in exits if isinstance(e, ProcessExited)] == [
        (parent, True),
        (child, False),
    ]
    assert isinstance(exits[0], ProcessExited)
    assert exits[0].signal == signal.SIGKILL  # nobody has asked for its status yet
    while not looking._finished:
        await looking.sample(2.0)
    with pytest.raises(StopAsyncIteration):
        await looking.sample(3.0)
    await looking.aclose()


async def test_a_supervisor_hears_of_ends_first(near: Near, family: tuple[int, int]) -> None:
    parent, child = family
    heard: list[ProcessExited] = []

    def hear(reading: ProcessExited) -> bool:
        heard.append(reading)
        return not reading.root

    looking, main = probe(near, parent, heard=hear)
    await looking.sample(0.0)
    os.kill(child, signal.SIGKILL)
    seen: list[Reading] = []
    deadline = time.monotonic() + 10
    while not seen:
        assert time.monotonic() < deadline
        seen = of(ProcessExited, list(await looking.sample(1.0)))
    assert [e.pid for e in seen if isinstance(e, ProcessExited)] == [child]
    main.pid = None
    assert list(await looking.sample(2.0)) == []  # a restart: nothing is there
    main.pid = os.getpid()
    (found,) = of(ProcessFound, list(await looking.sample(3.0)))
    assert isinstance(found, ProcessFound)
    assert found.pid == os.getpid()
    assert [e.pid for e in heard] == [child]
    await looking.aclose()


async def test_a_pid_that_is_another_process_by_now_has_ended(near: Near) -> None:
    seen = ProcSystem().stat(os.getpid())
    assert seen is not None
    looking, _ = probe(near, os.getpid(), once=True, seen=seen._replace(started_at=12.5))
    readings = list(await looking.sample(0.0))
    (exited,) = of(ProcessExited, readings)
    assert isinstance(exited, ProcessExited)
    assert exited.root
    with pytest.raises(StopAsyncIteration):
        await looking.sample(1.0)
    await looking.aclose()


def dead() -> Stat:
    """A process that was seen, and has ended since."""
    process = subprocess.Popen(["sleep", "60"])
    seen = ProcSystem().stat(process.pid)
    process.kill()
    process.wait()
    assert seen is not None
    return seen


async def test_one_that_has_ended_since_it_was_named_is_told_with_when_it_began(near: Near) -> None:
    seen = dead()
    looking, _ = probe(near, seen.pid, once=True, seen=seen)
    found, exited = await looking.sample(0.0)
    assert isinstance(found, ProcessFound)
    assert found.started_at == seen.started_at
    assert found.age_s == pytest.approx(time.time() - seen.started_at, abs=2)
    assert exited == ProcessExited(pid=seen.pid, name="sleep", root=True)
    await looking.aclose()


async def test_one_that_has_ended_is_told_with_how_where_nobody_has_asked_yet(near: Near) -> None:
    process = subprocess.Popen(["sleep", "60"])
    system = FarSystem(near)
    system.refresh([process.pid])
    seen = system.stat(process.pid)
    process.kill()
    while not has_ended(process.pid):
        await asyncio.sleep(0.001)
    looking = FarProcessProbe(near, system, MainProcess(process.pid), once=True, seen=seen)
    _, exited = await looking.sample(0.0)
    assert exited == ProcessExited(pid=process.pid, name="sleep", signal=signal.SIGKILL, root=True)
    process.wait()
    await looking.aclose()


@pytest.mark.parametrize(("read_at", "told_at"), [(3.0, 3.0), (999.0, 30.0)], ids=["read", "not read"])
async def test_an_end_waits_for_what_the_log_held_already_but_not_for_ever(
    near: Near, read_at: float, told_at: float
) -> None:
    seen, now = dead(), 0.0
    looking, _ = probe(near, seen.pid, once=True, seen=seen, log_read=lambda: now >= read_at)
    (found,) = await looking.sample(now)
    assert isinstance(found, ProcessFound)
    while not (told := list(await looking.sample(now))):
        now += 1.0
    assert (now, [type(reading) for reading in told]) == (told_at, [ProcessExited])
    with pytest.raises(StopAsyncIteration):
        await looking.sample(now)
    await looking.aclose()


async def test_a_process_that_is_not_ours_to_read(near: Near) -> None:
    near.program(
        "head",
        'for f; do shift; case $f in */io) ;; *) set -- "$@" "$f";; esac; done; exec /usr/bin/head "$@"',
    )
    looking, _ = probe(near, os.getpid())
    (note,) = of(ProbeNote, list(await looking.sample(0.0)))
    assert isinstance(note, ProbeNote)
    assert note.code == "process_unreadable"
    await looking.aclose()


async def test_a_lost_connection_is_raised_and_looked_at_again(near: Near) -> None:
    looking, _ = probe(near, os.getpid())
    await looking.sample(0.0)
    near.down = True
    with pytest.raises(ConnectionLostError):
        await looking.sample(1.0)
    near.down = False
    near.generation += 1
    assert of(ProcessTree, list(await looking.sample(2.0)))
    assert of(ProcessExited, list(await looking.sample(3.0))) == []
    await looking.aclose()


def test_a_connection_that_was_made_anew_before_its_loss_was_seen_is_no_news(near: Near) -> None:
    there = FarSystem(near)
    there.refresh([os.getpid()])

    def made_anew(generation: int) -> None:
        near.generation = generation + 1
        raise ConnectionLostError("the connection to gpubox is lost: gone")

    near.await_loss = made_anew  # type: ignore[method-assign]
    assert there._shell._process is not None
    there._shell._process.kill()
    there._shell._process.wait()
    there.refresh([os.getpid()])
    assert there.stat(os.getpid()) is not None
