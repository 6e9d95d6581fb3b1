from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from pathlib import Path

import pytest

from vllm_startup._url import parse_url
from vllm_startup.probes._connect import (
    Attempt,
    Connector,
    Target,
    _connect,
    _failed,
    _finished,
    _is_local,
    _met_itself,
)


def descriptors() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def connector(url: str) -> Connector:
    return Connector(parse_url(url))


async def test_a_bound_port_refuses_until_it_listens() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        ours = connector(f"http://127.0.0.1:{server.getsockname()[1]}")
        assert ours.local
        assert await ours.connect(0.0) == Attempt("refused", "Connection refused")
        server.listen()
        assert await ours.connect(0.0) == Attempt("listening")
    assert await ours.connect(0.0) == Attempt("refused", "Connection refused")


async def test_localhost_is_both_loopback_addresses() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        ours = connector(f"http://localhost:{server.getsockname()[1]}")
        assert ours.local
        assert await ours.connect(0.0) == Attempt("listening")
        assert ours.target is not None
        assert ours.target.host == "::1"
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = connector(f"http://localhost:{server.getsockname()[1]}")
        assert await ours.connect(0.0) == Attempt("listening")
        assert ours.target is not None
        assert ours.target.host == "127.0.0.1"


async def test_a_name_is_looked_up_in_a_thread_that_ends() -> None:
    with socket.create_server(("", 0)) as server:
        ours = connector(f"http://{socket.gethostname()}:{server.getsockname()[1]}")
        assert not ours.local
        assert await ours.connect(0.0) == Attempt("listening")
        assert ours.local
        assert await ours.connect(1.0) == Attempt("listening")
    await asyncio.sleep(0.02)
    assert not [thread for thread in threading.enumerate() if "resolve" in thread.name]


async def test_a_name_that_does_not_exist_is_unreachable() -> None:
    attempt = await connector("http://no-such-host.invalid:8000").connect(0.0)
    assert attempt.state == "unreachable"
    assert (attempt.detail or "").startswith("cannot resolve 'no-such-host.invalid': ")


async def test_an_older_address_serves_when_the_name_cannot_be_looked_up_again() -> None:
    with socket.create_server(("", 0)) as server:
        ours = connector(f"http://{socket.gethostname()}:{server.getsockname()[1]}")
        assert await ours.connect(0.0) == Attempt("listening")
        ours._address = parse_url("http://no-such-host.invalid:1")
        assert await ours.connect(29.9) == Attempt("listening")
        assert await ours.connect(30.0) == Attempt("listening")


async def test_the_most_telling_of_several_addresses_speaks() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        ours = connector(f"http://localhost:{bound.getsockname()[1]}")
        no_route = Target(family=socket.AF_INET, sockaddr=("255.255.255.255", 1), host="x", local=False)
        ours._aim((no_route, *ours._targets))
        assert await ours.connect(0.0) == Attempt("refused", "Connection refused")
        assert not ours.local


async def test_a_family_that_the_machine_does_not_have_is_unreachable() -> None:
    target = Target(family=socket.AF_NETROM, sockaddr=("::1", 1, 0, 0), host="::1", local=False)
    attempt = await _connect(target)
    assert attempt.state == "unreachable"
    assert not _is_local(socket.AF_NETROM, ("::1", 1, 0, 0))


@pytest.mark.parametrize("listening", [True, False])
async def test_far_away_a_handshake_is_awaited(listening: bool) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listening:
            server.listen()
        far = Target(family=socket.AF_INET, sockaddr=server.getsockname(), host="127.0.0.1", local=False)
        assert (await _connect(far)).state == ("listening" if listening else "refused")
        with socket.socket() as sock:
            sock.setblocking(False)
            assert await _finished(sock, far) == (0 if listening else errno.ECONNREFUSED)


async def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "vllm.sock"
    ours = connector(f"unix://{path}")
    assert ours.local
    assert await ours.connect(0.0) == Attempt("refused", "No such file or directory")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert await ours.connect(0.0) == Attempt("refused", "Connection refused")
        server.listen()
        assert await ours.connect(0.0) == Attempt("listening")
    assert path.exists()
    assert await ours.connect(0.0) == Attempt("refused", "Connection refused")


