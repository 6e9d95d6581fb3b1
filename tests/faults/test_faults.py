"""The fault table: each fault is injected for real, and what must come out does, with nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import faults_of_logs
import faults_of_probes
import faults_of_servers
import faults_of_watchers
import jsonschema
import pytest
from leaks import Leaks
from stage import Fault, Stage, StandIn, free_port, play

import vllm_startup
from vllm_startup.testing import replay

TABLE = (
    *faults_of_probes.FAULTS,
    *faults_of_logs.FAULTS,
    *faults_of_servers.FAULTS,
    *faults_of_watchers.FAULTS,
)


@cache
def schema() -> Any:
    text = (Path(vllm_startup.__file__).parent / "schemas" / "report.schema.json").read_text("utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))


@pytest.fixture
async def stage(tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    log = tmp_path / "vllm.log"
    found = Stage(
        folder=tmp_path,
        temporary=temporary,
        log=log,
        record=tmp_path / "record.jsonl",
        server=await StandIn.start(log),
        port=free_port(),
        nvml=nvml_library,
    )
    yield found
    await found.end()


@pytest.mark.parametrize("fault", TABLE, ids=lambda fault: fault.name)
async def test_a_fault(fault: Fault, stage: Stage) -> None:
    leaks = Leaks(stage.temporary)
    unnoticed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unnoticed.append(context))
    ending = await play(fault, stage)
    await asyncio.sleep(0)

    assert ending.outcome == fault.outcome, ending.report
    assert ending.cause["kind"] == fault.kind
    assert {name: ending.cause["fields"].get(name) for name in fault.fields} == fault.fields
    assert ending.warned >= fault.warned
    schema().validate(ending.report)
    if fault.records:
        assert stage.record is not None
        again = replay(stage.record)
        assert (again.outcome, again.phase.value) == (ending.report["outcome"], ending.report["phase"])
        assert (again.cause.kind if again.cause else None) == ending.cause["kind"]
    if stage.whole_log:
        assert stage.seen() == stage.said
    await stage.end()
    gc.collect()  # which tells of exceptions that nobody has asked for
    assert unnoticed == []
    assert leaks.later() == []


def test_names_tell_the_faults_apart() -> None:
    names = [fault.name for fault in TABLE]
    assert len(set(names)) == len(names)
