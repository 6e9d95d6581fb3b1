"""``vllm-startup run`` as its users run it: in a pipe, under a supervisor, on a terminal."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from cli_tools import (
    BANNER,
    ENGINE,
    FAILED,
    PYTHON,
    TELLS,
    UP,
    Result,
    free_port,
    run,
    serving,
    unstamped,
    words_of,
)

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"ready\\n")
time.sleep(600)
"""


Start = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts ``run`` with arguments; whatever is left of it ends with the test."""
    started: list[asyncio.subprocess.Process] = []

    async def begin(*arguments: str, stdin: int = asyncio.subprocess.DEVNULL) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *words_of("run", *arguments), stdin=stdin, stdout=pipe, stderr=pipe
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.returncode is None:
            process.kill()  # its guardian ends the rest
        await process.wait()


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 20)).decode().rstrip("\n")


async def end_of(process: asyncio.subprocess.Process) -> Result:
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return Result(process.returncode, out.decode(), err.decode())


# --- exit statuses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("import os; os._exit(0)", 1),
        ("import os; os._exit(42)", 42),
        ("import os; os.kill(os.getpid(), 9)", 137),
        ("import os; os.kill(os.getpid(), 15)", 143),
    ],
)
async def test_an_end_before_it_is_ready(program: str, status: int) -> None:
    found = await run("run", f"http://127.0.0.1:{free_port()}", "--", *PYTHON, program)

    assert found.status == status
    assert found.err.startswith("vllm-startup: failed in launching after ")
    assert found.out == ""


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("no-such-program", 127, "vllm-startup: no-such-program: not found on PATH\n"),
        ("/no/such/program", 127, "vllm-startup: /no/such/program: No such file or directory\n"),
        ("/etc/passwd", 126, "vllm-startup: /etc/passwd: Permission denied\n"),
    ],
)
async def test_a_command_that_cannot_be_started(command: str, status: int, said: str) -> None:
    assert await run("run", "--", command) == Result(status, "", said)


@pytest.mark.parametrize("arguments", [["vllm", "serve", "tiny"], ["--"], ["--timeout", "5"], []])
async def test_a_command_that_is_not_there(arguments: list[str]) -> None:
    found = await run("run", *arguments)

    assert found.status == 2
    assert "put the command behind --" in found.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--events", "-"], "--events - would write into the server's own output"),
        (["--model", "tiny"], "--model is looked at with --until model"),
        (["--api-key-file", "/no/such"], "--api-key-file '/no/such' cannot be read"),
        (["--baseline", "/no/such"], "--baseline '/no/such': No such file"),
        (["--events", "{tmp}/x", "--report", "{tmp}/x"], "--events and --report are one file"),
        (["--log", "/etc/passwd", "--record", "/etc/passwd"], "--record and --log are one file"),
        (["--pid", "1"], "unrecognized arguments: --pid"),
        (["--on-stall", "ignore"], "invalid choice: 'ignore'"),
    ],
)
async def test_wrong_usage_starts_nothing(arguments: list[str], said: str, tmp_path: Path) -> None:
    trace = tmp_path / "started"
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    found = await run("run", *given, "--", "touch", str(trace))

    assert (found.status, found.out) == (2, "")
    assert said in found.err
    assert not trace.exists()


@pytest.mark.parametrize("server", [["--port", "8123"], ["--port=8123", "--host", "0.0.0.0"]])
async def test_the_servers_own_port_is_not_taken_from_it(server: list[str]) -> None:
    found = await run("run", "--status-listen", "8123", "--", "vllm", "serve", "tiny", *server)

    assert (found.status, found.out) == (2, "")
    assert "--status-listen 8123 is the server's own port" in found.err


async def test_options_of_the_command_are_its_own(tmp_path: Path) -> None:
    found = await run("run", "--", "sh", "-c", 'echo "$@"; exit 4', "x", "--help", "--", "--timeout", "1")

    assert (found.status, found.out) == (4, "--help -- --timeout 1\n")


# --- limits -------------------------------------------------------------------------------------


async def test_a_limit_ends_the_server() -> None:
    found = await run("run", "--timeout", "initializing=0.3", "--", *serving([BANNER, ENGINE]))

    assert found.status == 124
    assert unstamped(found.out) == unstamped(f"{BANNER}\n{ENGINE}\n")
    assert re.search(r"^vllm-startup: timed out in initializing after ", found.err, re.MULTILINE)


@pytest.mark.parametrize("options", [["--stall", "1.5"], ["--stall", "1.5", "--on-stall", "kill"]])
async def test_a_stall_limit_that_was_given_ends_the_server(options: list[str]) -> None:
    found = await run("run", *options, "--", *serving([BANNER, ENGINE]))

    assert found.status == 3
    assert re.search(r"^vllm-startup: stalled in initializing after ", found.err, re.MULTILINE)


async def test_a_stall_may_be_reported_only(tmp_path: Path, start: Start) -> None:
    report, port = tmp_path / "report.json", free_port()
    process = await start(
        "--stall", "1.5", "--on-stall", "report", "--report", str(report), "--",
        *serving(UP, port=port, hold=True), stdin=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stdin is not None

    first = (await asyncio.wait_for(process.stderr.readline(), 20)).decode()
    assert first.startswith("vllm-startup: stalled in launching after ")
    assert json.loads(report.read_text())["outcome"] == "stalled"

    process.stdin.write(b"go\n")  # and it starts after all
    async with asyncio.timeout(20):
        while json.loads(report.read_text())["outcome"] != "ready":
            await asyncio.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    await end_of(process)


async def test_a_stall_that_was_reported_is_why_the_server_is_asked_to_end(
    tmp_path: Path, start: Start
) -> None:
    """As Kubernetes does, whose probe hears of the stall: it keeps what was said last."""
    report, said = tmp_path / "report.json", tmp_path / "termination-log"
    process = await start(
        *("--stall", "1.5", "--on-stall", "report", "--report", str(report), "--termination-log", str(said)),
        *("--", *serving(UP, hold=True)), stdin=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    await asyncio.wait_for(process.stderr.readline(), 20)
    process.send_signal(signal.SIGTERM)
    await end_of(process)

    last = json.loads(report.read_text())
    assert (last["outcome"], last["cause"]["kind"]) == ("stalled", "stalled")
    assert said.read_text().startswith("stalled: ")


async def test_a_failed_start_that_lives_is_ended() -> None:
    began = time.monotonic()
    lines = [BANNER, ENGINE, *FAILED]
    found = await run("run", "--exit-grace", "0.3", "--", *serving(lines))

    assert found.status == 1
    assert "vllm-startup: failed in initializing after " in found.err
    assert "no_kv_cache_memory" in found.err
    assert time.monotonic() - began < 8


# --- ready, and after ---------------------------------------------------------------------------


async def test_a_server_that_is_ready_is_left_alone(tmp_path: Path, start: Start) -> None:
    port, report, events = free_port(), tmp_path / "report.json", tmp_path / "events.jsonl"
    process = await start("--report", str(report), "--events", str(events), "--", *serving(UP, port=port))
    assert [unstamped(await line_of(process)) for _ in UP] == [unstamped(line) for line in UP]
    async with asyncio.timeout(20):
        while not report.exists():
            await asyncio.sleep(0.02)

    assert json.loads(report.read_text())["outcome"] == "ready"
    assert json.loads(report.read_text())["url"] == f"http://127.0.0.1:{port}"
    assert report.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert json.loads(events.read_text().splitlines()[-1])["outcome"] == "ready"

    process.send_signal(signal.SIGTERM)
    found = await end_of(process)
    assert (found.status, found.err) == (143, "")  # the fake server dies of it


async def test_progress_is_told_in_lines_elsewhere_than_on_a_terminal(start: Start) -> None:
    process = await start("--progress", "--", *serving(UP, port=free_port()))
    assert process.stderr is not None
    told = ""
    while "ready after" not in told:
        told += (await asyncio.wait_for(process.stderr.readline(), 20)).decode()
    process.send_signal(signal.SIGTERM)
    await end_of(process)

    assert told.startswith(f"vllm-startup: starting {sys.executable}\n")
    assert re.search(r"^vllm-startup: +\d\.\d s  loading_weights +log: Starting to load", told, re.MULTILINE)
    assert re.search(r"^vllm-startup: ready after \d+\.\d s$", told, re.MULTILINE)


async def test_a_report_that_cannot_be_written_ends_nothing(tmp_path: Path, start: Start) -> None:
    process = await start("--report", str(tmp_path / "no" / "report"), "--", *serving(UP, port=free_port()))
    assert process.stderr is not None
    told = (await asyncio.wait_for(process.stderr.readline(), 20)).decode()
    assert told.startswith("vllm-startup: --report ")
    assert "cannot be written: No such file or directory" in told
    assert process.returncode is None
    process.send_signal(signal.SIGTERM)
    assert (await end_of(process)).status == 143


# --- streams ------------------------------------------------------------------------------------

FLOOD = """
import hashlib, os, sys
block = os.urandom(1 << 20)
digest = hashlib.sha256()
for _ in range(int(sys.argv[1])):
    sys.stdout.buffer.write(block)
    digest.update(block)
