"""Scans of real process trees."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import pytest

from vllm_startup._blocking import StillRunningError
from vllm_startup._readings import ProbeNote, ProcessSample, ProcessTree
from vllm_startup.probes._family import Family, Member, ProcessTable
from vllm_startup.probes._protocol import Probe
from vllm_startup.probes._system import (
    Identity,
    ProcSystem,
    PsutilSystem,
    Stat,
    System,
    read_file,
    this_system,
)
from vllm_startup.probes._tree import TreeProbe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

# Starts one child with a title, which starts one grandchild; prints both pids.
TREE = """
import os, subprocess, sys
grandchild = "import os, subprocess, sys; " \
    "it = subprocess.Popen(['VLLM::Worker_TP0', '-c', 'import time; time.sleep(30)'], " \
    "executable=os.readlink('/proc/self/exe')); print(os.getpid(), it.pid, flush=True); it.wait()"
child = subprocess.Popen(["VLLM::EngineCore", "-c", grandchild], executable=sys.executable)
child.wait()
import time; time.sleep(30)
"""


class Tree:
    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.root = self.process.pid
        self.engine, self.worker = map(int, self.process.stdout.readline().split())
        until = time.monotonic() + 5
        while time.monotonic() < until and "VLLM" not in "".join(this_system().arguments(self.worker)[:1]):
            time.sleep(0.002)

    def close(self) -> None:
        for pid in (self.worker, self.engine):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.kill()
        self.process.communicate()


@contextmanager
def tree() -> Iterator[Tree]:
    it = Tree()
    try:
        yield it
    finally:
        it.close()


@asynccontextmanager
async def probing(probe: TreeProbe) -> AsyncIterator[TreeProbe]:
    try:
        yield probe
    finally:
        await probe.aclose()


async def scan(probe: TreeProbe) -> dict[int, ProcessSample]:
    async with asyncio.timeout(5):
        (reading,) = await probe.sample(0.0)
    assert isinstance(reading, ProcessTree)
    return {process.pid: process for process in reading.processes}


async def scan_until_gone(probe: TreeProbe, pid: int) -> dict[int, ProcessSample]:
    async with asyncio.timeout(5):
        while pid in (found := await scan(probe)) and found[pid].status != "zombie":
            await asyncio.sleep(0.01)
    return found


async def test_it_is_a_probe_with_a_scan_a_second() -> None:
    async with probing(TreeProbe(os.getpid())) as probe:
        assert isinstance(probe, Probe)
        assert (probe.name, probe.interval_s, probe.limit_s) == ("tree", 1.0, 5.0)


@pytest.mark.parametrize("system", [this_system, ProcSystem, PsutilSystem])
async def test_the_first_scan_shows_the_whole_tree(system: Callable[[], System]) -> None:
    with tree() as it:
        async with probing(TreeProbe(it.root, system=system())) as probe:
            found = await scan(probe)
    assert list(found) == [it.root, it.engine, it.worker]
    assert {pid: each.ppid for pid, each in found.items() if pid != it.root} == {
        it.engine: it.root,
        it.worker: it.engine,
    }
    assert [found[pid].name for pid in (it.engine, it.worker)] == ["VLLM::EngineCore", "VLLM::Worker_TP0"]
    assert found[it.root].name.startswith("python")
    assert found[it.root].rss_bytes > 1_000_000
    assert all(each.rss_bytes > 0 for each in found.values())  # a fresh program has little
    assert all(abs(each.started_at - time.time()) < 60 for each in found.values())


def _done(found: dict[int, ProcessSample]) -> list[tuple[float, int | None]]:
    return [(each.cpu_s, each.read_bytes) for each in found.values()]


@linux
async def test_both_sources_see_the_same() -> None:
    with tree() as it:
        async with (
            probing(TreeProbe(it.root, system=ProcSystem())) as ours,
            probing(TreeProbe(it.root, system=PsutilSystem())) as theirs,
        ):
            while True:
                mine, others, again = await scan(ours), await scan(theirs), await scan(ours)
                if _done(mine) == _done(again):  # else one of them is still starting
                    break
    for pid, sample in mine.items():
        other = others[pid]
        assert (sample.ppid, sample.name, sample.read_bytes) == (other.ppid, other.name, other.read_bytes)
        assert sample.started_at == pytest.approx(other.started_at, abs=0.02)
        assert sample.cpu_s == pytest.approx(other.cpu_s, abs=0.05)
    assert mine[it.root].rss_bytes == pytest.approx(others[it.root].rss_bytes, rel=0.2)


@linux
async def test_members_stay_when_their_parent_dies_and_new_ones_of_theirs_are_found() -> None:
    with tree() as it:
        async with probing(TreeProbe(it.root)) as probe:
            await scan(probe)
            os.kill(it.engine, signal.SIGKILL)
            found = await scan_until_gone(probe, it.engine)
            assert found[it.worker].ppid not in {it.engine, it.root}
            it.process.kill()
            it.process.wait()
            found = await scan_until_gone(probe, it.root)
            assert list(found) == [it.worker]


async def test_the_end_of_the_whole_tree_is_an_empty_tree_and_then_the_end_of_the_probe() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    async with probing(TreeProbe(child.pid)) as probe:
        assert list(await scan(probe)) == [child.pid]
        child.kill()
        child.wait()
        assert await scan(probe) == {}
        with pytest.raises(StopAsyncIteration):
            await probe.sample(0.0)


@linux
async def test_a_stopped_process_is_told_as_stopped() -> None:
    with tree() as it:
        async with probing(TreeProbe(it.root)) as probe:
            os.kill(it.engine, signal.SIGSTOP)
            async with asyncio.timeout(5):
                while (await scan(probe))[it.engine].status != "stopped":
                    await asyncio.sleep(0.01)


@linux
async def test_a_zombie_keeps_its_name_and_its_cpu_time() -> None:
    with tree() as it:
        async with probing(TreeProbe(it.root)) as probe:
            os.kill(it.engine, signal.SIGSTOP)  # so that it reaps nothing
            await scan(probe)
            os.kill(it.worker, signal.SIGKILL)
            async with asyncio.timeout(5):
                while (found := await scan(probe))[it.worker].status != "zombie":
                    await asyncio.sleep(0.01)
    assert found[it.worker].name == "VLLM::Worker_TP0"
    assert found[it.worker].rss_bytes == 0


@linux
async def test_cpu_time_of_reaped_children_is_told_beside_the_own() -> None:
    busy = "import time\nuntil = time.process_time() + 0.1\nwhile time.process_time() < until: pass\n"
    code = (
        f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {busy!r}]); "
        "print(flush=True); time.sleep(30)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    async with probing(TreeProbe(child.pid)) as probe:
        found = await scan(probe)
    assert found[child.pid].children_cpu_s >= 0.1
    child.kill()
    child.communicate()


@linux
async def test_a_title_that_is_taken_later_is_seen() -> None:
    code = "import os, sys; sys.stdin.readline(); os.execve('/bin/sleep', ['VLLM::EngineCore', '30'], {})"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    assert child.stdin is not None
    async with probing(TreeProbe(child.pid)) as probe:
        assert (await scan(probe))[child.pid].name.startswith("python")
        child.stdin.write(b"\n")
        child.stdin.flush()
        async with asyncio.timeout(5):
            while (await scan(probe))[child.pid].name != "VLLM::EngineCore":
                await asyncio.sleep(0.01)
    child.kill()
    child.communicate()


# --- what is not ours to read -------------------------------------------------------------


class Hidden(ProcSystem):
    def stat(self, pid: int) -> Stat | None:
        return None


class NotOurs(ProcSystem):
    def read_bytes(self, pid: int) -> int | None:
        return None


@linux
async def test_a_hidden_process_is_said_once() -> None:
    async with probing(TreeProbe(os.getpid(), system=Hidden())) as probe:
        (note,) = await probe.sample(0.0)
        assert note == ProbeNote(
            code="tree_unreadable",
            text=f"process {os.getpid()} is hidden from this user: its CPU time and memory are not seen",
        )
        with pytest.raises(StopAsyncIteration):
            await probe.sample(0.0)


@linux
async def test_another_users_process_shows_all_but_its_reads() -> None:
    async with probing(TreeProbe(os.getpid(), system=NotOurs())) as probe:
        found = await scan(probe)
    assert found[os.getpid()].read_bytes is None
    assert found[os.getpid()].cpu_s > 0


def test_psutil_tells_nothing_of_a_process_that_is_gone() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    system = PsutilSystem()
    assert system.stat(child.pid) is None
    assert system.arguments(child.pid) == ()
    assert system.read_bytes(child.pid) is None
    assert system.readable(child.pid)


@linux
def test_proc_tells_nothing_of_a_process_that_is_gone() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    system = ProcSystem()
    assert system.stat(child.pid) is None
    assert system.arguments(child.pid) == ()
    assert system.read_bytes(child.pid) is None


@linux
def test_a_program_name_with_brackets_and_blanks_is_read() -> None:
    code = (
        "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a) (b S 1', 0, 0, 0); "
        "print(flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    stat = ProcSystem().stat(child.pid)
    assert stat is not None
    assert (stat.program, stat.ppid) == ("a) (b S 1", os.getpid())
    child.communicate()


@linux
def test_a_zombie_shows_the_title_that_it_took_since_it_was_read() -> None:
    member = Member(Identity(7, 1.0), None)
    stat = Stat(7, 1, 1.0, "python3", "running", 0.0, 0.0, 0)
    member.update(stat, Machine(), 0.0)
    assert member.name == "python3"
    member.update(stat._replace(program="VLLM::EngineCor", status="zombie"), Machine(), 1.0)
    assert member.name == "VLLM::EngineCor"


def test_a_name_that_linux_has_cut_is_completed_from_the_command_line() -> None:
    class Long(Machine):
        def arguments(self, pid: int) -> tuple[str, ...]:
            return ("/usr/bin/a-very-long-program-name", "-x")

    member = Member(Identity(7, 1.0), None)
    member.update(Stat(7, 1, 1.0, "a-very-long-pro", "running", 0.0, 0.0, 0), Long(), 0.0)
    assert member.name == "a-very-long-program-name"


def test_what_cannot_be_read_for_another_reason_is_an_error(tmp_path: Path) -> None:
    assert read_file(str(tmp_path / "missing")) is None
    with pytest.raises(IsADirectoryError):
        read_file(str(tmp_path))


# --- hangs --------------------------------------------------------------------------------


class Stuck(ProcSystem):
    """A machine on which a read of ``/proc`` hangs once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def read_bytes(self, pid: int) -> int | None:
        self.may_go_on.wait(5)
        return super().read_bytes(pid)


