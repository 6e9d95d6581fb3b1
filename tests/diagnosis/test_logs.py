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


def test_evidence_keeps_its_line_numbers_in_a_wrapped_log() -> None:
    case = next(case for case in ALL if case.name == "dtype_unsupported")
    lines = list(FORMS["cut at 80"](list(case.lines)))
    found = told(lines).cause
    assert found is not None
    line = found.evidence[0].line
    assert line is not None
    assert "Bfloat16" in lines[line - 1] + lines[line]
