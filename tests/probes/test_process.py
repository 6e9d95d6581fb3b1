"""Ends of real processes, told by the kernel."""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vllm_startup._readings import ProbeNote, ProcessExited, ProcessFound, Reading
from vllm_startup.probes import _exits, _process
from vllm_startup.probes._exits import ExitWatch, Watched
from vllm_startup.probes._family import Family, Member, Scan
from vllm_startup.probes._process import ProcessProbe, worth_telling
from vllm_startup.probes._protocol import Probe
from vllm_startup.probes._system import Identity, ProcSystem, PsutilSystem, Stat, System, this_system
from vllm_startup.probes._tree import TreeProbe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

linux = pytest.mark.skipif(sys.platform != "linux", reason="pidfds and /proc are Linux's")
# The exit status of a stranger's reaped child: Linux 6.15.
kernel = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdigit())
tells_strangers = pytest.mark.skipif(
    sys.platform != "linux" or kernel < (6, 15), reason="the kernel tells a non-parent from Linux 6.15 on"
)

# A parent that does what it is told: `spawn TITLE CODE` starts a child (its pid is answered), `reap`
# waits for all of them. It never reaps by itself, so that its dead children are zombies.
PARENT = """
import os, subprocess, sys
children = []
for line in sys.stdin:
    order, _, rest = line.strip().partition(" ")
    if order == "spawn":
        title, _, code = rest.partition(" ")
        argv = [title if title != "-" else sys.executable, "-c", code]
        child = subprocess.Popen(argv, executable=sys.executable, stdin=subprocess.DEVNULL)
        children.append(child)
        print(child.pid, flush=True)
    elif order == "reap":
        for child in children:
            child.wait()
        print("reaped", flush=True)
    elif order == "exit":
        os._exit(int(rest))
"""
SLEEP = "import time; time.sleep(30)"


class Parent:
    """A server's main process that is not a child of the probe's owner."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self.process.pid
        self.children: list[int] = []

    def order(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        return self.process.stdout.readline().strip()

    def spawn(self, title: str = "-", code: str = SLEEP) -> int:
        pid = int(self.order(f"spawn {title} {code}"))
        self.children.append(pid)
        wait_for_exec(pid)
        return pid

    def close(self) -> None:
        for pid in self.children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.kill()
        self.process.communicate()


def wait_for_exec(pid: int) -> None:
    """Until a child is the program that it was started for."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        if any("-c" in argument for argument in this_system().arguments(pid)[1:2]):
            return
        time.sleep(0.002)


@contextmanager
def parent() -> Iterator[Parent]:
    it = Parent()
    try:
        yield it
    finally:
        it.close()


@asynccontextmanager
async def probing(probe: ProcessProbe) -> AsyncIterator[ProcessProbe]:
    try:
        yield probe
    finally:
        await probe.aclose()


async def first(probe: ProcessProbe) -> list[Reading]:
    async with asyncio.timeout(5):
        return list(await probe.sample(0.0))


async def next_exit(probe: ProcessProbe) -> ProcessExited:
    async with asyncio.timeout(5):
        (reading,) = await probe.sample(0.0)
    assert isinstance(reading, ProcessExited)
    return reading


async def waiting(probe: ProcessProbe) -> list[Reading]:
    return list(await probe.sample(0.0))


async def settled(probe: ProcessProbe, watching: int) -> asyncio.Task[list[Reading]]:
    """Start the waiting sample, and return it when the probe watches that many processes."""

    task = asyncio.create_task(waiting(probe))
    async with asyncio.timeout(5):
        while len(probe._watch) < watching:
            await asyncio.sleep(0.005)
    return task


async def only(task: asyncio.Task[list[Reading]]) -> ProcessExited:
    async with asyncio.timeout(5):
        (reading,) = await task
    assert isinstance(reading, ProcessExited)
    return reading


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# --- the main process ---------------------------------------------------------------------


async def test_it_is_a_probe_that_waits_for_events() -> None:
    async with probing(ProcessProbe(os.getpid())) as probe:
        assert isinstance(probe, Probe)
        assert (probe.name, probe.interval_s, probe.limit_s) == ("process", 0.0, None)


