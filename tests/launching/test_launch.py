"""Starting a server, waiting for it, and every way out."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest
from trees import PYTHON, SLEEP, STUBBORN, Tree, eventually, guardians, read

from vllm_startup import PhaseEntered, StartupError, StartupStalled, Timeouts, causes
from vllm_startup._launching.launch import Launch, launch
from vllm_startup._launching.output import OutputTail
from vllm_startup._readings import GpuMemory, GpuSample, Reading
from vllm_startup.testing import simulated_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="whole trees are ended on Linux")

QUICKLY = 0.2

RECORDINGS = Path(__file__).parent.parent / "recordings"


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """No task, thread, descriptor or child is left by any test here."""
    threads, descriptors = set(threading.enumerate()), open_files()
    yield
    assert await asyncio.to_thread(eventually, lambda: not guardians(os.getpid()), within=3)
    await asyncio.get_running_loop().shutdown_default_executor()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert eventually(lambda: set(threading.enumerate()) <= threads, within=3), threading.enumerate()
    assert open_files() == descriptors


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def line_in(log: Path, text: bytes = b"ready") -> None:
    assert await asyncio.to_thread(eventually, lambda: text in read(log))


# --- the start ------------------------------------------------------------------------------


async def test_the_server_leads_a_session_and_a_group_and_reads_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = "import os\nprint([os.getpid(), os.getsid(0), os.getpgid(0)], os.readlink('/proc/self/fd/0'))"
    async with launch([*PYTHON, program], log=log) as server:
        assert await server.process.wait() == 0
    pid = server.pid
    assert log.read_text() == f"[{pid}, {pid}, {pid}] /dev/null\n"


async def test_the_server_has_the_environment_and_the_directory_that_it_was_given(tmp_path: Path) -> None:
    log, place = tmp_path / "log", tmp_path / "place"
    place.mkdir()
    odd = {"ONLY": "this", "ODD": "\udcff \n\t ü"}
    async with launch(["/usr/bin/env", "-0"], log=log, env=odd, cwd=place) as server:
        await server.process.wait()
    assert log.read_bytes() == b"ONLY=this\0ODD=\xff \n\t \xc3\xbc\0"
    async with launch(["pwd"], log=log, cwd=place) as server:
        await server.process.wait()
    assert log.read_bytes().endswith(f"{place}\n".encode())


async def test_a_command_and_an_environment_may_be_large(tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = {f"V{number}": "v" * 100_000 for number in range(10)}
    async with launch(["sh", "-c", "echo ${#V0} ${#1}", "sh", "a" * 100_000], log=log, env=env) as server:
        await server.process.wait()
    assert log.read_text() == "100000 100000\n"


async def test_signals_that_we_ignore_are_ignored_and_none_else(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = "import signal\nprint([n for n in range(1, 32) if signal.getsignal(n) == signal.SIG_IGN])"
    was = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with launch([*PYTHON, program], log=log) as server:
            await server.process.wait()
    finally:
        signal.signal(signal.SIGHUP, was)
    # Python itself ignores the latter two.
    assert json.loads(log.read_text()) == [signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ]


@pytest.mark.parametrize("earlier", ["0.32.0-ready-eager", "0.32.0-kv-too-small"])
async def test_a_start_that_dies_before_its_banner_is_told_by_its_own_words(
    tmp_path: Path, earlier: str
) -> None:
    """Import errors and wrong arguments come before the banner; the log holds an earlier start."""
    log = tmp_path / "vllm.log"
    rows = (RECORDINGS / f"{earlier}.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    lines = [line for row in rows for line in json.loads(row).get("lines", ())]
    log.write_text("\n".join(lines), encoding="utf-8")
    async with launch([*PYTHON, "raise ValueError('ours')"], log=log) as server:
        with pytest.raises(StartupError) as caught:
            await server.wait_until_ready()
    assert isinstance(caught.value.cause, causes.UnclassifiedError)
    assert "ours" in caught.value.cause.message
    assert len(caught.value.report.attempts) == 2


async def test_the_log_is_appended_to_and_keeps_its_mode(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    log.chmod(0o644)
    async with launch(["sh", "-c", "echo out; echo err >&2"], log=log) as server:
        await server.process.wait()
    assert log.read_text() == "before\nout\nerr\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o644


async def test_a_new_log_is_this_users_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with launch(["true"], log=log):
        pass
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


async def test_a_pipe_is_drained_while_the_event_loop_is_blocked(tmp_path: Path) -> None:
    done = tmp_path / "done"
    async with launch(["sh", "-c", f"head -c 10000000 /dev/zero; touch {done}; exec sleep 600"]):
        assert eventually(done.exists)  # blocks the loop


async def test_of_a_long_output_the_newest_whole_lines_are_kept() -> None:
    reading, writing = os.pipe()
    output = OutputTail(reading)
    lines = [b"line %d " % number + b"x" * 1000 + b"\n" for number in range(10_000)]
    for start in range(0, len(lines), 50):
        os.write(writing, b"".join(lines[start : start + 50]))
    os.close(writing)
    await asyncio.to_thread(output.join)
    kept = b"".join([data async for data in output.follow()]).splitlines(keepends=True)
    output.close()
    assert 4000 < len(kept) < 6000
    assert kept == lines[-len(kept) :]


async def test_output_is_followed_as_it_comes_by_all_who_want_it() -> None:
    reading, writing = os.pipe()
    output = OutputTail(reading)
    first, second = output.follow(), output.follow()
    for word in (b"one\n", b"two"):
        os.write(writing, word)
        assert await anext(first) == word
        assert await anext(second) == word
    os.close(writing)
    assert [data async for data in first] == []
    await second.aclose()
    output.close()


@pytest.mark.parametrize(
    ("command", "returncode"),
    [("exit 3", 3), ("kill -9 $$", -9), ("exit 0", 0)],
    ids=["status", "signal", "0"],
)
async def test_the_exit_status_comes_back(command: str, returncode: int) -> None:
    async with launch(["sh", "-c", command]) as server:
        assert await server.process.wait() == returncode
        assert server.process.returncode == returncode


async def test_a_signal_can_be_sent_also_when_it_is_too_late() -> None:
    async with launch(["sleep", "600"]) as server:
        server.process.send_signal(signal.SIGINT)
        assert await server.process.wait() == -signal.SIGINT
        server.process.send_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("command", "url"),
    [
        (["vllm", "serve", "m"], "http://127.0.0.1:8000"),
        (["vllm", "serve", "m", "--port", "9"], "http://127.0.0.1:9"),
        (["vllm", "serve", "m", "--host", "::", "--ssl-keyfile", "k"], "https://[::1]:8000"),
        (["env", "A=b", "vllm", "serve", "m", "--uds", "/run/v"], "unix:///run/v"),
        (
            ["uv", "run", "python", "-m", "vllm.entrypoints.openai.api_server", "--port=9"],
            "http://127.0.0.1:9",
        ),
        (["bash", "-c", "exec vllm serve m --port $PORT"], "http://127.0.0.1:7"),
        (["vllm", "serve", "m", "--headless"], None),
        (["./start.sh"], None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_url_is_the_commands_own(command: list[str], url: str | None) -> None:
    assert launch(command, env={"PORT": "7"}).plan.url == url


async def test_the_url_of_a_script_is_found_when_it_has_come_to_its_server(tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    server = simulated_server(speed=20)
    script.write_text(f"#!/bin/sh\nsleep 1\nexec {' '.join(server)}\n")
    script.chmod(0o755)
    async with launch([script]) as launched:
        assert launched.url is None
        report = await launched.wait_until_ready(timeouts=Timeouts(60))
        assert launched.url == report.url == f"http://127.0.0.1:{server[-1]}"


async def test_the_url_that_a_shells_text_leaves_open_is_the_servers_own(tmp_path: Path) -> None:
    *server, port = simulated_server(speed=20)
    (tmp_path / "settings").write_text(f"PORT={port}\n")
    text = f". {tmp_path}/settings; sleep 1; {' '.join(server)} $PORT"
    async with launch(["sh", "-c", text]) as launched:
        assert launched.url == "http://127.0.0.1:8000"
        report = await launched.wait_until_ready(timeouts=Timeouts(60))
        assert launched.url == report.url == f"http://127.0.0.1:{port}"


# --- misuse ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"command": "vllm serve m"}, TypeError, "command must be a list"),
        ({"command": b"vllm"}, TypeError, "command must be a list"),
        ({"command": []}, ValueError, "command is empty"),
        ({"command": [""]}, ValueError, "command begins with an empty string"),
        ({"command": ["a\0b"]}, ValueError, "NUL"),
        ({"command": ["vllm", 8000]}, TypeError, "command"),
        ({"command": ["vllm", b"serve"]}, TypeError, "command must hold strings"),
        ({"env": {"A": 1}}, TypeError, "env must map strings"),
        ({"env": {"A=B": "1"}}, ValueError, "env holds a variable"),
        ({"kill_after": -1}, ValueError, "kill_after must be 0 or more"),
        ({"kill_after": float("inf")}, ValueError, "kill_after must be 0 or more"),
        ({"gpus": "0"}, TypeError, "gpus"),
        ({"until": "soon"}, ValueError, "until"),
        ({"url": "ftp://host"}, ValueError, "url"),
        ({"stable_for": -1}, ValueError, "stable_for"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_at_once(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        launch(**{"command": ["vllm", "serve", "m"], **arguments})


@pytest.mark.parametrize(
    ("command", "cwd", "error", "message"),
    [
        ("no-such-program", None, FileNotFoundError, "command: not found on PATH: 'no-such-program'"),
        ("./no-such-program", None, FileNotFoundError, "command: No such file or directory"),
        ("/etc/passwd", None, PermissionError, "command: Permission denied: '/etc/passwd'"),
        ("true", "/no/such/place", FileNotFoundError, "cwd: No such file or directory: '/no/such/place'"),
    ],
    ids=["not on the path", "not there", "not executable", "no such directory"],
)
async def test_what_cannot_be_started_is_an_error_when_the_block_is_entered(
    command: str, cwd: str | None, error: type[OSError], message: str
) -> None:
    with pytest.raises(error, match=message):
        await launch([command], cwd=cwd).__aenter__()


async def test_a_log_that_cannot_be_written_is_an_error_when_the_block_is_entered(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        await launch(["true"], log=tmp_path).__aenter__()


def test_a_program_without_a_python_of_its_own_cannot_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(RuntimeError, match="use wait_until_ready"):
        launch(["true"])


async def test_a_guardian_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(FileNotFoundError, match="/no/such/python"):
        await launch(["true"]).__aenter__()


async def test_a_launch_is_entered_once() -> None:
    launched = launch(["true"])
    async with launched:
        pass
    with pytest.raises(RuntimeError, match="entered once"):
        await launched.__aenter__()


async def test_a_server_that_was_left_cannot_be_waited_for() -> None:
    async with launch(["true"]) as server:
        pass
    with pytest.raises(RuntimeError, match="inside the async with block"):
        await server.wait_until_ready()


async def test_a_server_that_nobody_has_waited_for_has_no_status() -> None:
    async with launch(["true"]) as server:
        with pytest.raises(RuntimeError, match="call wait_until_ready"):
            _ = server.status


# --- waiting --------------------------------------------------------------------------------


async def test_a_server_becomes_ready_and_is_waited_for_again_with_more() -> None:
    tree = Tree()
    async with launch(simulated_server(speed=10), env=tree.env) as server:
        following = asyncio.create_task(phases(server.events()))
        first, second = await asyncio.gather(server.wait_until_ready(), server.wait_until_ready())
        assert first.outcome == second.outcome == "ready"
        assert server.status.phase == "ready"
        assert await following == [
            "launching",
            "configuring",
            "initializing",
            "loading_weights",
            "compiling",
            "allocating_kv_cache",
            "warming_up",
            "starting_server",
            "ready",
        ]
        more = await server.wait_until_ready(until="inference", timeouts=Timeouts(10))
        assert more.until == "inference"
        assert "inference" in more.tiers
        assert len(tree.alive()) == 4
    assert tree.alive() == {}


async def phases(events: AsyncIterator[object]) -> list[str]:
    return [event.phase.value async for event in events if isinstance(event, PhaseEntered)]


async def test_a_start_that_failed_is_an_error_and_the_tree_is_gone_when_the_block_is_left() -> None:
    tree = Tree()
    async with launch(simulated_server("out-of-memory", speed=10), env=tree.env) as server:
        with pytest.raises(StartupError) as caught:
            await server.wait_until_ready()
    assert isinstance(caught.value.cause, causes.GpuOutOfMemory)
    assert caught.value.cause.confidence == "certain"
    assert tree.alive() == {}


async def test_a_server_that_hangs_is_ended_by_the_block() -> None:
    tree = Tree()
    with pytest.raises(StartupStalled):
        async with launch(simulated_server("hang", speed=10), env=tree.env, kill_after=QUICKLY) as server:
            await server.wait_until_ready(timeouts=Timeouts(stall=1.5))
    assert tree.alive() == {}


async def test_the_cause_of_a_program_that_fails_at_once_is_in_its_pipe() -> None:
    program = 'raise ModuleNotFoundError("No module named \'vllm\'", name="vllm")'
    async with launch([*PYTHON, program], url="http://127.0.0.1:1") as server:
        await server.process.wait()
        began = asyncio.get_running_loop().time()
        with pytest.raises(StartupError) as caught:
            await server.wait_until_ready()
    assert isinstance(caught.value.cause, causes.ModuleMissing)
    assert asyncio.get_running_loop().time() - began < 1.5  # a pipe that somebody holds takes 2 s


async def test_a_crash_that_stands_in_the_log_from_before_is_not_this_starts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with launch(simulated_server("out-of-memory", speed=10), log=log) as server:
        with pytest.raises(StartupError):
            await server.wait_until_ready()
    async with launch(simulated_server(speed=10), log=log) as server:
        report = await server.wait_until_ready()
    assert [attempt.outcome for attempt in report.attempts] == ["failed", "ready"]


async def test_events_and_recording_go_where_they_are_wanted(tmp_path: Path) -> None:
    events: list[object] = []
    record = tmp_path / "recording.jsonl"
    async with launch(simulated_server("killed", speed=1.5), on_event=events.append, record=record) as server:
        with pytest.raises(StartupError) as caught:
            await server.wait_until_ready()
    assert isinstance(caught.value.cause, causes.ProcessKilled)
    assert any(isinstance(event, PhaseEntered) for event in events)
    assert len(record.read_text().splitlines()) > 20


async def test_two_servers_on_one_port_are_one_server_and_a_taken_port() -> None:
    command = simulated_server(speed=10)
    async with launch(command) as first:
        await first.wait_until_ready()
        async with launch(command) as second:
            with pytest.raises(StartupError) as caught:
                await second.wait_until_ready()
        assert isinstance(caught.value.cause, causes.PortInUse)
        assert first.process.returncode is None
        await first.wait_until_ready(until="model")


# --- every way out --------------------------------------------------------------------------


async def test_an_error_in_the_block_ends_the_tree_and_goes_on(tmp_path: Path) -> None:
    tree, log = Tree(), tmp_path / "log"

    async def start() -> None:
        async with launch([*PYTHON, STUBBORN + SLEEP], env=tree.env, log=log, kill_after=QUICKLY):
            await line_in(log)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await start()
    assert tree.alive() == {}


@pytest.mark.parametrize("after_s", [0, 0.01, 0.03, 0.06, 0.1])
async def test_a_cancellation_in_any_moment_of_the_start_leaves_nothing(after_s: float) -> None:
    tree = Tree()

    async def start() -> None:
        async with launch([*PYTHON, STUBBORN + SLEEP], env=tree.env, kill_after=QUICKLY):
            await asyncio.sleep(600)

    task = asyncio.create_task(start())
    await asyncio.sleep(after_s)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tree.alive() == {}


async def test_a_cancelled_ending_is_brought_to_its_end(tmp_path: Path) -> None:
    tree, log = Tree(), tmp_path / "log"

    async def start() -> None:
        async with launch([*PYTHON, STUBBORN + SLEEP], env=tree.env, log=log, kill_after=0.4):
            await line_in(log)

    task = asyncio.create_task(start())
    await line_in(log)
    for _ in range(3):
        await asyncio.sleep(0.1)
        assert len(tree.alive()) == 1
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tree.alive() == {}


async def test_one_waiter_that_is_cancelled_leaves_the_others_alone() -> None:
    async with launch(simulated_server(speed=10)) as server:
        leaving = asyncio.create_task(server.wait_until_ready())
        staying = asyncio.create_task(server.wait_until_ready())
        await asyncio.sleep(0.05)
        leaving.cancel()
        assert (await staying).outcome == "ready"
        assert leaving.cancelled()


CALLER = """
import asyncio, os, sys, time
from trees import PYTHON, STUBBORN, SLEEP
from vllm_startup._launching.launch import launch

