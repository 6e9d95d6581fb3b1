"""The probe of a unit, on a machine where nothing runs: what it tells, and in which order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_commands import FakeCommands, entry, shown

from vllm_startup.probes import (
    LogCaughtUp,
    LogLines,
    LogOpened,
    MemoryEvents,
    NotRestarted,
    ProbeNote,
    ProcessExited,
    ProcessFound,
    Reading,
)
from vllm_startup.targets import MainProcess
from vllm_startup.targets._commands import Completed
from vllm_startup.targets._supervised import SupervisedProcess
from vllm_startup.targets._units.journal import Journal
from vllm_startup.targets._units.systemctl import Systemctl, parse_state
from vllm_startup.targets._units.unit import UnitProbe

OLD, NEW, NEWEST = "a" * 32, "b" * 32, "c" * 32
RUNS = shown(MainPID=os.getpid(), ExecMainPID=os.getpid())
IDLE = shown(ActiveState="inactive", MainPID=0, ExecMainPID=0, InvocationID="")
STARTED, EXIT, SUCCESS, FAILURE = (
    "39f53479d3a045ac8e11786248231fbf",
    "98e322203f7a4ed290d09fe03c09fe15",
    "7ad2d189f7e94e70a38c781354912448",
    "d9b373ed55a64feb8242e02dbe79a49c",
)


def line(text: str, start: str = OLD) -> dict[str, Any]:
    return entry(MESSAGE=text, _SYSTEMD_INVOCATION_ID=start)


def manager(text: str, message_id: str, start: str = OLD, **fields: Any) -> dict[str, Any]:
    about = {"UNIT": "vllm.service", "INVOCATION_ID": start, "SYSLOG_IDENTIFIER": "systemd", "_PID": "1"}
    return entry(MESSAGE=text, MESSAGE_ID=message_id, **about, **fields)


def started(start: str = OLD) -> dict[str, Any]:
    return manager("Started vllm.service.", STARTED, start)


def exited(
    start: str = OLD, code: str = "exited", status: str = "1", command: str = "ExecStart"
) -> dict[str, Any]:
    fields = {"COMMAND": command, "EXIT_CODE": code, "EXIT_STATUS": status}
    return manager(f"vllm.service: Main process exited, code={code}", EXIT, start, **fields)


def failed(start: str = OLD) -> dict[str, Any]:
    return manager("vllm.service: Failed with result 'exit-code'.", FAILURE, start)


class Unit:
    """A unit under watch, whose state a test sets."""

    def __init__(self, probe: UnitProbe, commands: FakeCommands, main: MainProcess) -> None:
        self.probe, self.commands, self.main = probe, commands, main

    def show(self, text: str) -> None:
        self.commands.answers["systemctl show"] = Completed(0, text, "")

    async def seen(self, count: int = 1, limit_s: float = 5.0) -> list[Reading]:
        """The next readings, at least so many."""
        readings: list[Reading] = []
        async with asyncio.timeout(limit_s):
            while len(readings) < count:
                readings += await self.probe.sample(0.0)
        return readings

    async def until(self, enough: Callable[[list[Reading]], bool], limit_s: float = 5.0) -> list[Reading]:
        """The next readings, until they are enough."""
        readings: list[Reading] = []
        async with asyncio.timeout(limit_s):
            while not enough(readings):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        readings += await self.probe.sample(0.0)
        return readings

    async def nothing(self, for_s: float = 0.3) -> bool:
        try:
            async with asyncio.timeout(for_s):
                return not list(await self.probe.sample(0.0))
        except TimeoutError:
            return True


@asynccontextmanager
async def watched(
    state: str = RUNS, *, found: str | None = None, log: bool = True, journal: bool = True, **given: Any
) -> AsyncIterator[Unit]:
    given.setdefault("journalctl", [])
    commands = FakeCommands(**given)
    commands.answers["systemctl show"] = Completed(0, state, "")
    main = MainProcess()
    probe = UnitProbe(
        parse_state(found or state),
        Systemctl(commands),
        Journal("vllm.service", False, commands) if journal else None,
        main,
        log=log,
    )
    try:
        yield Unit(probe, commands, main)
    finally:
        await probe.aclose()


def lines(readings: Iterable[Reading]) -> list[str]:
    return [
        text.partition("]: ")[2] for found in readings if isinstance(found, LogLines) for text in found.lines
    ]


def ends(readings: Iterable[Reading]) -> list[tuple[int, str, int | None, int | None]]:
    return [(r.pid, r.name, r.code, r.signal) for r in readings if isinstance(r, ProcessExited) and r.root]


def notes(readings: Iterable[Reading]) -> dict[str, str]:
    return {found.code: found.text for found in readings if isinstance(found, ProbeNote)}


# --- what was there -------------------------------------------------------------------------------


async def test_what_the_journal_held_is_history() -> None:
    async with watched(journalctl=[started(), line("one")]) as unit:
        opened, history, caught_up = await unit.seen(3)
    assert isinstance(opened, LogOpened)
    assert (opened.source, opened.stream, opened.modified_at) == (
        "journal of vllm.service",
        False,
        1796069897.087991,
    )
    assert isinstance(history, LogLines)
    assert history.history
    assert lines([history]) == ["Started vllm.service.", "one"]
    assert isinstance(caught_up, LogCaughtUp)
    assert unit.main.pid == os.getpid()
    assert unit.probe.follows_restarts


async def test_a_long_history_comes_in_batches() -> None:
    async with watched(journalctl=[line(str(number)) for number in range(4500)]) as unit:
        seen = await unit.seen(5)
        counts = [len(found.lines) for found in seen if isinstance(found, LogLines)]
    assert counts == [2000, 2000, 501]


async def test_a_unit_that_does_not_run_yet_is_awaited() -> None:
    state = shown(ActiveState="inactive", MainPID=0, ExecMainPID=0, InvocationID="")
    async with watched(state) as unit:
        seen = await unit.seen(2)
        assert "is inactive: it is awaited; systemctl start" in notes(seen)["unit_inactive"]
        assert [note.awaits for note in seen if isinstance(note, ProbeNote)] == [True]
        assert ends(seen) == []
        unit.show(RUNS)
        unit.probe._look_soon(0.0)
        assert await unit.nothing()
    assert unit.main.pid == os.getpid()


async def test_a_unit_that_has_failed_already_fails_at_once() -> None:
    state = shown(ActiveState="failed", MainPID=0, ExecMainCode=1, ExecMainStatus=3, Result="exit-code")
    async with watched(state, journalctl=[started(), line("boom"), exited(), failed()]) as unit:
        seen = await unit.seen(4)
        assert ends(seen) == [(42, "vllm", 3, None)]
        (last,) = await unit.seen()
    assert isinstance(last, NotRestarted)
    assert last.reason == "vllm.service is failed (exit-code) after 0 restarts"


async def test_a_unit_that_has_failed_long_ago_says_when() -> None:
    state = shown(ActiveState="failed", MainPID=0, ExecMainCode=1, ExecMainStatus=3, Result="exit-code")
    past = [started(), line("boom"), exited(), failed()]
    for back_s, each in zip((47, 46, 45, 44), past, strict=True):
        each["__REALTIME_TIMESTAMP"] = str(round((time.time() - back_s) * 1e6))
    for log in (True, False):
        async with watched(state, log=log, journalctl=past) as unit:
            seen = await unit.until(lambda seen: bool(ends(seen)))
        (end,) = (found for found in seen if isinstance(found, ProcessExited))
        assert end.ago_s == pytest.approx(45, abs=5)


async def test_an_end_that_is_watched_is_just_now() -> None:
    async with watched(journalctl=[started()], streams=[[exited(), failed()]], pause_s=0.1) as unit:
        seen = await unit.until(lambda seen: bool(ends(seen)))
    assert [found.ago_s for found in seen if isinstance(found, ProcessExited)] == [None]


async def test_restarts_before_the_watch_are_told() -> None:
    async with watched(
        shown(NRestarts=7, MainPID=0, ActiveState="activating", SubState="auto-restart")
    ) as unit:
        seen = await unit.seen(2)
    assert notes(seen)["unit_restarted"] == "systemd had restarted vllm.service 7 restarts before this watch"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"StandardOutput": "null"}, "StandardOutput=null: its output is in no log"),
        ({"StandardOutput": "append"}, "StandardOutput=append: its output is in no log"),
        ({"StandardError": "append:/x"}, "StandardError=append:/x: what it writes there is not read"),
    ],
)
async def test_output_that_is_in_no_log_that_is_read(given: dict[str, object], said: str) -> None:
    async with watched(shown(**given)) as unit:
        assert said in notes(await unit.seen(2))["log_elsewhere"]


@pytest.mark.parametrize("output", ["file", "file:/var/log/vllm.log"])
async def test_a_file_that_each_start_overwrites_is_told(output: str) -> None:
    async with watched(shown(StandardOutput=output), log=False) as unit:
        assert "append: or truncate: does not" in notes(await unit.seen())["log_overwritten"]


@pytest.mark.parametrize("output", ["append", "truncate", "journal"])
async def test_output_that_stands_behind_the_older_one_is_nothing_to_tell(output: str) -> None:
    async with watched(shown(StandardOutput=output), log=False) as unit:
        assert await unit.nothing()


# --- how a start ends -----------------------------------------------------------------------------


async def test_the_journal_tells_an_end_and_the_last_words_before_it() -> None:
    stream = [started(), exited(code="killed", status="9"), line("last words"), failed()]
    async with watched(streams=[stream], pause_s=0.2) as unit:
        seen = await unit.seen(4)
    assert lines(seen) == [
        "Started vllm.service.",
        "last words",
        "vllm.service: Main process exited, code=killed",
        "vllm.service: Failed with result 'exit-code'.",
    ]
    assert ends(seen) == [(os.getpid(), "vllm", None, 9)]
    assert isinstance(seen[-1], ProcessExited)


async def test_an_end_without_its_status_waits_for_the_journals() -> None:
    """Before Linux 6.15 only systemd knows it."""
    async with watched(streams=[[exited(status="5")]], pause_s=0.3) as unit:
        await unit.seen()
        root = ProcessExited(pid=os.getpid(), name="VLLM::main", root=True)
        assert unit.probe.ended(ProcessExited(pid=9, name="VLLM::EngineCore"))
        assert not unit.probe.ended(root)
        assert ends(await unit.seen(2)) == [(os.getpid(), "VLLM::main", 5, None)]
        assert not unit.probe.ended(root)  # it has been told


async def test_an_end_without_its_status_is_told_by_the_units_state() -> None:
    async with watched(log=False) as unit:
        assert await unit.nothing(0.1)
        pid = os.getpid()
        unit.show(
            shown(ExecMainPID=pid, MainPID=0, ExecMainCode=2, ExecMainStatus=9, ActiveState="activating")
        )
        assert not unit.probe.ended(ProcessExited(pid=pid, name="vllm", root=True))
        assert ends(await unit.seen()) == [(pid, "vllm", None, 9)]


async def test_an_end_that_nobody_knows_is_told_all_the_same() -> None:
    async with watched() as unit:
        await unit.seen()
        began = time.monotonic()
        unit.probe.ended(ProcessExited(pid=42, name="vllm", root=True))
        assert ends(await unit.seen()) == [(42, "vllm", None, None)]
    assert 0.3 < time.monotonic() - began < 4


async def test_the_last_words_of_a_failure_may_be_seconds_late() -> None:
    """A busy machine's journald; the unit's state is new at once."""
    words = "vllm.service: Failed to locate executable /opt/vllm"
    stream = [manager(words, "x"), exited(status="203"), failed()]
    state = {"ActiveState": "failed", "MainPID": 0, "ExecMainPID": os.getpid()}
    dead = shown(ExecMainCode=1, ExecMainStatus=203, **state)
    async with watched(dead, streams=[stream], pause_s=1.0) as unit:
        seen = await unit.seen()
        while not ends(seen):
            seen += await unit.seen()
    assert lines(seen)[0] == words
    assert ends(seen) == [(os.getpid(), "vllm", 203, None)]


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"ExecMainStatus": 0, "ActiveState": "inactive"}, id="no failure"),
        pytest.param({"ExecMainStatus": 1, "ActiveState": "failed", "LogLevelMax": 4}, id="LogLevelMax"),
    ],
)
async def test_what_the_journal_may_never_tell_is_not_awaited_for_long(given: dict[str, object]) -> None:
    async with watched() as unit:
        await unit.seen()
        began = time.monotonic()
        unit.show(shown(MainPID=0, ExecMainCode=1, ExecMainPID=os.getpid(), **given))
        unit.probe._look_soon(0.0)
        assert ends(await unit.seen()) == [(os.getpid(), "vllm", given["ExecMainStatus"], None)]
    assert time.monotonic() - began < 1.5


async def test_what_is_of_the_next_start_waits_until_the_one_before_has_been_judged() -> None:
    stream = [line("one"), exited(), failed(), started(NEW), line("two", NEW), manager("x", "7", NEW)]
    async with watched(streams=[stream], pause_s=0.2) as unit:
        await unit.seen()
        unit.show(shown(InvocationID=NEW, MainPID=os.getppid()))
        seen = await unit.seen(3)
        assert ends(seen) == [(os.getpid(), "vllm", 1, None)]
        assert "two" not in lines(seen)
        assert unit.main.pid == os.getpid()
        began = time.monotonic()
        assert lines(await unit.seen()) == ["Started vllm.service.", "two", "x"]
        assert time.monotonic() - began > 0.2
        await unit.nothing()
        assert unit.main.pid == os.getppid()


async def test_a_start_that_ends_before_its_process_is_seen_has_an_end_of_its_own() -> None:
    """The unit's state is that of the start after it, whose lines are still to come."""
    stream = [exited(), started(NEW), line("two", NEW), 1.5, exited(NEW, status="2")]
    stream += [started(NEWEST), line("three", NEWEST)]
    async with watched(streams=[stream], pause_s=0.1) as unit:
        await unit.seen()
        unit.show(shown(InvocationID=NEWEST, MainPID=os.getppid()))
        seen = await unit.until(lambda seen: "three" in lines(seen))
        assert [code for _, _, code, _ in ends(seen)] == [1, 2]
        assert not ends(seen[-1:])
        await unit.until(lambda _: unit.main.pid == os.getppid())