async def test_the_first_sample_tells_who_was_found() -> None:
    import psutil

    child = subprocess.Popen([sys.executable, "-c", SLEEP, "--api-key", "hunter2"])
    try:
        wait_for_exec(child.pid)
        async with probing(ProcessProbe(child.pid)) as probe:
            (found,) = await first(probe)
        assert isinstance(found, ProcessFound)
        assert found.pid == child.pid
        assert found.command == (sys.executable, "-c", SLEEP, "--api-key", "***")
        assert found.started_at == pytest.approx(psutil.Process(child.pid).create_time(), abs=0.02)
        assert found.age_s is not None
        assert 0 <= found.age_s < 5
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(3)", (3, None)),
        ("pass", (0, None)),
        ("import os; os.kill(os.getpid(), 9)", (None, signal.SIGKILL)),
        ("import os; os.kill(os.getpid(), 11)", (None, signal.SIGSEGV)),
    ],
)
async def test_a_child_of_ours_tells_its_status_and_is_left_to_its_owner(
    code: str, expected: tuple[int | None, int | None]
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read(); " + code], stdin=subprocess.PIPE
    )
    async with probing(ProcessProbe(process=child)) as probe:
        await first(probe)
        assert child.stdin is not None
        child.stdin.close()
        exited = await next_exit(probe)
        assert exited == ProcessExited(
            pid=child.pid, name=exited.name, code=expected[0], signal=expected[1], root=True
        )
        assert child.wait(5) == (expected[0] if expected[1] is None else -expected[1])
        with pytest.raises(StopAsyncIteration):
            await probe.sample(0.0)


async def test_an_asyncio_process_tells_its_status_and_is_left_to_its_owner() -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(4)")
    async with probing(ProcessProbe(process=child)) as probe:
        readings = await first(probe)
        exited = readings[1] if len(readings) > 1 else await next_exit(probe)
        assert isinstance(exited, ProcessExited)
        assert (exited.code, exited.signal, exited.root) == (4, None, True)
    assert await child.wait() == 4


async def test_a_child_that_its_owner_has_reaped_before_tells_its_return_code() -> None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(5)"])
    child.wait()
    async with probing(ProcessProbe(process=child)) as probe:
        found, exited = await first(probe)
    assert found == ProcessFound(pid=child.pid)
    assert exited == ProcessExited(pid=child.pid, name="", code=5, root=True)


async def test_a_death_between_construction_and_the_first_sample_is_told() -> None:
    child = subprocess.Popen([sys.executable, "-c", SLEEP])
    async with probing(ProcessProbe(child.pid)) as probe:
        child.kill()
        child.wait()
        found, exited = await first(probe)
        assert isinstance(found, ProcessFound)
        assert isinstance(exited, ProcessExited)
        assert (exited.pid, exited.code, exited.signal, exited.root) == (child.pid, None, None, True)


@tells_strangers
@pytest.mark.parametrize("reap", [True, False], ids=["reaped", "zombie"])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(3)", (3, None)),
        ("pass", (0, None)),
        ("import os; os.kill(os.getpid(), 11)", (None, signal.SIGSEGV)),
    ],
)
async def test_a_process_of_somebody_else_tells_its_status(
    code: str, expected: tuple[int | None, int | None], *, reap: bool
) -> None:
    with parent() as main:
        pid = main.spawn("-", f"import time; time.sleep(0.1); {code}")
        async with probing(ProcessProbe(pid)) as probe:
            await first(probe)
            if reap:
                main.order("reap")
            exited = await next_exit(probe)
    assert (exited.pid, exited.code, exited.signal, exited.root) == (pid, *expected, True)


@linux
async def test_a_zombie_that_nobody_reaps_has_ended_when_it_is_found() -> None:
    with parent() as main:
        pid = main.spawn("-", "raise SystemExit(6)")
        wait_for_end(pid)
        async with probing(ProcessProbe(pid)) as probe:
            readings = await first(probe)
            exited = readings[1] if len(readings) > 1 else await next_exit(probe)
    assert isinstance(exited, ProcessExited)
    assert (exited.code, exited.root) == (6, True)


def wait_for_end(pid: int) -> None:
    until = time.monotonic() + 5
    while time.monotonic() < until:
        stat = this_system().stat(pid)
        if stat is None or stat.ended:
            return
        time.sleep(0.002)


