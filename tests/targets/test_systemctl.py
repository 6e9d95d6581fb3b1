"""What systemctl tells of a unit, and what a name that cannot be watched is answered."""

from __future__ import annotations

import re

import pytest
from fake_commands import FakeCommands, shown

from vllm_startup.probes._exits import Exit
from vllm_startup.targets import TargetError, systemd
from vllm_startup.targets._commands import Completed
from vllm_startup.targets._units.systemctl import Systemctl, near, output_file, parse_state


def start(argv: str) -> str:
    return f"{{ path=/x ; argv[]={argv} ; ignore_errors=no ; start_time=[n/a] ; pid=0 ; status=0/0 }}"


def refused(name: str, show: Completed, *units: str) -> str:
    listing = "".join(f"{unit} loaded active running Something\n" for unit in units)
    commands = FakeCommands(
        answers={
            "systemctl show": show,
            "systemctl list-units": Completed(0, listing + "ghost.service not-found inactive dead x\n", ""),
            "systemctl list-unit-files": Completed(0, "vllm-big.service enabled -\n", ""),
        }
    )
    with pytest.raises(TargetError) as caught:
        Systemctl(commands).find(name)
    return str(caught.value)


MISSING = Completed(0, shown(LoadState="not-found", ActiveState="inactive", MainPID=0), "")


# --- what it tells --------------------------------------------------------------------------------


def test_a_unit_that_runs() -> None:
    state = parse_state(shown(NRestarts=3, Environment='HF_HOME=/data "X=a b"'))
    assert (state.name, state.main_pid, state.last_pid, state.restarts) == ("vllm.service", 42, 42, 3)
    assert (state.exit, state.over, state.queued) == (None, False, False)
    assert state.command == ("/bin/vllm", "serve", "m", "--port", "9001")
    assert state.program == "vllm"
    assert state.environment == {"HF_HOME": "/data", "X": "a b"}


@pytest.mark.parametrize(
    ("code", "status", "how"),
    [(1, 3, Exit(code=3)), (2, 9, Exit(signal=9)), (3, 11, Exit(signal=11)), (0, 0, None)],
)
def test_how_its_main_process_ended(code: int, status: int, how: Exit | None) -> None:
    state = parse_state(shown(ActiveState="failed", MainPID=0, ExecMainCode=code, ExecMainStatus=status))
    assert (state.exit, state.main_pid, state.over) == (how, None, True)


@pytest.mark.parametrize(
    ("properties", "over"),
    [
        ({"ActiveState": "failed"}, True),
        ({"ActiveState": "inactive"}, True),
        ({"ActiveState": "inactive", "Job": 7}, False),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, False),
        ({"ActiveState": "deactivating"}, False),
    ],
)
def test_whether_anything_will_start_it(properties: dict[str, object], over: bool) -> None:
    assert parse_state(shown(**properties)).over is over


@pytest.mark.parametrize(
    ("properties", "idle"),
    [
        ({"ActiveState": "inactive", "SubState": "dead"}, True),
        ({"ActiveState": "failed", "SubState": "failed"}, True),
        ({"ActiveState": "activating", "SubState": "start-pre"}, True),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, True),
        ({"ActiveState": "activating", "SubState": "start"}, False),  # Type=forking: its server may be there
        ({"ActiveState": "active", "SubState": "running"}, False),
        ({"ActiveState": "activating", "SubState": "start", "MainPID": 7}, False),
    ],
)
def test_whether_nothing_of_it_can_serve(properties: dict[str, object], idle: bool) -> None:
    assert parse_state(shown(**{"MainPID": 0, **properties})).idle is idle


def test_a_shells_script_is_one_word() -> None:
    state = parse_state(shown(ExecStart=start("/bin/bash -lc exec vllm serve m --port 1")))
    assert state.command == ("/bin/bash", "-lc", "exec", "vllm", "serve", "m", "--port", "1")
    state = parse_state(shown(ExecStart=start("/bin/bash -c exec vllm serve m --port 1")))
    assert state.command == ("/bin/bash", "-c", "exec vllm serve m --port 1")


@pytest.mark.parametrize("text", ["", "X=1", "ExecStart=", "ExecStart={ odd }", 'Environment="open'])
def test_what_says_nothing_is_no_fault(text: str) -> None:
    state = parse_state(text)
    assert (state.command, state.main_pid, dict(state.environment)) == ((), None, {})


@pytest.mark.parametrize(
    ("output", "to_file"),
    [("journal", False), ("inherit", False), ("null", False), ("append", True), ("file:/x", True)],
)
def test_where_its_output_goes(output: str, to_file: bool) -> None:
    assert parse_state(shown(StandardOutput=output)).to_file is to_file


