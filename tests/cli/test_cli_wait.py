from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cli_tools import BANNER, ENGINE, FAILED, LOADING, UP, free_port, run, words_of

from vllm_startup._cli import main

if TYPE_CHECKING:
    from cli_tools import Serve


def events_of(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


# --- how it ends --------------------------------------------------------------------------------


async def test_ready_with_everything_that_may_be_looked_at(serve: Serve, tmp_path: Path) -> None:
    server = await serve(UP, listen=True)
    events = tmp_path / "events.jsonl"

    found = await run(
        "wait", "--pid", str(server.process.pid), "--log", str(server.log), "--json", "--events", str(events)
    )

    assert found.status == 0
    report = json.loads(found.out)
    assert (report["outcome"], report["url"]) == ("ready", server.url)
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [event["seq"] for event in told] == list(range(1, len(told) + 1))
    assert (told[0]["event"], told[-1]["event"], told[-1]["outcome"]) == ("attempt_started", "ended", "ready")
    assert "log: Starting to load model" in found.err
    assert f"waiting for {server.url} until health\n" in found.err
    assert re.search(r"^ready after \d+\.\d s$", found.err, re.MULTILINE)


async def test_a_failure_is_one_screen_with_cause_evidence_and_hint(serve: Serve) -> None:
    server = await serve([BANNER, ENGINE, LOADING, *FAILED], hold=True, status=1)

    found = await run("wait", "--pid", str(server.process.pid), "--log", str(server.log), begun=server.go)

    assert (found.status, found.out) == (1, "")
    screen = found.err[found.err.index("failed in") :]
    assert "no_kv_cache_memory" in screen.splitlines()[0]
    assert "  | line 8, EngineCore: ValueError: No available memory for the cache" in screen
    assert "  hint: " in screen
    assert " loading_weights " in screen
    assert all(len(line) <= 80 for line in screen.splitlines())


async def test_the_model_tier(serve: Serve) -> None:
    server = await serve([], listen=True)

    found = await run(
        "wait", server.url, "--until", "model", "--model", "tiny", "--stable-for", "0.1", "--json"
    )

    assert found.status == 0
    assert set(json.loads(found.out)["tiers"]) == {"health", "model"}


@pytest.mark.parametrize("limit", ["0.2", "total=0.2", "launching=0.2"])
async def test_a_limit_that_runs_out(limit: str) -> None:
    found = await run("wait", f"http://127.0.0.1:{free_port()}", "--timeout", limit, "--json")

    assert found.status == 124
    assert json.loads(found.out)["outcome"] == "timed_out"
    assert found.err.count("timed out in launching") == 1


async def test_a_stall(serve: Serve) -> None:
    server = await serve([BANNER, ENGINE])

    found = await run("wait", "--pid", str(server.process.pid), "--log", str(server.log), "--stall", "1.5")

    assert found.status == 3
    assert "stalled in " in found.err


async def test_a_log_on_standard_input() -> None:
    found = await run(
        "wait", f"http://127.0.0.1:{free_port()}", "--log", "-", "--timeout", "1",
        stdin="\n".join([BANNER, ENGINE, LOADING, *FAILED, ""]).encode(),
    )  # fmt: skip

    assert found.status in (1, 124)
    assert "no_kv_cache_memory" in found.err


async def test_a_recording_replays_to_the_same_report_and_events(serve: Serve, tmp_path: Path) -> None:
    server = await serve(UP, listen=True)
    paths = [str(tmp_path / name) for name in ("start.jsonl", "lived.jsonl", "again.jsonl")]

    lived = await run(
        "wait", "--pid", str(server.process.pid), "--log", str(server.log), "--json",
        "--record", paths[0], "--events", paths[1],
    )  # fmt: skip
    again = await run("replay", paths[0], "--json", "--events", paths[2])

    assert (lived.status, again.status) == (0, 0)
    assert json.loads(again.out) == json.loads(lived.out)
    events = [events_of(path) for path in paths[1:]]
    assert [{**e, "ts": None} for e in events[0]] == [{**e, "ts": None} for e in events[1]]
    assert all(event["ts"].endswith("Z") for event in events[1])


# --- interruptions ------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_ends_the_wait_in_good_order(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    record = tmp_path / "start.jsonl"
    process = await asyncio.create_subprocess_exec(
        *words_of("wait", f"http://127.0.0.1:{free_port()}", "--json", "--record", str(record)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    assert (await process.stderr.readline()).startswith(b"waiting for")

    process.send_signal(number)
    out, err = await asyncio.wait_for(process.communicate(), 10)

    assert process.returncode == status
    assert err.decode().startswith(f"interrupted by {number.name}\nneither ready nor failed in launching")
    assert b"Traceback" not in err
    assert json.loads(out)["outcome"] == "unfinished"
    assert json.loads(record.read_text().splitlines()[-1])["end"] is True


def test_a_thread_that_gets_no_signals_can_wait_too(capsys: pytest.CaptureFixture[str]) -> None:
    statuses: list[int] = []
    arguments = ["wait", f"http://127.0.0.1:{free_port()}", "--timeout", "0.1"]
    thread = threading.Thread(target=lambda: statuses.append(main(arguments)))
    thread.start()
    thread.join(20)

    assert statuses == [124]
    assert "timed out in launching" in capsys.readouterr().err


def test_a_process_that_may_have_no_more_threads_waits_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    events = tmp_path / "events.jsonl"
    arguments = ["wait", f"http://127.0.0.1:{free_port()}", "--pid", str(os.getpid()), "--timeout", "1"]

    assert main([*arguments, "--events", str(events)]) == 124
    assert events_of(str(events))[-1]["event"] == "ended"
    told = " ".join(capsys.readouterr().err.split())
    assert re.search(
        r"probe process does not work: .{0,60}no further thread can be started; raise the limit", told
    )


# --- streams ------------------------------------------------------------------------------------


async def test_events_on_standard_output_come_as_they_happen(serve: Serve) -> None:
    server = await serve([BANNER, ENGINE])
    process = await asyncio.create_subprocess_exec(
        *words_of("wait", "--pid", str(server.process.pid), "--log", str(server.log), "--events", "-"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None

    phases = set()
    while "initializing" not in phases:
        event = json.loads(await asyncio.wait_for(process.stdout.readline(), 10))
        phases.add(event.get("phase"))

    process.send_signal(signal.SIGINT)
    await process.communicate()
    assert process.returncode == 130


def shell(text: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m vllm_startup"
    environ = {**os.environ, "WAIT": f"{command} wait http://127.0.0.1:{free_port()}", "VS": command}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", text],
        env=environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("$WAIT --timeout 0.3 --events - | head -n 1", 124),
        ("$WAIT --timeout 0.3 --json | true", 124),
        ("$WAIT --timeout 0.3 2>&1 | true", 124),
        ("$WAIT --timeout 0.3 --json >&-", 124),
        ("$WAIT --timeout 0.3 2>&-", 124),
        ("$VS diagram | head -n 1", 0),
        ("$VS diagnose --json /dev/null | true", 4),
    ],
)
def test_a_reader_that_is_gone_is_no_error(text: str, status: int) -> None:
    found = shell(text)

    assert found.returncode == status
    assert "Traceback" not in found.stderr
    assert "BrokenPipe" not in found.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_is_said() -> None:
    report = shell("$VS diagnose --json /dev/null > /dev/full")
    events = shell("$WAIT --timeout 0.3 --events /dev/full")
    stream = shell("$WAIT --timeout 0.3 --events - > /dev/full")

    assert (report.returncode, report.stderr) == (
        70,
        "vllm-startup: <stdout> cannot be written: No space left on device\n",
    )
    for found in (events, stream):
        assert found.returncode == 124
        assert found.stderr.count("warning: --events is not written any more: ") == 1
        assert "No space left on device" in found.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
async def test_a_standard_error_that_cannot_be_written_changes_no_status(serve: Serve) -> None:
    server = await serve([], listen=True)
    command = f"{sys.executable} -m vllm_startup wait {server.url} --timeout 20 2> /dev/full"
    process = await asyncio.create_subprocess_shell(command)

    assert await asyncio.wait_for(process.wait(), 30) == 0


async def test_the_log_is_not_written_over(tmp_path: Path) -> None:
    log, link = tmp_path / "vllm.log", tmp_path / "link"
    log.write_text("precious\n")
    link.symlink_to(log)
    for option in ("--record", "--events"):
        found = await run("wait", "--log", str(log), option, str(link))

        assert found.status == 2
        assert f"{option} and --log are one file" in found.err
    assert log.read_text() == "precious\n"


async def test_wrong_usage_empties_no_file(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.write_text("precious\n")
    found = await run("wait", "--model", "tiny", "--events", str(events))

    assert found.status == 2
    assert events.read_text() == "precious\n"


async def test_events_into_a_pipe_that_nobody_reads(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events")
    found = await run("wait", "--timeout", "5", "--events", str(tmp_path / "events"))

    assert found.status == 2
    assert "cannot be written" in found.err


async def test_control_characters_of_the_log_do_not_reach_the_terminal(serve: Serve) -> None:
    nasty = "\x1b]0;owned\x07\x1b[2J\u202emodel\x9b31m"
    lines = [BANNER, LOADING + nasty, *FAILED[:-1], f"{FAILED[-1]} {nasty}"]
    server = await serve(lines, hold=True, status=1)

    found = await run("wait", "--pid", str(server.process.pid), "--log", str(server.log), begun=server.go)

    assert found.status == 1
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", found.err)


async def test_a_key_is_read_from_its_file_and_shown_nowhere(serve: Serve, tmp_path: Path) -> None:
    server = await serve([], listen=True)
    key, record = tmp_path / "key", tmp_path / "start.jsonl"
    key.write_text("s3cret-key\n")

    found = await run(
        "wait", server.url, "--until", "model", "--api-key-file", str(key), "--json", "--record", str(record)
    )

    assert found.status == 0
    assert "s3cret" not in found.out + found.err + record.read_text()


# --- on a terminal ------------------------------------------------------------------------------


def on_terminal(*arguments: str, **environ: str) -> tuple[int, str]:
    """Run a command whose standard error is a terminal; what it wrote there."""
    ours, theirs = pty.openpty()
    without = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")}
    process = subprocess.Popen(
        words_of(*arguments), stdout=subprocess.DEVNULL, stderr=theirs,
        env={**without, "TERM": "xterm-256color", **environ},
    )  # fmt: skip
    os.close(theirs)
    written = b""
    try:
        while data := os.read(ours, 65536):
            written += data
    except OSError:
        pass  # Linux: the other side is closed
    finally:
        os.close(ours)
    return process.wait(30), written.decode()


def test_a_live_block_is_drawn_and_taken_away() -> None:
    status, written = on_terminal("wait", f"http://127.0.0.1:{free_port()}", "--timeout", "0.8")

    assert status == 124
    assert "launching, 0 s" in written
    assert "limit in 1 s" in written
    before, _, after = written.partition("timed out in launching")
    assert before.endswith("\x1b[J\x1b8")  # the last thing before the plain lines: erase
    assert "\x1b" not in after


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"CI": "true"}])
def test_no_live_line_where_it_would_disturb(environ: dict[str, str]) -> None:
    status, written = on_terminal("wait", f"http://127.0.0.1:{free_port()}", "--timeout", "0.3", **environ)

    assert status == 124
    assert "\x1b" not in written
    assert written.startswith("waiting for http://127.0.0.1:")


def test_no_colour_where_none_is_wanted() -> None:
    _, written = on_terminal("wait", f"http://127.0.0.1:{free_port()}", "--timeout", "0.3", NO_COLOR="1")

    assert not re.search(r"\x1b\[3\d", written)
