"""The server's address, tried for real: who has it, and what cannot be bound at all."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from installs import facts
from users import NOBODY, as_nobody

from vllm_startup._preflight import check_port
from vllm_startup._preflight.result import NotCheckedError
from vllm_startup.causes import Cause, FileMissing, InvalidArguments, PortInUse

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux tells who listens")


def check(*arguments: str | int | Path) -> list[Cause]:
    return list(check_port.port(facts(["vllm", "serve", "m", *map(str, arguments)])))


def texts(cause: Cause) -> list[str]:
    return [item.text for item in cause.evidence]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as vLLM's
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken


def port_of(taken: socket.socket) -> int:
    return int(taken.getsockname()[1])


def test_a_port_that_is_free_is_no_fault_and_stays_free(listener: socket.socket) -> None:
    number = port_of(listener)
    listener.close()
    assert check("--port", number) == []
    assert check("--port", number) == []


@pytest.mark.parametrize("host", ["", "0.0.0.0", "127.0.0.1", "localhost"])
def test_a_port_that_is_taken_is_told_with_its_holder(listener: socket.socket, host: str) -> None:
    number = port_of(listener)
    [found] = check("--port", number, *(["--host", host] if host else []))
    assert isinstance(found, PortInUse)
    assert (found.address, found.purpose) == (f"{host or '0.0.0.0'}:{number}", "http")
    assert found.hint == "end the process that listens there, or choose another --port"
    [text] = texts(found)
    assert text.startswith(f"process {os.getpid()} (")
    assert text.endswith(f"listens on 127.0.0.1:{number}")


def test_the_holder_is_shown_as_it_was_started_without_its_secrets() -> None:
    program = (
        "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen();"
        "print(s.getsockname()[1], flush=True); input()"
    )
    words = [sys.executable, "-c", program, "--api-key", "sk-do-not-tell-anybody"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        number = process.stdout.readline().strip()
        [found] = check("--port", number)
        process.communicate("\n")
    assert f"process {process.pid} ({sys.executable} -c import socket" in texts(found)[0]
    assert "do-not-tell" not in str(found.evidence)


def test_a_listener_on_all_ipv6_addresses_is_in_the_way_of_ipv4_too() -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        taken.bind(("::", 0))
        taken.listen()
        number = port_of(taken)
        [found] = check("--port", number)
        [other] = check("--port", number, "--host", "::1")
        assert isinstance(other, PortInUse)
    assert texts(found)[0].endswith(f"listens on [::]:{number}")
    assert other.address == f"[::1]:{number}"


def test_what_is_bound_and_does_not_listen_is_in_the_way_too() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        [found] = check("--port", port_of(taken))
    assert isinstance(found, PortInUse)
    assert texts(found) == [
        f"something has bound port {found.address and found.address[8:]}, and listens not yet or not here"
    ]


def test_connections_that_are_not_yet_forgotten_are_in_nobodys_way(listener: socket.socket) -> None:
    """A server that was stopped leaves its side of connections in TIME_WAIT for a minute."""
    with socket.create_connection(listener.getsockname()) as client:
        connection, _ = listener.accept()
        connection.close()
        assert client.recv(1) == b""
    number = port_of(listener)
    listener.close()
    assert check("--port", number) == []


@pytest.mark.parametrize(
    ("arguments", "argument", "message"),
    [
        (["--host", "192.0.2.1"], "--host", "192.0.2.1 is no address of this machine"),
        (["--host", "2001:db8::1"], "--host", "2001:db8::1 is no address of this machine"),
    ],
)
def test_an_address_of_another_machine_cannot_be_bound(
    arguments: list[str], argument: str, message: str
) -> None:
    [found] = check(*arguments)
    assert isinstance(found, InvalidArguments)
    assert (found.argument, found.message) == (argument, message)


def test_a_port_that_this_user_may_not_bind() -> None:
    limit = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    if int(limit.read_text()) <= 81:
        pytest.skip("any user may bind any port here")
    [found] = as_nobody(lambda: check("--port", 81))
    assert isinstance(found, InvalidArguments)
    assert (found.argument, found.message) == ("--port", f"user id {NOBODY} may not bind port 81")


def test_a_holder_that_is_not_ours_to_see_is_told_as_such(listener: socket.socket) -> None:
    number = port_of(listener)
    [found] = as_nobody(lambda: (listener.close(), check("--port", number))[1])
    assert texts(found) == [f"a process that is not ours to see listens on 127.0.0.1:{number}"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--headless"], "listens nowhere"),
        (["--data-parallel-multi-port-external-lb"], "every rank has a port"),
        (["--port", "http"], "--port http is no port"),
        (["--port", "70000"], "--port 70000 is no port"),
        (["--host", "no-such-host.invalid"], "cannot be resolved"),
    ],
)
def test_what_cannot_be_tried_is_not_claimed(arguments: list[str], reason: str) -> None:
    with pytest.raises(NotCheckedError, match=reason):
        check(*arguments)


def test_a_port_that_the_kernel_chooses_is_free() -> None:
    assert check("--port", "0") == []


def test_the_port_of_a_config_file_is_the_servers(listener: socket.socket, tmp_path: Path) -> None:
    (tmp_path / "vllm.yaml").write_text(f"host: 127.0.0.1\nport: {port_of(listener)}\n")
    [found] = check("--config", tmp_path / "vllm.yaml")
    assert isinstance(found, PortInUse)


# --- unix sockets -------------------------------------------------------------------------------


def test_a_socket_that_somebody_listens_on(tmp_path: Path) -> None:
    path = tmp_path / "vllm.sock"
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
        taken.listen()
        [found] = check("--uds", path)
    assert isinstance(found, PortInUse)
    assert found.address == str(path)
    assert texts(found)[0].startswith(f"process {os.getpid()} (")


def test_a_socket_that_a_dead_server_left_is_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "vllm.sock"
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
    [found] = check("--uds", path)
    assert isinstance(found, PortInUse)
    assert texts(found) == [f"{path} is a socket of which nobody listens here"]
    assert found.hint == f"remove it: rm {path}"


def test_a_file_in_the_place_of_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "vllm.sock"
    path.touch()
    [found] = check("--uds", path)
    assert (found.kind, texts(found), found.hint) == (
        "port_in_use",
        [f"{path} is a file that is no socket"],
        "choose another --uds",
    )


def test_a_socket_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    [found] = check("--uds", tmp_path / "run" / "vllm.sock")
    assert isinstance(found, FileMissing)
    assert found.path == str(tmp_path / "run")
    assert check("--uds", tmp_path / "vllm.sock") == []
