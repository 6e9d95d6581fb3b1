"""Units of a real systemd, watched through its real journal by the command line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from systemd_sandbox import REPOSITORY, Sandbox, python

pytestmark = pytest.mark.slow

LIMIT_S = 20.0
CASES = REPOSITORY / "tests" / "cases"


class Watch:
    """A client that runs beside systemd."""

    def __init__(self, sandbox: Sandbox, *arguments: str, wrapped: tuple[str, ...] = ()) -> None:
        command = sandbox.command(*wrapped, *python("-m", "vllm_startup", *arguments))
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
        )
        self.status: int | None = None
        self.err = ""

    def begun(self, text: str = "awaited") -> Watch:
        """Wait until it has looked at the unit, and says so."""
        assert self._process.stderr is not None
        while text not in self.err:
            line = self._process.stderr.readline()
            assert line, self.err
            self.err += line
        return self

    def end(self) -> Any:
        """Wait for its end, and return the report."""
        try:
            out, err = self._process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            raise AssertionError(f"it did not end:\n{self.err}{self._process.communicate()[1]}") from None
        self.err += err
        self.status = self._process.returncode
        assert "Traceback" not in self.err
        return json.loads(out) if out.startswith("{") else None


class Units:
    """A systemd, and units of one test."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.run = sandbox.run
        self.names: list[str] = []

    def service(self, name: str, command: str, service: str = "", unit: str = "") -> None:
        """Write a unit that runs a command."""
        settings = [
            f"Environment=PYTHONPATH={REPOSITORY} PYTHONUNBUFFERED=1",
            f"ExecStart={command}",
            service,
        ]
        if f"{name}.service" not in self.names:
            self.names.append(f"{name}.service")
        self.sandbox.unit(f"{name}.service", "\n".join(settings), unit=unit)

    def start(self, name: str) -> None:
        """Start it, and do not wait."""
        self.run("systemctl", "start", "--no-block", name)

    def wait(self, name: str, *options: str, wrapped: tuple[str, ...] = ()) -> Watch:
        """Watch a unit."""
        return Watch(self.sandbox, "wait", "--unit", name, "--json", *options, wrapped=wrapped)

    def main_pid(self, name: str) -> str:
        """Its main process."""
        return self.run("systemctl", "show", "--property=MainPID", "--value", name).strip()

    def until_logged(self, name: str, text: str) -> None:
        """Wait until its journal holds a text."""
        until = time.monotonic() + LIMIT_S
        while text not in self.run("journalctl", f"--unit={name}", "--output=cat"):
            assert time.monotonic() < until, f"{name} never said {text!r}"
            time.sleep(0.05)

    def clear(self) -> None:
        """Stop and remove them."""
        self.run("systemctl", "kill", "--signal=KILL", *self.names, check=False)
        self.run("systemctl", "stop", *self.names, check=False)
        for name in self.names:
            self.sandbox.remove(name)
        self.run("systemctl", "reset-failed")


@pytest.fixture
def units(systemd: Sandbox) -> Iterator[Units]:
    found = Units(systemd)
    yield found
    found.clear()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def simulated(scenario: str = "ready", *, speed: float = 40, port: int | None = None) -> str:
    """The command of a simulated vLLM."""
    words = [f"--scenario={scenario}", f"--speed={speed}", "vllm", "serve", "m"]
    return " ".join([sys.executable, "-m", "vllm_startup._demo", *words, "--port", str(port or free_port())])


def attempts(report: Any) -> list[tuple[str, str | None]]:
    return [(found["outcome"], found["cause"] and found["cause"]["kind"]) for found in report["attempts"]]


def codes(report: Any) -> set[str]:
    return {warning["code"] for warning in report["warnings"]}


# --- a start ----------------------------------------------------------------------------------------