async def test_a_unix_socket_with_a_full_backlog_listens(tmp_path: Path) -> None:
    path = str(tmp_path / "vllm.sock")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as first:
        server.bind(path)
        server.listen(0)
        first.connect(path)
        assert await connector(f"unix://{path}").connect(0.0) == Attempt("listening", "its backlog is full")


async def test_a_handshake_that_is_not_answered_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_startup.probes._connect.CONNECT_LIMIT_S", 0.03)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        with socket.create_connection(server.getsockname()):  # the backlog of one is full: a SYN is dropped
            ours = connector(f"http://127.0.0.1:{server.getsockname()[1]}")
            assert await ours.connect(0.0) == Attempt("timed_out", "Connection timed out")


async def test_a_connect_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        with socket.create_connection(server.getsockname()):
            ours = connector(f"http://127.0.0.1:{server.getsockname()[1]}")
            task = asyncio.create_task(ours.connect(0.0))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert descriptors() == before


def test_a_socket_that_met_itself_is_no_server() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())  # simultaneous open: it succeeds
        assert _met_itself(sock)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sock,
    ):
        assert not _met_itself(sock)


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (errno.ECONNREFUSED, "refused"),
        (errno.ENOENT, "refused"),
        (errno.ETIMEDOUT, "timed_out"),
        (errno.ENETUNREACH, "unreachable"),
        (errno.EHOSTUNREACH, "unreachable"),
        (errno.EACCES, "unreachable"),
        (errno.EADDRNOTAVAIL, "unreachable"),
    ],
)
def test_the_systems_errors(code: int, state: str) -> None:
    assert _failed(code) == Attempt(state, os.strerror(code))  # type: ignore[arg-type]  # a literal by value


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_our_own_lack_of_resources_is_no_evidence(code: int) -> None:
    with pytest.raises(OSError, match="cannot connect"):
        _failed(code)


async def test_a_refusal_holds_until_something_listens() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        ours = connector(f"http://127.0.0.1:{server.getsockname()[1]}")
        before = descriptors()
        assert all(ours.still_refused() for _ in range(5))
        assert descriptors() == before + 1  # one socket, which is kept
        server.listen()
        assert not ours.still_refused()
        assert descriptors() == before  # it was connected, and is given up
        server.accept()[0].close()
    assert ours.still_refused()
    ours.close()
    assert descriptors() == before - 1  # the server's own is closed too


async def test_the_port_of_a_kept_socket_is_free_for_others() -> None:
    """It is one of the ephemeral ports, and so may be the one that the server is about to bind."""
    ours = connector("http://127.0.0.1:9")
    assert ours.still_refused()
    kept = ours._refusals[0]._socket
    assert kept is not None
    with socket.socket() as server:
        server.bind(("127.0.0.1", kept.getsockname()[1]))
        server.listen()
    ours.close()


async def test_a_full_backlog_is_no_refusal_and_blocks_for_milliseconds() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        ours = connector(f"http://127.0.0.1:{server.getsockname()[1]}")
        assert ours.still_refused()
        server.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        began = asyncio.get_running_loop().time()
        assert not ours.still_refused()
        assert asyncio.get_running_loop().time() - began < 0.1
        for client in waiting:
            client.close()


@pytest.mark.parametrize("there", [False, True])
async def test_a_unix_socket_refuses_whether_its_file_is_there_or_not(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "vllm.sock"
    ours = connector(f"unix://{path}")
    with socket.socket(socket.AF_UNIX) as server:
        if there:
            server.bind(str(path))
        assert ours.still_refused()
        assert ours.still_refused()
        if there:
            server.listen()
            assert not ours.still_refused()
    ours.close()


async def test_the_addresses_of_a_name_are_dialled_once_they_are_known() -> None:
    with socket.create_server(("", 0)) as server:
        ours = connector(f"http://{socket.gethostname()}:{server.getsockname()[1]}")
        await ours.connect(0.0)
        assert ours.local
        assert not ours.still_refused()
