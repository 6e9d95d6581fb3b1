"""A bring-up from what was seen of it: no loop, no clock."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, Unpack

from vllm_startup import _recording
from vllm_startup._machine.earlier import Earlier
from vllm_startup._machine.machine import StartupMachine
from vllm_startup._machine.reporting import report
from vllm_startup._machine.terms import Terms
from vllm_startup._readings import Observation, Tier
from vllm_startup._report import Baseline, StartupReport, baseline_values
from vllm_startup._rules import Rule
from vllm_startup._timeouts import Timeouts
from vllm_startup._versions import versions


class WatchTerms(TypedDict, total=False):
    """What a watch can be asked for; see `vllm_startup.Startup`."""

    url: str | None
    until: Tier
    stable_for: float
    timeouts: Timeouts
    restarts: int
    exit_grace: float
    raise_early: bool
    rules: Sequence[Rule]
    baseline: Baseline | None


def replay(
    source: str | os.PathLike[str] | Iterable[Observation],
    *,
    end_at: float | None = None,
    wall: float | None = None,
    utc_offset_s: float = 0.0,
    **terms: Unpack[WatchTerms],
) -> StartupReport:
    """The report that a watch would have given of what was seen.

    Args:
        source: A recording's path, or observations with times from 0 in their order. A recording
            holds its own terms and times; terms that are given take the place of its own.
        end_at: When the watch ends, in seconds since it began; if not given, with the last
            observation. What is not over by then is ``unfinished``. Not for a recording.
        wall: When it began, in seconds since the Unix epoch. Not for a recording.
        utc_offset_s: The time zone of the log's stamps. Not for a recording.
        terms: As of `vllm_startup.Startup`: ``until``, ``stable_for``, ``timeouts``, ``restarts``,
            ``exit_grace``, ``raise_early``, ``rules``, ``baseline``, ``url``.

    Returns:
        The report.

    Raises:
        OSError: The recording cannot be read.
        TypeError: A recording was given other times, or something else than observations.
        ValueError: The recording is damaged, or an argument makes no sense.
    """
    if isinstance(source, str | os.PathLike):
        if end_at is not None or wall is not None or utc_offset_s:
            raise TypeError("a recording holds its own times; give no end_at, wall or utc_offset_s beside it")
        machine = _recording.replay(source, **_given(terms))
    else:
        machine = StartupMachine(Terms(**_given(terms)), wall=wall, utc_offset_s=utc_offset_s)
        _run(machine, source, end_at)
    return report(machine, machine.now, versions=versions())


def _given(terms: WatchTerms) -> dict[str, Any]:
    given: dict[str, Any] = dict(terms)
    baseline = given.pop("baseline", None)
    if baseline is not None:
        given["earlier"] = Earlier.of(baseline_values(baseline))
    return given


def _run(machine: StartupMachine, observations: Iterable[Observation], end_at: float | None) -> None:
    for observation in observations:
        if not isinstance(observation, Observation):
            raise TypeError(
                f"source must be a path or hold vllm_startup.testing.Observation, not {observation!r}"
            )
        machine.feed(observation)
    machine.finish(machine.now if end_at is None else end_at, ended=False)