@linux
async def test_a_death_is_told_within_milliseconds() -> None:
    took: list[float] = []
    for _ in range(5):
        child = subprocess.Popen([sys.executable, "-c", SLEEP])
        async with probing(ProcessProbe(process=child)) as probe:
            await first(probe)
            task = await settled(probe, 1)
            began = time.monotonic()
            child.kill()
            await only(task)
            took.append(time.monotonic() - began)
        child.wait()
    assert sorted(took)[2] < 0.05


async def test_an_exit_that_came_while_nobody_listened_is_told_by_the_next_sample() -> None:
    child = subprocess.Popen([sys.executable, "-c", SLEEP])
    async with probing(ProcessProbe(process=child)) as probe:
        await first(probe)
        task = await settled(probe, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        child.kill()
        await asyncio.sleep(0.05)
        assert (await next_exit(probe)).signal == signal.SIGKILL
    child.wait()


# --- the others ---------------------------------------------------------------------------


@linux
@pytest.mark.parametrize(
    "title", ["VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::DPCoordinator", "VLLM::APIServer_1"]
)
async def test_the_end_of_what_vllm_has_named_is_told(title: str) -> None:
    with parent() as main:
        async with probing(ProcessProbe(main.pid)) as probe:
            await first(probe)
            pid = main.spawn(title)
            task = await settled(probe, 2)
            os.kill(pid, signal.SIGKILL)
            exited = await only(task)
    assert exited == ProcessExited(pid=pid, name=title, signal=signal.SIGKILL)


@linux
async def test_the_sibling_of_a_new_worker_is_looked_for_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_process, "_DISCOVERY_S", 30.0)
    monkeypatch.setattr(_process, "_SIBLINGS_S", 1.0)  # time enough to start it, on a slow machine, too
    with parent() as main:
        main.spawn("VLLM::Worker_TP0")
        async with probing(ProcessProbe(main.pid)) as probe:
            await first(probe)
            task = await settled(probe, 2)
            sibling = main.spawn("VLLM::Worker_TP1")
            async with asyncio.timeout(5):
                while len(probe._watch) < 3:
                    await asyncio.sleep(0.005)
            os.kill(sibling, signal.SIGKILL)
            exited = await only(task)
    assert exited == ProcessExited(pid=sibling, name="VLLM::Worker_TP1", signal=signal.SIGKILL)


@linux
async def test_a_large_tree_leaves_files_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_exits, "_open_files_limit", lambda: 8)
    before = open_files()
    with parent() as main:
        workers = [main.spawn(f"VLLM::Worker_TP{rank}") for rank in range(4)]
        async with probing(ProcessProbe(main.pid)) as probe:
            await first(probe)
            task = await settled(probe, 5)
            assert open_files() <= before + 2 + 6  # two pidfds; the loop's own and the parent's pipes
            for worker in reversed(workers):  # the last one has no pidfd
                os.kill(worker, signal.SIGKILL)
                assert (await only(task)).pid == worker
                task = asyncio.create_task(waiting(probe))
            task.cancel()


@linux
async def test_what_the_tree_probe_has_scanned_is_not_scanned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[str] = []
    scan = Family.scan

    def counted(self: Family, *, max_age_s: float) -> Scan:
        scanned.append(threading.current_thread().name)
        return scan(self, max_age_s=max_age_s)

    monkeypatch.setattr(Family, "scan", counted)
    monkeypatch.setattr(_process, "_DISCOVERY_S", 0.4)
    with parent() as main:
        tree = TreeProbe(main.pid, interval_s=0.1)
        async with probing(ProcessProbe(main.pid)) as probe:
            await first(probe)
            task = await settled(probe, 1)
            for turn in range(20):
                if turn == 5:
                    worker = main.spawn("VLLM::Worker_TP0")
                await tree.sample(0.0)
                await asyncio.sleep(0.1)
            assert len(probe._watch) == 2
            assert sum("process" in name for name in scanned) <= 3  # the first, and one for siblings
            os.kill(worker, signal.SIGKILL)
            exited = await only(task)
        await tree.aclose()
    assert exited == ProcessExited(pid=worker, name="VLLM::Worker_TP0", signal=signal.SIGKILL)


SPAWNED = "import time; time.sleep(30)  # from multiprocessing.spawn import spawn_main"
TRACKER = "import time; time.sleep(30)  # from multiprocessing.resource_tracker import main"