@linux
async def test_a_scan_that_hangs_is_left_behind_and_the_next_says_so() -> None:
    system = Stuck()
    async with probing(TreeProbe(os.getpid(), system=system)) as probe:
        system.may_go_on.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await probe.sample(0.0)
        with pytest.raises(StillRunningError):
            await probe.sample(0.0)
        system.may_go_on.set()
        async with asyncio.timeout(5):
            while probe._runner.busy:
                await asyncio.sleep(0.001)
        assert os.getpid() in await scan(probe)


async def test_closing_leaves_no_task_or_thread_and_a_stuck_scan_does_not_keep_it() -> None:
    threads = set(threading.enumerate())
    system = Stuck()
    probe = TreeProbe(os.getpid(), system=system)
    system.may_go_on.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await probe.sample(0.0)
    began = time.monotonic()
    await probe.aclose()
    assert time.monotonic() - began < 0.1
    assert asyncio.all_tasks() == {asyncio.current_task()}
    system.may_go_on.set()
    for thread in set(threading.enumerate()) - threads:
        thread.join(2)
    assert set(threading.enumerate()) <= threads


# --- who descends from whom, by made-up tables --------------------------------------------


class Machine(ProcSystem):
    """Processes of our own: pid -> (parent's pid, start)."""

    def __init__(self, **processes: tuple[int, float]) -> None:
        super().__init__()
        self.processes = {int(name[1:]): process for name, process in processes.items()}
        self.hidden: set[int] = set()
        self.reads = 0

    def pids(self) -> list[int]:
        return [pid for pid in self.processes if pid not in self.hidden]

    def stat(self, pid: int) -> Stat | None:
        self.reads += 1
        if pid not in self.processes:
            return None
        ppid, start = self.processes[pid]
        return Stat(pid, ppid, start, f"program{pid}", "sleeping", 0.0, 0.0, 0)

    def arguments(self, pid: int) -> tuple[str, ...]:
        return (f"program{pid}",)