sys.stdout.flush()
sys.stderr.write(digest.hexdigest())
sys.stderr.flush()
os._exit(5)
"""


def test_200_megabytes_in_a_burst(tmp_path: Path) -> None:
    digest, count = hashlib.sha256(), 0
    errors = (tmp_path / "errors").open("wb")
    with (
        errors,
        subprocess.Popen(
            words_of("run", "--", *PYTHON, FLOOD, "200"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        assert process.stdout is not None
        while data := process.stdout.read(1 << 20):
            digest.update(data)
            count += len(data)

    assert (process.returncode, count) == (5, 200 << 20)
    assert (tmp_path / "errors").read_text().startswith(digest.hexdigest())


def test_a_pipe_that_closes_early_is_told_to_the_server() -> None:
    command = [*words_of("run", "--"), *PYTHON, FLOOD, "2000"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(100)
        process.stdout.close()
        errors = process.stderr.read().decode()

    assert process.returncode == 1  # Python's for an exception
    assert "BrokenPipeError" in errors


def test_the_order_between_streams_that_are_one_is_kept() -> None:
    program = "import os\nfor i in range(2000): os.write(1 + i % 2, b'%d\\n' % i)\nos._exit(5)"
    found = subprocess.run(
        words_of("run", "--", *PYTHON, program),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=30,
    )  # fmt: skip

    assert found.stdout.splitlines()[:2000] == [b"%d" % i for i in range(2000)]


async def test_standard_input_is_the_commands() -> None:
    found = await run(
        "run", "--", *PYTHON, "import os; os.write(1, os.read(0, 99)); os._exit(5)", stdin=b"hello"
    )

    assert (found.status, found.out) == (5, "hello")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(closed: str) -> None:
    program = "import os; os.write(1, b'out'); os.write(2, b'err'); os._exit(9)"
    command = [*words_of("run", "--"), *PYTHON, program]
    found = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *command], capture_output=True, check=False, timeout=30
    )

    assert found.returncode == 9
    assert found.stdout == (b"" if ">&- " in f"{closed} " and closed != "2>&-" else b"out")


# --- signals ------------------------------------------------------------------------------------


async def test_timeout_reaches_the_command_once() -> None:
    """It signals its child and its whole group, both of which we are in, and the command is not."""
    process = await asyncio.create_subprocess_exec(
        "timeout", "600", *words_of("run", "--", *PYTHON, TELLS, "SIGTERM SIGCONT"),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert (await line_of(process)).startswith("terminals ")
    process.send_signal(signal.SIGALRM)  # its timer, when the time is over
    found = await end_of(process)

    assert found.status == 124
    assert found.out.splitlines().count("SIGTERM") == 1


async def test_a_server_that_ignores_sigterm_is_not_killed_for_that(start: Start) -> None:
    process = await start("--", *PYTHON, STUBBORN)
    assert await line_of(process) == "ready"

    process.send_signal(signal.SIGTERM)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.wait(), 0.5)
    process.kill()
    await process.wait()


async def test_our_own_sudden_death_ends_the_tree(start: Start) -> None:
    process = await start("--", *PYTHON, f"import os; os.write(1, b'%d ' % os.getpid())\n{TELLS}", "SIGTERM")
    pid = int((await line_of(process)).split()[0])
    process.kill()
    found = await end_of(process)  # the end of the pipe: nobody has it any more

    assert "SIGTERM" in found.out or found.out == ""  # whoever wrote to us is gone with us
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()