async def test_a_start_that_the_journal_does_not_tell_of_is_followed_all_the_same() -> None:
    async with watched() as unit:
        await unit.seen()
        await unit.nothing(0.1)
        unit.show(shown(InvocationID=NEW, MainPID=os.getppid(), NRestarts=1))
        unit.probe._look_soon(0.0)
        await unit.seen()
        assert unit.main.pid == os.getpid()
        assert await unit.nothing(2.5)
        assert unit.main.pid == os.getppid()


async def test_an_end_that_is_seen_when_the_journal_is_a_start_further_is_nobodys() -> None:
    stream = [exited(), failed(), started(NEW), line("two", NEW)]
    async with watched(streams=[stream], pause_s=0.1) as unit:
        await unit.until(lambda seen: "two" in lines(seen))
        assert not unit.probe.ended(ProcessExited(pid=os.getpid(), name="vllm", root=True))
        assert await unit.nothing(1.0)


async def test_an_end_of_another_start_is_not_told() -> None:
    async with watched(streams=[[exited(NEW)]], pause_s=0.1) as unit:
        assert ends(await unit.seen(2)) == []


async def test_a_start_that_fails_in_its_preparation() -> None:
    state = shown(ActiveState="activating", SubState="start-pre", MainPID=0, ExecMainPID=0)
    stream = [line("no gpu"), exited(status="4", command="ExecStartPre"), failed()]
    async with watched(state, streams=[stream], pause_s=0.1) as unit:
        seen = await unit.seen(4)
    assert ends(seen) == [(42, "ExecStartPre=", 4, None)]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([exited(status="4", command="ExecStartPre"), failed()], (42, "ExecStartPre=", 4, None)),
        (
            [exited(status="3"), exited(status="4", command="ExecStopPost"), failed()],
            (42, "vllm", None, None),
        ),
    ],
    ids=["before", "after"],
)
async def test_a_start_that_had_failed_in_its_preparation(
    said: list[dict[str, Any]], expected: tuple[int, str, int | None, int | None]
) -> None:
    state = shown(ActiveState="failed", SubState="failed", MainPID=0, ExecMainPID=0)
    async with watched(state, journalctl=[line("no gpu"), *said]) as unit:
        seen = await unit.until(lambda seen: bool(ends(seen)))
    assert ends(seen) == [expected]


