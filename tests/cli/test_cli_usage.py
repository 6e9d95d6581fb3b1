from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import faulty_command
import pytest
from cli_tools import BANNER, FAILED, UP, run

from vllm_startup._cli import main
from vllm_startup._cli._commands import COMMANDS, Entry
from vllm_startup._cli._commands import run as run_commands
from vllm_startup._cli._parser import Parser
from vllm_startup._cli._spelling import on_command_line
from vllm_startup._phases import diagram

HEADER = '{"recording": 1, "started_unix": null, "utc_offset_s": 0, "terms": {}, "timeouts": {}}\n'
END = '{"at": 3.0, "end": true}\n'


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command says that is not run."""
    status = main(arguments)
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    return err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["wait", "127.0.0.1:8000"], "url needs a scheme: write 'http://127.0.0.1:8000'"),
        (["wait", "ftp://host"], "url must begin with http://, https:// or unix://"),
        (["wait", "http://u:pw@host"], "or a password; a key goes into --api-key-file"),
        (
            ["wait", "--timeout", "loading_weight=5"],
            "(did you mean loading_weights?); there are launching, conf",
        ),
        (
            ["wait", "--timeout", "nonsense=5"],
            "no phase with a limit is called 'nonsense'; there are launching",
        ),
        (["wait", "--timeout", "ready=5"], "no phase with a limit is called 'ready'"),
        (["wait", "--timeout", "stall=5"], "has an option of its own: --stall SECONDS"),
        (["wait", "--timeout", "-5"], "argument --timeout: must be 0 or more seconds, not '-5'"),
        (["wait", "--timeout", "compiling=-5"], "argument --timeout: must be 0 or more seconds, not '-5'"),
        (["wait", "--timeout", "soon"], "argument --timeout: 'soon' is no number of seconds"),
        (["wait", "--timeout", "0"], "argument --timeout: '0' leaves no time"),
        (["wait", "--stall", "nan"], "argument --stall: must be 0 or more seconds, not 'nan'"),
        (["wait", "--stable-for", "inf"], "argument --stable-for: must be 0 or more seconds, not 'inf'"),
        (["wait", "--pid", "4194303"], "pid 4194303 does not exist"),
        (["wait", "--pid", "x"], "argument --pid: 'x' is no whole number from 0"),
        (["wait", "--restarts", "2"], "restarts needs a target that finds the next process"),
        (["wait", "--restarts", "-1"], "argument --restarts: '-1' is no whole number from 0"),
        (["wait", "--until", "heath"], "argument --until: invalid choice: 'heath'"),
        (["wait", "--until", "engine"], "--until engine needs --log FILE"),
        (["wait", "--model", "m"], "--model is looked at with --until model"),
        (["wait", "--gpus", "0,,1"], "argument --gpus: '0,,1' is no list of GPUs"),
        (["wait", "--gpus", "x"], "gpus must hold indices"),
        (["wait", "--json", "--events", "-"], "both write to standard output; give --events a file"),
        (["wait", "--events", "/nowhere/x"], "--events '/nowhere/x' cannot be written: No such file"),
        (["wait", "--stall", "1e25"], "argument --stall: '1e25' is more than the 1e+12 seconds"),
        (["wait", "--timeout=--"], "argument --timeout: '--' is no value"),
        (["wait", "--record", "/nowhere/x"], "--record '/nowhere/x': No such file"),
        (["wait", "--baseline", "/nowhere/x"], "--baseline '/nowhere/x': No such file"),
        (
            ["wait", "--api-key-file", "/nowhere/x"],
            "--api-key-file '/nowhere/x' cannot be read: No such file",
        ),
        (["wait", "--ca", "/nowhere/x"], "--ca '/nowhere/x' does not exist"),
        (["wait", "--ca", "x" * 300], "does not exist; give a file or a folder of CA certificates"),
        (["wait", "--verify", "--ca", "x"], "argument --ca: not allowed with argument --verify"),
        (["wait", "--tim", "5"], "unrecognized arguments: --tim"),
        (["diagnose"], "give the log: FILE, - for standard input, --unit U or --container C"),
        (
            ["diagnose", "vllm.log", "--unit", "vllm"],
            "--unit finds process and log by itself; leave FILE away",
        ),
        (
            ["wait", "--unit", "vllm", "--pid", "1"],
            "--unit finds process and log by itself; leave --pid away",
        ),
        (
            ["wait", "--unit", "vllm", "--log", "x"],
            "--unit finds process and log by itself; leave --log away",
        ),
        (["wait", "--user"], "--user says whose unit it is; name it with --unit"),
        (
            ["wait", "--engine", "x"],
            "--engine says where a container's engine answers; name it with --container",
        ),
        (["wait", "--unit", "v", "--container", "v"], "--unit and --container name two targets; give one"),
        (
            ["wait", "--container", "a b"],
            "container 'a b' is no name of a container; docker ps --all lists them",
        ),
        (
            ["diagnose", "--container", "v", "--engine", "x"],
            "error: --engine 'x' is no address of a container engine",
        ),
        (["diagnose", "/nowhere/x"], "FILE '/nowhere/x' cannot be read: No such file"),
        (["replay", "/nowhere/x"], "RECORDING '/nowhere/x' cannot be read: No such file"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        ([], "the following arguments are required: COMMAND"),
        (["wait", "\x1b[31mred"], "url must not be empty or hold spaces or control characters"),
    ],
)
def test_wrong_usage_names_the_argument_and_the_fix(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    err = refused(capsys, *arguments)

    assert said in err
    assert "\x1b" not in err
    assert err.startswith("vllm-startup")


@pytest.mark.parametrize("zero", ["0", "0.0", "-0", "none", "OFF"])
def test_no_stall_limit_however_it_is_written(capsys: pytest.CaptureFixture[str], zero: str) -> None:
    assert main(["wait", "http://127.0.0.1:1", f"--stall={zero}", "--timeout", "0.001", "--json"]) == 124
    assert json.loads(capsys.readouterr().out)["limits"]["stall"] is None


@pytest.mark.skipif(sys.platform != "linux", reason="a file that can be opened and not read is in /proc")
def test_a_baseline_that_cannot_be_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--baseline '/proc/self/mem': Input/output error" in refused(
        capsys, "wait", "--baseline", "/proc/self/mem"
    )


@pytest.mark.parametrize(
    ("message", "wait", "diagnose"),
    [
        ("say where it is with engine=", "say where it is with --engine", None),
        ("recordings are made with record=", "recordings are made with --record", None),
        ("it has no units: give pid= and log=", "it has no units: give --pid and --log", "units: give FILE"),
        ("for one of a user's own give user=True", "a user's own give --user", None),
        ("or watch it with until='engine'", "or watch it with --until engine", None),
        ("is a thread of process 7: give pid=7", "is a thread of process 7: give --pid 7", None),
        ("'http://h/?log=x&pid=7' is no url", "'http://h/?log=x&pid=7' is no url", None),
    ],
)
def test_the_librarys_messages_name_the_commands_options(
    message: str, wait: str, diagnose: str | None
) -> None:
    assert on_command_line(message, "wait").endswith(wait)
    assert on_command_line(message, "diagnose").endswith(diagnose or wait)


@pytest.mark.parametrize("command", ["", *(entry.name for entry in COMMANDS)])
def test_help_fits_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert main([*filter(None, [command]), "--help"]) == 0

    help_text = capsys.readouterr().out
    assert "usage:" in help_text
    assert [line for line in help_text.splitlines() if len(line) > 80] == []


def test_a_log_that_is_none_of_vllms(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "nginx.log"
    path.write_text("10.0.0.5 GET /\n10.0.0.5 GET /\n")

    assert main(["diagnose", str(path)]) == 4

    said = "".join(capsys.readouterr().out.split())  # however it is wrapped
    assert said == f"{path}: no line of a vLLM server's start: 2 lines read".replace(" ", "")


def test_a_folder_is_no_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "is a directory: name the file in it" in refused(capsys, "wait", "--log", str(tmp_path))
    assert "is a directory; give the log's own path" in refused(capsys, "diagnose", str(tmp_path))
    assert "is a directory; give the file's own path" in refused(capsys, "replay", str(tmp_path))
    assert "--api-key-file" in refused(capsys, "wait", "--api-key-file", str(tmp_path))


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"two words", b"one\ntwo\n", b"\xff\xfe", b"a\0b", "ä".encode()]
)
def test_a_key_file_holds_one_key(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)

    assert "--api-key-file" in refused(capsys, "wait", "--api-key-file", str(path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the first line is no recording's header; recordings are made with --record"),
        ("root:x:0:0\n", "line 1 is no JSON"),
        (HEADER + '{"at": 1.0, "probe": "log", "read\n' + END, "line 2 is no JSON"),
        (HEADER.replace('"recording": 1', '"recording": 9') + END, "the recording has schema 9"),
    ],
)
def test_a_damaged_or_newer_recording(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "start.jsonl"
    path.write_text(text)

    assert said in refused(capsys, "replay", str(path))


@pytest.mark.parametrize("rest", ["", '{"at": 1.0, "probe": "log", "read'])
def test_a_recording_that_breaks_off(capsys: pytest.CaptureFixture[str], tmp_path: Path, rest: str) -> None:
    path = tmp_path / "start.jsonl"
    path.write_text(HEADER + rest)

    assert main(["replay", str(path)]) == 4
    assert "warning: the recording breaks off here" in capsys.readouterr().out


def test_a_recording_that_ends_before_the_start_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "start.jsonl"
    path.write_text(HEADER + END)

    assert main(["replay", str(path)]) == 4
    assert capsys.readouterr().out.startswith("neither ready nor failed in launching after 3.0 s\n")
    assert main(["replay", str(path), "--events", "-"]) == 4
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(event["event"], event["seq"], event["ts"]) for event in told][:: len(told) - 1] == [
        ("attempt_started", 1, None),
        ("ended", len(told), None),
    ]


def test_diagnose_prints_for_people_or_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("\n".join(UP))

    assert main(["diagnose", str(path)]) == 0
    assert capsys.readouterr().out.startswith("ready after 16.0 s\n  vLLM 0.32 · /models/tiny\n")
    assert main(["diagnose", "--json", str(path)]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["outcome"], err) == ("ready", "")


async def test_diagnose_reads_standard_input() -> None:
    failed = await run("diagnose", "-", stdin="\n".join([BANNER, *FAILED]).encode())

    assert (failed.status, failed.err) == (1, "")
    assert failed.out.startswith("failed in configuring after 36.0 s: no_kv_cache_memory\n")


async def test_text_for_people_survives_a_poor_locale(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(f"{BANNER}\nValueError: é…\n")

    plain = await run("diagnose", str(path), PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    as_json = await run("diagnose", "--json", str(path), PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")

    assert (plain.status, as_json.status) == (4, 4)
    assert json.loads(as_json.out)["outcome"] == "unfinished"


def test_a_compressed_log_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "vllm.log.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00")

    assert "zcat FILE | vllm-startup diagnose -" in refused(capsys, "diagnose", str(path))


def test_a_closed_standard_input_is_said() -> None:
    for arguments in (["diagnose", "-"], ["wait", "--log", "-"]):
        command = [sys.executable, "-m", "vllm_startup", *arguments]
        found = subprocess.run(
            ["bash", "-c", '"$@" <&-', "bash", *command],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert (found.returncode, "standard input is closed" in found.stderr) == (2, True)


def test_the_diagram(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagram"]) == 0
    assert capsys.readouterr().out == f"{diagram()}\n"


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("vllm-startup ")
    for arguments in ([], ["wait"], ["diagnose"], ["replay"]):
        assert main([*arguments, "--help"]) == 0
        out = capsys.readouterr().out
        assert "exit status:" in out
        assert "examples:" in out


FAULTY = Entry("faulty", "raise", faulty_command.__name__)


def test_a_fault_of_our_own_is_short_and_asks_to_be_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_commands(["faulty", "kind"], [*COMMANDS, FAULTY]) == 70
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("vllm-startup: internal error: LookupError(")
    assert "--debug" in err
    assert "Traceback" not in err
    assert "\x1b" not in err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_commands(["faulty", "kind", "--debug"], [FAULTY]) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_interruption_anywhere_is_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_commands(["faulty", "interrupt"], [FAULTY]) == 130
    assert capsys.readouterr().err == ""


def test_two_dashes_are_no_value_but_of_another_programs_options() -> None:
    parser = Parser()
    parser.add_argument("command", nargs="*")
    assert parser.parse_args(["--", "vllm", "--separator=--"]).command == ["vllm", "--separator=--"]