def pids(members: tuple[Member, ...]) -> list[int]:
    return [member.process.pid for member in members]


def test_known_processes_are_not_read_again() -> None:
    machine = Machine(p1=(0, 1.0), p2=(1, 2.0), p3=(1, 3.0), p4=(2, 4.0))
    table = ProcessTable(machine)
    assert table.descendants([Identity(2, 2.0)], max_age_s=0) == [(Identity(4, 4.0), Identity(2, 2.0))]
    assert machine.reads == 4
    machine.processes[5] = (4, 5.0)
    found = table.descendants([Identity(2, 2.0), Identity(4, 4.0)], max_age_s=0)
    assert found == [(Identity(5, 5.0), Identity(4, 4.0))]
    assert machine.reads == 5


def test_a_fresh_table_is_not_read_again() -> None:
    machine = Machine(p1=(0, 1.0))
    table = ProcessTable(machine)
    table.descendants([Identity(1, 1.0)], max_age_s=0)
    machine.processes[2] = (1, 2.0)
    assert table.descendants([Identity(1, 1.0)], max_age_s=60) == []
    assert table.descendants([Identity(1, 1.0)], max_age_s=0) == [(Identity(2, 2.0), Identity(1, 1.0))]


def test_children_of_a_reused_pid_are_not_adopted() -> None:
    machine = Machine(p1=(0, 1.0), p2=(1, 2.0))
    family = Family(Identity(2, 2.0), system=machine)
    assert pids(family.scan(max_age_s=0).members) == [2]
    del machine.processes[2]
    assert pids(family.scan(max_age_s=0).members) == []
    machine.processes |= {2: (1, 9.0), 3: (2, 10.0)}
    assert pids(family.scan(max_age_s=0).members) == []


