"""Real bring-ups, recorded: what was right about them is what comes back."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from vllm_startup import _recording
from vllm_startup._machine.reporting import report
from vllm_startup.testing import replay

if TYPE_CHECKING:
    from collections.abc import Collection

    from vllm_startup import StartupReport

FOLDER = Path(__file__).parent / "recordings"
EXPECTATIONS: dict[str, dict[str, Any]] = json.loads((FOLDER / "expectations.json").read_text("utf-8"))
READY = sorted(name for name, expected in EXPECTATIONS.items() if expected["ready_s"] is not None)


@cache
def replayed(name: str) -> StartupReport:
    return replay(FOLDER / f"{name}.jsonl")


def without(name: str, probes: Collection[str]) -> StartupReport:
    """The report of a recording that lacks some probes."""
    rows = (FOLDER / f"{name}.jsonl").read_text("utf-8").splitlines()
    machine = _recording.replay_lines(row for row in rows if json.loads(row).get("probe") not in probes)
    return report(machine, machine.now, versions={})


def began(found: StartupReport) -> dict[str, float]:
    return {span.phase.value: span.started_s for span in found.phases}


@pytest.mark.parametrize("name", EXPECTATIONS)
def test_the_outcome_of_a_recorded_start(name: str) -> None:
    found, expected = replayed(name), EXPECTATIONS[name]["expect"]
    assert found.outcome == expected["outcome"]
    assert (found.cause is None) == ("kinds" not in expected)
    if found.cause is not None:
        assert found.cause.kind in expected["kinds"]
        assert {k: found.cause.fields[k] for k in expected.get("fields", {})} == expected.get("fields", {})
        assert expected.get("text", "") in json.dumps(found.to_dict()["cause"])


@pytest.mark.parametrize("name", [name for name, e in EXPECTATIONS.items() if e["phases"] is not None])
def test_the_phases_of_a_recorded_start_within_a_second(name: str) -> None:
    found = began(replayed(name))
    for phase, at in EXPECTATIONS[name]["phases"]:
        assert found.get(phase) == pytest.approx(at, abs=1.0), phase


@pytest.mark.parametrize("name", [name for name, e in EXPECTATIONS.items() if e["phases"] is not None])
def test_phases_that_no_line_shows_are_not_made_up(name: str) -> None:
    """What the log leaves out may come from weak evidence: processes, memory, the port."""
    expected = EXPECTATIONS[name]["phases"]
    weak = {"launching", "configuring", "initializing", "loading_weights", "starting_server", "ready"}
    # The CPU build of 0.17.1 warms up after it has sized its KV cache; the header has no such phase.
    known = {phase for phase, _ in expected} | ({"warming_up"} if name.startswith("0.17.1") else set())
    assert set(began(replayed(name))) - known <= weak


@pytest.mark.parametrize("name", READY)
def test_ready_is_told_when_the_server_answered(name: str) -> None:
    assert replayed(name).ready_s == pytest.approx(EXPECTATIONS[name]["ready_s"], abs=0.6)


@pytest.mark.parametrize("name", READY)
def test_without_a_log_the_phases_that_design_asks_for_are_told(name: str) -> None:
    found = without(name, {"log"})
    assert found.outcome == "ready"
    expected = {"launching", "initializing", "loading_weights", "starting_server", "ready"}
    assert set(began(found)) >= expected
    assert list(began(found).values()) == sorted(began(found).values())


@pytest.mark.parametrize("name", [name for name in READY if EXPECTATIONS[name]["phases"] is not None])
def test_without_a_log_phases_are_dated_within_a_second_and_a_half(name: str) -> None:
    """A look every half second; a tiny model's memory grows by what it compiles, not by its weights."""
    compiled = {"0.17.1-ready-cold", "0.32.0-ready-cold", "0.32.0-ready-warm"}
    found = began(without(name, {"log"}))
    for phase, at in EXPECTATIONS[name]["phases"]:
        if phase in {"initializing", "starting_server"} or (
            phase == "loading_weights" and name not in compiled
        ):
            assert found[phase] == pytest.approx(at, abs=1.5), phase


@pytest.mark.parametrize("name", EXPECTATIONS)
def test_without_the_process_probes_a_recorded_start_ends_no_worse_than_unknown(name: str) -> None:
    """Text alone, still coming in: what it cannot tell stays open, and nothing else is claimed."""
    found, expected = without(name, {"process", "tree", "health"}), EXPECTATIONS[name]["expect_log"]
    if found.cause is not None:
        assert found.cause.kind in expected.get("kinds", ())
    assert found.outcome in {"unfinished", expected["outcome"]}


@pytest.mark.parametrize("name", EXPECTATIONS)
def test_a_replay_gives_the_same_report_again(name: str) -> None:
    assert replay(FOLDER / f"{name}.jsonl").to_dict() == replayed(name).to_dict()


def test_the_recordings_stay_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.glob("*.jsonl")) < 3_000_000
