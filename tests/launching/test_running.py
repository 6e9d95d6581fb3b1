"""A command in our place: its output, its signals, its end. Real processes, real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from trees import ESCAPE, PYTHON, SLEEP, STUBBORN, Tree, eventually, guardians

from vllm_startup._launching.running import Running, _reap, exit_status

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX processes")

TELLS = """
import os, signal, sys, time
def tell(number, frame):
    os.write(1, signal.Signals(number).name.encode() + b"\\n")
    if number == signal.SIGTERM:
        sys.exit(7)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
    signal.signal(number, tell)
"""
"""A program's first lines: it says which signals it gets, and ends at SIGTERM."""


class Output:
    """What was written where, instead of to our own streams."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._written: dict[int, bytes] = {}

    def write(self, fd: int, data: bytes) -> None:
        with self._lock:
            self._written[fd] = self._written.get(fd, b"") + data

    def __getitem__(self, fd: int) -> bytes:
        return self._written.get(fd, b"")

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(10):
            while text not in self[1]:
                await asyncio.sleep(0.01)


@pytest.fixture
def output() -> Output:
    return Output()


@pytest.fixture
def tree() -> Iterator[Tree]:
    made = Tree()
    yield made
    assert eventually(lambda: not made.alive()), made.alive()
    assert guardians(os.getpid()) == []


@pytest.fixture
def begin(output: Output, tree: Tree) -> Callable[..., Running]:
    """Makes a command of some lines of Python."""

    def make(*lines: str, command: Sequence[str] | None = None, kill_after: float = 0.3) -> Running:
        words = [*PYTHON, "\n".join(lines)] if command is None else command
        return Running(words, environ=tree.env, write=output.write, kill_after=kill_after)

    return make


# --- output and end -----------------------------------------------------------------------------


async def test_output_errors_and_status_are_passed_on(begin: Callable[..., Running], output: Output) -> None:
    program = "import os; os.write(1, b'out \\xff\\r\\n'); os.write(2, b'err\\x00'); os._exit(3)"
    async with begin(program) as running:
        status = await running.process.wait()
        await running.end()

    assert status == 3
    assert output[1] + output[2] == b"out \xff\r\nerr\x00"
    assert running.left == []


async def test_all_output_has_passed_when_the_block_is_left(
    begin: Callable[..., Running], output: Output
) -> None:
    async with begin("import sys; sys.stdout.write('line\\n' * 500_000)") as running:
        await running.process.wait()

    assert output[1] == b"line\n" * 500_000


async def test_the_log_is_a_copy_of_the_output(begin: Callable[..., Running]) -> None:
    async with begin("print('one'); print('two')") as running:
        found = b"".join([data async for data in running.log()])

    assert found == b"one\ntwo\n"


async def test_a_closed_log_holds_up_nothing(begin: Callable[..., Running], output: Output) -> None:
    async with begin(
        "import sys; input(); sys.stdout.write('y' * 2_000_000)",
    ) as running:
        running.close_log()
        running.close_log()
        await running.process.wait()

    assert len(output[1]) in (0, 2_000_000)  # none where standard input is at its end


async def test_what_is_left_of_the_tree_is_ended(begin: Callable[..., Running], tree: Tree) -> None:
    async with begin(STUBBORN, ESCAPE, "os._exit(0)") as running:
        assert await running.process.wait() == 0
        assert tree.alive()

    assert running.left == []
    assert tree.alive() == {}


async def test_an_exception_in_the_block_ends_the_tree(begin: Callable[..., Running], output: Output) -> None:
    async def attend() -> None:
        async with begin(STUBBORN, SLEEP):
            await output.until(b"ready")
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        await attend()


async def test_a_cancellation_ends_the_tree(begin: Callable[..., Running], output: Output) -> None:
    async def attend() -> None:
        async with begin(STUBBORN, SLEEP) as running:
            await running.process.wait()

    task = asyncio.create_task(attend())
    await output.until(b"ready")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("command", "error"),
    [(["no-such-program"], FileNotFoundError), (["/etc/passwd"], PermissionError), (["/"], PermissionError)],
)
async def test_a_command_that_cannot_be_started(
    begin: Callable[..., Running], command: list[str], error: type[OSError]
) -> None:
    running = begin(command=command)
    with pytest.raises(error):
        await running.__aenter__()

    assert not running.started
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


async def test_no_thread_for_the_output_is_an_error_and_no_wait(
    begin: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a container or a unit may have no more threads."""

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    running = begin("print('out')")
    monkeypatch.setattr(threading.Thread, "start", start)
    async with asyncio.timeout(10):
        with pytest.raises(OSError, match="no further thread can be started; raise the limit"):
            await running.__aenter__()
    assert not running.started