@linux
async def test_a_spawned_python_counts_before_it_has_a_title_and_the_resource_tracker_never() -> None:
    with parent() as main:
        async with probing(ProcessProbe(main.pid)) as probe:
            await first(probe)
            tracker = main.spawn("-", TRACKER)
            engine = main.spawn("-", SPAWNED)
            task = await settled(probe, 2)
            os.kill(tracker, signal.SIGKILL)
            os.kill(engine, signal.SIGSEGV)
            exited = await only(task)
    assert (exited.pid, exited.signal) == (engine, signal.SIGSEGV)
    assert exited.name.startswith("python")


@linux
async def test_engines_are_still_watched_when_their_parent_was_killed() -> None:
    with parent() as main:
        async with probing(ProcessProbe(main.pid)) as probe:
            await first(probe)
            engine = main.spawn("VLLM::EngineCore")
            task = await settled(probe, 2)
            main.process.kill()
            exited = await only(task)
            assert (exited.pid, exited.signal, exited.root) == (main.pid, signal.SIGKILL, True)
            stat = this_system().stat(engine)
            assert stat is not None
            assert stat.ppid != main.pid
            task = await settled(probe, 1)
            await asyncio.sleep(0.02)
            assert not task.done()
            os.kill(engine, signal.SIGKILL)
            exited = await only(task)
            assert (exited.pid, exited.name, exited.root) == (engine, "VLLM::EngineCore", False)
            async with asyncio.timeout(5):
                with pytest.raises(StopAsyncIteration):
                    await probe.sample(0.0)


MIDDLE = (
    "import os, subprocess, time; "  # a Python whose argv[0] is a title does not know its executable
    "subprocess.Popen(['VLLM::Worker_TP0', '-c', 'import time; time.sleep(30)'], "
    "executable=os.readlink('/proc/self/exe')); "
    "time.sleep(30)"
)


@linux
async def test_a_worker_whose_engine_was_killed_stays_known() -> None:
    with parent() as main:
        async with probing(ProcessProbe(main.pid)) as probe:
            await first(probe)
            engine = main.spawn("VLLM::EngineCore", MIDDLE)
            task = await settled(probe, 3)
            (worker,) = [watched.pid for watched in probe._watch if watched.pid not in {main.pid, engine}]
            os.kill(engine, signal.SIGKILL)
            assert (await only(task)).pid == engine
            task = await settled(probe, 2)
            await asyncio.sleep(0.02)
            os.kill(worker, signal.SIGKILL)
            assert (await only(task)).name == "VLLM::Worker_TP0"


@linux
@pytest.mark.slow
async def test_a_fork_storm_is_not_told_and_leaves_no_file_open() -> None:
    storm = (
        "import subprocess\n"
        "for _ in range(300):\n"
        "    running = [subprocess.Popen(['true']) for _ in range(4)]\n"
        "    [each.wait() for each in running]\n"
    )
    main = subprocess.Popen([sys.executable, "-c", storm])
    before = open_files()
    async with probing(ProcessProbe(process=main)) as probe:
        await first(probe)
        task = await settled(probe, 1)
        most = 0
        while not task.done():
            await asyncio.sleep(0.02)
            most = max(most, open_files())
        exited = await only(task)
    main.wait()
    assert (exited.pid, exited.code, exited.root) == (main.pid, 0, True)
    # The loop's own, the main process's pidfd, a file of /proc being read and the listing here.
    assert most <= before + 4
    assert open_files() == before


# --- which ends matter --------------------------------------------------------------------


class Table(ProcSystem):
    """Facts of our own, for processes that need not exist."""

    def __init__(self, **arguments: tuple[str, ...]) -> None:
        super().__init__()
        self.lines = arguments

    def arguments(self, pid: int) -> tuple[str, ...]:
        return self.lines.get(f"pid{pid}", ())


def member(pid: int, parent: Member | None, *arguments: str) -> Member:
    it = Member(Identity(pid, 1.0), parent)
    stat = Stat(pid, 1, 1.0, arguments[0] if arguments else "x", "sleeping", 0.0, 0.0, 0)
    it.update(stat, Table(**{f"pid{pid}": arguments}), 0.0)
    it.seen_at = 100.0
    return it


ROOT = member(1, None, "python3", "vllm", "serve")
SPAWN = ("python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=5)")
ENGINE = member(2, ROOT, *SPAWN)


