"""A systemd, a container engine and an OpenSSH server of the tests' own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sshd as server
from podman_engine import Podman, what_lacks
from sshd import Sshd
from systemd_sandbox import Sandbox, why_not


def skip_without(what: str, reason: str | None) -> None:
    """Skip where there can be none; but not where CI has all rights to make one."""
    if reason is None:
        return
    if os.environ.get("CI") and os.geteuid() == 0:
        pytest.fail(f"no {what} for the tests: {reason}")
    pytest.skip(f"no {what} for the tests: {reason}")


@pytest.fixture(scope="session")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A systemd that runs; skipped where there can be none."""
    skip_without("systemd", why_not())
    sandbox = Sandbox(tmp_path_factory.mktemp("systemd") / "sandbox")
    sandbox.boot()
    yield sandbox
    sandbox.shut_down()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path is short enough for a socket's, which macOS' temporary folders are not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """Podman's engine, with an image; skipped where there can be none."""
    skip_without("container engine", what_lacks())
    folder = Path(tempfile.mkdtemp(prefix="engine-"))  # short, for the sake of the socket's path
    engine = Podman(folder)
    engine.install()
    engine.start()
    yield engine
    engine.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def box(podman: Podman) -> Iterator[Podman]:
    """The same, without any container afterwards."""
    yield podman
    podman.run("rm", "--all", "--force", "--time=0")


@pytest.fixture
def sshd(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    """Another machine: this one, through an OpenSSH server of the tests' own."""
    if server.MISSING:
        if os.environ.get("CI") and os.geteuid() == 0:
            pytest.fail(server.WHY)
        pytest.skip(server.WHY)
    sockets = tmp_path_factory.mktemp("sockets")  # its own, so that what is left behind is seen
    monkeypatch.setattr("tempfile.tempdir", str(sockets))
    with server.running(tmp_path_factory.mktemp("gpubox")) as running:
        yield running
