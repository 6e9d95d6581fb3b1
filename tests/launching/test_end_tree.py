"""Whole trees end, whatever they do about it."""

from __future__ import annotations

import asyncio
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from trees import ESCAPE, FORK_ON, PYTHON, SLEEP, STUBBORN, Tree, eventually, guardians, read

from vllm_startup._launching.end_tree import Process, end_tree, living, read_process, send
from vllm_startup._launching.guarded import Guarded, LeftProcess
from vllm_startup._launching.launch import Launch, TreeEndError, launch
from vllm_startup._launching.left_files import LeftFiles, stores_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="whole trees are ended on Linux")

QUICKLY = 0.2
"""Seconds until SIGKILL: the programs here do not need more."""


End = Callable[..., Awaitable[Tree]]


@pytest.fixture
def end(tmp_path: Path) -> End:
    """Launch a program, wait until it has said that it is ready, and leave the block."""
    log = tmp_path / "log"

    async def run(program: str, *, kill_after: float = QUICKLY, members: int = 1) -> Tree:
        tree = Tree()
        async with launch([*PYTHON, program], env=tree.env, log=log, kill_after=kill_after):
            assert await asyncio.to_thread(eventually, lambda: b"ready" in read(log))
            assert await asyncio.to_thread(eventually, lambda: len(tree.alive()) >= members), tree.alive()
        return tree

    return run


async def test_a_program_that_ends_when_asked_is_not_waited_for(end: End) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    tree = await end("import time\n" + SLEEP, kill_after=30)
    assert tree.alive() == {}
    assert loop.time() - began < 5


async def test_a_program_that_ignores_sigterm_is_killed(end: End) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    tree = await end(STUBBORN + SLEEP)
    assert tree.alive() == {}
    assert loop.time() - began > QUICKLY


async def test_a_stopped_program_gets_sigterm_too(tmp_path: Path) -> None:
    tree = Tree()
    told = tmp_path / "told"
    program = f"""
import signal, sys, time
def stop(*_):
    open({str(told)!r}, "w").close()
    sys.exit()
signal.signal(signal.SIGTERM, stop)
{SLEEP}"""
    log = tmp_path / "log"
    async with launch([*PYTHON, program], env=tree.env, log=log, kill_after=30) as server:
        assert await asyncio.to_thread(eventually, lambda: b"ready" in read(log))
        os.kill(server.pid, signal.SIGSTOP)
    assert tree.alive() == {}
    assert told.exists()


async def test_a_grandchild_that_left_the_session_and_its_parent_is_ended(end: End) -> None:
    tree = await end(STUBBORN + ESCAPE + SLEEP, members=2)
    assert tree.alive() == {}


async def test_what_is_left_of_a_program_that_has_ended_itself_is_ended() -> None:
    tree = Tree()
    async with launch([*PYTHON, STUBBORN + ESCAPE], env=tree.env, kill_after=QUICKLY) as server:
        assert await server.process.wait() == 0
        assert len(tree.alive()) == 1
    assert tree.alive() == {}


async def test_processes_that_appear_while_the_tree_is_ended_are_ended_too(end: End) -> None:
    program = """
import os, signal, time
def grow(*_):
    for _ in range(5):
        if os.fork() == 0:
            os.setsid()
            time.sleep(600)
signal.signal(signal.SIGTERM, grow)
"""
    tree = await end(program + SLEEP)
    assert tree.alive() == {}


async def test_a_process_that_forks_and_ends_without_pause_is_ended(end: End) -> None:
    tree = await end(
        STUBBORN + FORK_ON + "if os.fork() == 0:\n    os.setsid()\n    fork_on()\n" + SLEEP, members=2
    )
    assert tree.alive() == {}


async def test_a_resource_tracker_is_left_the_time_to_clean_up(tmp_path: Path) -> None:
    program = (
        STUBBORN
        + f"""
from multiprocessing.shared_memory import SharedMemory
shared = SharedMemory(create=True, size=100)
open({str(tmp_path / "name")!r}, "w").write(shared.name)
{SLEEP}"""
    )
    tree = Tree()
    async with launch([*PYTHON, program], env=tree.env, kill_after=QUICKLY):
        assert await asyncio.to_thread(eventually, lambda: read(tmp_path / "name"))
        segment = Path("/dev/shm") / (tmp_path / "name").read_text()
        assert segment.exists()
    assert tree.alive() == {}
    assert not segment.exists()


