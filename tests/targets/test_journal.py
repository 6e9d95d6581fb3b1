"""A journal's entries, and the log that is written from them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest
from fake_commands import FakeCommands, entry

from vllm_startup._log.lines import LineReader
from vllm_startup.targets import TargetError
from vllm_startup.targets._commands import Completed
from vllm_startup.targets._units.journal import (
    Entry,
    Journal,
    JournalEndedError,
    JournalFollower,
    parse,
)
from vllm_startup.targets._units.transcript import recent, written

OLD, NEW = "a" * 32, "b" * 32


def parsed(**fields: Any) -> Entry:
    found = parse(json.dumps(entry(**fields)))
    assert found is not None
    return found


def said(text: str, invocation: str = OLD, pid: str = "42") -> Entry:
    return parsed(MESSAGE=text, _SYSTEMD_INVOCATION_ID=invocation, _PID=pid)


def manager(text: str, invocation: str = OLD, message_id: str | None = None, **fields: Any) -> Entry:
    given = {} if message_id is None else {"MESSAGE_ID": message_id}
    about = {"SYSLOG_IDENTIFIER": "systemd", "_PID": "1", "UNIT": "vllm.service", "INVOCATION_ID": invocation}
    return parsed(MESSAGE=text, **{**about, **given, **fields})


def starting(invocation: str = OLD) -> Entry:
    return manager("Starting vllm.service...", invocation, "7d4958e842da4a758f6c1cdc7b36dcc5")


def started(invocation: str = OLD) -> Entry:
    return manager("Started vllm.service - vLLM.", invocation, "39f53479d3a045ac8e11786248231fbf")


def exited(invocation: str = OLD, **fields: Any) -> Entry:
    given = {"COMMAND": "ExecStart", "EXIT_CODE": "exited", "EXIT_STATUS": "1", **fields}
    text = "vllm.service: Main process exited, code=exited, status=1/FAILURE"
    return manager(text, invocation, "98e322203f7a4ed290d09fe03c09fe15", **given)


def failed(invocation: str = OLD) -> Entry:
    text = "vllm.service: Failed with result 'exit-code'."
    return manager(text, invocation, "d9b373ed55a64feb8242e02dbe79a49c")


def texts(entries: Iterable[Entry]) -> list[str]:
    """What a log's reader sees: who says what."""
    reader = LineReader()
    lines = [line for text in written("vllm.service", entries) for line in reader.read(text)]
    return [f"{line.process or line.outer_pid}: {line.message}" for line in lines]


# --- entries --------------------------------------------------------------------------------------


def test_an_entry_becomes_a_line_with_the_time_and_the_process_of_the_journal() -> None:
    found = parsed(MESSAGE="INFO 11-30 20:00:01 [api_server.py:1] vLLM API server version 0.10.2")
    (text,) = found.lines()
    assert text.startswith("2026-11-30T20:18:17.087991+00:00 gpu01 vllm[42]: INFO 11-30")
    (line,) = LineReader().read(text)
    assert line.message == "vLLM API server version 0.10.2"
    assert (line.stamp_s, line.outer_pid) == (1796069897.087991, 42)


@pytest.mark.parametrize(
    ("message", "lines"),
    [
        pytest.param("one\ntwo\n", ["one", "two"], id="several lines"),
        pytest.param([98, 97, 114, 13, 255], ["bar\r\ufffd"], id="bytes"),
        pytest.param(["one", "two"], ["one", "two"], id="a field that is there twice"),
        pytest.param([[111, 110, 101], "two"], ["one", "two"], id="twice, once as bytes"),
        pytest.param("", [""], id="an empty line"),
        pytest.param(None, [], id="none"),
        pytest.param(7, [], id="a number"),
    ],
)
def test_messages_of_every_form(message: object, lines: list[str]) -> None:
    assert [line.partition("]: ")[2] for line in parsed(MESSAGE=message).lines()] == lines


def test_a_message_of_megabytes_is_cut() -> None:
    (line,) = parsed(MESSAGE="x" * 3_000_000).lines()
    assert len(line) < 70_000
    assert line.endswith("…")


@pytest.mark.parametrize(
    ("fields", "prefix"),
    [
        ({"SYSLOG_IDENTIFIER": None}, "gpu01 python[42]: "),
        ({"SYSLOG_IDENTIFIER": None, "_COMM": None}, "gpu01 unknown[42]: "),
        ({"_PID": None}, "gpu01 vllm[0]: "),
        ({"_PID": None, "SYSLOG_PID": "7"}, "gpu01 vllm[7]: "),
        ({"_PID": "x" * 20}, "gpu01 vllm[0]: "),
        ({"SYSLOG_IDENTIFIER": "my server: x"}, "gpu01 my_server__x[42]: "),
        ({"_HOSTNAME": None}, "localhost vllm[42]: "),
    ],
)
def test_a_prefix_can_be_read_whatever_is_missing(fields: dict[str, Any], prefix: str) -> None:
    (text,) = parsed(MESSAGE="hello", **fields).lines()
    assert text.partition(" ")[2] == f"{prefix}hello"
    (line,) = LineReader().read(text)
    assert line.message == "hello"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no json",
        "[1]",
        "7",
        "{}",
        '{"__CURSOR": "c"}',
        '{"__CURSOR": "c", "__REALTIME_TIMESTAMP": "x"}',
        "[" * 100_000,
    ],
)
def test_what_is_no_entry_is_none(line: str) -> None:
    assert parse(line) is None


