from __future__ import annotations

import io
import json
import os
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from diagnosing import Case, cases

from vllm_startup import StartupReport, causes
from vllm_startup._diagnosing import diagnose

RECORDINGS = Path(__file__).parent / "recordings"
EXPECTATIONS: dict[str, dict[str, Any]] = json.loads((RECORDINGS / "expectations.json").read_text("utf-8"))

BANNER = "(APIServer pid=7) INFO 11-30 14:06:44 [utils.py:233] vLLM API server version 0.32.0"
ENGINE = "(EngineCore pid=8) INFO 11-30 14:06:54 [c.py:1] Initializing a V1 LLM engine (v0.32) with config: x"
LOADING = "(Worker pid=9) INFO 11-30 14:07:00 [gpu_worker.py:1] Starting to load model /models/tiny..."
KV = "(EngineCore pid=8) INFO 11-30 14:07:09 [kv.py:1] GPU KV cache size: 2,097,152 tokens"
SERVER = "(APIServer pid=7) INFO 11-30 14:07:11 [api.py:1] Starting vLLM server on http://0.0.0.0:8000"
STARTED = "(APIServer pid=7) INFO:     Application startup complete."
REQUEST = '(APIServer pid=7) INFO:     127.0.0.1:5 - "GET /health HTTP/1.1" 200 OK'
STOPPED = "(APIServer pid=7) INFO 11-30 15:00:00 [launcher.py:1] [shutdown] API server: shutdown triggered"
TAKEN = (
    "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use"
)
UP = [BANNER, ENGINE, LOADING, KV, SERVER, STARTED]
FAILED = [
    f"(EngineCore pid=8) ERROR 11-30 14:07:20 [core.py:1510] {line}"
    for line in (
        "EngineCore failed to start.",
        "Traceback (most recent call last):",
        '  File "/a/b.py", line 3, in run',
        "    work()",
        "ValueError: No available memory for the cache blocks.",
    )
]


def journal(time: str, who: str, text: str) -> str:
    return f"Nov 30 {time} gpu7 {who}: {text}"


def began(found: StartupReport) -> dict[str, float]:
    return {span.phase.value: span.started_s for span in found.phases}


def lines_of(name: str) -> list[str]:
    rows = map(json.loads, (RECORDINGS / f"{name}.jsonl").read_text("utf-8").splitlines())
    return [line for row in rows if row.get("reading") == "log_lines" for line in row["lines"]]


# --- logs of others -------------------------------------------------------------------------

NGINX = '10.0.0.5 - - [30/Nov/2026:14:06:44 +0000] "GET / HTTP/1.1" 200 615 "-" "curl/8.5.0"'


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("", "it is empty"),
        ("root:x:0:0::/root:/bin/sh\n", "1 line read"),
        (f"{NGINX}\n" * 5000, "5000 lines read"),
        ("usage: cp [OPTION]\nno newline", "2 lines read"),
    ],
)
def test_a_log_that_is_none_of_vllms_is_said_to_be_so(text: str, read: str) -> None:
    found = diagnose(io.BytesIO(text.encode()))
    assert (found.outcome, found.phases, found.cause) == ("unfinished", (), None)
    assert [(w.code, w.text) for w in found.warnings] == [
        ("no_vllm_lines", f"no line of a vLLM server's start: {read}")
    ]


@pytest.mark.parametrize(
    "lines",
    [
        [BANNER],
        [LOADING],
        [STARTED],
        FAILED,
        ["Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.0s/it]"],
        ["bash: vllm: command not found"],
    ],
)
def test_one_line_that_tells_something_is_enough(lines: list[str]) -> None:
    assert "no_vllm_lines" not in [warning.code for warning in diagnose(lines).warnings]


# --- real logs ------------------------------------------------------------------------------

# Its log names no request and no uvicorn; what says that it was up stands behind the recording's end.
SILENT_SERVER = "0.32.0-ready-json"


@pytest.mark.parametrize("name", [name for name in EXPECTATIONS if name != SILENT_SERVER])
def test_a_real_log_tells_how_the_start_went(name: str) -> None:
    found, expected = diagnose(lines_of(name)), EXPECTATIONS[name]["expect_log"]

    assert found.outcome == expected["outcome"]
    assert len(found.attempts) == 1
    assert (found.cause is None) == ("kinds" not in expected)
    if found.cause is not None:
        assert found.cause.kind in expected["kinds"]
        assert {k: found.cause.fields[k] for k in expected.get("fields", {})} == expected.get("fields", {})
        assert expected.get("text", "") in json.dumps(found.to_dict()["cause"])
        assert all(item.line is not None and item.attempt == 1 for item in found.cause.evidence)


