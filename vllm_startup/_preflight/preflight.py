"""Runs the checks side by side: none waits for another, and one that hangs or breaks stops nobody."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Final

import attrs

from vllm_startup._blocking import start_thread
from vllm_startup._preflight.checks import CHECKS, Check, Finding
from vllm_startup._preflight.facts import Facts
from vllm_startup._preflight.launch import Launch
from vllm_startup._preflight.paths import is_file, is_folder
from vllm_startup._preflight.result import (
    CheckOutcome,
    CheckReport,
    NotCheckedError,
    Preflight,
    by_confidence,
)
from vllm_startup._report import WarningReport
from vllm_startup._text import clean, described
from vllm_startup.causes._base import Cause

LIMIT_S: Final = 5.0


@attrs.frozen(kw_only=True)
class _Done:
    report: CheckReport
    findings: tuple[Finding, ...] = ()


def preflight(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    python: str | os.PathLike[str] | None = None,
    timeout: float = LIMIT_S,
) -> Preflight:
    """Look, before a vLLM server is started, for faults with which its start would fail minutes later.

    It starts nothing, imports nothing of the server's packages and changes nothing. What it cannot
    know it does not claim: a check that could not be made is listed with the reason.

    Args:
        command: The program and its arguments, as for `launch`.
        env: The environment that it will get; ours when None.
        cwd: Its working directory; ours when None.
        python: The interpreter that will run it, where the command does not show it.
        timeout: Seconds for all checks together. One that has not answered by then, because a
            driver or a file server hangs, counts as not made.

    Raises:
        TypeError: ``command`` is one string.
        ValueError: ``command`` is empty, ``cwd`` or ``python`` does not exist, or ``timeout`` is not above 0.
    """
    start = _launch(command, env, cwd, python)
    if not timeout > 0:
        raise ValueError(f"timeout must be above 0 seconds, not {timeout!r}")
    return run(Facts(start), CHECKS, timeout)


def run(facts: Facts, checks: Sequence[Check], limit_s: float) -> Preflight:
    """Make the checks within so many seconds."""
    began = time.monotonic()
    done: SimpleQueue[_Done] = SimpleQueue()
    for check in checks:
        name = f"vllm_startup-preflight-{check.name}"
        start_thread(_make, name, check, facts, done)
    results: dict[str, _Done] = {}
    while len(results) < len(checks):
        try:
            one = done.get(timeout=max(0.0, began + limit_s - time.monotonic()))
        except Empty:
            break
        results[one.report.name] = one
    took_s = time.monotonic() - began
    late = f"it did not answer within {limit_s:g} s"
    in_order = [
        results.get(check.name)
        or _Done(report=CheckReport(name=check.name, outcome="not_checked", note=late, took_s=took_s))
        for check in checks
    ]
    return _result(in_order, facts, took_s)


def _make(check: Check, facts: Facts, done: SimpleQueue[_Done]) -> None:
    began = time.monotonic()
    findings: tuple[Finding, ...] = ()
    note = None
    try:
        findings = tuple(check.look(facts))
    except NotCheckedError as error:
        note = clean(str(error))
    except Exception as error:  # noqa: BLE001 - whatever breaks in one check, the others go on
        note = clean(f"it broke: {described(error)}")
    outcome: CheckOutcome = "not_checked" if note is not None else "found" if findings else "passed"
    took_s = time.monotonic() - began
    report = CheckReport(name=check.name, outcome=outcome, note=note, took_s=took_s)
    done.put(_Done(report=report, findings=findings))


def _result(results: Sequence[_Done], facts: Facts, took_s: float) -> Preflight:
    findings = [finding for one in results for finding in one.findings]
    causes = [finding for finding in findings if isinstance(finding, Cause)]
    server, installation = facts.server.known, facts.installation.known
    if server is not None and server.guessed:
        causes = [
            attrs.evolve(cause, confidence="likely") if cause.confidence == "certain" else cause
            for cause in causes
        ]
    return Preflight(
        causes=by_confidence(causes),
        warnings=tuple(finding for finding in findings if isinstance(finding, WarningReport)),
        checks=tuple(one.report for one in results),
        python=installation.python if installation is not None else None,
        took_s=took_s,
    )


def _launch(
    command: Sequence[str],
    env: Mapping[str, str] | None,
    cwd: str | os.PathLike[str] | None,
    python: str | os.PathLike[str] | None,
) -> Launch:
    if isinstance(command, str | bytes):
        raise TypeError("command must be a list of words such as ['vllm', 'serve', 'MODEL'], not one string")
    words = tuple(os.fspath(word) for word in command)
    if not words:
        raise ValueError("command is empty")
    try:
        folder = os.path.abspath(cwd or ".")  # noqa: PTH100 - links stay
    except FileNotFoundError:
        raise ValueError("cwd does not exist any more") from None
    if not is_folder(folder):
        raise ValueError(f"cwd {folder!r} is no directory")
    environ = dict(os.environ if env is None else env)
    interpreter = None if python is None else os.path.join(folder, os.fspath(python))  # noqa: PTH118 - as above
    if interpreter is not None and not is_file(interpreter):
        raise ValueError(f"python {interpreter!r} does not exist")
    return Launch(command=words, environ=environ, cwd=folder, python=interpreter)