@pytest.mark.parametrize(
    ("fields", "code", "signal"),
    [
        ({"EXIT_CODE": "exited", "EXIT_STATUS": "3"}, 3, None),
        ({"EXIT_CODE": "killed", "EXIT_STATUS": "9"}, None, 9),
        ({"EXIT_CODE": "dumped", "EXIT_STATUS": "11"}, None, 11),
    ],
)
def test_systemds_fields_tell_how_a_process_ended(
    fields: dict[str, Any], code: int | None, signal: int | None
) -> None:
    found = exited(**fields)
    assert found.exit is not None
    assert (found.exit.code, found.exit.signal, found.closes) == (code, signal, True)


@pytest.mark.parametrize("fields", [{"EXIT_CODE": "odd"}, {"EXIT_STATUS": "x"}, {"EXIT_STATUS": None}])
def test_fields_without_sense_tell_nothing(fields: dict[str, Any]) -> None:
    assert exited(**fields).exit is None


def test_the_end_of_what_prepares_a_start_is_not_its_end() -> None:
    assert not exited(COMMAND="ExecStartPre").closes


def test_the_server_cannot_speak_for_systemd() -> None:
    """Whatever a process writes to the journal, the unit that it names counts only from systemd."""
    found = parsed(MESSAGE="x", MESSAGE_ID="98e322203f7a4ed290d09fe03c09fe15", EXIT_CODE="exited")
    assert (found.by_manager, found.ends, found.exit) == (False, False, None)


def test_a_saved_core_belongs_to_no_other_start() -> None:
    found = parsed(MESSAGE_ID="fc2e22bc6ee647b6b90729ab34a250b1", _SYSTEMD_INVOCATION_ID=NEW)
    assert found.invocation is None


# --- the log --------------------------------------------------------------------------------------


def test_why_a_program_could_not_be_run_is_of_its_start_though_it_was_told_before_it() -> None:
    why = manager("vllm.service: Failed at step STDOUT", SYSLOG_IDENTIFIER="(vllm)", _PID="42")
    assert texts([why, started(), exited(), failed()]) == [
        "systemd: Starting vllm.service...",
        "42: vllm.service: Failed at step STDOUT",
        "systemd: Started vllm.service - vLLM.",
        "systemd: vllm.service: Main process exited, code=exited, status=1/FAILURE",
        "systemd: vllm.service: Failed with result 'exit-code'.",
    ]


def test_a_start_begins_with_systemds_word_though_the_server_was_faster() -> None:
    assert texts([said("first"), starting(), said("second"), started()]) == [
        "systemd: Starting vllm.service...",
        "42: first",
        "42: second",
        "systemd: Started vllm.service - vLLM.",
    ]


def test_systemds_word_of_an_end_comes_last_though_it_was_faster() -> None:
    entries = [started(), said("first"), exited(), said("last words"), failed(), started(NEW), said("x", NEW)]
    assert texts(entries) == [
        "systemd: Started vllm.service - vLLM.",
        "42: first",
        "42: last words",
        "systemd: vllm.service: Main process exited, code=exited, status=1/FAILURE",
        "systemd: vllm.service: Failed with result 'exit-code'.",
        "systemd: Started vllm.service - vLLM.",
        "42: x",
    ]


def test_a_start_whose_announcement_was_lost_is_told_apart_by_its_invocation() -> None:
    assert texts([started(), said("one"), said("two", NEW)]) == [
        "systemd: Started vllm.service - vLLM.",
        "42: one",
        "systemd: Starting vllm.service...",
        "42: two",
    ]


def test_a_refused_restart_after_the_end_is_told_at_once() -> None:
    refused = manager("vllm.service: Start request repeated too quickly.")
    assert texts([started(), exited(), failed(), refused, failed()])[-2:] == [
        "systemd: vllm.service: Start request repeated too quickly.",
        "systemd: vllm.service: Failed with result 'exit-code'.",
    ]


def test_a_description_without_the_units_name_gets_it() -> None:
    """Up to 248, systemd names only the description."""
    found = manager("Started My models.", message_id="39f53479d3a045ac8e11786248231fbf")
    assert found.text == "Started vllm.service - My models."


def test_only_the_newest_starts_are_kept() -> None:
    entries = [said(str(number), f"{number:032}") for number in range(9) for _ in range(2)]
    kept = recent(entries, 3)
    assert [found.text for found in kept] == ["6", "6", "7", "7", "8", "8"]
    assert recent(entries[:4], 3) == entries[:4]


# --- journalctl -----------------------------------------------------------------------------------