@pytest.mark.parametrize(
    ("who", "at_once", "later"),
    [
        pytest.param(ROOT, True, True, id="main process"),
        pytest.param(member(3, ROOT, "VLLM::EngineCore_DP0"), True, True, id="titled"),
        pytest.param(member(3, ENGINE, *SPAWN), True, True, id="spawned worker"),
        pytest.param(
            member(3, member(4, ENGINE, "sh"), "VLLM::Worker"), True, True, id="titled, behind a shell"
        ),
        pytest.param(member(3, ROOT, "python3", "vllm", "serve"), False, True, id="forked engine"),
        pytest.param(member(3, ENGINE, "ninja", "-j8"), False, False, id="helper of an engine"),
        pytest.param(member(3, ROOT, "vllm", "serve"), False, True, id="what a wrapper started"),
        pytest.param(
            member(3, ROOT, "python3", "-c", "from multiprocessing.resource_tracker import main"),
            False,
            False,
            id="resource tracker",
        ),
        pytest.param(
            member(3, ROOT, "python3", "-m", "vllm.model_executor.models.registry"),
            False,
            False,
            id="inspection",
        ),
        pytest.param(member(3, ROOT), False, False, id="zombie without a command line"),
    ],
)
def test_whose_end_is_told(who: Member, *, at_once: bool, later: bool) -> None:
    assert worth_telling(who, 100.0) is at_once
    assert worth_telling(who, 101.0) is later


# --- what is not ours to read -------------------------------------------------------------


class Hidden(ProcSystem):
    """``/proc`` mounted with hidepid=2, the process being another user's."""

    def stat(self, pid: int) -> Stat | None:
        return None


class NotOurs(ProcSystem):
    """Another user's process, as it is shown to everybody."""

    def readable(self, pid: int) -> bool:
        return False


@linux
async def test_a_hidden_process_is_watched_for_life_alone() -> None:
    child = subprocess.Popen([sys.executable, "-c", SLEEP])
    async with probing(ProcessProbe(child.pid, system=Hidden())) as probe:
        found, note = await first(probe)
        assert found == ProcessFound(pid=child.pid)
        assert note == ProbeNote(
            code="process_unreadable",
            text=f"process {child.pid} is hidden from this user: it is watched for life alone",
        )
        child.kill()
        exited = await next_exit(probe)
        assert (exited.pid, exited.signal, exited.root) == (child.pid, signal.SIGKILL, True)
        with pytest.raises(StopAsyncIteration):
            await probe.sample(0.0)
    child.wait()


@linux
async def test_another_users_process_is_told_as_such() -> None:
    async with probing(ProcessProbe(os.getpid(), system=NotOurs())) as probe:
        found, note = await first(probe)
    assert isinstance(found, ProcessFound)
    assert found.started_at is not None
    assert isinstance(note, ProbeNote)
    assert note.code == "process_unreadable"


@linux
async def test_the_last_process_of_a_pipe_is_not_taken_for_the_server() -> None:
    """As of ``vllm serve m | tee vllm.log & vllm-startup wait --pid $!``."""
    pipe = subprocess.PIPE
    with subprocess.Popen(["tee", "/dev/null"], stdin=pipe, stdout=pipe, bufsize=0) as tee:
        assert tee.stdin is not None
        assert tee.stdout is not None
        tee.stdin.write(b"\n")
        tee.stdout.read(1)  # it runs, so that its command line can be read
        async with probing(ProcessProbe(tee.pid)) as probe:
            _, note = await first(probe)
        tee.stdin.close()
    assert note == ProbeNote(
        code="process_is_reader",
        text=f"process {tee.pid} is tee, which reads what another program writes: $! is the last process of a"
        " pipe; give the server's own",
    )