def test_a_unit_is_awaited_watched_attached_to_late_and_stopped(units: Units) -> None:
    port = free_port()
    units.service("vllm-good", simulated(port=port))
    watch = units.wait("vllm-good").begun()
    units.start("vllm-good")
    report = watch.end()
    assert (watch.status, report["outcome"], report["url"]) == (0, "ready", f"http://127.0.0.1:{port}")
    assert attempts(report) == [("ready", None)]
    assert report["phases"][0]["because"][0]["text"] == "Started vllm-good.service."
    assert {"launching", "configuring", "loading_weights", "ready"} <= {p["phase"] for p in report["phases"]}
    main, *others = report["processes"]
    assert str(main["pid"]) == units.main_pid("vllm-good")
    assert [process["role"] for process in others] == ["engine", "worker", "worker"]

    watch = units.wait("vllm-good.service")
    late = watch.end()
    assert (watch.status, attempts(late)) == (0, [("ready", None)])
    assert late["facts"]["vllm_version"] == report["facts"]["vllm_version"]
    began, before = late["attempts"][0]["started_at"], report["attempts"][0]["started_at"]
    assert began[:16] == before[:16]

    watch = units.wait("vllm-good", "--stable-for", "60").begun("launching")
    time.sleep(1.0)
    units.run("systemctl", "stop", "vllm-good")
    stopped = watch.end()
    assert (watch.status, stopped["cause"]["kind"]) == (1, "shutdown_requested")


def test_a_failed_start_has_its_cause_live_and_afterwards(units: Units) -> None:
    units.service("vllm-bad", simulated("out-of-memory"))
    watch = units.wait("vllm-bad").begun()
    units.start("vllm-bad")
    report = watch.end()
    assert (watch.status, report["cause"]["kind"]) == (1, "gpu_out_of_memory")
    assert report["exit"] == {"code": 1, "signal": None}

    watch = units.wait("vllm-bad")
    again = watch.end()
    assert (watch.status, again["cause"]["fields"]) == (1, report["cause"]["fields"])

    diagnosed = Watch(units.sandbox, "diagnose", "--unit", "vllm-bad", "--json")
    found = diagnosed.end()
    assert (diagnosed.status, found["cause"]["kind"]) == (1, "gpu_out_of_memory")


@pytest.mark.parametrize("process", [None, "VLLM::Worker_TP1"], ids=["main", "worker"])
def test_a_kill_in_the_middle(units: Units, process: str | None) -> None:
    name = "vllm-kill-main" if process is None else "vllm-kill-worker"
    units.service(name, simulated(speed=2))
    watch = units.wait(name).begun()
    units.start(name)
    units.until_logged(name, "Loading model from scratch")
    time.sleep(1.5)  # a worker that is younger may not have been found yet
    if process is None:
        units.run("kill", "-9", units.main_pid(name))
    else:
        units.run("pkill", "-9", "-f", process)
    report = watch.end()
    assert (watch.status, report["cause"]["kind"]) == (1, "process_killed")
    assert report["cause"]["fields"] == {"signal": 9, "process": process}


def test_a_unit_that_says_itself_when_it_is_ready_is_one_attempt(units: Units) -> None:
    """Type=notify: systemd says "Started" after the server's lines."""
    port = free_port()
    script = units.sandbox.folder / "notify.sh"
    script.write_text(
        f"{simulated(port=port)} &\n"
        f"until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.1; done\n"
        "systemd-notify --ready\nwait\n"
    )
    units.service("vllm-notify", f"/bin/bash {script}", "Type=notify\nNotifyAccess=all")
    watch = units.wait("vllm-notify", f"http://127.0.0.1:{port}", "--stable-for", "1").begun()
    units.start("vllm-notify")
    report = watch.end()
    assert (watch.status, attempts(report)) == (0, [("ready", None)])
    assert "Started vllm-notify.service" in units.run("journalctl", "--unit=vllm-notify", "--output=cat")


