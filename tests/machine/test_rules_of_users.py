"""Rules that users bring: on lines, on readings, and such as go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from scene import ARCHITECTURE, Run, Seen, api, engine, found, log, server, tree, watch

from vllm_startup import Advance, Line, Phase, Progress, Rule, causes
from vllm_startup._rules import Finding
from vllm_startup.probes import Reading

START: list[Seen] = [(0, found()), (0, tree(server()))]


@attrs.frozen(kw_only=True)
class QueueLength(Reading):
    """A reading of a user's own."""

    waiting: int


@attrs.frozen(kw_only=True, eq=False, repr=False)
class LicenseExpired(causes.Cause):
    """A cause of a user's own."""

    vendor: str | None = None


def seeing(rule: Rule, *rows: Seen, until_s: float = 60) -> Run:
    return watch([*START, *rows], rules=(rule,), until_s=until_s)


def test_a_rule_on_a_line_advances() -> None:
    run = seeing(Rule("plugin ready", lambda _: Advance(Phase.WARMING_UP)), (5, log("plugin ready")))
    assert run.phases["warming_up"] == 5.0
    assert run.report.phases[-1].because[0].probe == "rule plugin ready"


def test_a_rule_is_given_the_parsed_line() -> None:
    lines: list[Line] = []
    rule = Rule("plugin", lines.append)
    seeing(rule, (5, log(engine("plugin ready"))))
    (line,) = lines
    assert (line.message, line.pid, line.level) == ("plugin ready", 20, "INFO")


def test_a_rule_is_not_asked_about_other_lines() -> None:
    rule = Rule("plugin", lambda _: Advance(Phase.WARMING_UP))
    assert seeing(rule, (5, log("anything"))).report.phase == "launching"


def test_a_rule_whose_literal_is_built_in_as_well_is_asked_too() -> None:
    asked: list[str] = []
    rule = Rule("Resolved architecture", lambda line: asked.append(line.message))
    run = seeing(rule, (5, log(api(ARCHITECTURE))))
    assert asked == [ARCHITECTURE]
    assert run.phases["configuring"] == 5.0


def test_a_rule_tells_progress() -> None:
    rule = Rule("fetched", lambda _: Progress("parts", 3, 9))
    run = seeing(rule, (500, log("fetched")), until_s=1000)
    assert [(e.what, e.done, e.total) for e in run.told("progress")] == [("parts", 3, 9)]
    assert run.report.outcome == "unfinished"


def test_a_counter_of_a_rule_that_stands_still_is_no_progress() -> None:
    rule = Rule("fetched", lambda _: Progress("parts", 3, 9))
    rows: list[Seen] = [(float(i), log("fetched")) for i in range(1, 800)]
    run = seeing(rule, *rows, until_s=1000)
    assert run.told("ended")[0].at == 601.0


def test_a_rule_tells_a_cause_that_ends_the_start() -> None:
    found_cause = LicenseExpired(message="the license has expired", vendor="ACME")
    run = seeing(Rule("license", lambda _: found_cause), (5, log("license expired")))
    assert (run.report.outcome, run.report.cause) == ("failed", found_cause)
    assert run.told("ended")[0].at == 15.0
    assert run.report.to_dict()["cause"]["kind"] == "license_expired"


def test_the_first_cause_of_the_rules_stays() -> None:
    texts = iter(["one", "two"])
    rule = Rule("license", lambda _: LicenseExpired(message=next(texts)))
    run = seeing(rule, (5, log("license", "license")))
    assert [e.cause.message for e in run.told("cause_found")] == ["one"]


def test_a_rule_on_readings_sees_readings_of_the_users_own() -> None:
    def match(reading: Reading) -> Advance | None:
        return Advance(Phase.COMPILING) if isinstance(reading, QueueLength) and reading.waiting == 0 else None

    run = seeing(Rule(None, match, name="queue"), (5, QueueLength(waiting=3)), (6, QueueLength(waiting=0)))
    assert run.phases["compiling"] == 6.0


@pytest.mark.parametrize(
    "finding",
    [
        lambda: Progress(5),  # type: ignore[arg-type]
        lambda: Progress("parts", float("nan"), 9),
        lambda: Progress("parts", 10**400, 9),
        lambda: Progress("parts", True, 9),
        lambda: LicenseExpired(message=5),  # type: ignore[arg-type]
        lambda: LicenseExpired(message="expired", hint=5),  # type: ignore[arg-type]
        lambda: LicenseExpired(message="expired", evidence="line 5"),  # type: ignore[arg-type]
    ],
)
def test_a_finding_that_cannot_be_told_is_the_rules_fault_alone(finding: Callable[[], Finding]) -> None:
    """The line that it was made of is read all the same."""
    run = seeing(Rule("Resolved", lambda _: finding()), (5, log(api(ARCHITECTURE))))
    assert [warning.code for warning in run.report.warnings] == ["rule_failed"]
    assert run.phases["configuring"] == 5.0