class StuckAtFirst(ProcSystem):
    """A process whose command line cannot be read for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def arguments(self, pid: int) -> tuple[str, ...]:
        self.release.wait(5)
        return super().arguments(pid)


@linux
@pytest.mark.slow
async def test_a_death_is_told_while_a_read_of_proc_hangs() -> None:
    system = StuckAtFirst()
    child = subprocess.Popen([sys.executable, "-c", SLEEP])
    try:
        async with probing(ProcessProbe(child.pid, system=system)) as probe:
            (found,) = await first(probe)
            assert isinstance(found, ProcessFound)
            assert found.command == ()
            task = await settled(probe, 1)
            began = time.monotonic()
            child.kill()
            assert (await only(task)).signal == signal.SIGKILL
            assert time.monotonic() - began < 0.1
    finally:
        system.release.set()
        child.wait()


class Exhausted(ProcSystem):
    """A program that has no file left to open."""

    exhausted = False

    def stat(self, pid: int) -> Stat | None:
        if self.exhausted:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().stat(pid)


@linux
async def test_too_many_open_files_are_an_error_and_not_the_end_of_a_process() -> None:
    system = Exhausted()
    child = subprocess.Popen([sys.executable, "-c", SLEEP])
    async with probing(ProcessProbe(child.pid, system=system)) as probe:
        await first(probe)
        system.exhausted = True
        with pytest.raises(OSError, match="Too many open files"):
            await probe.sample(0.0)
        child.kill()
        assert (await next_exit(probe)).signal == signal.SIGKILL
    child.wait()


@pytest.mark.usefixtures("no_pidfd")
async def test_too_many_open_files_are_no_end_without_pidfds_either() -> None:
    system = Exhausted()
    async with probing(ProcessProbe(os.getpid(), system=system)) as probe:
        await first(probe)
        system.exhausted = True
        for _ in range(3):
            with pytest.raises(OSError, match="Too many open files"):
                await probe.sample(0.0)


@linux
async def test_a_title_that_was_taken_after_the_last_look_is_told() -> None:
    code = (
        "import ctypes, sys; sys.stdin.readline(); "
        "ctypes.CDLL(None).prctl(15, b'VLLM::Worker', 0, 0, 0); raise SystemExit(1)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    assert child.stdin is not None
    async with probing(ProcessProbe(child.pid)) as probe:
        await first(probe)
        task = await settled(probe, 1)
        child.stdin.close()
        exited = await only(task)
    assert (exited.name, exited.code) == ("VLLM::Worker", 1)
    child.wait()


# --- where there is no pidfd --------------------------------------------------------------


class WithoutPidfds:
    """What the probe has of ``os``. asyncio's own children need pidfds from Python 3.12 on."""

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def pidfd_open(self, pid: int, flags: int = 0) -> int:
        raise PermissionError(1, "Operation not permitted")


@pytest.fixture
def no_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_exits, "os", WithoutPidfds())


@pytest.mark.usefixtures("no_pidfd")
@pytest.mark.parametrize("system", [ProcSystem, PsutilSystem])
async def test_without_pidfds_ends_are_polled(system: type[System]) -> None:
    with parent() as main:
        async with probing(ProcessProbe(main.pid, system=system())) as probe:
            await first(probe)
            engine = main.spawn("VLLM::EngineCore")
            task = await settled(probe, 2)
            os.kill(engine, signal.SIGKILL)
            exited = await only(task)
            assert (exited.pid, exited.name, exited.signal) == (engine, "VLLM::EngineCore", signal.SIGKILL)
            main.process.kill()
            main.process.wait()
            exited = await next_exit(probe)
            assert (exited.pid, exited.code, exited.signal, exited.root) == (main.pid, None, None, True)


@pytest.mark.usefixtures("no_pidfd")
async def test_without_pidfds_a_process_of_ours_still_tells_its_status() -> None:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    async with probing(ProcessProbe(process=child)) as probe:
        readings = await first(probe)
        exited = readings[1] if len(readings) > 1 else await next_exit(probe)
    assert isinstance(exited, ProcessExited)
    assert (exited.code, exited.root) == (3, True)
    assert child.wait() == 3


@pytest.mark.usefixtures("no_pidfd")
async def test_a_status_that_the_kernel_gave_to_the_owner_is_taken_from_the_owner() -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(4)")
    async with probing(ProcessProbe(process=child)) as probe:
        readings = await first(probe)
        assert await child.wait() == 4
        exited = readings[1] if len(readings) > 1 else await next_exit(probe)
    assert isinstance(exited, ProcessExited)
    assert (exited.code, exited.root) == (4, True)