@pytest.mark.parametrize(
    ("command", "service", "kind", "code"),
    [
        pytest.param("/opt/nothing/vllm serve m", "", "program_missing", 203, id="no such program"),
        pytest.param(
            "/bin/sleep 60", "ExecStartPre=/bin/sh -c 'exit 4'", "process_exited", 4, id="preparation"
        ),
        pytest.param("/bin/sh -c 'exit 7'", "", "process_exited", 7, id="dead at once"),
    ],
)
def test_a_start_that_dies_before_anybody_can_look(
    units: Units, command: str, service: str, kind: str, code: int
) -> None:
    units.service("vllm-quick", command, service)
    watch = units.wait("vllm-quick").begun()
    units.start("vllm-quick")
    report = watch.end()
    assert (watch.status, report["cause"]["kind"], report["exit"]["code"]) == (1, kind, code)


def test_the_readmes_call(units: Units) -> None:
    readme = (REPOSITORY / "README.md").read_text()
    block = readme.partition("<!-- test: unit -->\n```python\n")[2].partition("```")[0]
    script = units.sandbox.folder / "readme.py"
    script.write_text(f"{block}\nprint(after_the_deployment())\n")
    units.service("vllm", simulated())
    units.start("vllm")
    assert float(units.run(*python(str(script)))) > 0


# --- restarts ---------------------------------------------------------------------------------------


def test_a_restart_is_not_tolerated_by_default(units: Units) -> None:
    units.service("vllm-again", simulated("out-of-memory"), "Restart=on-failure")
    watch = units.wait("vllm-again").begun()
    units.start("vllm-again")
    report = watch.end()
    assert (watch.status, report["cause"]["kind"]) == (1, "gpu_out_of_memory")
    assert attempts(report) == [("failed", "gpu_out_of_memory")]


def test_a_restart_loop_has_the_causes_of_its_starts(units: Units) -> None:
    loop = f"vllm-loop-{uuid.uuid4()}"  # whose journal is empty
    units.service(loop, simulated("out-of-memory"), "Restart=on-failure", "StartLimitIntervalSec=0")
    watch = units.wait(loop, "--restarts", "1").begun()
    units.start(loop)
    report = watch.end()
    assert (watch.status, report["cause"]["kind"]) == (1, "restart_loop")
    assert report["cause"]["fields"]["restarts"] == 1
    assert [cause["kind"] for cause in report["cause"]["fields"]["causes"]] == ["gpu_out_of_memory"] * 2
    assert attempts(report) == [("failed", "gpu_out_of_memory"), ("failed", "restart_loop")]


def test_a_loop_that_systemd_gives_up_is_not_waited_for(units: Units) -> None:
    limit = "StartLimitIntervalSec=60\nStartLimitBurst=2"
    units.service("vllm-limit", "/bin/sh -c 'exit 3'", "Restart=on-failure", limit)
    watch = units.wait("vllm-limit", "--restarts", "9").begun()
    units.start("vllm-limit")
    report = watch.end()
    assert (watch.status, report["cause"]["kind"]) == (1, "restart_loop")
    assert report["cause"]["fields"]["restarts"] == 1
    assert "not_restarted" in codes(report)


def test_a_start_that_comes_up_after_a_restart(units: Units) -> None:
    flag = units.sandbox.folder / "tried"
    script = units.sandbox.folder / "second.sh"
    script.write_text(
        f"[ -e {flag} ] && exec {simulated()}\ntouch {flag}\nexec {simulated('out-of-memory')}\n"
    )
    units.service("vllm-second", f"/bin/sh {script}", "Restart=on-failure")
    watch = units.wait("vllm-second", "--restarts", "1").begun()
    units.start("vllm-second")
    report = watch.end()
    assert (watch.status, attempts(report)) == (0, [("failed", "gpu_out_of_memory"), ("ready", None)])
    assert "RestartSec" not in watch.err


def test_a_unit_whose_port_is_changed_is_asked_at_the_new_one(units: Units) -> None:
    port = free_port()
    units.service("vllm-moved", simulated(speed=4))
    watch = units.wait("vllm-moved", "--restarts", "1").begun()
    units.start("vllm-moved")
    units.until_logged("vllm-moved", "Loading model from scratch")
    units.service("vllm-moved", simulated(port=port))
    units.run("systemctl", "daemon-reload")
    units.run("systemctl", "restart", "--no-block", "vllm-moved")
    report = watch.end()
    assert (watch.status, report["url"]) == (0, f"http://127.0.0.1:{port}")
    assert [outcome for outcome, _ in attempts(report)] == ["failed", "ready"]