async def test_nothing_of_ours_is_left(begin: Callable[..., Running]) -> None:
    def ours() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208 - only their number

    before = ours()
    async with begin("print('x')") as running:
        await running.process.wait()

    assert eventually(lambda: ours() == before), ours()


@pytest.mark.parametrize(("returncode", "status"), [(0, 0), (3, 3), (-9, 137), (-15, 143), (255, 255)])
def test_an_end_as_a_shell_tells_it(returncode: int, status: int) -> None:
    assert exit_status(returncode) == status


def test_process_1_takes_the_status_of_what_was_left_to_it() -> None:
    child = subprocess.Popen([*PYTHON, "pass"])
    try:
        assert eventually(lambda: (_reap(), not Path(f"/proc/{child.pid}").exists())[1])
        _reap()  # nothing is left to take
    finally:
        child.wait()


# --- signals ------------------------------------------------------------------------------------


async def test_each_signal_is_forwarded_once(begin: Callable[..., Running], output: Output) -> None:
    names = ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGQUIT", "SIGTERM"]
    async with begin(TELLS, SLEEP) as running:
        await output.until(b"ready")
        for name in names:
            os.kill(os.getpid(), getattr(signal, name))
            await output.until(name.encode())
        status = await running.process.wait()

    assert status == 7
    assert output[1].decode().splitlines() == ["ready", *names]


async def test_two_signals_for_one_reason_are_one(begin: Callable[..., Running], output: Output) -> None:
    async with begin(TELLS, SLEEP):
        await output.until(b"ready")
        for _ in range(2):  # as of timeout, to its child and to its group
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.sleep(0.02)
        await output.until(b"SIGUSR1")
        os.kill(os.getpid(), signal.SIGTERM)
        await output.until(b"SIGTERM")

    assert output[1].decode().splitlines() == ["ready", "SIGUSR1", "SIGTERM"]


async def test_a_signal_that_comes_early_is_kept(begin: Callable[..., Running], output: Output) -> None:
    running = begin(TELLS, SLEEP)
    starting = asyncio.create_task(running.__aenter__())
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    await starting
    async with asyncio.timeout(10):
        status = await running.process.wait()
    await running.__aexit__(None, None, None)

    assert status in (7, -signal.SIGTERM)  # it may come before the program's first line


async def test_what_was_ignored_before_is_ignored_by_the_command(
    begin: Callable[..., Running], output: Output
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with begin("import signal; print(signal.getsignal(signal.SIGHUP).name)") as running:
            os.kill(os.getpid(), signal.SIGHUP)
            await running.process.wait()
    finally:
        signal.signal(signal.SIGHUP, before)

    assert output[1] == b"SIG_IGN\n"


async def test_handlers_are_gone_afterwards(begin: Callable[..., Running]) -> None:
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGTSTP, signal.SIGCONT)
    before = [signal.getsignal(number) for number in numbers]
    async with begin("pass") as running:
        await running.process.wait()

    assert [signal.getsignal(number) for number in numbers] == before


async def test_a_stop_stops_the_command_and_it_goes_on(begin: Callable[..., Running], output: Output) -> None:
    """Nothing but the kernel can stop us here: pytest has no shell above it that would let us go on."""
    async with begin(TELLS, SLEEP) as running:
        await output.until(b"ready")
        running.process.send_signal(signal.SIGSTOP)
        assert eventually(lambda: state(running.process.pid) == "T")

        os.kill(os.getpid(), signal.SIGCONT)
        async with asyncio.timeout(10):
            while state(running.process.pid) == "T":
                await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running.process.wait() == 7


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - read as text, once
        return file.read().rpartition(")")[2].split()[0]


async def test_a_signal_ends_the_wait_for_a_reader_that_does_not_read(tree: Tree) -> None:
    held = threading.Event()
    running = Running(
        [*PYTHON, "print('x')"], environ=tree.env, write=lambda fd, data: bool(held.wait()) or None
    )
    async with running:
        await running.process.wait()
        ending = asyncio.create_task(running.end())
        await asyncio.sleep(0.05)
        assert not ending.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(ending, 10)
        held.set()