def refused(at_s: float) -> dict[str, Any]:
    about = {"UNIT": "vllm.service", "INVOCATION_ID": "", "JOB_TYPE": "start", "JOB_RESULT": "dependency"}
    return entry(MESSAGE="Dependency failed for it.", __REALTIME_TIMESTAMP=f"{at_s * 1e6:.0f}", **about)


NOT_STARTED = "vllm.service: systemd did not start it: Dependency failed for it."


@pytest.mark.parametrize("log", [True, False], ids=["to the journal", "to a file"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "while it is watched"])
async def test_a_start_that_systemd_refuses_is_told_at_once_and_no_end_of_a_process(
    before: bool, log: bool
) -> None:
    now = refused(time.time())
    given: dict[str, Any] = {"journalctl": [now]} if before else {"streams": [[now]], "pause_s": 0.3}
    async with watched(IDLE, log=log, **given) as unit:
        seen = await unit.until(lambda readings: any(isinstance(each, NotRestarted) for each in readings))
    told = [each for each in seen if isinstance(each, LogLines) and not each.history]
    assert lines(told) == [NOT_STARTED]
    assert ends(seen) == []
    assert ("unit_inactive" in notes(seen)) is not before


async def test_a_start_that_systemd_refused_long_ago_is_of_the_past() -> None:
    async with watched(IDLE, journalctl=[refused(time.time() - 3600)]) as unit:
        seen = await unit.seen(4)
        assert [each.history for each in seen if isinstance(each, LogLines)] == [True]
        assert "it is awaited" in notes(seen)["unit_inactive"]
        assert await unit.nothing()


