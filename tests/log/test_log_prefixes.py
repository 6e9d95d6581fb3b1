# ruff: noqa: E501 - lines of logs stay whole
from __future__ import annotations

import pytest

from vllm_startup._log.lines import Line, LineReader

RECORD = "(APIServer pid=1) INFO 11-30 14:06:44 [core.py:133] Resolved architecture: X"


def read(*texts: str) -> list[Line]:
    reader = LineReader()
    return [line for text in texts for line in reader.read(text)]


@pytest.mark.parametrize(
    "prefix",
    [
        "vllm-1  | ",
        "vllm  | ",
        "2026-11-30T14:06:44.123456789Z ",
        "2026-11-30T14:06:44Z stdout F ",
        "Nov 30 14:06:44 host python[123]: ",
        "Nov 30 14:06:44.123456 host vllm[123]: ",
        "2026-11-30T14:06:44+0000 host python[123]: ",
        "2026-11-30T14:06:44.123456+01:00 host python[123]: ",
        "Mon 2026-11-30 14:06:44 UTC host python[123]: ",
        "1796047604.123456 host python[123]: ",
        "[12345.678901] host python[123]: ",
        "[pod/vllm-0/vllm] ",
        "[pod/vllm-0/vllm] 2026-11-30T14:06:44.123456789Z ",
        "vllm-1  | 2026-11-30T14:06:44.123456789Z ",
        "vllm stdout | ",
        "14:06:44 vllm.1 | ",
        "0|vllm  | ",
        "[rank0]: ",
        "[1,0]<stdout>: ",
        "@400000006745a1b20c1f2e3d ",
        "0: ",
        " 12: ",
        "> ",
        ">> ",
        "    ",
        "\t",
        ">   ",
        "[2026-11-30 14:06:44] ",
        "2026-11-30 14:06:44 ",
        "Nov 30 14:06:44 ",
    ],
)
def test_a_record_behind_a_foreign_prefix_is_vllms(prefix: str) -> None:
    (line,) = read(prefix + RECORD)
    assert (line.process, line.pid, line.source) == ("APIServer", 1, "core.py:133")
    assert line.message == "Resolved architecture: X"


LOGFMT = 'time="2026-11-30T14:06:44Z" level=info msg="{}" component=vllm'


def test_logfmt_gives_what_stands_behind_msg() -> None:
    (line,) = read(LOGFMT.format(RECORD))
    assert (line.process, line.pid, line.source) == ("APIServer", 1, "core.py:133")
    (frame,) = read(LOGFMT.format(r"  File \"/a/b.py\", line 3, in run\tx\x1b[0m"))
    assert (frame.message, frame.level) == ('  File "/a/b.py", line 3, in run\tx', None)
    assert frame.stamp_s is not None
    (bare,) = read("time=2026-11-30T14:06:44.123+01:00 level=ERROR msg=terminated")
    assert (bare.message, bare.level) == ("terminated", None)


@pytest.mark.parametrize(
    "text", ["time=soon", 'time="2026-11-30T14:06:44Z" level=info', 'level=info msg="x"', LOGFMT[:44] + "x"]
)
def test_what_is_no_logfmt_stays_whole(text: str) -> None:
    (line,) = read(text)
    assert line.text == text


@pytest.mark.parametrize(
    "prefix", ["vllm-1  | ", "vllm  | ", "0: ", "> ", "    ", "Nov 30 14:06:44 ", "2026-11-30 14:06:44 "]
)
def test_a_plain_line_behind_the_prefix_of_the_records_is_stripped_too(prefix: str) -> None:
    _, plain, frame = read(prefix + RECORD, f"{prefix}ValueError: no", f'{prefix}    File "x"')
    assert (plain.text, frame.text) == ("ValueError: no", '    File "x"')