def test_a_crash_before_the_fix_is_of_an_attempt_of_its_own(units: Units) -> None:
    """The case that this was made for: the journal still holds the start that crashed."""
    case = (CASES / "dependency_version_mismatch-flashinfer-incident-journald.log").read_text()
    crash = [line.partition("]: ")[2] for line in case.splitlines()[1:] if " systemd[" not in line]
    text, fixed = units.sandbox.folder / "crash.txt", units.sandbox.folder / "fixed"
    text.write_text("\n".join(crash) + "\n")
    script = units.sandbox.folder / "incident.sh"
    script.write_text(f"[ -e {fixed} ] && exec {simulated(speed=4)}\ncat {text}\nexit 1\n")
    units.service("vllm-incident", f"/bin/sh {script}")
    units.start("vllm-incident")
    units.until_logged("vllm-incident", "Failed with result")
    fixed.touch()
    units.start("vllm-incident")
    units.until_logged("vllm-incident", "Loading model from scratch")
    watch = units.wait("vllm-incident")
    report = watch.end()
    assert watch.status == 0
    assert attempts(report) == [("failed", "dependency_version_mismatch"), ("ready", None)]
    first = report["attempts"][0]
    assert first["exit"] == {"code": 1, "signal": None}
    assert first["cause"]["fields"]["package"] == "flashinfer-cubin"


# --- other units ------------------------------------------------------------------------------------


def test_a_unit_that_logs_to_a_file(units: Units) -> None:
    log = units.sandbox.folder / "vllm-file.log"
    output = f"StandardOutput=append:{units.sandbox.folder}/%N.log"
    units.service("vllm-file", simulated("out-of-memory"), output)
    watch = units.wait("vllm-file").begun()
    units.start("vllm-file")
    report = watch.end()
    assert (watch.status, report["cause"]["kind"], report["exit"]["code"]) == (1, "gpu_out_of_memory", 1)
    assert log.read_text().count("torch.OutOfMemoryError") == 1

    diagnosed = Watch(units.sandbox, "diagnose", "--unit", "vllm-file", "--json")
    assert diagnosed.end()["cause"]["kind"] == "gpu_out_of_memory"


def test_a_unit_of_a_users_own_service_manager(units: Units) -> None:
    """The user is root here; the manager is another one than the system's."""
    folder = Path("/run/systemd/user")
    units.run("mkdir", "-p", str(folder))
    text = f"[Service]\nEnvironment=PYTHONPATH={REPOSITORY}\nExecStart={simulated('out-of-memory')}\n"
    (units.sandbox.folder / "vllm-user.service").write_text(text)
    units.run("cp", str(units.sandbox.folder / "vllm-user.service"), str(folder))
    settings = "Type=notify\nSlice=user-0.slice\nDelegate=yes\nEnvironment=XDG_RUNTIME_DIR=/run/user/0"
    units.service("user@0", "/lib/systemd/systemd --user", settings)
    units.run("systemctl", "start", "user@0")
    mine = ("env", "XDG_RUNTIME_DIR=/run/user/0")
    watch = units.wait("vllm-user", "--user", wrapped=mine).begun()
    units.run(*mine, "systemctl", "--user", "start", "--no-block", "vllm-user")
    report = watch.end()
    assert (watch.status, report["cause"]["kind"]) == (1, "gpu_out_of_memory")


# --- what goes wrong --------------------------------------------------------------------------------


def test_a_journalctl_that_is_killed_loses_no_line(units: Units) -> None:
    units.service("vllm-lost", simulated("out-of-memory", speed=5))
    watch = units.wait("vllm-lost").begun()
    units.start("vllm-lost")
    units.until_logged("vllm-lost", "version")
    units.run("pkill", "-9", "journalctl")
    report = watch.end()
    assert (watch.status, report["cause"]["kind"]) == (1, "gpu_out_of_memory")
    assert "probe_broken" in codes(report)


