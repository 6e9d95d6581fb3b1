"""What a wait raises."""
# ruff: noqa: E501 - lines and messages as they are printed

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from scene import LOAD, OOM, Seen, aftermath, died, engine, failing, found, log, opened, server, tree, watch

from vllm_startup import StartupError, StartupStalled, StartupTimeout, Timeouts, causes
from vllm_startup._exceptions import error_for
from vllm_startup.testing import replay

if TYPE_CHECKING:
    from vllm_startup import StartupReport

START: list[Seen] = [(0, opened()), (0, found()), (0, tree(server())), (1, log(engine(LOAD)))]


def failed() -> StartupReport:
    rows: list[Seen] = [*START, (9, log(*failing(OOM), *aftermath())), (10, died(code=1)), (10, tree())]
    return watch(rows, until_s=60).report


def stalled() -> StartupReport:
    return watch(START, until_s=5000).report


def timed_out() -> StartupReport:
    return watch(START, timeouts=Timeouts(60), until_s=60).report


@pytest.mark.parametrize(
    ("report", "kind"),
    [(failed, StartupError), (stalled, StartupStalled), (timed_out, StartupTimeout)],
    ids=["failed", "stalled", "timed out"],
)
def test_the_exception_fits_the_outcome(report: Any, kind: type[StartupError]) -> None:
    error = error_for(report())
    assert type(error) is kind
    assert error.cause is error.report.cause


def test_limits_are_timeout_errors_and_failures_are_not() -> None:
    assert isinstance(error_for(timed_out()), TimeoutError)
    assert isinstance(error_for(stalled()), StartupTimeout)
    assert not isinstance(error_for(failed()), TimeoutError)


@pytest.mark.parametrize("report", [failed, stalled, timed_out], ids=["failed", "stalled", "timed out"])
def test_exceptions_pickle(report: Any) -> None:
    error = error_for(report())
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.cause == error.cause
        assert again.report.to_dict() == error.report.to_dict()


def test_the_text_names_cause_phase_time_evidence_and_hint() -> None:
    lines = str(error_for(failed())).splitlines()
    assert lines[0] == (
        "gpu_out_of_memory in loading_weights after 10.2 s: GPU 0 ran out of memory when 2.00 GiB were asked for"
    )
    assert any("CUDA out of memory" in line for line in lines[1:])


def test_the_text_of_a_limit() -> None:
    assert str(error_for(timed_out())).splitlines()[0] == (
        "timed_out in loading_weights after 60.0 s: not ready after 60 s, in loading_weights"
    )
    assert str(error_for(stalled())).splitlines()[0] == (
        "stalled in loading_weights after 601.0 s: nothing has advanced for 600 s in loading_weights"
    )


def test_foreign_text_cannot_reach_the_terminal() -> None:
    cause = causes.DiskFull(
        message="\x1b[2Jgone\nsecond line\u202e",
        evidence=(causes.Evidence(text="\x07ring\rback", process="x"),),
        hint="\x1b]0;title\x07do this",
    )
    report = replay([])
    text = str(StartupError(_with_cause(report, cause)))
    assert all(character.isprintable() or character == "\n" for character in text)
    assert len(text.splitlines()) == 3


def _with_cause(report: StartupReport, cause: causes.Cause) -> StartupReport:
    import attrs

    return attrs.evolve(report, outcome="failed", cause=cause)


def test_without_a_cause_there_is_still_a_text() -> None:
    error = StartupError(replay([]))
    assert str(error) == "unfinished in launching after 0.0 s"
    with pytest.raises(AttributeError, match="no cause"):
        _ = error.cause


def test_the_cause_is_matched_by_kind_and_by_family() -> None:
    match error_for(failed()).cause:
        case causes.GpuOutOfMemory(device=int(device)):
            assert device == 0
        case _:
            raise AssertionError("not matched")
    match error_for(failed()).cause:
        case causes.GpuMemory():
            pass
        case _:
            raise AssertionError("not matched by its family")
