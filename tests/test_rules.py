"""Rules as values."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_startup import Advance, Phase, Progress, Rule, causes


@pytest.mark.parametrize("literal", ["", "   ", 7, b"x"])
def test_a_literal_is_text_that_is_not_blank(literal: Any) -> None:
    with pytest.raises(ValueError, match="literal must be text that is not blank"):
        Rule(literal, lambda _: None)


def test_a_match_is_callable() -> None:
    with pytest.raises(TypeError, match="callable"):
        Rule("x", "y")  # type: ignore[arg-type]  # that is the test


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (Rule("x", lambda _: None), "x"),
        (Rule(None, lambda _: None), "rule"),
        (Rule("x", lambda _: None, name="mine"), "mine"),
    ],
)
def test_a_rule_has_a_name(rule: Rule, name: str) -> None:
    assert rule.name == name


def test_an_unknown_phase_is_refused() -> None:
    assert Advance("compiling").phase is Phase.COMPILING
    with pytest.raises(ValueError, match="thinking"):
        Advance("thinking")


def test_progress_may_be_uncounted() -> None:
    assert (Progress("x").done, Progress("x").total) == (None, None)


def test_a_confidence_is_one_of_three() -> None:
    with pytest.raises(ValueError, match="confidence is 'maybe'"):
        causes.UnclassifiedError(message="x", confidence="maybe")  # type: ignore[arg-type]  # that is the test