# The lines that say that their servers start carry no stamp, and no stamped one stands near them.
UNDATED = {("0.32.0-ready-nologconf", "starting_server"), ("0.32.0-ready-quiet", "starting_server")}


@pytest.mark.parametrize("name", [name for name, e in EXPECTATIONS.items() if e["phases"]])
def test_phases_are_dated_by_the_lines_own_stamps(name: str) -> None:
    """Stamps are whole seconds since the first one, so that differences are compared."""
    found, expected = began(diagnose(lines_of(name))), EXPECTATIONS[name]["phases"]
    first, first_at = expected[0]

    for phase, at in expected:
        if (name, phase) not in UNDATED:
            assert found[phase] - found[first] == pytest.approx(at - first_at, abs=1.5), phase


def test_evidence_names_its_line_in_the_file() -> None:
    lines = lines_of("0.32.0-kv-too-small")
    cause = diagnose(lines).cause

    assert isinstance(cause, causes.KvCacheTooSmall)
    assert cause.evidence[0].line is not None
    assert "8000000" in lines[cause.evidence[0].line - 1]


# A notebook's server has no end of its own.
@pytest.mark.parametrize(
    "case",
    [case for case in cases() if case.name != "no_kv_cache_memory-notebook"],
    ids=lambda case: case.name,
)
def test_a_small_log_of_a_known_failure(case: Case) -> None:
    found = diagnose(case.lines)

    assert found.outcome == "failed"
    assert found.cause is not None
    assert found.cause.kind == case.expected["kind"]


# --- ready, and what comes after ---------------------------------------------------------------


def test_a_server_that_is_up_is_ready_because_of_the_log() -> None:
    found = diagnose(UP)

    assert (found.outcome, found.phase.value, found.cause, found.exit) == ("ready", "ready", None, None)
    assert found.ready_s == found.elapsed_s == 27.0
    assert began(found) == {
        "configuring": 0.0,
        "initializing": 10.0,
        "loading_weights": 16.0,
        "allocating_kv_cache": 25.0,
        "starting_server": 27.0,
        "ready": 27.0,
    }
    assert [(b.probe, b.text) for b in found.phases[-1].because] == [("log", "Application startup complete.")]
    assert found.facts["kv_cache_tokens"] == 2097152


def test_a_port_that_is_taken_after_the_start_up_is_a_failure() -> None:
    found = diagnose([*UP, TAKEN])

    assert found.outcome == "failed"
    assert isinstance(found.cause, causes.PortInUse)


def test_a_server_that_answered_a_request_had_its_port() -> None:
    assert diagnose([*UP, REQUEST, TAKEN]).outcome == "ready"
    assert diagnose([*UP[:-1], REQUEST]).outcome == "ready"


def test_the_word_on_the_way_out_proves_that_it_was_up() -> None:
    """JSON logs lack uvicorn's lines. The readiness is dated to the last step of the start."""
    found = diagnose([*UP[:-1], STOPPED])

    assert (found.outcome, found.ready_s) == ("ready", 27.0)


def test_a_stop_before_the_server_started_is_no_readiness() -> None:
    assert diagnose([BANNER, ENGINE, STOPPED]).outcome != "ready"


@pytest.mark.parametrize(
    ("said", "exit_status"),
    [
        ("vllm.service: Main process exited, code=killed, status=9/KILL", (None, 9)),
        ("vllm.service: Main process exited, code=exited, status=1/FAILURE", (1, None)),
    ],
)
def test_a_later_death_stands_in_exit_and_changes_nothing(
    said: str, exit_status: tuple[int | None, int | None]
) -> None:
    lines = [journal("14:06:44", "vllm[7]", line) for line in UP]

    found = diagnose([*lines, journal("15:00:00", "systemd[1]", said)])

    assert (found.outcome, found.ready_s) == ("ready", 0.0)
    assert found.exit is not None
    assert (found.exit.code, found.exit.signal) == exit_status


def test_an_engine_that_fails_after_requests_changes_nothing() -> None:
    assert diagnose([*UP, REQUEST, *FAILED]).outcome == "ready"