class Forgetful:
    """A child whose owner never learns how it ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None


async def test_a_status_that_nobody_knows_is_told_as_unknown() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    async with probing(ProcessProbe(process=Forgetful(child.pid))) as probe:
        assert await first(probe) == [ProcessFound(pid=child.pid)]
        assert await next_exit(probe) == ProcessExited(pid=child.pid, name="", root=True)
        with pytest.raises(StopAsyncIteration):
            await probe.sample(0.0)


async def test_closing_while_the_owner_is_asked_asks_no_more() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    owner = Forgetful(child.pid)
    probe = ProcessProbe(process=owner)
    await first(probe)
    await probe.aclose()
    owner.returncode = 0
    await asyncio.sleep(0.02)
    assert probe._exits == []


class Reused(ProcSystem):
    """A system on which a pid was given to a younger process."""

    reused = False

    def stat(self, pid: int) -> Stat | None:
        stat = super().stat(pid)
        return stat._replace(started_at=stat.started_at + 60) if stat and self.reused else stat


@linux
async def test_a_reused_pid_is_not_the_process() -> None:
    system = Reused()
    async with probing(ProcessProbe(os.getpid(), system=system)) as probe:
        system.reused = True
        _, exited = await first(probe)
    assert exited == ProcessExited(pid=os.getpid(), name=exited.name, root=True)  # type: ignore[attr-defined]  # it has a name if equal


@pytest.mark.usefixtures("no_pidfd")
async def test_a_reused_pid_is_not_the_process_without_pidfds_either() -> None:
    system = Reused()
    ended: list[Watched] = []
    watch = ExitWatch(system, lambda watched, how: ended.append(watched))
    stat = system.stat(os.getpid())
    assert stat is not None
    me = Watched(os.getpid(), stat.identity)
    watch.add(me)
    watch.poll()
    assert ended == []
    system.reused = True
    watch.poll()
    assert ended == [me]


# --- misuse -------------------------------------------------------------------------------


def test_a_pid_that_does_not_exist_is_refused() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(ValueError, match=f"^pid {child.pid} does not exist: give the id of the vllm process"):
        ProcessProbe(child.pid)


@pytest.mark.parametrize("pid", [0, -1, 2**40])
def test_an_impossible_pid_is_refused(pid: int) -> None:
    with pytest.raises(ValueError, match=f"^pid {pid} does not exist"):
        ProcessProbe(pid)


@pytest.mark.parametrize("pid", ["4242", 1.0, True])
def test_a_pid_that_is_no_number_is_refused(pid: object) -> None:
    with pytest.raises(TypeError, match="pid must be a number"):
        ProcessProbe(pid)  # type: ignore[arg-type]  # that is the point


@linux
def test_the_id_of_a_thread_is_refused() -> None:
    ready, done = threading.Event(), threading.Event()
    ids: list[int] = []

    def run() -> None:
        ids.append(threading.get_native_id())
        ready.set()
        done.wait(5)

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(5)
    with pytest.raises(
        ValueError, match=f"pid {ids[0]} is a thread of process {os.getpid()}: give pid={os.getpid()}"
    ):
        ProcessProbe(ids[0])
    done.set()
    thread.join()


def test_either_pid_or_process_is_asked_for() -> None:
    with pytest.raises(ValueError, match="either pid= or process="):
        ProcessProbe()
    with pytest.raises(ValueError, match="either pid= or process="):
        ProcessProbe(os.getpid(), process=subprocess.Popen.__new__(subprocess.Popen))


def test_something_else_than_a_process_is_refused() -> None:
    with pytest.raises(TypeError, match="process must be a Popen or an asyncio process"):
        ProcessProbe(process="vllm")  # type: ignore[arg-type]  # that is the point


# --- nothing is left ----------------------------------------------------------------------


@linux
async def test_closing_leaves_no_file_task_or_thread() -> None:
    with parent() as main:
        engine = main.spawn("VLLM::EngineCore")
        before, threads = open_files(), set(threading.enumerate())
        probe = ProcessProbe(main.pid)
        await first(probe)
        task = await settled(probe, 2)
        assert open_files() == before + 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await probe.aclose()
        assert open_files() == before
        assert asyncio.all_tasks() == {asyncio.current_task()}
        for thread in set(threading.enumerate()) - threads:
            thread.join(2)
        assert set(threading.enumerate()) <= threads
        os.kill(engine, 0)  # it lives on


async def test_a_probe_that_was_never_used_is_closed_without_harm() -> None:
    await ProcessProbe(os.getpid()).aclose()
