"""What a service manager hears, over a real datagram socket."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_startup._hosts.notify import Notifier, take_notifier
from vllm_startup._hosts.standing import Standing
from vllm_startup._phases import Phase


class Manager:
    """systemd's end of the socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.setblocking(False)
        self.notifiers: list[Notifier] = []

    def close(self) -> None:
        """Go; nobody waits for it any more."""
        self.socket.close()
        for each in self.notifiers:
            each.close()

    def heard(self) -> list[list[str]]:
        messages = []
        while True:
            try:
                messages.append(self.socket.recv(65536).decode().split("\n"))
            except BlockingIOError:
                return messages


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@vllm-startup-{os.getpid()}"
    found = Manager(address)
    yield found
    found.close()


def notifier(manager: Manager, **environ: str) -> Notifier:
    found = take_notifier({"NOTIFY_SOCKET": manager.address, **environ}, window_s=600)
    assert found is not None
    manager.notifiers.append(found)
    return found


LOADING = Standing(phase=Phase.LOADING_WEIGHTS, summary="loading weights", quiet_s=0.5)
READY = Standing(state="ready", phase=Phase.READY, summary="ready", started=True)


def test_progress_extends_the_timeout_and_silence_does_not(manager: Manager) -> None:
    ours = notifier(manager)
    ours.tell(LOADING, 0.0)
    assert manager.heard() == [["EXTEND_TIMEOUT_USEC=600000000", "STATUS=loading weights"]]
    ours.tell(LOADING, 1.0)
    assert manager.heard() == []  # no message a second that says nothing new
    ours.tell(LOADING, 5.0)
    assert manager.heard() == [["EXTEND_TIMEOUT_USEC=600000000", "STATUS=loading weights"]]
    silent = Standing(phase=Phase.LOADING_WEIGHTS, summary="loading weights, silent", quiet_s=30.0)
    ours.tell(silent, 10.0)
    assert manager.heard() == [["STATUS=loading weights, silent"]]


def test_a_stall_that_ends_by_itself_gets_the_start_its_time_again(manager: Manager) -> None:
    ours = notifier(manager)
    ours.tell(LOADING, 0.0)
    ours.tell(Standing(state="stalled", phase=Phase.LOADING_WEIGHTS, summary="stalled"), 700.0)
    manager.heard()
    ours.tell(LOADING, 701.0)
    assert manager.heard() == [["EXTEND_TIMEOUT_USEC=600000000", "STATUS=loading weights"]]


def test_a_stalled_or_failed_start_is_given_no_more_time(manager: Manager) -> None:
    ours = notifier(manager)
    ours.tell(LOADING, 0.0)
    manager.heard()
    ours.tell(Standing(state="stalled", phase=Phase.LOADING_WEIGHTS, summary="stalled"), 1.0)
    ours.tell(Standing(state="failed", phase=Phase.LOADING_WEIGHTS, summary="failed"), 2.0)
    assert manager.heard() == [["STATUS=stalled"], ["STATUS=failed"]]


def test_a_failure_is_told_when_it_is_found_and_when_the_start_has_ended(manager: Manager) -> None:
    ours = notifier(manager)
    for summary in ("failing in loading_weights: no memory", "failed: no memory", "failed: no memory"):
        ours.tell(Standing(state="failed", phase=Phase.LOADING_WEIGHTS, summary=summary), 0.0)
    assert manager.heard() == [["STATUS=failing in loading_weights: no memory"], ["STATUS=failed: no memory"]]


def test_ready_and_stopping_are_told_once(manager: Manager) -> None:
    ours = notifier(manager)
    for at, standing in enumerate(
        (READY, READY, Standing(state="stopping", started=True, summary="stopping"))
    ):
        ours.tell(standing, float(at))
    assert manager.heard() == [["READY=1", "STATUS=ready"], ["STOPPING=1", "STATUS=stopping"]]


def test_the_watchdog_is_fed_where_there_is_one(manager: Manager) -> None:
    ours = notifier(manager, WATCHDOG_USEC="3000000", WATCHDOG_PID=str(os.getpid()))
    assert ours.watchdog_s == 3.0
    ours.alive()
    assert manager.heard() == [["WATCHDOG=1"]]
    ours = notifier(manager)
    ours.alive()
    assert manager.heard() == []


def test_another_processes_watchdog_is_not_fed(manager: Manager) -> None:
    ours = notifier(manager, WATCHDOG_USEC="3000000", WATCHDOG_PID="1")
    assert ours.watchdog_s is None


def test_a_full_queue_loses_nothing_that_matters(manager: Manager) -> None:
    ours = notifier(manager)
    address = "\0" + manager.address[1:] if manager.address.startswith("@") else manager.address
    for _ in range(8):  # one sender's own buffer is full before the receiver's queue is
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    filler.sendto(b"x", address)
    ours.tell(READY, 0.0)
    assert ["READY=1", "STATUS=ready"] not in manager.heard()
    ours.tell(READY, 1.0)
    assert manager.heard() == [["READY=1", "STATUS=ready"]]
    assert ours.error is None


def test_the_last_words_wait_for_a_manager_that_is_busy(manager: Manager) -> None:
    ours = notifier(manager)
    ours.tell(READY, 0.0)
    heard: list[bytes] = []

    def read_late() -> None:
        time.sleep(0.3)
        manager.socket.settimeout(5)
        while b"BARRIER=1" not in heard:
            message, handed, _, _ = socket.recv_fds(manager.socket, 4096, 1)
            heard.append(message)
        os.close(handed[0])

    reading = threading.Thread(target=read_late)
    reading.start()
    ours.close()
    assert heard == [b"READY=1\nSTATUS=ready", b"BARRIER=1"]
    reading.join()


def test_a_manager_that_never_reads_is_not_waited_for(manager: Manager) -> None:
    ours = notifier(manager)
    ours.tell(READY, 0.0)
    began = time.monotonic()
    ours.close()
    assert 0.5 < time.monotonic() - began < 3


def test_a_manager_that_is_gone_is_an_error_to_tell_and_hears_what_matters_when_it_is_back(
    tmp_path: Path,
) -> None:
    ours = take_notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}, window_s=1)
    assert ours is not None
    ours.tell(LOADING, 0.0)
    assert ours.error == "No such file or directory"
    for at in range(10, 1000, 10):
        ours.tell(READY, float(at))
    back = Manager(str(tmp_path / "gone"))
    ours.tell(READY, 1000.0)
    assert back.heard() == [["READY=1", "STATUS=ready"]]
    back.socket.close()
    ours.close()


def test_the_server_does_not_inherit_what_is_meant_for_us(tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path), "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/root"}
    found = take_notifier(environ, window_s=1)
    assert found is not None
    found.close()
    assert environ == {"HOME": "/root"}
    assert take_notifier(environ, window_s=1) is None


@pytest.mark.parametrize("address", ["vsock:2:1", "relative", "", "@"])
def test_an_address_of_another_kind_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="NOTIFY_SOCKET is"):
        take_notifier({"NOTIFY_SOCKET": address}, window_s=1)
