"""When a server counts as ready."""

from __future__ import annotations

import pytest
from scene import (
    ENGINE_READY,
    INIT,
    LOAD,
    Seen,
    answered,
    died,
    engine,
    found,
    listening,
    log,
    refused,
    server,
    tree,
    watch,
)

from vllm_startup import Timeouts, probes
from vllm_startup._readings import Reading, Tier

START: list[Seen] = [(0, found()), (0, tree(server())), (0, refused())]


def test_a_200_is_ready_at_once() -> None:
    run = watch([*START, (30, listening()), (30.2, answered())])
    assert (run.report.outcome, run.report.ready_s, run.report.tiers) == ("ready", 30.2, {"health": 30.2})
    assert [e.event for e in run.events][-3:] == ["tier_reached", "phase_entered", "ended"]


@pytest.mark.parametrize("status", [401, 404, 500, 503])
def test_other_answers_are_not_ready(status: int) -> None:
    run = watch([*START, (30, listening()), (30.2, answered(status))], until_s=60)
    assert run.report.outcome == "unfinished"
    assert run.report.phase == "starting_server"


@pytest.mark.parametrize(
    ("until", "tier", "outcome"),
    [
        ("health", "health", "ready"),
        ("model", "health", "unfinished"),
        ("model", "model", "ready"),
        ("inference", "model", "unfinished"),
        ("inference", "inference", "ready"),
    ],
)
def test_only_the_chosen_tier_ends_the_wait(until: Tier, tier: Tier, outcome: str) -> None:
    assert watch([*START, (30, answered(tier=tier))], until=until).report.outcome == outcome


def test_each_tier_has_its_own_time() -> None:
    rows: list[Seen] = [
        *START,
        (20, log(engine(INIT), engine(ENGINE_READY))),
        (30, answered()),
        (31, answered(tier="model")),
        (35, answered(tier="inference")),
    ]
    run = watch(rows, until="inference")
    assert run.report.tiers == {"engine": 20.0, "health": 30.0, "model": 31.0, "inference": 35.0}
    assert [e.tier for e in run.told("tier_reached")] == ["engine", "health", "model", "inference"]


def test_a_tier_is_told_once() -> None:
    run = watch([*START, (30, answered()), (31, answered()), (32, answered(tier="model"))], until="model")
    assert [e.tier for e in run.told("tier_reached")] == ["health", "model"]


def test_stable_for_needs_the_time_to_pass() -> None:
    rows: list[Seen] = [*START, (30, answered()), (31, answered()), (34.9, answered())]
    assert watch(rows, stable_for=5).report.outcome == "unfinished"
    run = watch([*rows, (35, answered())], stable_for=5)
    assert (run.report.outcome, run.report.ready_s) == ("ready", 35.0)


def test_stable_for_must_be_confirmed_by_an_answer() -> None:
    run = watch([*START, (30, answered())], stable_for=5, until_s=300)
    assert run.report.outcome == "unfinished"


@pytest.mark.parametrize("miss", [answered(503), refused()], ids=["503", "refused"])
def test_a_miss_begins_the_time_again(miss: probes.Reading) -> None:
    rows: list[Seen] = [*START, (30, answered()), (33, miss), (34, answered()), (36, answered())]
    assert watch(rows, stable_for=5).report.outcome == "unfinished"
    assert watch([*rows, (38.9, answered()), (39, answered())], stable_for=5).report.ready_s == 39.0


def test_a_port_that_goes_on_listening_is_no_miss() -> None:
    rows: list[Seen] = [*START, (30, answered()), (33, listening()), (35, answered())]
    assert watch(rows, stable_for=5).report.ready_s == 35.0


def test_the_engine_tier_needs_no_port() -> None:
    run = watch([*START, (20, log(engine(INIT), engine(ENGINE_READY)))], until="engine")
    assert (run.report.outcome, run.report.ready_s) == ("ready", 20.0)


def test_the_engine_tier_holds_while_the_engines_live() -> None:
    rows: list[Seen] = [*START, (20, log(engine(ENGINE_READY)))]
    run = watch(rows, until="engine", stable_for=10, until_s=60)
    assert (run.report.outcome, run.told("ended")[0].at) == ("ready", 30.0)


def test_a_200_meets_the_engine_tier_too() -> None:
    assert watch([*START, (30, answered())], until="engine").report.outcome == "ready"


def test_a_dead_process_is_never_ready() -> None:
    run = watch([*START, (29, died(code=1)), (29, tree()), (30, answered())], until_s=60)
    assert run.report.outcome == "failed"