async def test_shared_memory_is_removed_also_when_its_tracker_was_killed(tmp_path: Path) -> None:
    """And left where another program has it, too."""
    program = (
        STUBBORN
        + f"""
from multiprocessing.shared_memory import SharedMemory
from multiprocessing import get_context, resource_tracker
mine, ours = (SharedMemory(create=True, size=100) for _ in range(2))
lock = get_context("spawn").Lock()
os.kill(resource_tracker._resource_tracker._pid, signal.SIGKILL)
with open({str(tmp_path / "names")!r}, "w") as file:
    file.write(" ".join([mine.name, ours.name, "sem." + lock._semlock.name[1:]]) + "\\n")
{SLEEP}"""
    )
    tree = Tree()
    async with launch([*PYTHON, program], env=tree.env, kill_after=QUICKLY):
        assert await asyncio.to_thread(eventually, lambda: read(tmp_path / "names").endswith(b"\n"))
        mine, ours, lock = (Path("/dev/shm") / name for name in read(tmp_path / "names").decode().split())
        assert lock.exists()
        with ours.open("r+b") as file:
            held = mmap.mmap(file.fileno(), 100)
    assert not mine.exists()
    assert not lock.exists()
    assert ours.exists()
    held.close()
    ours.unlink()


async def test_socket_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "ipc"
    program = (
        STUBBORN
        + f"""
import socket
listener = socket.socket(socket.AF_UNIX)
listener.bind({str(path)!r})
{SLEEP}"""
    )
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "ours"))
        async with launch([*PYTHON, program], kill_after=QUICKLY):
            assert await asyncio.to_thread(eventually, path.exists)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ours"]


async def test_sockets_with_vllms_names_that_nobody_has_any_more_are_removed(tmp_path: Path) -> None:
    """Of a program that was gone before it was looked at, and closed them without removing them."""
    name = "0d9dd2b5-51ab-4d0c-9b57-37a1e3b8b2e{}"
    dead, living, old, other = (tmp_path / text for text in (*map(name.format, "012"), "socket"))
    program = "import socket, sys\nfor path in sys.argv[1:]: socket.socket(socket.AF_UNIX).bind(path)"
    command = [*PYTHON, program, str(dead), str(other)]
    with socket.socket(socket.AF_UNIX) as somebody:
        somebody.bind(str(old))
    os.utime(old, (1, 1))
    with socket.socket(socket.AF_UNIX) as somebody:
        async with launch(command, env={"TMPDIR": str(tmp_path)}) as server:
            assert await server.process.wait() == 0
            somebody.bind(str(living))
        assert [path.name for path in (dead, living, old, other) if path.exists()] == [
            living.name, old.name, other.name,
        ]  # fmt: skip


STORE = "vllm_dist_0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("piped", [False, True], ids=["log", "pipe"])
async def test_a_store_that_the_output_names_is_removed(piped: bool, tmp_path: Path) -> None:
    """A worker may name it when it is asked to end already, as one that initialises does not mind that."""
    name = f"vllm_dist_{uuid.uuid4().hex}"
    mine, others, shared = tmp_path / name, tmp_path / STORE, Path(f"/dev/shm/{name}-tp:0-[0-1]-cpushm_0")
    others.touch()
    program = f"""
import signal, time
def go_on(*_):
    open({str(mine)!r}, "w").close()
    open({str(shared)!r}, "w").close()
    print("world_size=1 distributed_init_method=file://{mine} backend=gloo", flush=True)
signal.signal(signal.SIGTERM, go_on)
open({str(tmp_path / "begun")!r}, "w").close()
while True:
    time.sleep(600)
"""
    log = None if piped else tmp_path / "log"
    async with launch([*PYTHON, program], log=log, kill_after=QUICKLY):
        assert await asyncio.to_thread(eventually, (tmp_path / "begun").exists)
    assert others.exists()
    assert not mine.exists()
    assert not shared.exists()


async def test_a_store_is_removed_also_when_we_die_and_not_one_from_before(tmp_path: Path) -> None:
    old, new = tmp_path / STORE, tmp_path / STORE.replace("0", "f")
    old.touch()
    os.utime(old, (1, 1))
    program = STUBBORN + f"open({str(new)!r}, 'w').close()\n"
    program += "".join(f"print('file://{path}', flush=True)\n" for path in (old, new)) + SLEEP
    caller = (
        "import asyncio, os, signal, sys\n"
        "from trees import PYTHON\n"
        "from vllm_startup import launch\n"
        "async def main():\n"
        "    async with launch([*PYTHON, sys.argv[1]], kill_after=0.2) as server:\n"
        "        while not os.path.exists(sys.argv[2]): await asyncio.sleep(0.01)\n"
        "        await asyncio.sleep(0.2)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", caller, program, str(new)), cwd=Path(__file__).parents[1]
    )
    assert await process.wait() == -signal.SIGKILL
    assert await asyncio.to_thread(eventually, lambda: not new.exists())
    assert old.exists()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"distributed_init_method=file:///tmp/{STORE} backend=gloo", [f"/tmp/{STORE}"]),
        (f"file:///a/{STORE}\nfile:///b/{STORE}", [f"/a/{STORE}", f"/b/{STORE}"]),
        (f"file:///tmp/{STORE[:-1]}", []),
        (f"file:///tmp/{STORE[:-1]}x", []),
        (f"file:///tmp/my dir/{STORE}", []),
        (f"file://tmp/{STORE}", []),
        (f"/tmp/{STORE}", []),
        ("tcp://127.0.0.1:29500", []),
    ],
)
def test_which_stores_an_output_names(text: str, found: list[str]) -> None:
    assert [path.decode() for path in stores_in(text.encode())] == found


