from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from diagnosing import cases, cause_of, feed

from vllm_startup import causes
from vllm_startup._diagnosis.diagnosis import Diagnosis
from vllm_startup.causes import Cause

if TYPE_CHECKING:
    from diagnosing import Case

# Told by other evidence than text: the port, the process tree, the clock.
BEYOND_TEXT = {
    "unhealthy",
    "foreign_server",
    "restart_loop",
    "stalled",
    "phase_timed_out",
    "timed_out",
}

# Cases that are about their form are not put into another one.
movable = pytest.mark.parametrize(
    "case", [case for case in cases() if not case.expected.get("as_is")], ids=lambda case: case.name
)
every_case = pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)


@every_case
def test_case_gives_its_cause(case: Case) -> None:
    cause = cause_of(case.lines)
    assert cause is not None
    assert cause.kind == case.expected["kind"]
    told = {name: list(value) if isinstance(value, tuple) else value for name, value in cause.fields.items()}
    assert {name: told[name] for name in case.expected["fields"]} == case.expected["fields"]
    assert cause.confidence == case.expected["confidence"]
    assert case.expected.get("hint", "") in (cause.hint or "")
    if "retryable" in case.expected:
        assert cause.retryable is case.expected["retryable"]


@movable
def test_evidence_names_a_line_of_the_log(case: Case) -> None:
    cause = cause_of(case.lines)
    assert cause is not None
    first = cause.evidence[0]
    assert first.line is not None
    said = " ".join(case.lines[first.line - 1].split())
    assert " ".join(first.text.split())[:30].strip("… ") in said or first.text.split(":")[0] in said
    assert "\n" not in cause.message
    assert len(first.text) <= 500


@movable
def test_the_aftermath_appended_again_changes_nothing(case: Case) -> None:
    aftermath = (
        "Process EngineCore:",
        "Traceback (most recent call last):",
        '  File "/opt/vllm/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 1, in run_engine_core',
        "    raise e",
        "Exception: WorkerProc initialization failed due to an exception in a background process. "
        "See stack trace for root cause.",
        "(EngineCore pid=200) ERROR 11-30 14:29:31 [multiproc_executor.py:315] Worker proc VllmWorker-0 died "
        "unexpectedly (exit code: None), shutting down executor.",
    )
    before = cause_of(case.lines)
    after = cause_of((*case.lines, *aftermath))
    assert before is not None
    assert after is not None
    if before.confidence != "unknown":
        assert after == before


@movable
def test_a_docker_prefix_changes_nothing(case: Case) -> None:
    plain = cause_of(case.lines)
    prefixed = cause_of([f"vllm-1  | {line}" for line in case.lines])
    assert plain is not None
    assert prefixed is not None
    assert (prefixed.kind, prefixed.fields) == (plain.kind, plain.fields)


@movable
def test_a_quoted_log_gives_the_same_kind(case: Case) -> None:
    plain = cause_of(case.lines)
    quoted = cause_of([f"> {line}" for line in case.lines])
    assert plain is not None
    assert quoted is not None
    assert quoted.kind == plain.kind


@every_case
def test_no_prefix_of_a_case_names_another_cause_for_certain(case: Case) -> None:
    diagnosis = Diagnosis()
    fixed = []
    for line in case.lines:
        feed(diagnosis, [line])
        fixed.append(diagnosis.verdict(ended=False))
    assert {cause.kind for cause in fixed if cause is not None} <= {case.expected["kind"]}


def test_every_kind_that_text_can_tell_has_a_case() -> None:
    kinds = {
        value.kind
        for value in (getattr(causes, name) for name in causes.__all__ if name != "Confidence")
        if isinstance(value, type) and issubclass(value, Cause) and not value.__subclasses__()
    }
    assert len(kinds) == 83
    assert kinds - {case.expected["kind"] for case in cases()} == BEYOND_TEXT
