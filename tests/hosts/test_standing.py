"""How a server stands, from what is known of its start."""

from __future__ import annotations

import attrs
import pytest
from scene import aftermath, answered, api, died, engine, failing, found, listening, log, opened, tree, watch

from vllm_startup._hosts.standing import (
    Conditions,
    Standing,
    State,
    document,
    when_asked,
    when_decided,
    when_refused,
    when_stopping,
    while_watched,
)
from vllm_startup._machine.reporting import Status, status
from vllm_startup._phases import Phase
from vllm_startup.causes import PortInUse

BEFORE = Standing()


def starting(**more: object) -> Status:
    run = watch([(0, opened()), (0, found()), (1, log(api("vLLM API server version 0.32.0")))], until_s=4)
    return attrs.evolve(status(run.machine, 4.0), **more)


def ready() -> Status:
    run = watch([(0, found()), (5, listening()), (5.1, answered())], until_s=6)
    return status(run.machine, 6.0)


def test_a_start_that_advances_is_live_and_neither_started_nor_ready() -> None:
    standing = while_watched(BEFORE, starting())
    assert (standing.live, standing.started, standing.ready) == (True, False, False)
    assert (standing.phase, standing.reason) == (Phase.CONFIGURING, "Configuring")
    assert standing.summary == "reading its configuration, last progress 3 s ago"


def test_a_server_that_is_ready_is_all_three() -> None:
    standing = while_watched(BEFORE, ready())
    assert (standing.live, standing.started, standing.ready) == (True, True, True)


def test_a_start_whose_cause_is_known_is_not_live() -> None:
    lines = failing("ValueError: something new")
    run = watch([(0, opened()), (0, found()), (1, log(*lines, *aftermath())), (2, died())], until_s=5)
    standing = while_watched(BEFORE, status(run.machine, 5.0))
    assert (standing.live, standing.ready) == (False, False)
    assert standing.reason == "UnclassifiedError"
    decided = when_decided(standing, run.report)
    assert (decided.state, decided.reason) == ("failed", "UnclassifiedError")
    assert "something new" in decided.summary
    assert when_stopping(decided) == decided  # why it failed stays to be read
    stalled = when_decided(standing, attrs.evolve(run.report, outcome="stalled"))
    assert when_stopping(stalled) == stalled


def test_a_stall_that_ends_nothing_lasts_until_something_advances() -> None:
    run = watch([(0, opened()), (0, found()), (1, log(engine("Starting to load model x...")))], until_s=4)
    stalled = when_decided(BEFORE, attrs.evolve(run.report, outcome="stalled"))
    assert (stalled.live, stalled.state) == (False, "stalled")
    anew = while_watched(stalled, starting(quiet_s=0.9, phase=Phase.LAUNCHING), catching_up=True)
    assert anew.state == "stalled"
    again = while_watched(anew, starting(quiet_s=0.2), catching_up=True)  # it has read the log again
    assert again.state == "stalled"
    again = while_watched(again, starting(quiet_s=1.2))
    assert again.state == "stalled"
    assert while_watched(again, starting(quiet_s=0.4)).state == "starting"
    assert while_watched(again, starting(quiet_s=2.2, phase=Phase.COMPILING)).state == "starting"


@pytest.mark.parametrize(
    ("state", "well", "then"),
    [
        ("ready", True, "ready"),
        ("ready", False, "unready"),
        ("unready", True, "ready"),
        ("stopping", True, "stopping"),
        ("failed", True, "failed"),
    ],
)
def test_an_answer_counts_for_a_server_that_was_ready(state: State, well: bool, then: State) -> None:
    standing = when_asked(Standing(state=state, started=True), well=well, detail="HTTP 503")
    assert standing.state == then
    assert ("HTTP 503" in standing.summary) == (then == "unready")


def test_a_server_that_answers_no_longer_is_neither_ready_nor_live() -> None:
    unready = when_asked(Standing(state="ready", started=True), well=False, detail=None)
    assert (unready.live, unready.started, unready.ready) == (False, True, False)


def test_a_server_that_stops_is_left_alone() -> None:
    stopping = when_stopping(Standing(state="ready", started=True))
    assert (stopping.live, stopping.ready, stopping.summary) == (True, False, "stopping")
    assert when_stopping(stopping, "the server exited with status 0") == stopping
    crashed = when_stopping(Standing(state="ready", started=True), "the server was ended by SIGKILL")
    assert (crashed.state, crashed.summary) == ("stopping", "the server was ended by SIGKILL")


def test_a_server_that_is_not_started_says_why() -> None:
    refused = when_refused(PortInUse(message="port 8000 is taken"))
    assert (refused.live, refused.reason, refused.summary) == (
        False,
        "PortInUse",
        "not started: port 8000 is taken",
    )


def test_conditions_know_when_they_last_changed() -> None:
    conditions = Conditions(1_700_000_000)
    for at, standing in (
        (1_700_000_001, Standing()),
        (1_700_000_050, Standing(elapsed_s=49)),
        (1_700_000_060, Standing(state="ready", started=True)),
    ):
        conditions.note(standing, at)
    told = {each["type"]: each for each in conditions.to_json(Standing(state="ready", started=True))}
    assert told["Live"]["lastTransitionTime"] == "2023-11-14T22:13:21Z"
    assert told["Ready"]["lastTransitionTime"] == "2023-11-14T22:14:20Z"
    assert told["Ready"] == {**told["Started"], "type": "Ready"}
    assert told["Ready"]["status"] == "True"


def test_foreign_text_reaches_the_document_as_one_printable_line() -> None:
    standing = while_watched(BEFORE, starting(summary="loading\x1b[31m\nweights\u202e", moved="a\x00b"))
    told = document(standing, Conditions(0))
    assert told["summary"] == "loading [31m weights"
    assert told["last_progress"] == {"s_ago": 3.0, "what": "a b"}
    assert told["cause"] is None


def test_the_tree_of_a_start_is_its_progress() -> None:
    run = watch([(0, found()), (0, tree())], until_s=1)
    assert while_watched(BEFORE, status(run.machine, 1.0)).quiet_s is not None
