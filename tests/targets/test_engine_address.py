"""Where an engine is looked for."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_startup.targets import TargetError, container
from vllm_startup.targets._containers.engine_address import EngineAddress, addresses, parse_engine


def context(home: Path, name: str, endpoint: dict[str, object]) -> None:
    """Make a context as ``docker context create`` and ``use`` do."""
    folder = home / ".docker" / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"Name": name, "Endpoints": {"docker": endpoint}}))
    (home / ".docker" / "config.json").write_text(json.dumps({"auths": {}, "currentContext": name}))


def found(home: Path, engine: str | None = None, **environ: str) -> list[str]:
    return [str(address) for address in addresses(engine, environ=environ, home=home)]


def test_what_is_said_comes_before_what_is_set(tmp_path: Path) -> None:
    context(tmp_path, "gpubox", {"Host": "tcp://gpubox:2375"})
    both = {"DOCKER_HOST": "unix:///d.sock", "CONTAINER_HOST": "unix:///c.sock"}
    assert found(tmp_path, "/e.sock", **both) == ["unix:///e.sock"]
    assert found(tmp_path, **both) == ["unix:///d.sock"]
    assert found(tmp_path, CONTAINER_HOST="unix:///c.sock") == ["tcp://gpubox:2375"]
    assert found(tmp_path, DOCKER_CONTEXT="default", CONTAINER_HOST="unix:///c.sock") == ["unix:///c.sock"]


def test_the_usual_sockets_are_tried_where_nothing_is_said(tmp_path: Path) -> None:
    assert found(tmp_path, XDG_RUNTIME_DIR="/run/user/7") == [
        "unix:///var/run/docker.sock",
        "unix:///run/user/7/docker.sock",
        f"unix://{tmp_path}/.docker/run/docker.sock",
        f"unix://{tmp_path}/.docker/desktop/docker.sock",
        "unix:///run/user/7/podman/podman.sock",
        "unix:///run/podman/podman.sock",
    ]


@pytest.mark.parametrize(
    ("environ", "tls", "verify"),
    [
        ({}, False, True),
        ({"DOCKER_TLS_VERIFY": "1"}, True, True),
        ({"DOCKER_CERT_PATH": "/certs"}, True, False),  # as Docker's own client takes it
        ({"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/certs"}, True, True),
    ],
    ids=["none", "verify", "certificates", "both"],
)
def test_tls_is_as_docker_takes_it(
    tmp_path: Path, environ: dict[str, str], *, tls: bool, verify: bool
) -> None:
    (address,) = addresses(None, environ={"DOCKER_HOST": "tcp://h:1", **environ}, home=tmp_path)
    assert (address.tls, address.verify) == (tls, verify)
    assert address.base == ("https://h:1" if tls else "http://h:1")


def test_a_contexts_certificates_are_used(tmp_path: Path) -> None:
    context(tmp_path, "gpubox", {"Host": "tcp://gpubox:2376", "SkipTLSVerify": True})
    folder = tmp_path / ".docker/contexts/tls" / hashlib.sha256(b"gpubox").hexdigest() / "docker"
    folder.mkdir(parents=True)
    (address,) = addresses(None, environ={}, home=tmp_path)
    assert (address.tls, address.verify, address.certificates) == (True, False, folder)
    assert address.found_by == "context gpubox"


def test_a_context_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="current context 'gone' names no engine; choose another one"):
        addresses(None, environ={"DOCKER_CONTEXT": "gone"}, home=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ssh://root@gpubox", r"leads over SSH: watch the container there with the ssh target"),
        ("npipe:////./pipe/docker_engine", "is no address of a container engine; write unix:///path"),
        ("gpubox", "is no address of a container engine; write unix:///path"),
        ("unix://relative", "is no address of a container engine; write unix:///path"),
        ("tcp://h:port", "is no address of a container engine: Port could not be cast"),
    ],
)
def test_what_is_no_address_is_refused_with_the_fix(text: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        parse_engine(text)


def test_ports_are_dockers_own_where_none_is_given() -> None:
    assert parse_engine("tcp://h").base == "http://h:2375"
    assert parse_engine("https://[::1]").base == "https://[::1]:2376"


def test_what_is_in_the_way_of_a_socket_is_told(short_path: Path) -> None:
    assert EngineAddress(uds=str(short_path / "none")).trouble() == "not there"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_path / "s"))
        assert EngineAddress(uds=str(short_path / "s")).trouble() == "nothing listens there"
        listener.listen()
        assert EngineAddress(uds=str(short_path / "s")).trouble() is None


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="becomes another user")
def test_a_socket_that_is_not_ours_to_use_names_the_group(short_path: Path) -> None:
    program = (
        "import os, sys; from vllm_startup.targets._containers.engine_address import EngineAddress as A;"
        "os.chdir(sys.argv[1]); os.setgroups([]); os.setuid(65534); print(A(uds='s').trouble())"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_path / "s"))
        listener.listen()
        (short_path / "s").chmod(0o600)
        told = subprocess.run([sys.executable, "-c", program, short_path], capture_output=True, text=True)
    assert "add the user to the group docker (sudo usermod -aG docker USER" in told.stdout


def test_all_that_was_tried_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    with pytest.raises(
        TargetError, match=r"engine that DOCKER_HOST names does not answer: unix:.*\(not there\)"
    ):
        container("vllm").locate()


def test_all_usual_sockets_are_told_where_none_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    if any(Path(path).exists() for path in ("/var/run/docker.sock", "/run/podman/podman.sock")):
        pytest.skip("this machine has an engine")
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nowhere")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
    with pytest.raises(TargetError) as raised:
        container("vllm").locate()
    assert str(raised.value) == (
        "no container engine answers at unix:///var/run/docker.sock (not there),"
        " unix:///nowhere/docker.sock (not there), unix:///nowhere/.docker/run/docker.sock (not there),"
        " unix:///nowhere/.docker/desktop/docker.sock (not there),"
        " unix:///nowhere/podman/podman.sock (not there), unix:///run/podman/podman.sock (not there);"
        " start one (systemctl start docker, or systemctl --user start podman.socket), or say where it is"
        " with engine="
    )


@pytest.mark.parametrize("name", ["", "a b", "a\nb"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(TargetError, match="is no name of a container"):
        container(name)