def journal(commands: FakeCommands, *, user: bool = False) -> Journal:
    return Journal("vllm.service", user, commands)


def test_the_history_is_bounded_and_of_this_unit() -> None:
    commands = FakeCommands(journalctl=[entry(MESSAGE="one"), entry(MESSAGE="two")])
    assert [found.text for found in journal(commands).history()] == ["one", "two"]
    (asked,) = commands.asked
    assert {"--lines=10000", "--all", "_SYSTEMD_UNIT=vllm.service"} <= set(asked)


def test_the_history_of_a_users_unit() -> None:
    commands = FakeCommands(journalctl=[])
    assert journal(commands, user=True).history() == []
    assert "_SYSTEMD_USER_UNIT=vllm.service" in commands.asked[0]


def test_a_history_that_cannot_be_read_says_why() -> None:
    commands = FakeCommands(answers={"journalctl": Completed(1, "", "x\nNo journal files were found.\n")})
    with pytest.raises(TargetError, match="journalctl failed on this machine: No journal files were found"):
        journal(commands).history()


@pytest.mark.parametrize(
    "hint",
    [
        "No journal files were opened due to insufficient permissions.",
        "Hint: You are currently not seeing messages from other users and the system.",
    ],
)
def test_a_journal_that_may_not_be_read_names_the_groups(hint: str) -> None:
    commands = FakeCommands(answers={"journalctl": Completed(1, "", hint)})
    with pytest.raises(TargetError, match=r"group systemd-journal or adm .*or run this as root"):
        journal(commands).check()
    assert "--quiet" not in commands.asked[0]


def test_a_hint_beside_an_entry_is_no_obstacle() -> None:
    line = json.dumps(entry(MESSAGE="x"))
    answer = Completed(
        0, line, "Hint: You are currently not seeing messages from other users and the system."
    )
    journal(FakeCommands(answers={"journalctl": answer})).check()


async def test_it_is_followed_from_where_it_was_when_journalctl_ends() -> None:
    commands = FakeCommands(
        streams=[[entry(MESSAGE="one", __CURSOR="c1")], [entry(MESSAGE="two")]], ends=True
    )
    follower = JournalFollower(journal(commands), None)
    assert [found.text for found in await follower.read()] == ["one"]
    with pytest.raises(JournalEndedError, match="journalctl ended on this machine: it was killed"):
        await follower.read()
    assert [found.text for found in await follower.read()] == ["two"]
    assert ["--after-cursor=c1" in asked for asked in commands.asked] == [False, True]
    await follower.aclose()


async def test_a_cancelled_read_loses_nothing() -> None:
    commands = FakeCommands(streams=[[entry(MESSAGE="one")]], pause_s=0.1)
    follower = JournalFollower(journal(commands), "c0")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await follower.read()
    assert [found.text for found in await follower.read()] == ["one"]
    assert len(commands.asked) == 1
    await follower.aclose()
    await follower.aclose()  # it has ended: nothing is left to do


# --- what systemd does not start ------------------------------------------------------------------


FAILED, SKIPPED, STARTED = (
    "be02cf6855d2428ba40df7e9d022f03d",
    "0e4284a0caca4bfc81c0bb6786972673",
    "39f53479d3a045ac8e11786248231fbf",
)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("Dependency failed for a.", {"MESSAGE_ID": FAILED, "JOB_TYPE": "start", "JOB_RESULT": "dependency"}),
        ("a: Job a/start failed with result 'assert'.", {"JOB_TYPE": "start", "JOB_RESULT": "assert"}),
        ("a - A was skipped because of an unmet condition check (X).", {"MESSAGE_ID": STARTED}),
        ("Condition check resulted in A being skipped.", {"MESSAGE_ID": STARTED}),
        ("a: Skipped due to 'exec-condition'.", {"MESSAGE_ID": SKIPPED}),
    ],
)
def test_a_unit_that_is_not_started_says_so_in_words_that_are_only_its_own(
    text: str, fields: dict[str, str]
) -> None:
    found = parsed(MESSAGE=text, UNIT="a.service", **fields)
    assert (found.refuses, found.starts, found.text) == (
        True,
        False,
        f"a.service: systemd did not start it: {text}",
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"MESSAGE_ID": FAILED, "JOB_TYPE": "start", "JOB_RESULT": "failed"},  # how it failed is told before
        {"MESSAGE_ID": FAILED, "JOB_TYPE": "start", "JOB_RESULT": "canceled"},
        {"JOB_TYPE": "stop", "JOB_RESULT": "timeout"},
        {"MESSAGE_ID": STARTED, "JOB_TYPE": "start", "JOB_RESULT": "done"},
    ],
)
def test_what_else_becomes_of_a_job_is_no_refusal(fields: dict[str, str]) -> None:
    assert not parsed(MESSAGE="Started a.", UNIT="a.service", **fields).refuses
    assert not parsed(MESSAGE="a: Job a/start failed with result 'assert'.", JOB_RESULT="assert").refuses