@pytest.mark.parametrize(
    ("files", "path"),
    [
        ("[Service]\nStandardOutput=append:/var/log/vllm.log\n", "/var/log/vllm.log"),
        ("StandardOutput=journal\n# drop-in\nStandardOutput = file:/a b.log \n", "/a b.log"),
        ("StandardOutput=truncate:/log/%p-%i.%N.%%.log", "/log/vllm-qwen.vllm@qwen.%.log"),
        ("StandardOutput=append:%h/vllm.log", None),
        ("StandardOutput=append:/x/%t/vllm.log", None),
        ("StandardError=append:/x", None),
        ("", None),
    ],
)
def test_the_file_of_its_output(files: str, path: str | None) -> None:
    assert output_file(files, "vllm@qwen.service") == path


# --- names ----------------------------------------------------------------------------------------


def test_a_name_without_its_suffix() -> None:
    commands = FakeCommands(answers={"systemctl show": Completed(0, shown(), "")})
    assert Systemctl(commands).find("vllm").name == "vllm.service"
    assert commands.asked[0][-2:] == ("--", "vllm.service")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "must be the name of one service"),
        ("--all", "must be the name of one service"),
        ("v*", "must be the name of one service"),
        ("/etc/systemd/system/vllm.service", "must be the name of one service"),
        ("two words", "must be the name of one service"),
        ("vllm.timer", "is a timer, which runs nothing: name the service, vllm.service"),
        ("vllm.scope", "is a scope, which others fill with processes: give the server's --pid"),
        ("vllm@", "unit vllm@.service is a template: name an instance of it, such as vllm@NAME.service"),
    ],
)
def test_a_name_of_no_service(name: str, said: str) -> None:
    assert said in refused(name, MISSING)


def test_a_name_has_to_be_text() -> None:
    with pytest.raises(TypeError, match="unit must be a unit's name"):
        systemd(7).locate()  # type: ignore[arg-type]


def test_a_unit_that_does_not_exist_names_near_ones() -> None:
    said = refused("vlm", MISSING, "vllm.service", "ssh.service")
    assert said == "unit vlm.service does not exist on this machine: did you mean vllm.service?"
    assert "did you mean vllm-big.service" in refused("big", MISSING)


def test_a_unit_that_is_nothing_like_any_other() -> None:
    said = refused("nginx", MISSING, "ssh.service")
    assert "systemctl list-units --all lists them" in said
    assert "give user=True" in said


def test_a_unit_whose_files_are_gone_and_that_still_runs_can_be_watched() -> None:
    commands = FakeCommands(answers={"systemctl show": Completed(0, shown(LoadState="not-found"), "")})
    assert Systemctl(commands).find("vllm").main_pid == 42


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"LoadState": "masked"}, "is masked, so that it cannot start: systemctl unmask vllm.service"),
        (
            {"LoadState": "bad-setting", "LoadError": 'org.x.BadUnitSetting "Unit has a bad setting."'},
            "cannot be loaded: Unit has a bad setting.: systemd-analyze verify vllm.service",
        ),
        ({"LoadState": "error"}, "cannot be loaded: error"),
    ],
)
def test_a_unit_that_cannot_run(properties: dict[str, object], said: str) -> None:
    assert said in refused("vllm", Completed(0, shown(ActiveState="inactive", **properties), ""))


@pytest.mark.parametrize(
    ("user", "stderr", "said"),
    [
        (
            False,
            "System has not been booted with systemd as init system (PID 1). Can't operate.",
            "systemd does not run on this machine, so that it has no units: give pid= and log=",
        ),
        (False, "Failed to connect to bus: No such file", "systemd cannot be reached on this machine"),
        (True, "Failed to connect to bus: No medium found", "with XDG_RUNTIME_DIR=/run/user/UID set"),
        (False, "Access denied", "systemctl does not show vllm.service: Access denied"),
    ],
)
def test_a_systemd_that_does_not_answer(user: bool, stderr: str, said: str) -> None:
    commands = FakeCommands(answers={"systemctl show": Completed(1, "", stderr)})
    with pytest.raises(TargetError, match=re.escape(said)):
        Systemctl(commands, user).find("vllm")
    with pytest.raises(TargetError, match=re.escape(said)):
        Systemctl(commands, user).show("vllm.service")
    assert ("--user" in commands.asked[0]) is user


def test_a_machine_without_systemd() -> None:
    with pytest.raises(TargetError, match="systemctl is not installed on this machine"):
        Systemctl(FakeCommands()).find("vllm")


def test_names_alike_come_before_names_that_hold_it() -> None:
    names = ["vllm-a.service", "my-vllm.service", "vllm.service", "other.service"]
    assert near("vllm.service", names)[0] == "vllm.service"
    assert near("llm.service", names) == ["vllm.service", "vllm-a.service", "my-vllm.service"]
    assert near("nothing.service", names) == []