# --- failed --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("code=killed, status=9/KILL", "process_killed"),
        ("code=dumped, status=6/ABRT", "process_crashed"),
        ("code=killed, status=15/TERM", "shutdown_requested"),
        ("code=exited, status=1/FAILURE", "process_exited"),
        ("code=exited, status=0/SUCCESS", "process_exited"),
    ],
)
def test_an_exit_before_ready_is_a_failure_told_by_the_supervisor(said: str, kind: str) -> None:
    line = journal("14:08:00", "systemd[1]", f"vllm.service: Main process exited, {said}")

    found = diagnose([journal("14:06:44", "vllm[7]", BANNER), journal("14:07:00", "vllm[7]", LOADING), line])

    assert found.outcome == "failed"
    assert found.cause is not None
    assert found.cause.kind == kind
    assert [(item.line, item.process) for item in found.cause.evidence] == [(3, "systemd")]
    assert found.exit is not None


def test_the_engines_own_words_come_before_the_exit_status() -> None:
    lines = [journal("14:07:20", "vllm[7]", line) for line in [BANNER, ENGINE, *FAILED]]
    line = journal(
        "14:08:00", "systemd[1]", "vllm.service: Main process exited, code=exited, status=1/FAILURE"
    )

    found = diagnose([*lines, line])

    assert isinstance(found.cause, causes.NoKvCacheMemory)
    assert found.exit is not None
    assert found.exit.code == 1


def test_what_stands_in_place_of_a_start_failed_it() -> None:
    found = diagnose(["bash: line 1: vllm: command not found"])

    assert isinstance(found.cause, causes.ProgramMissing)


# --- unfinished ------------------------------------------------------------------------------------


def test_a_start_that_goes_on_is_unfinished() -> None:
    found = diagnose([BANNER, ENGINE, LOADING])

    assert (found.outcome, found.phase.value, found.cause, found.elapsed_s) == (
        "unfinished",
        "loading_weights",
        None,
        16.0,
    )
    assert found.warnings == ()


def test_an_error_that_may_be_survived_is_a_warning() -> None:
    logged = [line.replace("EngineCore failed to start.", "something failed") for line in FAILED]

    found = diagnose([BANNER, ENGINE, *logged])

    assert (found.outcome, found.cause) == ("unfinished", None)
    assert [warning.code for warning in found.warnings] == ["error_in_log"]
    assert "(line 7)" in found.warnings[0].text


def test_an_engine_that_is_made_in_an_applications_lifespan_goes_through_its_phases() -> None:
    """There uvicorn speaks first."""
    uvicorn = ["INFO:     Started server process [7]", "INFO:     Waiting for application startup."]

    found = diagnose([*uvicorn, ENGINE, "INFO:     Application startup complete."])

    phases = [span.phase.value for span in found.phases]
    assert phases == ["initializing", "starting_server", "ready"]


def test_a_log_that_ends_in_a_wait_for_others_says_for_what() -> None:
    waits = "INFO 04-01 02:46:00 [ray.py:214] Waiting for creating a placement group of specs for 10 seconds."

    found = diagnose([BANNER, waits])
    later = diagnose([BANNER, waits, ENGINE])

    assert (found.outcome, found.cause, later.warnings) == ("unfinished", None, ())
    text = "the log ends while Ray's placement group is pending"
    assert [(warning.code, warning.text) for warning in found.warnings] == [("still_awaited", text)]


@pytest.mark.parametrize("text", [b"", b"\n\n\n", b"\0" * 5000, bytes(range(256)) * 300, b"x" * 300_000])
def test_what_is_no_log_of_vllm_is_unfinished(text: bytes) -> None:
    found = diagnose(io.BytesIO(text))

    assert (found.outcome, found.phase.value, found.phases) == ("unfinished", "launching", ())
    assert len(found.attempts) == 1


def test_an_empty_log_shows_no_progress() -> None:
    assert diagnose([]).last_progress is None


# --- several starts ----------------------------------------------------------------------------


def test_the_newest_attempt_decides_and_all_are_listed() -> None:
    again = [
        line.replace("pid=7", "pid=17").replace("pid=8", "pid=18").replace("14:0", "14:1") for line in UP
    ]

    found = diagnose([BANNER, ENGINE, *FAILED, *again])

    assert found.outcome == "ready"
    assert [(a.outcome, a.cause.kind if a.cause else None) for a in found.attempts] == [
        ("failed", "no_kv_cache_memory"),
        ("ready", None),
    ]
    assert found.attempts[0].cause is not None
    assert found.attempts[0].cause.evidence[0].attempt == 1
    assert found.ready_s == 27.0


