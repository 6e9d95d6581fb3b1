"""The formats of reports and events: schemas that ship with the package, and a golden file each."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator, FormatChecker, ValidationError

from vllm_startup import (
    AttemptEnded,
    AttemptStarted,
    CauseFound,
    Cleanup,
    Ended,
    Event,
    Phase,
    PhaseEntered,
    Preflight,
    ProbeBroke,
    ProbeRecovered,
    ProgressSeen,
    StartupReport,
    TierReached,
    Timeouts,
    Warned,
    causes,
)
from vllm_startup import _report as r
from vllm_startup._cleanup import GpuReturn, Leftover
from vllm_startup._diagnosing import diagnose
from vllm_startup._events import Because
from vllm_startup._hosts.standing import Conditions, Standing, State, document
from vllm_startup._preflight.result import CheckReport

GOLDEN = Path(__file__).parent / "golden"


def validator(name: str) -> Draft202012Validator:
    text = files("vllm_startup").joinpath("schemas", f"{name}.schema.json").read_text("utf-8")
    schema = json.loads(text)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=FormatChecker())


REPORTS = validator("report")
EVENTS = validator("event")

CAUSE = causes.KvCacheTooSmall(
    message="the KV cache cannot hold one request of 8192 tokens",
    hint="start with --max-model-len 4096 or less",
    evidence=(
        causes.Evidence(text="ValueError: To serve …", process="EngineCore_DP0", line=72, attempt=2),
        causes.Evidence(text="memory fell"),
    ),
    retryable=False,
    max_model_len=8192,
    needed_bytes=2 * 2**30,
    fits_len=4096,
)
BECAUSE = Because(probe="log", text="Starting to load model", at_s=12.3456789)
EXITED = r.ExitStatus(code=1)
REPORT = StartupReport(
    outcome="failed",
    phase=Phase.LOADING_WEIGHTS,
    url="http://127.0.0.1:8000",
    until="health",
    limits=Timeouts(1800, loading_weights=900),
    started_at="2026-11-30T14:06:44.123Z",
    elapsed_s=40.25,
    ready_s=None,
    last_progress=r.LastProgress(at_s=39.0, what="checkpoint shards"),
    tiers={"engine": 38.5},
    cause=CAUSE,
    exit=EXITED,
    phases=(
        r.PhaseReport(phase=Phase.LAUNCHING, started_s=0.0, ended_s=12.3456789),
        r.PhaseReport(phase=Phase.LOADING_WEIGHTS, started_s=12.3456789, because=(BECAUSE,)),
    ),
    attempts=(
        r.AttemptReport(
            started_at=None,
            duration_s=9.0,
            outcome="failed",
            phase=Phase.CONFIGURING,
            cause=causes.ProcessKilled(message="killed", signal=9, confidence="likely"),
            exit=r.ExitStatus(signal=9),
        ),
        r.AttemptReport(
            started_at="2026-11-30T14:06:44.123Z",
            duration_s=40.25,
            outcome="failed",
            phase=Phase.LOADING_WEIGHTS,
            cause=CAUSE,
            exit=EXITED,
        ),
    ),
    processes=(
        r.ProcessReport(role="api_server", pid=7, exit=EXITED),
        r.ProcessReport(role="worker", pid=9, phase=Phase.LOADING_WEIGHTS),
    ),
    gpus=(
        r.GpuReport(index=0, uuid="GPU-1a2b", baseline_bytes=1, peak_bytes=4, used_bytes=3, total_bytes=5),
    ),
    facts={"vllm_version": "0.32.0", "load_s": 1.5, "kv_cache_tokens": 2097152},
    disputed=(r.Dispute(phase=Phase.INITIALIZING, probe="log", text="world_size=8", at_s=11.0),),
    warnings=(r.WarningReport(code="stall_unarmed", text="no probe sees silent work"),),
    versions={"vllm_startup": "0.1.0", "python": "3.11.7"},
)
HEAD: dict[str, Any] = {"at": 5.0, "elapsed_s": 1.0004, "seq": 7, "ts": "2026-11-30T14:06:44.123456Z"}
TOLD: tuple[Event, ...] = (
    AttemptStarted(**HEAD, attempt=1),
    AttemptStarted(**HEAD, attempt=2, pid=4242),
    AttemptEnded(**HEAD, attempt=1, outcome="unfinished"),
    PhaseEntered(**HEAD, phase=Phase.LOADING_WEIGHTS, because=BECAUSE),
    ProgressSeen(**HEAD, phase=Phase.LOADING_WEIGHTS, what="checkpoint shards", done=41, total=67),
    ProgressSeen(**HEAD, phase=Phase.COMPILING, what="graphs"),
    ProbeBroke(**HEAD, probe="gpu", error="no answer within 10 s"),
    ProbeRecovered(**HEAD, probe="gpu"),
    Warned(**HEAD, code="foreign_server", text="the port belongs to process 5"),
    TierReached(**HEAD, tier="health"),
    CauseFound(**HEAD, cause=CAUSE),
    Ended(at=5.0, elapsed_s=1.0, outcome="ready"),
    Ended(**HEAD, outcome="failed", cause=CAUSE),
)


# --- the golden files ---------------------------------------------------------------------------


def test_a_report_is_written_as_it_always_was() -> None:
    golden = (GOLDEN / "report.json").read_text("utf-8")

    assert REPORT.to_json(indent=2) + "\n" == golden
    REPORTS.validate(json.loads(golden))


def test_events_are_written_as_they_always_were() -> None:
    golden = (GOLDEN / "events.jsonl").read_text("utf-8").splitlines()

    assert [json.dumps(event.to_dict(), ensure_ascii=False) for event in TOLD] == golden
    for line in golden:
        EVENTS.validate(json.loads(line))


def test_the_golden_events_hold_every_kind() -> None:
    kinds = {kind.event for kind in Event.__subclasses__() if kind.__module__ == "vllm_startup._events"}

    assert {event.event for event in TOLD} == kinds
    assert {rule["if"]["properties"]["event"]["const"] for rule in EVENTS.schema["allOf"]} == kinds


# --- the schemas ------------------------------------------------------------------------------------


def test_the_report_schema_names_every_field() -> None:
    written = REPORT.to_dict()

    assert set(REPORTS.schema["properties"]) == set(REPORTS.schema["required"]) == set(written)
    assert set(REPORTS.schema["properties"]["limits"]["properties"]) == set(written["limits"])
    assert REPORTS.schema["$defs"]["phase"]["enum"] == [phase.value for phase in Phase]


@pytest.mark.parametrize(
    "kind", [k for k in vars(causes).values() if isinstance(k, type) and issubclass(k, causes.Cause)]
)
def test_every_cause_fits_the_schema(kind: type[causes.Cause]) -> None:
    event = CauseFound(**HEAD, cause=kind(message="something happened"))

    EVENTS.validate(event.to_dict())


def test_real_reports_fit_the_schema() -> None:
    lines = ["(APIServer pid=7) INFO 11-30 14:06:44 [utils.py:233] vLLM API server version 0.32.0"]

    for found in (diagnose([]), diagnose(lines), diagnose(["bash: line 1: vllm: command not found"])):
        REPORTS.validate(found.to_dict())


def test_what_later_versions_add_fits_too() -> None:
    REPORTS.validate({**REPORT.to_dict(), "added_later": 1})
    EVENTS.validate({**TOLD[0].to_dict(), "added_later": 1})
    EVENTS.validate({**TOLD[0].to_dict(), "event": "something_new"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"outcome": "maybe"},
        {"schema": 2},
        {"phase": "failed"},
        {"elapsed_s": None},
        {"tiers": {"metal": 1.0}},
        {"cause": {"kind": "stalled"}},
        {"attempts": []},
        {"limits": {}},
        {"started_at": 5},
    ],
)
def test_a_wrong_report_does_not_fit(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        REPORTS.validate({**REPORT.to_dict(), **wrong})


@pytest.mark.parametrize(
    ("event", "wrong"),
    [
        (0, {"seq": -1}),
        (3, {"phase": "failed"}),
        (3, {"because": {}}),
        (4, {"done": "41"}),
        (9, {"tier": "metal"}),
        (10, {"cause": None}),
    ],
)
def test_a_wrong_event_does_not_fit(event: int, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        EVENTS.validate({**TOLD[event].to_dict(), **wrong})


@pytest.mark.parametrize("name", list(REPORT.to_dict()))
def test_no_field_of_a_report_may_be_missing(name: str) -> None:
    written = REPORT.to_dict()
    del written[name]

    assert not REPORTS.is_valid(written)


# --- what /status answers ---------------------------------------------------------------------------

STATUSES = validator("status")


def told(standing: Standing) -> dict[str, Any]:
    conditions = Conditions(1_764_511_604)
    conditions.note(standing, 1_764_511_644)
    return document(standing, conditions)


STANDINGS = (
    Standing(
        phase=Phase.LOADING_WEIGHTS,
        summary="loading weights, shard 41 of 67, last progress 4 s ago",
        elapsed_s=40.25,
        quiet_s=4.04,
        moved="checkpoint shards",
    ),
    Standing(
        state="failed",
        phase=Phase.ALLOCATING_KV_CACHE,
        summary="failed: the KV cache cannot hold one request of 8192 tokens",
        elapsed_s=51.1,
        cause=CAUSE,
    ),
)


def test_a_status_is_written_as_it_always_was() -> None:
    golden = (GOLDEN / "status.jsonl").read_text("utf-8").splitlines()

    assert [json.dumps(told(standing), ensure_ascii=False) for standing in STANDINGS] == golden
    for line in golden:
        STATUSES.validate(json.loads(line))


@pytest.mark.parametrize("state", get_args(State))
def test_every_state_fits_the_schema_and_what_is_added_later_too(state: State) -> None:
    written = told(Standing(state=state, started=state in ("ready", "unready")))

    STATUSES.validate(written)
    STATUSES.validate({**written, "added_later": 1})
    assert set(STATUSES.schema["properties"]) == set(STATUSES.schema["required"]) == set(written)
    assert f"'{state}'" in STATUSES.schema["properties"]["state"]["description"]


@pytest.mark.parametrize(
    "wrong",
    [{"state": "Ready"}, {"phase": "failed"}, {"cause": {}}, {"conditions": [{}]}, {"last_progress": 4}],
)
def test_a_wrong_status_does_not_fit(wrong: dict[str, Any]) -> None:
    assert not STATUSES.is_valid({**told(STANDINGS[0]), **wrong})


# --- before and after -------------------------------------------------------------------------------

PREFLIGHTS, CLEANUPS = validator("preflight"), validator("cleanup")

PREFLIGHT = Preflight(
    causes=(CAUSE,),
    warnings=(r.WarningReport(code="package_twice", text="two of it"),),
    checks=(CheckReport(name="gpus", outcome="not_checked", note="no driver", took_s=0.25),),
    python="/opt/vllm/bin/python3",
)
CLEANUP = Cleanup(
    processes=(Leftover(pid=7, name="VLLM::EngineCore", user=0, age_s=3.5, gpu_bytes={0: 1, 1: None}),),
    gpus=(GpuReturn(index=0, uuid="GPU-0", before_bytes=2, total_bytes=3),),
)


@pytest.mark.parametrize(
    ("schema", "value"),
    [(PREFLIGHTS, PREFLIGHT), (PREFLIGHTS, Preflight()), (CLEANUPS, CLEANUP), (CLEANUPS, Cleanup())],
)
def test_results_fit_their_schemas(schema: Draft202012Validator, value: Preflight | Cleanup) -> None:
    written = value.to_dict()
    schema.validate(written)
    schema.validate({**written, "added_later": 1})
    assert set(schema.schema["properties"]) == set(schema.schema["required"]) == set(written)
    for name in written:
        assert not schema.is_valid({key: item for key, item in written.items() if key != name}), name


def test_a_cause_has_one_form_everywhere() -> None:
    for name in ("cause", "evidence"):
        assert STATUSES.schema["$defs"][name] == REPORTS.schema["$defs"][name]
        assert PREFLIGHTS.schema["$defs"][name] == REPORTS.schema["$defs"][name]


def test_a_wrong_result_does_not_fit() -> None:
    wrong = {"outcome": "maybe", "name": "gpus", "note": None, "took_s": 0}
    assert not PREFLIGHTS.is_valid({**PREFLIGHT.to_dict(), "checks": [wrong]})
    assert not CLEANUPS.is_valid({**CLEANUP.to_dict(), "processes": [{"pid": 0}]})
