"""Recordings that are cut, mixed up, or none at all: they are refused by name, or replay to a report."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from strategies import bring_ups

from vllm_startup._machine.reporting import report, status
from vllm_startup._machine.terms import Terms
from vllm_startup._readings import Observation
from vllm_startup._recording import Recorder, RecordingError, replay_lines

constants = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
special = st.sampled_from(
    [1e308, -1e308, 10**400, "\ud800", "\x1b[2J", "health", "log_lines", "tree", "", [], {}]
)
values: st.SearchStrategy[Any] = st.recursive(
    constants | special,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


def recording(observations: list[Observation], tmp: Any) -> list[str]:
    recorder = Recorder(tmp)
    recorder.begin(Terms(), wall=0.0, utc_offset_s=0.0)
    for observation in observations:
        recorder.write(observation)
    recorder.end(observations[-1].at if observations else 0.0)
    with open(tmp, encoding="utf-8") as file:  # noqa: PTH123 - as the reader opens it
        return file.readlines()


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a JSON value."""
    found = [at] if at else []
    items: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [*found, *(path for key, item in items for path in paths(item, (*at, key)))]


@st.composite
def damaged(draw: st.DrawFn, rows: list[Any]) -> list[Any]:
    """Rows in which some places hold something else, or nothing."""
    rows = copy.deepcopy(rows)
    for _ in range(draw(st.integers(1, 3))):
        row = draw(st.sampled_from(rows))
        places = paths(row)
        if not places:
            continue
        *way, last = draw(st.sampled_from(places))
        for key in way:
            row = row[key]
        if draw(st.booleans()) and isinstance(row, dict):
            del row[last]
        else:
            row[last] = draw(values)
    return rows


def replays_or_is_refused(lines: list[str]) -> None:
    try:
        machine = replay_lines(lines)
    except RecordingError:
        return
    json.loads(report(machine, machine.now, versions={}).to_json())
    assert status(machine, machine.now).summary


@given(st.data(), bring_ups(6))
def test_members_of_another_kind(data: st.DataObject, observations: list[Observation]) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        rows = [json.loads(line) for line in recording(observations, file.name)]
    replays_or_is_refused([json.dumps(row) for row in data.draw(damaged(rows))])


@given(st.data(), bring_ups(6))
def test_cut_and_mixed_lines(data: st.DataObject, observations: list[Observation]) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        lines = recording(observations, file.name)
    mixed = data.draw(st.permutations(lines))
    text = "".join(mixed if data.draw(st.booleans()) else lines)
    start, end = data.draw(st.integers(0, 40)), data.draw(st.integers(0, len(text)))
    replays_or_is_refused(text[start if data.draw(st.booleans()) else 0 : end].splitlines(keepends=True))


@given(st.lists(st.text(max_size=80), max_size=5))
def test_garbage(lines: list[str]) -> None:
    replays_or_is_refused(lines)


@given(st.sampled_from(["[", '{"a":', '[{"a":']), st.integers(1, 200_000))
def test_deep_json(opening: str, depth: int) -> None:
    replays_or_is_refused([opening * depth])
    replays_or_is_refused(['{"recording": ' + opening * depth])