async def test_the_tree_ends_when_its_guardian_was_killed(tmp_path: Path) -> None:
    tree = Tree()
    log = tmp_path / "log"
    program = STUBBORN + "if os.fork() == 0:\n    time.sleep(600)\n" + SLEEP
    async with launch([*PYTHON, program], env=tree.env, log=log, kill_after=QUICKLY) as server:
        assert await asyncio.to_thread(eventually, lambda: b"ready" in read(log))
        assert len(tree.alive()) == 2
        [guardian] = guardians(os.getpid())
        os.kill(guardian, signal.SIGKILL)
    assert tree.alive() == {}
    assert await server.process.wait() == 255


async def test_a_guardian_that_hears_nothing_is_replaced(tmp_path: Path) -> None:
    deaf = tmp_path / "deaf.py"
    deaf.write_text("import time\ntime.sleep(600)\n")
    guarded = Guarded(deaf, patience_s=0.2)
    starting = asyncio.create_task(guarded.start(["true"], environ={}, cwd=None, output=1, kill_after=0))
    await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert await guarded.end() == []


# --- what cannot be ended -------------------------------------------------------------------

UNABLE = """
import os, sys
fd = int(sys.argv[1])
os.write(fd, b"started %d 1\\n" % os.getpid())
os.read(fd, 100)
os.write(fd, b"left 41 VLLM::Worker\\t42 a b\\n")
"""


@pytest.fixture
def unable(tmp_path: Path) -> Guarded:
    """A guardian that cannot end everything."""
    program = tmp_path / "unable.py"
    program.write_text(UNABLE)
    return Guarded(program)


async def test_what_could_not_be_ended_is_named(unable: Guarded) -> None:
    with pytest.raises(TreeEndError) as caught:
        async with Launch(launch(["true"]).plan, unable):
            pass
    assert caught.value.left == (LeftProcess(pid=41, name="VLLM::Worker"), LeftProcess(pid=42, name="a b"))
    assert str(caught.value) == (
        "processes of the server could not be ended: 41 (VLLM::Worker), 42 (a b); a driver or a file system"
        " may hold them"
    )


async def test_an_error_under_way_gets_a_note_of_what_could_not_be_ended(unable: Guarded) -> None:
    with pytest.raises(KeyError) as caught:
        async with Launch(launch(["true"]).plan, unable):
            raise KeyError("the caller's")
    [note] = caught.value.__notes__
    assert "41 (VLLM::Worker), 42 (a b)" in note


def test_the_error_pickles() -> None:
    error = TreeEndError([LeftProcess(pid=41, name="VLLM::Worker")])
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.left, str(copied)) == (error.left, str(error))


def test_it_gives_up_on_what_does_not_end() -> None:
    stuck = Process(pid=2**22, start=1, parent=1, session=1, zombie=False, name="stuck")
    left = end_tree(lambda: [stuck], kill_after=0, give_up=0.05, finished=lambda _: False, files=LeftFiles(0))
    assert left == [stuck]


# --- who is who -----------------------------------------------------------------------------


def test_a_process_that_has_anothers_pid_is_not_hit() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        found = read_process(child.pid)
        assert found is not None
        send(found._replace(start=found.start - 1), signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.05)
        send(found, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        send(found, signal.SIGKILL)


def test_the_descendants_of_a_process_are_its_tree() -> None:
    with subprocess.Popen(["sh", "-c", "sh -c 'sleep 600; true'; true"]) as root:

        def tree() -> list[str]:
            return sorted(process.name for process in living(lambda process: process.pid == root.pid))

        assert eventually(lambda: tree() == ["sh", "sh", "sleep"]), tree()
        for process in living(lambda process: process.pid == root.pid):
            send(process, signal.SIGKILL)
        assert eventually(lambda: tree() == [])
