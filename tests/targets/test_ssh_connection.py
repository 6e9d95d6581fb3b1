"""A connection by the user's own OpenSSH client, and how it fails."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import sshd as server
from sshd import Sshd

from vllm_startup.targets import TargetError, ssh
from vllm_startup.targets._ssh.connection import Connection, ConnectionLostError
from vllm_startup.targets._ssh.shell import Shell, SshCommands

ECHO = r'while read -r n q; do echo "$q"; printf "\n#%s\n" "$n"; done'


def connected(sshd: Sshd) -> Connection:
    connection = Connection("gpubox", sshd.options)
    connection.connect()
    return connection


def refused(sshd: Sshd, host: str = "gpubox") -> str:
    """Why there is no connection; nothing of the try is left."""
    with pytest.raises(TargetError) as caught:
        Connection(host, sshd.options).connect()
    assert server.left_behind() == []
    return str(caught.value)


# --- up -----------------------------------------------------------------------------------


def test_commands_go_over_one_connection_and_nothing_is_left(sshd: Sshd) -> None:
    connection = connected(sshd)
    commands = SshCommands(connection)
    assert commands.run("printf", "%s|", "a'b", "$HOME; *", 'x\\n"!').stdout == "a'b|$HOME; *|x\\n\"!|"
    assert commands.run("sh", "-c", "echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")
    assert commands.where == "gpubox"
    assert (sshd.folder / "sshd.log").read_text().count("Accepted publickey") == 1
    assert Path(connection.near_end("localhost:1")).parent.stat().st_mode & 0o777 == 0o700
    connection.close()
    connection.close()
    assert server.left_behind() == []


@pytest.mark.parametrize("noise", ["echo Welcome to gpubox; echo", "printf 'no end of line'"])
def test_what_a_login_shell_prints_is_no_commands_output(sshd: Sshd, noise: str, tmp_path: Path) -> None:
    # The tests' user keeps the shell that it has; it reads this before the command, as bash does .bashrc.
    forced = f'ForceCommand {noise}; eval "$SSH_ORIGINAL_COMMAND"'
    with server.running(tmp_path / "noisy", forced) as noisy:
        connection = connected(noisy)
        assert SshCommands(connection).run("echo", "mine").stdout == "mine\n"
        connection.close()


def test_a_program_that_is_not_there_is_named(sshd: Sshd) -> None:
    connection = connected(sshd)
    sshd.program("not-a-program", "\x7fELF nonsense")
    with pytest.raises(TargetError, match=r"^no-such-program is not installed on gpubox$"):
        SshCommands(connection).run("no-such-program")
    with pytest.raises(TargetError, match=r"^/etc/passwd cannot be run on gpubox: .*Permission denied"):
        SshCommands(connection).run("/etc/passwd")
    connection.close()


def test_a_command_that_hangs_is_ended_there_too(sshd: Sshd) -> None:
    connection = connected(sshd)
    mark = f"31.{os.getpid()}"
    with pytest.raises(TargetError, match=r"^sleep gave no answer within 3 s on gpubox$"):
        SshCommands(connection).run("sleep", mark, limit_s=3)
    gone(mark)
    connection.close()


async def test_a_long_command_is_read_while_it_runs_and_ends_there_when_it_is_killed_here(
    sshd: Sshd,
) -> None:
    connection = connected(sshd)
    mark = f"32.{os.getpid()}"
    process = await SshCommands(connection).start("sh", "-c", f"echo one; exec sleep {mark}")
    assert process.stdout is not None
    assert await process.stdout.readline() == b"one\n"
    process.kill()
    await process.communicate()
    await asyncio.to_thread(gone, mark)
    ended = await SshCommands(connection).start("sh", "-c", "exit 7")
    assert await ended.wait() == 7
    await ended.communicate()
    connection.close()


def gone(mark: str) -> None:
    deadline = time.monotonic() + 5
    while subprocess.run(["pgrep", "-fx", f"sleep {mark}"], stdout=subprocess.DEVNULL).returncode == 0:
        assert time.monotonic() < deadline, "the command still runs there"
        time.sleep(0.02)


def test_a_shell_answers_again_and_again_and_is_started_anew(sshd: Sshd) -> None:
    connection = connected(sshd)
    shell = Shell(connection, ECHO)
    assert [shell.ask(text) for text in ("one two", "")] == [b"one two\n", b"\n"]
    assert shell._process is not None
    shell._process.kill()
    with pytest.raises(OSError, match="the shell on gpubox ended"):
        ask_for_ever(shell)  # the last answer may still come
    assert shell.ask("again") == b"again\n"
    shell.close()
    connection.close()


def ask_for_ever(shell: Shell) -> None:
    while True:
        shell.ask("lost")


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(sshd: Sshd) -> None:
    connection = connected(sshd)
    slow = Shell(connection, ECHO.replace('echo "$q"', '[ "$q" = slow ] && sleep 3; echo "$q"'))
    other = Shell(connection, ECHO)
    assert slow.ask("first") == b"first\n"
    other.ask("first")

    def ask_meanwhile() -> None:
        time.sleep(0.5)
        other.ask("x")

    meanwhile = threading.Thread(target=ask_meanwhile)
    meanwhile.start()
    with pytest.raises(TimeoutError):  # others are answered: it is this shell's own matter
        slow.ask("slow", limit_s=2)
    meanwhile.join()
    assert slow.ask("next") == b"next\n"
    for shell in (slow, other):
        shell.close()
    connection.close()


# --- down ---------------------------------------------------------------------------------


def test_a_lost_connection_is_told_with_the_clients_reason_and_made_anew(sshd: Sshd) -> None:
    connection = connected(sshd)
    shell = Shell(connection, ECHO)
    shell.ask("x")
    sshd.cut()
    with pytest.raises(ConnectionLostError, match=r"^the connection to gpubox is lost: \w") as lost:
        shell.ask("y")
    with pytest.raises(ConnectionLostError) as same:
        SshCommands(connection).run("true")
    assert str(same.value) == str(lost.value)
    connection.ensure()
    assert shell.ask("z") == b"z\n"
    shell.close()
    connection.close()
    assert server.left_behind() == []


def lost(connection: Connection) -> None:
    deadline = time.monotonic() + 5
    while True:
        try:
            connection.check()
        except ConnectionLostError:
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_is_not_tried_again_all_the_time(sshd: Sshd) -> None:
    connection = connected(sshd)
    sshd.stop()
    lost(connection)
    tries = 0
    began = time.monotonic()
    while time.monotonic() < began + 0.9:
        before = time.monotonic()
        with pytest.raises(ConnectionLostError):
            connection.ensure()
        tries += time.monotonic() - before > 0.005  # a client was started
        time.sleep(0.02)
    assert tries <= 2
    sshd.start()
    while True:
        try:
            connection.ensure()
            break
        except ConnectionLostError:
            assert time.monotonic() < began + 10
            time.sleep(0.05)
    connection.close()


def test_nothing_is_heard_for_a_while(sshd: Sshd) -> None:
    connection = connected(sshd)
    shell = Shell(connection, ECHO)
    shell.ask("x")
    sshd.freeze()
    with pytest.raises(ConnectionLostError, match=r"^gpubox gives no answer$"):
        shell.ask("y", limit_s=0.2)
    sshd.thaw()
    assert shell.ask("z") == b"z\n"
    shell.close()
    connection.close()


# --- bad input ----------------------------------------------------------------------------


def test_a_host_key_that_has_changed(sshd: Sshd) -> None:
    sshd._keygen("another")
    sshd.trust("another")
    text = refused(sshd)
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in text
    assert "ssh-keygen -R gpubox" in text


def test_a_host_key_that_is_not_known(sshd: Sshd) -> None:
    (sshd.folder / "known_hosts").unlink()
    text = refused(sshd)
    assert "its host key is not known here: connect once by hand (ssh gpubox)" in text


def test_a_key_that_is_not_let_in(sshd: Sshd) -> None:
    (sshd.folder / "authorized_keys").write_text("")
    text = refused(sshd)
    assert "Permission denied (publickey)" in text
    assert "ssh-copy-id gpubox" in text


def test_a_name_that_nobody_knows(sshd: Sshd) -> None:
    text = refused(sshd, "root@no-such-host.invalid")
    assert "root@no-such-host.invalid cannot be reached: ssh: Could not resolve hostname" in text
    assert "Host entry in your ssh configuration" in text


def test_a_port_where_nobody_listens(sshd: Sshd) -> None:
    sshd.stop()
    text = refused(sshd)
    assert "Connection refused; no ssh server listens there" in text


def test_a_configuration_that_makes_no_sense(sshd: Sshd) -> None:
    with sshd.config.open("a") as config:
        config.write("NoSuchOption yes\n")
    assert "Bad configuration option: nosuchoption" in refused(sshd)


@pytest.mark.parametrize(
    ("forced", "said"),
    [
        ("echo This account is for backups only", "This account is for backups only"),
        ("/bin/false", "ended with status 1"),
        ("echo fatal: unrecognized command >&2; exit 128", "fatal: unrecognized command"),
    ],
)
def test_a_user_who_has_no_shell_there(tmp_path: Path, sshd: Sshd, forced: str, said: str) -> None:
    with server.running(tmp_path / "forced", f"ForceCommand {forced}") as other:
        text = refused(other)
    assert "runs no POSIX shell for this user" in text
    assert said in text


def test_too_few_sessions(tmp_path: Path, sshd: Sshd) -> None:
    with server.running(tmp_path / "few", "MaxSessions 2") as few:
        connection = connected(few)
        shells = [Shell(connection, ECHO) for _ in range(2)]
        assert shells[0].ask("x") == b"x\n"
        with pytest.raises(OSError, match="raise MaxSessions in its sshd_config"):
            shells[1].ask("x")
        for shell in shells:
            shell.close()
        connection.close()


def test_no_client_here(sshd: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "ssh is not installed on this machine; install OpenSSH's client" in refused(sshd)


@pytest.mark.parametrize("host", ["", "-oProxyCommand=reboot", "two words", "line\nbreak"])
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(ValueError, match=r"^host must be a host as ssh takes it"):
        ssh(host, pid=1)


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({}, ValueError, "give either a target"),
        ({"target": "vllm.service"}, TypeError, "target must be one that can be on another machine"),
        ({"pid": "4242"}, TypeError, "pid must be a process id"),
        ({"pid": True}, TypeError, "pid must be a process id"),
    ],
)
def test_what_is_nothing_to_look_at(given: dict[str, object], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        ssh("gpubox", **given)  # type: ignore[arg-type]


# --- left behind --------------------------------------------------------------------------

CHILD = """
import sys, time
from vllm_startup.targets._ssh.connection import Connection
connection = Connection("gpubox", sys.argv[2:])
connection.connect()
print(connection._held.master.pid, connection._held.folder, flush=True)
if sys.argv[1] == "wait":
    time.sleep(60)
"""


def child(sshd: Sshd, how: str) -> tuple[subprocess.Popen[str], int, Path]:
    command = [sys.executable, "-W", "ignore", "-c", CHILD, how, *sshd.options]
    env = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    pid, folder = process.stdout.readline().split()
    return process, int(pid), Path(folder)


def ended(pid: int) -> None:
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline, "the client still runs"
        time.sleep(0.02)


def test_a_program_that_forgets_to_close_leaves_nothing(sshd: Sshd) -> None:
    process, master, folder = child(sshd, "leave")
    process.communicate()
    ended(master)
    assert not folder.exists()


def test_a_program_that_is_killed_leaves_no_client(sshd: Sshd) -> None:
    process, master, _ = child(sshd, "wait")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    ended(master)


def test_who_hears_of_a_loss_when_it_is_mended_hears_of_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection("gpubox")
    connection._lost = "Connection reset by peer"
    alive = iter([False, True])  # before the lock, and when it is got
    monkeypatch.setattr(connection, "_alive", lambda: next(alive))
    with pytest.raises(ConnectionLostError, match="is lost: Connection reset by peer"):
        connection.check()
    assert not connection._is_lost
