"""The report as values, as JSON and as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs
import pytest
from scene import (
    BANNER,
    KV,
    LOAD,
    OOM,
    Seen,
    aftermath,
    answered,
    api,
    core,
    died,
    engine,
    failing,
    found,
    gpu,
    log,
    opened,
    server,
    tree,
    watch,
)

from vllm_startup import StartupReport, Timeouts

if TYPE_CHECKING:
    from pathlib import Path

READY: list[Seen] = [
    (0, opened()),
    (0, found()),
    (0, tree(server())),
    (0, gpu(500)),
    (5, log(api(BANNER))),
    (7, tree(server(), core())),
    (10, log(engine(LOAD))),
    (20, log(engine(KV))),
    (30, answered()),
]
FAILED: list[Seen] = [*READY[:-1], (25, log(*failing(OOM), *aftermath())), (26, died(code=1)), (26, tree())]

MEMBERS = [
    "schema",
    "outcome",
    "phase",
    "url",
    "until",
    "limits",
    "started_at",
    "elapsed_s",
    "ready_s",
    "last_progress",
    "tiers",
    "cause",
    "exit",
    "phases",
    "attempts",
    "processes",
    "gpus",
    "facts",
    "disputed",
    "warnings",
    "versions",
]


@pytest.mark.parametrize("rows", [[], READY, FAILED], ids=["nothing", "ready", "failed"])
def test_the_json_has_the_members_of_the_contract(rows: list[Seen]) -> None:
    values = watch(rows, until_s=60).report.to_dict()
    assert list(values) == MEMBERS
    assert values["schema"] == 1
    assert json.loads(json.dumps(values)) == values


def test_the_json_of_a_ready_start() -> None:
    values = watch(READY, wall=0.0, url="http://a:1", timeouts=Timeouts(60)).report.to_dict()
    assert values["outcome"] == "ready"
    assert values["url"] == "http://a:1"
    assert values["started_at"] == "1970-01-01T00:00:00.000Z"
    assert (values["elapsed_s"], values["ready_s"]) == (30, 30)
    assert values["tiers"] == {"health": 30}
    assert values["limits"]["total"] == 60
    assert values["phases"][1] == {
        "phase": "configuring",
        "started_s": 5,
        "ended_s": 7,
        "because": [{"probe": "log", "text": values["phases"][1]["because"][0]["text"], "at_s": 5}],
    }
    assert "0.32.0" in values["phases"][1]["because"][0]["text"]
    assert values["gpus"] == [
        {
            "index": 0,
            "uuid": "GPU-0",
            "baseline_bytes": 500 << 20,
            "peak_bytes": 500 << 20,
            "used_bytes": 500 << 20,
            "total_bytes": 97_887 << 20,
        }
    ]
    assert values["processes"][1] == {
        "role": "engine",
        "pid": 20,
        "phase": "allocating_kv_cache",
        "exit": None,
    }
    assert values["cause"] is None
    assert values["exit"] is None


def test_the_json_of_a_cause() -> None:
    cause = watch(FAILED, until_s=60).report.to_dict()["cause"]
    assert list(cause) == [
        "kind",
        "family",
        "message",
        "hint",
        "confidence",
        "retryable",
        "fields",
        "evidence",
    ]
    assert (cause["kind"], cause["family"], cause["confidence"]) == (
        "gpu_out_of_memory",
        "GpuMemory",
        "certain",
    )
    assert cause["fields"]["tried_bytes"] == 2 << 30
    assert set(cause["evidence"][0]) == {"text", "process", "line", "attempt"}
    assert cause["evidence"][0]["attempt"] == 1


def test_the_json_of_an_exit() -> None:
    values = watch(FAILED, until_s=60).report.to_dict()
    assert values["exit"] == {"code": 1, "signal": None}
    assert values["attempts"][-1]["exit"] == {"code": 1, "signal": None}


def test_the_newest_attempt_says_the_same_as_the_report() -> None:
    for rows in (READY, FAILED):
        report = watch(rows, until_s=60).report
        newest = report.attempts[-1]
        assert (newest.outcome, newest.phase, newest.cause, newest.exit, newest.started_at) == (
            report.outcome,
            report.phase,
            report.cause,
            report.exit,
            report.started_at,
        )


def test_the_json_text() -> None:
    report = watch(READY).report
    assert json.loads(report.to_json()) == report.to_dict()
    assert report.to_json(indent=2).startswith('{\n  "schema": 1')
    assert "ü" in attrs.evolve(report, url="http://münchen:1").to_json()


def test_times_are_rounded_to_milliseconds() -> None:
    run = watch([(0, found()), (1 / 3, log(api(BANNER)))], until_s=2 / 3)
    values = run.report.to_dict()
    assert values["elapsed_s"] == 0.667
    assert values["phases"][1]["started_s"] == 0.333


def test_a_report_does_not_change() -> None:
    report = watch(READY).report
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        report.outcome = "failed"  # type: ignore[misc]  # that is the test


def test_the_timeline_has_a_line_for_each_phase() -> None:
    text = watch(READY).report.timeline()
    assert [line.split()[2] for line in text.splitlines()] == [
        "launching",
        "configuring",
        "initializing",
        "loading_weights",
        "allocating_kv_cache",
        "starting_server",
        "ready",
    ]
    first, second, *_ = text.splitlines()
    assert first == "     0.0 s  launching                5.0 s  process: process 10 exists"
    assert second.startswith("     5.0 s  configuring")
    assert max(len(line) for line in text.splitlines()) <= 100


def test_the_timeline_of_nothing_is_empty() -> None:
    assert watch([]).report.timeline() == ""


def test_foreign_text_in_the_timeline_is_made_safe() -> None:
    line = engine(LOAD.replace("/models/m", "\x1b[2J\u202e/m"))
    text = watch([(0, found()), (1, log(line))]).report.timeline()
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_an_earlier_report_may_come_from_a_file(tmp_path: Path) -> None:
    from vllm_startup.testing import replay

    earlier = watch(READY).report
    path = tmp_path / "earlier.json"
    path.write_text(earlier.to_json(), encoding="utf-8")
    for baseline in (earlier, earlier.to_dict(), path, str(path)):
        assert isinstance(replay([], baseline=baseline), StartupReport)
    path.write_text("{")
    with pytest.raises(ValueError, match="is no JSON report"):
        replay([], baseline=path)
    with pytest.raises(ValueError, match="baseline must be a report"):
        replay([], baseline={"gpus": 7})