def test_a_rule_that_raises_a_cancellation_is_told_like_any_other() -> None:
    def match(_: Line) -> None:
        raise asyncio.CancelledError

    run = seeing(Rule("Resolved", match), (5, log(api(ARCHITECTURE))))
    assert [warning.code for warning in run.report.warnings] == ["rule_failed"]
    assert run.phases["configuring"] == 5.0


@pytest.mark.filterwarnings("error")
def test_a_rule_that_is_a_coroutine_function_is_told_and_leaves_nothing_unawaited() -> None:
    async def match(_: Line) -> None:
        """A mistake."""

    run = seeing(Rule("Resolved", match), (5, log(api(ARCHITECTURE))))  # type: ignore[arg-type]
    assert [warning.text for warning in run.report.warnings] == [
        "rule 'Resolved' returned a coroutine, which means nothing here"
    ]


def test_a_rule_on_a_reading_that_cannot_be_shown() -> None:
    class Sullen(Reading):
        def __repr__(self) -> str:
            raise RuntimeError

    def match(reading: Reading) -> Advance | None:
        return Advance(Phase.COMPILING) if isinstance(reading, Sullen) else None

    run = seeing(Rule(None, match), (5, Sullen()))
    assert run.report.phases[-1].because[0].text == "Sullen"


def test_a_rule_on_readings_sees_the_built_in_ones_too() -> None:
    kinds: set[str] = set()
    seeing(Rule(None, lambda reading: kinds.add(type(reading).__name__)), (5, log("x")))
    assert kinds >= {"ProcessFound", "ProcessTree", "LogLines"}


def test_a_rule_that_raises_is_a_warning_and_counts_as_nothing() -> None:
    def match(_: Line) -> None:
        raise ZeroDivisionError("oh")

    run = seeing(Rule("x", match, name="mine"), (5, log("x")), (6, log("x")))
    assert run.report.outcome == "unfinished"
    assert [(w.code, w.text) for w in run.told("warning")] == [
        ("rule_failed", "rule 'mine' raised ZeroDivisionError('oh')")
    ]


_SECRET = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3h"


def _raise(_: Line) -> None:
    raise RuntimeError(_SECRET)


@pytest.mark.parametrize(
    "match",
    [
        pytest.param(_raise, id="error"),
        pytest.param(lambda _: causes.UnclassifiedError(message=f"no\x1b[31m {_SECRET}"), id="cause"),
        pytest.param(lambda _: Progress(f"shards {_SECRET}", done=1, total=1), id="progress"),
    ],
)
def test_what_a_rule_says_is_free_of_secrets_and_control_characters(match: Any) -> None:
    run = seeing(Rule("x", match), (5, log("x")), (6, log("x")))
    told = repr((run.events, run.report))
    assert "hf_***" in told
    assert _SECRET not in told
    assert "\\x1b" not in told


@pytest.mark.parametrize("lie", ["ready", 7, Phase.READY, ...])
def test_a_rule_that_returns_something_else_is_a_warning(lie: Any) -> None:
    run = seeing(Rule("x", lambda _: lie), (5, log("x")))
    assert [w.code for w in run.told("warning")] == ["rule_failed"]


def test_a_rule_cannot_declare_a_server_ready() -> None:
    """Ready is confirmed by asking; a rule that lies must not end the wait."""
    run = seeing(Rule("x", lambda _: Advance(Phase.READY)), (5, log("x")))
    assert run.report.outcome == "unfinished"
    assert run.report.ready_s is None


def test_a_rule_cannot_go_back() -> None:
    rule = Rule("x", lambda _: Advance(Phase.CONFIGURING))
    run = seeing(rule, (4, log(engine("Starting to load model /m..."))), (5, log("x")))
    assert run.report.phase == "loading_weights"


def test_rules_on_history_tell_of_their_own_attempt() -> None:
    """A cause that a rule finds in the past must not end the wait for the living process."""
    rule = Rule("license", lambda _: LicenseExpired(message="expired"))
    run = seeing(rule, (0, log("license expired", history=True)), until_s=60)
    assert run.told("cause_found") == []
    assert run.report.outcome == "unfinished"


def test_several_rules_are_asked_in_their_order() -> None:
    asked: list[int] = []
    rules = tuple(Rule("x", lambda _, n=n: asked.append(n)) for n in range(3))
    watch([*START, (5, log("x"))], rules=rules)
    assert asked == [0, 1, 2]