def test_an_earlier_attempt_whose_port_was_taken_has_failed() -> None:
    again = [line.replace("pid=7", "pid=17").replace("pid=8", "pid=18") for line in UP]

    found = diagnose([*UP, TAKEN, *again, REQUEST])

    assert [a.outcome for a in found.attempts] == ["failed", "ready"]


def test_words_after_an_exit_are_not_the_dead_attempts() -> None:
    ended = "vllm-1 exited with code 1 (restarting)"

    found = diagnose([BANNER, ENGINE, *FAILED, ended, "INFO:     Application startup complete."])

    assert found.attempts[0].outcome == "failed"


def test_an_earlier_attempt_that_was_stopped_was_ready() -> None:
    again = [line.replace("pid=7", "pid=17") for line in [BANNER, ENGINE]]

    found = diagnose([*UP, REQUEST, STOPPED, *again])

    assert (found.outcome, [a.outcome for a in found.attempts]) == ("unfinished", ["ready", "unfinished"])


def test_a_start_over_new_year_takes_seconds() -> None:
    def dated(line: str, stamp: str) -> str:
        return line.replace("11-30 14:06:44", stamp).replace("11-30 14:06:54", stamp)

    found = diagnose([dated(BANNER, "12-31 23:59:58"), dated(ENGINE, "01-01 00:00:03")])

    assert began(found)["initializing"] == 5.0


# --- where the text comes from ---------------------------------------------------------------


def test_every_kind_of_source_gives_the_same_report(tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for line in UP)
    path = tmp_path / "vllm.log"
    path.write_text(text)
    expected = diagnose(UP).to_dict()

    assert diagnose(path).to_dict() == expected
    assert diagnose(str(path)).to_dict() == expected
    assert diagnose(io.BytesIO(text.encode())).to_dict() == expected
    assert diagnose(io.StringIO(text)).to_dict() == expected
    assert diagnose(text.splitlines(keepends=True)).to_dict() == expected
    with path.open("rb", buffering=0) as raw:
        assert diagnose(raw).to_dict() == expected


def test_a_named_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("\n".join(UP),))
    writer.start()

    assert diagnose(path).outcome == "ready"
    writer.join()


def test_lines_that_end_like_windows_do() -> None:
    assert diagnose(io.BytesIO("\r\n".join(UP).encode())).ready_s == 27.0


def test_the_last_line_ends_the_time_even_if_it_says_nothing() -> None:
    later = "(EngineCore pid=8) INFO 11-30 14:09:44 [x.py:1] nothing that anybody knows"

    assert diagnose([BANNER, ENGINE, later, ""]).elapsed_s == 180.0


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_log_in_the_encoding_of_a_windows_shell(encoding: str) -> None:
    log = "\ufeff" + "\r\n".join(UP)
    assert diagnose(io.BytesIO(log.encode(encoding))).ready_s == 27.0


@pytest.mark.parametrize(
    ("magic", "tool"),
    [
        (b"\x1f\x8b\x08", "zcat"),
        (b"\x28\xb5\x2f\xfd", "zstd -dc"),
        (b"\xfd7zXZ\x00", "xz -dc"),
        (b"BZh9", "bzip2 -dc"),
    ],
)
def test_a_compressed_log_is_refused_with_the_way_out(magic: bytes, tool: str) -> None:
    with pytest.raises(ValueError, match=f"compressed; unpack it on the way: {tool} FILE"):
        diagnose(io.BytesIO(magic + b"rest"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        diagnose(tmp_path / "none.log")
    with pytest.raises(IsADirectoryError):
        diagnose(tmp_path)


def test_memory_does_not_grow_with_the_log() -> None:
    def lines(count: int) -> Any:
        yield from UP
        yield REQUEST
        for number in range(count):
            yield f"{REQUEST} {number}"
            yield f"(APIServer pid=7) INFO 11-30 15:00:00 [loggers.py:1] Engine 000: {number} tokens/s"

    def peak(count: int) -> int:
        tracemalloc.start()
        diagnose(lines(count))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(100)

    assert peak(20_000) < peak(2_000) + 500_000


def test_no_secret_of_a_line_is_in_the_report() -> None:
    """vLLM prints its arguments, the API key among them, at the first step of a start."""
    prefix = "(APIServer pid=7) INFO 11-30 14:06:44 [utils.py:233]"
    line = prefix + " non-default args: {'model': '/m', 'api_key': ['sekret']}"
    text = diagnose([line]).to_json()
    assert "non-default args" in text
    assert "sekret" not in text