def test_a_child_that_was_found_just_before_its_parent_died_is_kept() -> None:
    machine = Machine(p1=(0, 1.0), p2=(1, 2.0), p3=(2, 3.0))
    family = Family(Identity(2, 2.0), system=machine)
    assert pids(family.scan(max_age_s=0).members) == [2, 3]
    machine.processes[4] = (3, 4.0)
    family._table.descendants([], max_age_s=0)  # another watch looks
    del machine.processes[3]
    machine.processes[4] = (1, 4.0)
    assert pids(family.scan(max_age_s=0).members) == [2, 4]


def test_a_child_that_is_listed_before_its_parent_is_placed_by_the_next_look() -> None:
    machine = Machine(p1=(0, 1.0), p2=(1, 2.0), p3=(2, 3.0), p4=(3, 4.0))
    machine.hidden.add(3)
    family = Family(Identity(2, 2.0), system=machine)
    assert pids(family.scan(max_age_s=0).members) == [2]
    machine.hidden.clear()
    assert pids(family.scan(max_age_s=0).members) == [2, 3, 4]


def test_a_process_whose_parent_is_never_seen_is_read_twice_at_most() -> None:
    machine = Machine(p7=(5, 1.0))
    table = ProcessTable(machine)
    for _ in range(5):
        table.descendants([], max_age_s=0)
    assert machine.reads == 2


# --- misuse -------------------------------------------------------------------------------


def test_a_pid_that_does_not_exist_is_refused() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(ValueError, match=f"pid {child.pid} does not exist"):
        TreeProbe(child.pid)


@pytest.mark.parametrize("interval_s", [0, -1.0])
def test_an_interval_that_is_none_is_refused(interval_s: float) -> None:
    with pytest.raises(ValueError, match="interval_s must be above 0 seconds"):
        TreeProbe(os.getpid(), interval_s=interval_s)


@linux
@pytest.mark.slow
async def test_a_scan_of_64_processes_costs_less_than_the_budget() -> None:
    code = (
        "import subprocess, sys; ps = [subprocess.Popen(['sleep', '30']) for _ in range(63)]; "
        "print(flush=True); sys.stdin.read(); [p.kill() for p in ps]; [p.wait() for p in ps]"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    async with probing(TreeProbe(child.pid, interval_s=0.01)) as probe:
        assert len(await scan(probe)) == 64
        costs_s: list[float] = []
        for _ in range(40):
            began = time.process_time()
            await scan(probe)
            costs_s.append(time.process_time() - began)
    child.communicate()
    # The cheapest: others pay for what the tests before have left to the garbage collector. 1.3 ms on a
    # quiet machine; the budget of 3 ms twice, for a shared one.
    assert min(costs_s) < 0.006