@pytest.mark.parametrize("found", [None, IDLE], ids=["long ago", "since it was found"])
async def test_why_a_unit_that_logs_to_a_file_could_not_be_run_is_in_the_journal(found: str | None) -> None:
    state = shown(ActiveState="failed", MainPID=0, ExecMainCode=1, ExecMainStatus=209, Result="exit-code")
    said = entry(MESSAGE="vllm.service: Failed to set up standard output", SYSLOG_IDENTIFIER="(vllm)")
    said |= {"UNIT": "vllm.service", "INVOCATION_ID": OLD}
    past = [line("of another program"), said]
    async with watched(state, found=found, log=False, journalctl=past) as unit:
        seen = await unit.seen(3)
    assert lines(seen) == ["vllm.service: Failed to set up standard output"]
    assert ends(seen) == [(42, "vllm", 209, None)]


async def test_a_unit_that_was_killed_for_memory_and_logs_to_a_file() -> None:
    async with watched(log=False) as unit:
        assert await unit.nothing(0.1)
        state = {"ActiveState": "failed", "MainPID": 0, "Result": "oom-kill"}
        unit.show(shown(ExecMainPID=os.getpid(), ExecMainCode=2, ExecMainStatus=9, **state))
        unit.probe._look_soon(0.0)
        seen = await unit.seen(3)
    assert [found.oom_kills for found in seen if isinstance(found, MemoryEvents)] == [0, 1]
    assert ends(seen) == [(os.getpid(), "vllm", None, 9)]


