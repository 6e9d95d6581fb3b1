"""Whose start it is that a log holds: the live process's, or one of before or beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vllm_startup._machine.attempt import Attempt
from vllm_startup._machine.told import Told
from vllm_startup._readings import ProcessFound

_TRUNCATED_S: Final = 1.0  # vLLM stamps whole seconds
_STALE_S: Final = 2.0  # a log whose last line is older than the process by more is another process's


def has_failed(told: Told) -> bool:
    """Whether a start has ended or failed by what it has told, if nothing more follows."""
    told.diagnosis.finish()
    return told.over or told.verdict(ended=True) is not None


def is_of_the_past(attempt: Attempt, bound: ProcessFound, modified_at: float | None) -> bool:
    """Whether what a log's history holds is an earlier start's, not the live process's.

    Args:
        attempt: The newest attempt, which the process is bound to.
        bound: The live process.
        modified_at: When the log was last written to, in seconds since the Unix epoch.
    """
    told = attempt.told
    if told.stamped_at is not None and told.stamped_at < attempt.began_at - _STALE_S:
        return True
    if modified_at is not None and bound.started_at is not None and modified_at < bound.started_at - _STALE_S:
        return True
    return has_failed(told) and _is_anothers(attempt, bound)


def overtaken(attempts: Sequence[Attempt]) -> Attempt | None:
    """The live process's own attempt, where other servers that share its log have begun since."""
    attempt = attempts[-1]
    if attempt.pid is None or any(map(attempt.owns, attempt.mains)):
        return None
    own = next((each for each in reversed(attempts[:-1]) if any(map(attempt.owns, each.mains))), None)
    if own is None or own.told.over:
        return None
    began_at = own.told.stamped_from
    return own if began_at is None or began_at >= attempt.began_at - _TRUNCATED_S else None


def is_left_over(pid: int, seen_at: float | None, attempts: Sequence[Attempt]) -> bool:
    """Whether a process is of a start before, which the same script has made.

    A container's pids begin anew with each start of it: there its main process has the same again.

    Args:
        pid: The process, of the tree that is watched.
        seen_at: When it was first seen.
        attempts: All of them; the newest is last.
    """
    *before, attempt = attempts
    earlier = [each for each in before if each.mains.isdisjoint(attempt.mains)]
    if not earlier or attempt.has_written(pid):
        return False
    spoke_at = attempt.told.first_at
    was_there = seen_at is not None and spoke_at is not None and seen_at < spoke_at
    return was_there or any(each.has_written(pid) for each in earlier)


def _is_anothers(attempt: Attempt, bound: ProcessFound) -> bool:
    """Whether a failed start in the log's history is not the live process's.

    One that began after the live process is its own, whoever it names: a shell or a launcher may
    stand before the server. Lines without a stamp cannot tell when it began.
    """
    told = attempt.told
    named = {each for each in told.banners.values() if each is not None}
    if bound.pid in named:
        return False
    if told.stamped_from is not None and bound.started_at is not None:
        return told.stamped_from < attempt.began_at - _TRUNCATED_S
    return bool(named)