async def main():
    async with launch([*PYTHON, STUBBORN + SLEEP], log=sys.argv[1], kill_after=0.3) as server:
        if sys.argv[2] == "detach":
            server.detach()
        if sys.argv[2] == "fork" and os.fork() == 0:
            time.sleep(600)  # it holds all that its parent has open
        print("entered", flush=True)
        if sys.argv[2] == "leave":
            return
        await asyncio.sleep(600)

asyncio.run(main())
"""


class Caller:
    """A program of its own that launches a stubborn server."""

    def __init__(self, log: Path, what: str) -> None:
        self.tree = Tree()
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-c", CALLER, str(log), what],
            env=self.tree.env,
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def started(self) -> bool:
        """Wait until the server runs."""
        assert self.process.stdout is not None
        return self.process.stdout.readline() == b"entered\n" and eventually(
            lambda: b"ready" in read(self.log)
        )

    def servers(self) -> list[int]:
        """What lives of the server."""
        return [pid for pid, line in self.tree.alive().items() if line.startswith(" ".join(PYTHON))]

    def gone(self) -> bool:
        """Wait until nothing lives."""
        self.process.communicate(timeout=20)
        return eventually(lambda: not self.tree.alive())


def test_ctrl_c_ends_the_tree(tmp_path: Path) -> None:
    caller = Caller(tmp_path / "log", "stay")
    assert caller.started()
    assert len(caller.servers()) == 1
    caller.process.send_signal(signal.SIGINT)
    assert caller.gone()
    assert caller.process.returncode == -signal.SIGINT


def test_ctrl_c_again_and_again_ends_the_tree(tmp_path: Path) -> None:
    caller = Caller(tmp_path / "log", "stay")
    assert caller.started()
    for _ in range(4):
        caller.process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert caller.gone()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_our_own_sudden_death_ends_the_tree(number: signal.Signals, tmp_path: Path) -> None:
    caller = Caller(tmp_path / "log", "stay")
    assert caller.started()
    caller.process.send_signal(number)
    assert caller.gone()
    assert caller.process.returncode == -number


def test_our_death_ends_the_tree_although_a_fork_of_us_lives(tmp_path: Path) -> None:
    caller = Caller(tmp_path / "log", "fork")
    assert caller.started()
    caller.process.kill()
    caller.process.wait()
    assert eventually(lambda: not caller.servers())
    assert eventually(lambda: len(caller.tree.alive()) == 1)  # the guardian ends a little later
    [fork] = caller.tree.alive()
    os.kill(fork, signal.SIGKILL)
    assert caller.gone()


def test_a_detached_server_survives_our_death(tmp_path: Path) -> None:
    caller = Caller(tmp_path / "log", "detach")
    assert caller.started()
    caller.process.kill()
    caller.process.communicate()
    time.sleep(0.3)
    [server] = caller.tree.alive()
    os.kill(server, signal.SIGKILL)


async def test_a_detached_server_lives_on_and_so_does_its_log(tmp_path: Path) -> None:
    tree, log = Tree(), tmp_path / "log"
    program = "import time\nwhile True:\n    print('tick', flush=True)\n    time.sleep(0.02)\n"
    async with launch([*PYTHON, program], env=tree.env, log=log) as server:
        server.detach()
    size = log.stat().st_size
    assert await asyncio.to_thread(eventually, lambda: log.stat().st_size > size)
    assert list(tree.alive()) == [server.pid]
    os.kill(server.pid, signal.SIGKILL)
    assert await asyncio.to_thread(eventually, lambda: not tree.alive())


async def test_a_server_that_prints_to_our_pipe_cannot_be_detached() -> None:
    async with launch(["sleep", "600"]) as server:
        with pytest.raises(RuntimeError, match=r"launch\(log=...\)"):
            server.detach()


# --- GPU memory -----------------------------------------------------------------------------


class Gpus:
    """Says in turn what is in use."""

    name = "gpu"
    interval_s = 1.0
    limit_s = None

    def __init__(self, *used_gib: int) -> None:
        self._used = list(used_gib)

    async def sample(self, now: float) -> Iterable[Reading]:
        used = self._used.pop(0) if len(self._used) > 1 else self._used[0]
        return [
            GpuMemory(gpus=(GpuSample(index=0, uuid="GPU-1", used_bytes=used << 30, total_bytes=80 << 30),))
        ]

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize(
    ("used_gib", "warnings"),
    [
        ((1, 1), []),
        ((1, 71, 71, 1), []),
        (
            (1, 71),
            [
                "GPU 0 (GPU-1) holds 70.0 GiB more than before the server was started, though all its"
                " processes have ended"
            ],
        ),
    ],
    ids=["free at once", "free soon", "never free"],
)
async def test_gpu_memory_that_does_not_come_back_is_a_warning(
    used_gib: tuple[int, ...],
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("vllm_startup._launching.gpu_release._POLL_S", 0.001)
    plan = launch(["sleep", "600"]).plan
    async with Launch(attrs.evolve(plan, gpus=Gpus(*used_gib))):
        await asyncio.sleep(0.01)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == warnings