async def test_a_unit_that_is_stopped_is_not_restarted_and_one_that_was_removed_is_told() -> None:
    stream = [manager("vllm.service: Deactivated successfully.", SUCCESS)]
    async with watched(streams=[stream], pause_s=0.1) as unit:
        await unit.seen()
        gone = {"ActiveState": "inactive", "MainPID": 0, "InvocationID": "", "LoadState": "not-found"}
        unit.show(shown(ExecMainCode=1, ExecMainStatus=0, ExecMainPID=os.getpid(), **gone))
        seen = await unit.seen(3)
        assert ends(seen) == [(os.getpid(), "vllm", 0, None)]
        assert "does not exist any more" in notes(seen)["unit_gone"]
        began = time.monotonic()
        (last,) = await unit.seen()
        assert isinstance(last, NotRestarted)
        assert time.monotonic() - began > 1
        unit.show(RUNS.replace(OLD, NEW))
        unit.probe._look_soon(0.0)
        await unit.nothing()
        assert unit.main.pid == os.getpid()  # it was started after all


# --- what goes wrong ------------------------------------------------------------------------------


async def test_a_journalctl_that_ends_is_started_again() -> None:
    streams = [[line("one")], [line("two")]]
    async with watched(streams=streams, pause_s=0.1, ends=True) as unit:
        assert lines(await unit.seen(2)) == ["Starting vllm.service...", "one"]
        with pytest.raises(RuntimeError, match="journalctl ended on this machine: it was killed"):
            await unit.seen()
        assert unit.probe.interval_s > 0
        assert list(await unit.probe.sample(0.0)) == []  # it works again
        assert unit.probe.interval_s == 0
        assert lines(await unit.seen()) == ["two"]