def test_a_death_while_it_must_hold_is_a_failure() -> None:
    rows: list[Seen] = [*START, (30, answered()), (32, died(signal=9)), (32, tree()), (33, refused())]
    run = watch(rows, stable_for=5, until_s=60)
    assert run.report.outcome == "failed"
    assert run.report.cause is not None
    assert run.report.cause.kind == "process_killed"


def test_a_foreign_servers_200_does_not_count_and_is_told_at_once() -> None:
    rows: list[Seen] = [*START, (5, listening("foreign", 77)), (5.1, answered(owner="foreign", pid=77))]
    run = watch(rows, until_s=60)
    assert run.report.outcome == "unfinished"
    assert run.report.tiers == {}
    assert run.report.phase == "launching"
    assert [(w.code, "process 77" in w.text) for w in run.told("warning")] == [("foreign_server", True)]


def test_a_foreign_server_is_the_cause_only_when_a_limit_ends_the_wait() -> None:
    rows: list[Seen] = [*START, (5, listening("foreign", 77)), (5.1, answered(owner="foreign", pid=77))]
    run = watch(rows, timeouts=Timeouts(60), until_s=60)
    assert run.report.outcome == "timed_out"
    assert run.report.cause is not None
    assert (run.report.cause.kind, run.report.cause.fields) == ("foreign_server", {"pid": 77})


def test_a_port_that_changes_hands_to_the_server_counts() -> None:
    rows: list[Seen] = [
        *START,
        (5, answered(owner="foreign", pid=77)),
        (30, listening("tree")),
        (31, answered()),
    ]
    assert watch(rows).report.outcome == "ready"


def test_an_unknown_owner_counts() -> None:
    """Behind a proxy, a tunnel or another network namespace nobody can tell."""
    assert watch([*START, (30, answered(owner="unknown"))]).report.outcome == "ready"


def test_a_server_that_listens_and_never_answers_200_is_unhealthy_at_a_limit() -> None:
    rows: list[Seen] = [*START, (10, listening()), (11, answered(503))]
    run = watch(rows, timeouts=Timeouts(60), until_s=60)
    assert run.report.cause is not None
    assert (run.report.cause.kind, run.report.cause.fields) == ("unhealthy", {"status": 503})


def test_a_server_that_fails_again_before_it_is_stable_is_unhealthy_at_a_limit() -> None:
    rows: list[Seen] = [*START, (10, listening()), (11, answered()), (12, answered(500))]
    run = watch(rows, stable_for=5, timeouts=Timeouts(60), until_s=60)
    assert run.report.cause is not None
    assert run.report.cause.kind == "unhealthy"
    assert "failed again" in run.report.cause.message


def test_the_log_saying_that_it_serves_is_not_ready_while_a_port_is_asked() -> None:
    run = watch([*START, (30, log(engine(LOAD), "INFO:     Application startup complete."))], until_s=40)
    assert run.report.outcome == "unfinished"
    assert run.report.phase == "starting_server"


def test_the_servers_phase_is_dated_to_when_it_listened() -> None:
    run = watch([*START, (30, listening("unknown")), (31.5, answered(owner="unknown"))])
    assert run.phases["starting_server"] == 30.0


@pytest.mark.parametrize(
    ("age_s", "before", "warned"),
    [(600, [], True), (600, [refused()], False), (2, [], False)],
    ids=["answers at once", "was refused first", "has just begun"],
)
def test_a_server_that_answered_when_the_watch_began_is_told(
    age_s: float, before: list[Reading], warned: bool
) -> None:
    rows = [(0, found(age_s=age_s)), *((0.1, each) for each in before), (3, listening()), (3.1, answered())]
    run = watch(rows, until_s=4)
    assert run.report.outcome == "ready"
    assert [w.code for w in run.report.warnings] == ["ready_before_watch"] * warned


def test_a_tier_that_is_refused_is_told_at_once() -> None:
    """A wrong key or model will not come right by waiting, and the limit is minutes away."""
    refused_for = {"status": 401, "tier": "model", "ok": False}
    rows: list[Seen] = [(0, found()), (0, tree(server())), (9, listening()), (9, answered())]
    rows += [(float(at), answered(**refused_for)) for at in range(10, 20)]  # type: ignore[arg-type]
    run = watch(rows, until_s=30, until="model")
    assert [(warning.code, warning.at, warning.text) for warning in run.told("warning")] == [
        ("tier_refused", 10, "tier model: 401")
    ]
    rows += [(20, answered(tier="model"))]
    assert watch(rows, until_s=30, until="model").report.outcome == "ready"