@pytest.mark.parametrize(
    ("service", "unit", "kind", "said"),
    [
        ("", "Requires=vllm-bad.service\nAfter=vllm-bad.service", "unclassified_error", "Dependency failed"),
        ("", "ConditionPathExists=/nope", "file_missing", "/nope does not exist"),
        ("StandardOutput=append:/nope/x.log", "", "file_missing", "StandardOutput="),
        ("Type=notify\nTimeoutStartSec=1", "", "shutdown_requested", "TimeoutStartSec="),
    ],
    ids=["dependency", "condition", "output", "start"],
)
def test_a_unit_that_systemd_does_not_bring_up_has_its_reason(
    units: Units, service: str, unit: str, kind: str, said: str, request: pytest.FixtureRequest
) -> None:
    name = f"qwen-{request.node.callspec.id}"  # a refusal of a minute ago would still be news
    units.service("vllm-bad", "/bin/false", "Type=oneshot")
    units.service(name, "/bin/sleep 60", service, unit)
    units.run("systemctl", "daemon-reload")
    watch = units.wait(name, "--exit-grace", "0").begun()
    units.run("systemctl", "start", name, check=False)
    live = watch.end()
    diagnosed = Watch(units.sandbox, "diagnose", "--unit", name, "--json").end()
    for report in (live, diagnosed):
        assert (report["outcome"], report["cause"]["kind"]) == ("failed", kind)
        assert said in report["cause"]["message"]


def test_a_unit_that_is_removed_while_it_is_awaited(units: Units) -> None:
    units.service("vllm-gone", "/bin/sleep 60")
    watch = units.wait("vllm-gone", "--timeout", "4").begun()
    units.sandbox.remove("vllm-gone.service")
    units.names.remove("vllm-gone.service")
    report = watch.end()
    assert (watch.status, report["outcome"]) == (124, "timed_out")
    assert "unit_inactive" in codes(report)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--unit", "vlm-near"],
            "unit vlm-near.service does not exist on this machine: did you mean vllm-near.ser",
        ),
        (["--unit", "template@"], "unit template@.service is a template"),
        (["--unit", "vllm-near", "--user"], "user's own service manager cannot be reached"),
    ],
)
def test_a_unit_that_cannot_be_watched(units: Units, arguments: list[str], said: str) -> None:
    units.service("vllm-near", "/bin/sleep 60")
    watch = Watch(units.sandbox, "wait", *arguments, "--record", "/tmp/nothing-is-begun")
    assert watch.end() is None
    assert watch.status == 2
    assert said in watch.err
    assert units.run("ls", "/tmp/nothing-is-begun", check=False) == ""


def test_a_journal_that_may_not_be_read(units: Units) -> None:
    units.service("vllm-secret", "/bin/sleep 60")
    programs = units.sandbox.folder / "programs"
    programs.mkdir()
    journalctl = programs / "journalctl"
    journalctl.write_text(
        '#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups /bin/journalctl "$@"\n'
    )
    journalctl.chmod(0o755)
    units.run("sh", "-c", "chmod -R o-rwx /run/log/journal /var/log/journal")
    wrapped = ("env", f"PATH={programs}:{os.environ['PATH']}")
    watch = units.wait("vllm-secret", wrapped=wrapped)
    assert watch.end() is None
    assert watch.status == 2
    assert "journal of vllm-secret.service may not be read" in watch.err
    assert "systemd-journal or adm" in watch.err


def test_a_machine_that_systemd_does_not_run(units: Units) -> None:
    done = subprocess.run(
        [*python("-m", "vllm_startup", "wait", "--unit", "vllm")], capture_output=True, text=True, check=False
    )
    if Path("/run/systemd/system").exists():
        pytest.skip("systemd runs this machine")
    assert done.returncode == 2
    assert "systemd" in done.stderr
