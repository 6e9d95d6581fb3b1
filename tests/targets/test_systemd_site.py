"""What looks at a unit, and where its server listens."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from fake_commands import Answer, FakeCommands, entry, shown

from vllm_startup.targets import LoggedTarget, SystemdUnit, Target, TargetError, systemd
from vllm_startup.targets._commands import Completed
from vllm_startup.targets._here import Here

UNREADABLE = Completed(1, "", "No journal files were opened due to insufficient permissions.")
READABLE = Completed(0, json.dumps(entry(MESSAGE="hello")), "")


def unit(journalctl: Answer = READABLE, cat: str = "", **properties: object) -> SystemdUnit:
    answers: dict[str, Answer] = {
        "systemctl show": Completed(0, shown(**{"MainPID": os.getpid(), **properties}), ""),
        "systemctl cat": Completed(0, cat, ""),
        "journalctl": journalctl,
    }
    return SystemdUnit("vllm", place=Here(FakeCommands(answers=answers)))


def start(argv: str) -> str:
    return f"{{ path=/x ; argv[]={argv} ; ignore_errors=no ; pid=0 }}"


def names(found: SystemdUnit) -> list[str]:
    return [probe.name for probe in found.locate().probes]


def test_it_is_a_target_with_a_log() -> None:
    assert isinstance(systemd("vllm"), Target)
    assert isinstance(systemd("vllm", user=True), LoggedTarget)


def test_a_unit_has_all_probes() -> None:
    site = unit().locate(gpus=[0])
    assert site.name == "unit vllm.service"
    assert [probe.name for probe in site.probes] == ["unit", "process", "tree", "gpu", "caches", "cgroup"]
    assert site.tree_pids is not None
    assert list(site.tree_pids()) == [os.getpid()]
    assert site.runs is not None
    assert site.runs()
    assert site.start is not None
    assert site.start() == "a" * 32


def test_a_containers_client_says_nothing_of_the_server() -> None:
    found = unit(ExecStart=start("/usr/bin/docker run --rm vllm/vllm-openai"))
    assert names(found) == ["unit", "process", "gpu"]
    assert found.locate().tree_pids is None


def test_nonsense_about_gpus_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="gpus must hold"):
        unit().locate(gpus=["x"])


def test_a_unit_that_does_not_run_has_no_processes() -> None:
    site = unit(MainPID=0, ActiveState="inactive").locate()
    assert site.tree_pids is not None
    assert list(site.tree_pids()) == []
    assert site.runs is not None
    assert not site.runs()


def test_a_file_is_the_log_and_the_journal_may_be_hidden(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(b"one\rtwo\n\xff\n")
    found = unit(UNREADABLE, f"StandardOutput=append:{log}\n", StandardOutput="append")
    assert names(found)[:2] == ["unit", "log"]
    assert list(found.read_log()) == ["one\rtwo", "\ufffd"]


def test_without_a_file_the_journal_has_to_be_readable() -> None:
    with pytest.raises(TargetError, match="may not be read"):
        unit(UNREADABLE).locate()
    with pytest.raises(TargetError, match="may not be read"):
        unit(UNREADABLE).read_log()
    assert [line.partition("]: ")[2] for line in unit().read_log()] == ["hello"]


def test_last_words_that_are_not_in_the_journal_yet_are_waited_for() -> None:
    began = time.time()
    both = [json.dumps(entry(MESSAGE=text, __REALTIME_TIMESTAMP=f"{began * 1e6:.0f}")) for text in "ab"]

    def journal() -> Completed:
        return Completed(0, "\n".join(both if time.time() > began + 0.3 else both[:1]), "")

    assert [line.partition("]: ")[2] for line in unit(journal).read_log()] == ["a", "b"]


def test_the_end_of_a_unit_that_has_failed_is_waited_for() -> None:
    """Whoever asks at the moment of the failure, on a busy machine, is to see its last words."""
    result = "d9b373ed55a64feb8242e02dbe79a49c"  # SD_MESSAGE_UNIT_FAILURE_RESULT
    failed = entry(UNIT="vllm.service", INVOCATION_ID="a" * 32, MESSAGE_ID=result, MESSAGE="Failed")
    said = [entry(MESSAGE="a"), entry(MESSAGE="b"), failed]
    began = time.monotonic()

    def journal() -> Completed:
        told = said if time.monotonic() > began + 1.2 else said[:1]
        return Completed(0, "\n".join(map(json.dumps, told)), "")

    state: dict[str, object] = {"ActiveState": "failed", "MainPID": 0}
    found = unit(journal, **state).read_log()
    assert [line.partition("]: ")[2] for line in found] == ["a", "b", "Failed"]
    began = time.monotonic() - 60
    list(unit(journal, **state).read_log())
    list(unit(journal, LogLevelMax=3, **state).read_log())
    assert time.monotonic() < began + 60 + 0.5


@pytest.mark.parametrize(
    ("properties", "url"),
    [
        ({}, "http://127.0.0.1:9001"),
        (
            {"ExecStart": start("/bin/bash -c exec vllm serve m --port ${PORT}"), "Environment": "PORT=9002"},
            "http://127.0.0.1:9002",
        ),
        ({"ExecStart": start("/bin/sleep 60")}, None),
        ({"ExecStart": ""}, None),
    ],
)
def test_its_address_follows_from_its_command(properties: dict[str, object], url: str | None) -> None:
    assert unit(MainPID=0, ActiveState="inactive", **properties).locate().url() == url


def test_its_address_follows_from_its_script(tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text("#!/bin/sh\ncd /srv\nexec vllm serve m --port 9003\n")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\0vllm serve m --port 1")
    for command in (str(script), f"/bin/bash -l {script}"):
        assert unit(MainPID=0, ExecStart=start(command)).locate().url() == "http://127.0.0.1:9003"
    assert unit(MainPID=0, ExecStart=start(str(binary))).locate().url() is None
