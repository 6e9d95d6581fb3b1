"""Whole files, in the forms in which people have them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from diagnosing import Case, every_case
from forms import FORMS
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vllm_startup._diagnosing import diagnose

if TYPE_CHECKING:
    from vllm_startup import StartupReport

HEALTHY = sorted((Path(__file__).parents[1] / "healthy").glob("*.log"))
ALL = every_case()
# Their text is no start's output but a supervisor's word on it, or is in a form already.
PLAIN = [
    case
    for case in ALL
    if not case.expected.get("whole")
    and not case.expected.get("as_is")
    and case.data.startswith((b"(", b"INFO ", b"ERROR ", b"Traceback"))
    and b"\n{" not in case.data
    and len(case.lines) >= 5
]


def told(lines: list[str]) -> StartupReport:
    return diagnose(io.BytesIO("\n".join([*lines, ""]).encode()))


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_a_file_gives_its_cause(case: Case) -> None:
    found = diagnose(io.BytesIO(case.data)).cause
    assert found is not None
    fields = {
        name: list(value) if isinstance(value, tuple) else value for name, value in found.fields.items()
    }
    expected = {"kind": case.expected["kind"], **case.expected["fields"]}
    assert {"kind": found.kind, **{name: fields[name] for name in case.expected["fields"]}} == expected
    assert found.confidence in (case.expected["confidence"], "likely")
    assert case.expected.get("hint", "") in (found.hint or "")


@pytest.mark.parametrize(
    ("case", "form"),
    # Each case in some of the forms, each form with a twelfth of the cases.
    [
        (case, form)
        for at, case in enumerate(PLAIN)
        for n, form in enumerate(FORMS)
        if (at + 7 * n) % 12 == 0
        # A single line that was cut may as well be two.
        and (not form.startswith("cut") or sum(len(line) > 120 for line in case.lines) >= 3)
    ],
    ids=lambda value: value.name if isinstance(value, Case) else value.replace(" ", "_"),
)
def test_a_form_changes_nothing(case: Case, form: str) -> None:
    plain = told(list(case.lines)).cause
    formed = told(list(FORMS[form](list(case.lines)))).cause
    assert plain is not None
    assert formed is not None
    assert (formed.kind, formed.confidence) == (plain.kind, plain.confidence)
    assert formed.fields.keys() == plain.fields.keys()
    if not form.startswith("cut"):
        # Ray's prefix names the process of a line that has no name of its own.
        skipped = {"process"} if form == "Ray" else set()
        assert {k: v for k, v in formed.fields.items() if k not in skipped} == {
            k: v for k, v in plain.fields.items() if k not in skipped
        }


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_no_prefix_of_a_healthy_log_has_a_cause(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    for count in range(len(lines) + 1):
        found = told(lines[:count])
        assert found.cause is None
        assert found.outcome in ("unfinished", "ready")


@pytest.mark.parametrize("case", PLAIN[::3], ids=lambda case: case.name)
def test_of_two_boots_the_newer_one_counts(case: Case) -> None:
    older = [
        "(APIServer pid=9999) INFO 11-29 10:00:01 [utils.py:325] vLLM API server version 0.32.0",
        "(EngineCore pid=9998) ERROR 11-29 10:00:09 [core.py:1510] EngineCore failed to start.",
        "(EngineCore pid=9998) ERROR 11-29 10:00:09 [core.py:1510] Traceback (most recent call last):",
        '(EngineCore pid=9998) ERROR 11-29 10:00:09 [core.py:1510]   File "/a/b.py", line 3, in run',
        "(EngineCore pid=9998) ERROR 11-29 10:00:09 [core.py:1510] ZeroDivisionError: an older boot's",
        "vllm-1 exited with code 1",
    ]
    plain, both = told(list(case.lines)), told([*older, *case.lines])
    assert plain.cause is not None
    assert both.cause is not None
    assert (both.cause.kind, both.cause.fields) == (plain.cause.kind, plain.cause.fields)
    assert both.attempts[0].cause is not None
    assert both.attempts[0].cause.fields["text"] == "an older boot's"


def test_a_container_s_next_boot_has_the_same_pids() -> None:
    by_name = {case.name: list(case.lines) for case in ALL if not case.expected.get("whole")}
    first, second = by_name["gpu_out_of_memory"], by_name["dtype_unsupported"]
    found = told([*first, "vllm-1 exited with code 1 (restarting)", *second])
    assert [attempt.cause and attempt.cause.kind for attempt in found.attempts] == [
        "gpu_out_of_memory",
        "dtype_unsupported",
    ]


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_no_bytes_break_it(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(ALL))
    at = data.draw(st.integers(0, len(case.data)))
    noise = data.draw(st.binary(max_size=200))
    text = case.data[:at] + noise + case.data[at:]
    assume(not text.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")))  # compressed: refused by name
    found = diagnose(io.BytesIO(text))
    assert found.cause is None or found.cause.evidence


def test_an_excerpt_that_ends_with_an_uncaught_exception_is_likely_that() -> None:
    found = told(
        [
            "INFO 06-02 11:00:10 [model.py:547] Resolved architecture: Qwen3ForCausalLM",
            '  File "/x/vllm/engine/arg_utils.py", line 1047, in create_engine_config',
            "    model_config = self.create_model_config()",
            "ValueError: Total number of attention heads (40) must be divisible by tensor parallel size (6).",
        ]
    )
    assert found.cause is not None
    assert (found.cause.kind, found.cause.confidence) == ("parallel_size_invalid", "likely")


@pytest.mark.parametrize(
    ("function", "kind"), [("load_model", "unclassified_error"), ("_report_usage_worker", None)]
)
def test_an_excerpt_that_ends_with_an_unknown_exception_of_a_step_of_the_start(
    function: str, kind: str | None
) -> None:
    found = told(
        [
            "INFO 06-02 11:00:10 [model.py:547] Resolved architecture: Qwen3ForCausalLM",
            "Traceback (most recent call last):",
            f'  File "/x/vllm/y.py", line 1047, in {function}',
            "    work()",
            "ZeroDivisionError: division by zero",
        ]
    )
    assert (found.cause and (found.cause.kind, found.cause.confidence)) == (kind and (kind, "likely"))


def test_what_came_before_other_words_of_vllm_s_was_survived() -> None:
    found = told(
        [
            "Traceback (most recent call last):",
            '  File "/x/flashinfer/__init__.py", line 1, in <module>',
            "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
            "INFO 06-02 11:00:10 [default_loader.py:268] Loading weights took 3.10 seconds",
        ]
    )
    assert found.cause is None


CUT_OFF = [
    '(EngineCore pid=7)   File "/x/flashinfer/comm/fd_exchange.py", line 55, in <module>',
    "(EngineCore pid=7) TypeError: type 'array.array' is not subscriptable",
    "[rank0]:[W812 04:47:26.793554487 ProcessGroupNCCL.cpp:1624] Warning: WARNING: destroy_process_group() "
    "was not called before program exit, which can leak resources.",
    "(APIServer pid=1) INFO 08-12 04:47:27 [utils.py:612] [shutdown] Process manager: send sigterm",
    "(APIServer pid=1) Traceback (most recent call last):",
    '(APIServer pid=1)   File "/x/bin/vllm", line 10, in <module>',
]
LOADING = "(EngineCore pid=7) INFO 05-08 00:37:15 [cuda.py:411] Using FLASH_ATTN attention backend"
LEAKED = (
    "/x/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked "
    "semaphore objects to clean up at shutdown"
)


def test_an_excerpt_that_is_cut_off_in_the_servers_farewell() -> None:
    found = told(CUT_OFF)
    assert found.cause is not None
    assert (found.cause.kind, found.cause.confidence) == ("unclassified_error", "likely")
    assert "array.array" in found.cause.message
    assert told([*CUT_OFF[:2], LOADING]).cause is None


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        pytest.param([LOADING, LEAKED], "process_exited", id="last words"),
        pytest.param([LEAKED, LOADING], None, id="a helper's"),
        pytest.param(
            ["INFO 10-07 10:35:50 model_runner.py:1511] Graph capturing finished in 24 secs.", LEAKED],
            None,
            id="a program that has used its engine",
        ),
    ],
)
def test_processes_that_are_gone_without_a_word(lines: list[str], kind: str | None) -> None:
    cause = told(lines).cause
    assert (cause and (cause.kind, cause.confidence)) == (kind and (kind, "unknown"))


NO_MEMORY = "ValueError: No available memory for the cache blocks."
TOO_SMALL = (
    "ValueError: The model's max seq len (2048) is larger than the maximum number of tokens that can be "
    "stored in KV cache (1936)."
)
STARTING = "INFO 04-16 12:12:41 config.py:820] Chunked prefill is enabled with max_num_batched_tokens=512."


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        pytest.param(
            ["```", NO_MEMORY, "```", "Later:", "```", TOO_SMALL, "```"], "kv_cache_too_small", id="both"
        ),
        pytest.param([NO_MEMORY, "In detail:", "```", STARTING, "```"], "no_kv_cache_memory", id="the first"),
        pytest.param(["```", STARTING, "```", "```", TOO_SMALL, "```"], "kv_cache_too_small", id="the last"),
        pytest.param([NO_MEMORY, STARTING], None, id="one that goes on"),
        pytest.param([NO_MEMORY, TOO_SMALL], "no_kv_cache_memory", id="one with two"),
    ],
)
def test_excerpts_between_fences_are_read_one_by_one(lines: list[str], kind: str | None) -> None:
    cause = told(lines).cause
    assert (cause and cause.kind) == kind


@pytest.mark.parametrize("last", [True, False])
def test_a_message_without_its_exception_counts_as_the_very_last_words(last: bool) -> None:
    said = TOO_SMALL.partition(": ")[2]
    begin = "INFO 10-07 10:35:50 model_runner.py:1115] Loading model weights took 14.9888 GB"
    after = "Maximum concurrency for 29000 tokens per request: 0.82x"
    cause = told([begin, after, said] if last else [begin, said, after]).cause
    assert (cause and cause.kind) == ("kv_cache_too_small" if last else None)


TERMINATED = [
    "Traceback (most recent call last):",
    '  File "/x/bin/vllm", line 10, in <module>',
    "    sys.exit(main())",
    "KeyboardInterrupt: terminated",
]


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("vllm.service: start operation timed out. Terminating.", "shutdown_requested", "TimeoutStartSec="),
        (
            "vllm.service: Service reached runtime time limit. Stopping.",
            "shutdown_requested",
            "RuntimeMaxSec=",
        ),
        ("vllm.service: Watchdog timeout (limit 1min)!", "shutdown_requested", "watchdog"),
        ("vllm-startup: stalled in initializing after 13.0 s", "stalled", "vllm-startup run"),
        (
            "slurmstepd: error: *** JOB 4711 ON gpu01 CANCELLED AT 2026-11-30T14:29:21 DUE TO TIME LIMIT ***",
            "shutdown_requested",
            "Slurm ended the job: time limit",
        ),
    ],
)
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_who_ended_a_server_says_more_than_that_it_was_asked(
    said: str, kind: str, words: str, before: bool
) -> None:
    said = f"Nov 30 14:29:21 gpu01 systemd[1]: {said}" if said.startswith("vllm.service") else said
    lines = [LOADING, said, *TERMINATED] if before else [LOADING, *TERMINATED, said]
    cause = told(lines).cause
    assert cause is not None
    assert (cause.kind, words in cause.message) == (kind, True)
    assert all("\n" not in item.text and "vllm-startup" not in item.text[1:] for item in cause.evidence)


def test_an_attempt_ended_when_its_text_says_and_not_when_the_next_one_began() -> None:
    banner = "vLLM API server version 0.32.0"
    found = told(
        [
            "Nov 30 20:00:00 gpu01 systemd[1]: Started vllm.service - vLLM.",
            f"Nov 30 20:00:05 gpu01 vllm[10]: (APIServer pid=10) INFO 11-30 20:00:05 [x.py:1] {banner}",
            "Nov 30 20:00:20 gpu01 systemd[1]: vllm.service: Main process exited, code=exited, status=1/N",
            "Nov 30 21:30:00 gpu01 systemd[1]: Started vllm.service - vLLM.",
            f"Nov 30 21:30:05 gpu01 vllm[11]: (APIServer pid=11) INFO 11-30 21:30:05 [x.py:1] {banner}",
        ]
    )
    assert (found.attempts[0].outcome, found.attempts[0].duration_s) == ("failed", 20.0)


def test_evidence_keeps_its_line_numbers_in_a_wrapped_log() -> None:
    case = next(case for case in ALL if case.name == "dtype_unsupported")
    lines = list(FORMS["cut at 80"](list(case.lines)))
    found = told(lines).cause
    assert found is not None
    line = found.evidence[0].line
    assert line is not None
    assert "Bfloat16" in lines[line - 1] + lines[line]