async def test_a_systemd_that_does_not_answer_is_asked_again() -> None:
    async with watched() as unit:
        await unit.seen()
        unit.commands.answers["systemctl show"] = Completed(1, "", "Connection timed out")
        unit.probe._look_soon(0.0)
        with pytest.raises(ValueError, match="Connection timed out"):
            await unit.seen()
        unit.show(RUNS)
        assert list(await unit.probe.sample(0.0)) == []


async def test_without_the_journal_the_state_alone_is_asked() -> None:
    async with watched(journal=False, log=False) as unit:
        assert await unit.nothing(0.1)
        assert unit.main.pid == os.getpid()
        assert {asked[0] for asked in unit.commands.asked} == {"systemctl"}


async def test_looks_are_rare_while_nothing_happens() -> None:
    async with watched() as unit:
        await unit.seen()
        looks = len(unit.commands.asked)
        assert await unit.nothing(1.0)
        assert len(unit.commands.asked) - looks <= 1  # journalctl


async def test_the_processs_probe_leaves_the_end_to_the_units() -> None:
    class Process:
        name, interval_s, limit_s = "process", 0.0, None
        closed = False

        async def sample(self, now: float) -> Iterable[Reading]:
            end = ProcessExited(pid=42, name="vllm", code=1, root=True)
            return [ProcessFound(pid=42), ProcessExited(pid=43, name="w", code=1), end]

        async def aclose(self) -> None:
            self.closed = True

    async with watched() as unit:
        process = Process()
        probe = SupervisedProcess(process, unit.probe.ended)  # type: ignore[arg-type]
        assert [type(found) for found in await probe.sample(0.0)] == [ProcessFound, ProcessExited]
        assert (probe.name, probe.interval_s, probe.limit_s) == ("process", 0.0, None)
        await probe.aclose()
        assert process.closed
