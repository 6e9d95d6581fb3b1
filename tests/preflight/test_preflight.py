"""The checks together: side by side, within a time, whatever one of them does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from installs import Venv, facts, program

import vllm_startup
from vllm_startup import Preflight
from vllm_startup._preflight.checks import CHECKS, Check, Finding
from vllm_startup._preflight.facts import Facts, Once
from vllm_startup._preflight.preflight import run
from vllm_startup._preflight.result import CheckReport, NotCheckedError
from vllm_startup._report import WarningReport
from vllm_startup.causes import DependencyVersionMismatch, PortInUse


def fine(_: Facts) -> Iterator[Finding]:
    yield from ()


def taken(_: Facts) -> Iterator[Finding]:
    yield PortInUse(message="the server's address is in use")


def odd(_: Facts) -> Iterator[Finding]:
    yield DependencyVersionMismatch(message="a is not b", confidence="likely")
    yield WarningReport(code="odd", text="something is odd")


def outcomes(found: Preflight) -> dict[str, tuple[str, str | None]]:
    return {check.name: (check.outcome, check.note) for check in found.checks}


def test_what_all_find_is_told_together_the_surest_first() -> None:
    checks = [Check("fine", fine), Check("odd", odd), Check("taken", taken)]
    found = run(facts(["vllm", "serve", "m"]), checks, 5)
    assert [cause.kind for cause in found.causes] == ["port_in_use", "dependency_version_mismatch"]
    assert [cause.kind for cause in found.certain] == ["port_in_use"]
    assert [warning.code for warning in found.warnings] == ["odd"]
    assert not found.ok
    assert outcomes(found) == {"fine": ("passed", None), "odd": ("found", None), "taken": ("found", None)}


def test_a_check_that_breaks_stops_no_other() -> None:
    def breaks(_: Facts) -> Iterator[Finding]:
        yield from taken(_)
        raise RuntimeError("no such thing")

    found = run(facts(["vllm", "serve", "m"]), [Check("breaks", breaks), Check("odd", odd)], 5)
    assert [cause.kind for cause in found.causes] == ["dependency_version_mismatch"]
    assert outcomes(found)["breaks"] == ("not_checked", "it broke: RuntimeError('no such thing')")


def test_a_check_that_hangs_is_left_behind_in_time() -> None:
    released = threading.Event()

    def hangs(_: Facts) -> Iterator[Finding]:
        released.wait(60)
        yield from ()

    began = time.monotonic()
    found = run(facts(["vllm", "serve", "m"]), [Check("hangs", hangs), Check("taken", taken)], 0.2)
    assert time.monotonic() - began < 2
    assert [cause.kind for cause in found.causes] == ["port_in_use"]
    assert outcomes(found)["hangs"] == ("not_checked", "it did not answer within 0.2 s")
    released.set()


def test_a_fact_that_hangs_holds_up_only_those_that_need_it() -> None:
    released = threading.Event()
    asked = facts(["vllm", "serve", "m", "--port", "0"])
    asked.gpus = Once(lambda: (released.wait(60), None)[1])  # type: ignore[arg-type, return-value]
    found = run(asked, CHECKS, 1)
    released.set()
    late = {name for name, (_, note) in outcomes(found).items() if note == "it did not answer within 1 s"}
    assert late == {"gpus", "gpu_memory"}
    assert outcomes(found)["port"] == ("passed", None)


def test_a_fact_is_gathered_once_and_its_failure_too() -> None:
    asked: list[int] = []

    def fails() -> int:
        asked.append(1)
        raise NotCheckedError("no")

    fact = Once(fails)
    for _ in range(2):
        with pytest.raises(NotCheckedError):
            fact()
    assert asked == [1]
    assert fact.known is None
    assert Once(lambda: 7).known is None


def test_what_a_script_may_do_is_not_certain(tmp_path: Path) -> None:
    script = program(tmp_path / "start.sh", "#!/bin/sh\nexec vllm serve m\n")

    def asks(asked: Facts) -> Iterator[Finding]:
        assert asked.server().guessed
        yield from taken(asked)

    for command in ([str(script)], ["bash", "-lc", "vllm serve m"]):
        found = run(facts(command), [Check("asks", asks)], 5)
        assert [cause.confidence for cause in found.causes] == ["likely"]


# --- the call ---------------------------------------------------------------------------------


def test_the_users_crash_is_known_before_the_start(tmp_path: Path) -> None:
    venv = Venv.make(tmp_path / "venv")
    venv.add("vllm", "0.14.1", "flashinfer-python==0.6.4")
    venv.add("flashinfer-python", "0.6.4")
    venv.add("flashinfer-cubin", "0.6.3")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    command = [str(venv.vllm), "serve", "model", "--port", "0"]
    found = vllm_startup.preflight(command, env={"HOME": str(tmp_path), "USER": "me"}, cwd=tmp_path)
    [cause] = [cause for cause in found.causes if isinstance(cause, DependencyVersionMismatch)]
    assert cause.message == "flashinfer-cubin 0.6.3 does not match flashinfer 0.6.4"
    assert not found.ok
    assert found.python == str(venv.python)
    assert found.took_s < 2
    assert found.to_dict()["causes"][0]["kind"] == "dependency_version_mismatch"


def test_a_path_may_be_a_word_of_the_command(tmp_path: Path) -> None:
    venv = Venv.make(tmp_path / "venv")
    assert vllm_startup.preflight([venv.vllm, "serve", tmp_path], env={}).python == str(venv.python)  # type: ignore[list-item]


def test_a_command_that_starts_no_vllm_claims_nothing() -> None:
    found = vllm_startup.preflight(["true"], env={"PATH": os.defpath})
    assert found.ok
    assert {check.outcome for check in found.checks if check.name != "program"} == {"not_checked"}


@pytest.mark.parametrize(
    ("command", "further", "error", "message"),
    [
        ("vllm serve m", {}, TypeError, "command must be a list of words"),
        ([], {}, ValueError, "command is empty"),
        (["vllm"], {"cwd": "/gone"}, ValueError, "cwd '/gone' is no directory"),
        (["vllm"], {"python": "/gone/python"}, ValueError, "python '/gone/python' does not exist"),
        (["vllm"], {"timeout": 0}, ValueError, "timeout must be above 0 seconds, not 0"),
    ],
)
def test_misuse_is_told(
    command: list[str], further: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        vllm_startup.preflight(command, **further)  # type: ignore[arg-type]


def test_a_folder_that_was_deleted_under_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ValueError, match="cwd does not exist any more"):
        vllm_startup.preflight(["vllm", "serve", "m"])


def test_results_are_json() -> None:
    report = Preflight(checks=(CheckReport(name="port", outcome="passed", took_s=0.25),), took_s=0.5)
    values = report.to_dict()
    assert values["ok"] is True
    assert values["checks"] == [{"name": "port", "outcome": "passed", "note": None, "took_s": 0.25}]
    assert (values["schema"], values["python"], values["causes"]) == (1, None, [])
