"""Limits as values."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from vllm_startup import Phase, Timeouts


def test_the_defaults() -> None:
    limits = Timeouts()
    assert (limits.total, limits.stall, limits.cpu_only) == (None, 600, 3600)
    assert {limits.of(phase) for phase in Phase} == {None}


def test_the_total_is_the_only_positional_one() -> None:
    assert Timeouts(1800).total == 1800
    with pytest.raises(TypeError):
        Timeouts(1800, 600)


def test_there_is_one_for_each_phase_but_ready() -> None:
    names = {field.name for field in attrs.fields(Timeouts)} - {"total", "stall", "cpu_only"}
    assert names == {phase.value for phase in Phase} - {"ready"}


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.READY])
def test_a_phases_limit_is_found_by_its_name(phase: Phase) -> None:
    limits: dict[str, Any] = {phase.value: 7.5}
    assert Timeouts(**limits).of(phase) == 7.5


@pytest.mark.parametrize("name", [field.name for field in attrs.fields(Timeouts)])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_what_is_no_duration_is_refused_by_name(name: str, value: float) -> None:
    limits: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"^{name} must be a positive, finite number of seconds, .*use None"):
        Timeouts(**limits)


@pytest.mark.parametrize("value", ["60", True, [1]])
def test_what_is_no_number_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^stall must be a number of seconds or None for no limit"):
        Timeouts(stall=value)


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(TypeError, match="thinking"):
        Timeouts(thinking=5)  # type: ignore[call-arg]  # that is the test


def test_limits_do_not_change() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Timeouts().total = 5  # type: ignore[misc]  # that is the test