@pytest.mark.parametrize(
    "text",
    [
        "0: not a task number",
        "> not a quotation",
        "    indented",
        "vllm  | a table",
        "name | value",
        "Nov 30 14:06:44 was a Monday",
        "2026-11-30 14:06:44 was a Monday",
        "usage: vllm [-h] [-v]",
        "Loading safetensors checkpoint shards: 100% Completed | 1/1",
        "W1130 14:42:41.813000 15355 torch/utils/cpp_extension.py:118] No CUDA runtime is found",
        "[W1130 14:20:57.504889550 utils.cpp:68] Warning: NUMA binding",
        "[Gloo] Rank 0 is connected to 0 peer ranks. Expected number of connected peer ranks is : 0",
        "",
    ],
)
def test_a_line_of_a_log_without_prefixes_is_left_alone(text: str) -> None:
    _, line = read(RECORD, text)
    assert line.text == text


def test_a_message_of_vllms_that_looks_like_a_prefix_is_left_alone() -> None:
    (line,) = read("(APIServer pid=1) INFO 11-30 14:06:44 [core.py:133] 0: > vllm-1  | hello")
    assert line.message == "0: > vllm-1  | hello"


def test_a_bare_record_ends_the_habit() -> None:
    *_, line = read(f"0: {RECORD}", RECORD, "0: hello")
    assert line.text == "0: hello"


@pytest.mark.parametrize("prefix", ["vllm-1  | ", "[pod/vllm-0/vllm] ", "Nov 30 14:06:44 host vllm[1]: "])
def test_a_prefix_that_occurs_nowhere_else_is_stripped_from_the_first_line_on(prefix: str) -> None:
    first, empty = read(f"{prefix}Triton is installed", prefix.rstrip(" ") if "|" in prefix else prefix)
    assert (first.text, empty.text) == ("Triton is installed", "")


def test_torchs_own_prefix_before_a_traceback_is_stripped() -> None:
    lines = read(
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "x.py", line 1, in f',
        "[rank0]: ValueError: no",
    )
    assert [line.message for line in lines] == [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in f',
        "ValueError: no",
    ]


@pytest.mark.parametrize(
    ("text", "process", "message"),
    [
        (
            "Nov 30 14:06:44 host systemd[1]: vllm.service: Main process exited, code=exited, status=1/FAILURE",
            "systemd",
            "vllm.service: Main process exited, code=exited, status=1/FAILURE",
        ),
        (
            "Nov 30 14:06:44 host kernel: Out of memory: Killed process 3 (VLLM::EngineCor)",
            "kernel",
            "Out of memory: Killed process 3 (VLLM::EngineCor)",
        ),
    ],
)
def test_who_reports_on_the_server_is_kept_as_the_process(text: str, process: str, message: str) -> None:
    (line,) = read(text)
    assert (line.process, line.role, line.message) == (process, None, message)


def test_the_journals_process_id_is_kept_apart_from_vllms() -> None:
    (line,) = read(f"Nov 30 14:06:44 host python[4242]: {RECORD}")
    assert (line.pid, line.outer_pid) == (1, 4242)


def test_uvicorns_line_behind_a_prefix() -> None:
    (line,) = read("vllm-1  | INFO:     Application startup complete.")
    assert (line.level, line.message) == ("INFO", "Application startup complete.")


def test_a_bar_behind_a_prefix_keeps_its_process() -> None:
    (line,) = read(
        "Nov 30 14:06:44 host python[1]: (Worker_TP0 pid=123) \rshards:  33% Completed | 1/3 [00:00<00:00]"
    )
    assert (line.process, line.bar, line.message) == (
        "Worker_TP0",
        True,
        "shards:  33% Completed | 1/3 [00:00<00:00]",
    )


@pytest.mark.parametrize(
    ("prefix", "stamp_s"),
    [
        ("2026-11-30T14:06:44.5Z ", 1_796_047_604.5),
        ("2026-11-30T15:06:44+01:00 ", 1_796_047_604.0),
        ("2026-11-30T14:06:44+0000 host python[1]: ", 1_796_047_604.0),
        ("1796047604.250000 host python[1]: ", 1_796_047_604.25),
        ("Nov 30 14:06:44 host python[1]: ", 334 * 86_400 + 50_804.0),
        ("vllm-1  | ", None),
    ],
)
def test_the_outer_prefix_gives_a_plain_line_its_time(prefix: str, stamp_s: float | None) -> None:
    (line,) = read(f"{prefix}Triton is installed")
    assert line.stamp_s == (None if stamp_s is None else pytest.approx(stamp_s))
