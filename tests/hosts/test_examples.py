"""The README's Compose file and pod manifest: they fit the published schemas, and what they run works.

The unit file is run by a systemd in ``tests/targets/test_unit_example.py``.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from examples import NAMED, TEXT, example

COMPOSE = yaml.safe_load(example("compose.yaml", "yaml"))
POD = yaml.safe_load(example("pod.yaml", "yaml"))


def test_every_example_is_under_test() -> None:
    named = re.findall(
        NAMED.format("(?:vllm.service|compose.yaml|pod.yaml)", "(?:ini|yaml)"), TEXT, re.DOTALL
    )
    assert len(re.findall(r"```(?:ini|yaml)", TEXT)) == len(named) == 3


@pytest.mark.parametrize("version", ["1.28", "1.35"])
def test_the_pod_fits_kubernetes_schema(version: str) -> None:
    kubernetes_validate.validate(POD, version, strict=True)
    container = POD["spec"]["containers"][0]
    wrong = {**POD, "spec": {"containers": [{**container, "startupProbe": {"httpGet": {}}}]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_the_compose_file_fits_its_schema(tmp_path: Path) -> None:
    def check(value: dict[str, Any]) -> int:
        file = tmp_path / "compose.yaml"
        file.write_text(yaml.safe_dump(value))
        command = [
            sys.executable,
            "-m",
            "check_jsonschema",
            "--builtin-schema",
            "vendor.compose-spec",
            str(file),
        ]
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode

    assert check(COMPOSE) == 0
    assert check({"services": {**COMPOSE["services"], "client": {"depends_on": {"vllm": {"wrong": 1}}}}}) == 1


# --- what they run ----------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found: int = listener.getsockname()[1]
        return found


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The programs that an image has: ours, a simulated server as ``vllm``, and ``python3``."""
    programs = {
        "vllm-startup": f'exec {sys.executable} -m vllm_startup "$@"',
        "vllm": f'exec {sys.executable} -m vllm_startup._demo --scenario "$SCENARIO" --speed 5 vllm "$@"',
        "python3": f'exec {sys.executable} "$@"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


Begin = Callable[[list[str], str], subprocess.Popen[bytes]]


@pytest.fixture
def begin(image: Path) -> Iterator[Begin]:
    """Runs a command as a container has it; whatever is left of it ends with the test."""
    running: list[subprocess.Popen[bytes]] = []

    def run(command: list[str], scenario: str = "ready") -> subprocess.Popen[bytes]:
        environ = {**os.environ, "PATH": f"{image}:{os.environ['PATH']}", "SCENARIO": scenario}
        running.append(subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL))
        return running[-1]

    yield run
    for process in running:
        process.terminate()
        process.wait(30)


def until(holds: Callable[[], bool], within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.2)


def with_ports(words: list[str], ports: dict[str, int]) -> list[str]:
    """The words with ports that are free here."""
    return [re.sub(r"\b800[01]\b", lambda found: str(ports[found.group()]), word) for word in words]


def test_compose_waits_for_the_server(begin: Begin, image: Path) -> None:
    service = COMPOSE["services"]["vllm"]
    ports = {"8000": free_port(), "8001": free_port()}
    served = [*service["command"], "--port", str(ports["8000"])]
    begin([*with_ports(service["entrypoint"], ports), *served], "ready")
    kind, *check = service["healthcheck"]["test"]
    assert kind == "CMD"
    command = [str(image / check[0]), *with_ports(check[1:], ports)]

    def healthy() -> bool:
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False, timeout=30).returncode == 0

    assert not healthy()
    until(healthy)
    client = COMPOSE["services"]["client"]
    assert client["depends_on"] == {"vllm": {"condition": "service_healthy"}}
    asked = client["command"][-1].replace("vllm:8000", f"127.0.0.1:{ports['8000']}")
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert b"Qwen/Qwen3-8B" in answer.read()


def test_a_pod_is_asked_and_leaves_its_cause(begin: Begin, tmp_path: Path) -> None:
    container = POD["spec"]["containers"][0]
    ports = {"8000": free_port(), "8001": free_port()}
    named = {port["name"]: ports[str(port["containerPort"])] for port in container["ports"]}
    log = tmp_path / "termination-log"  # the default is a file that Kubernetes mounts
    head, *options = with_ports(container["command"], ports)
    command = [
        *(head, options[0], "--termination-log", str(log), *options[1:], *container["args"]),
        *("--port", str(named["http"])),
    ]

    def asked(probe: str) -> int:
        get = container[probe]["httpGet"]
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{named[get['port']]}{get['path']}", timeout=5
            ) as found:
                status: int = found.status
                return status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def kubelet() -> tuple[int, int, int]:
        return asked("startupProbe"), asked("readinessProbe"), asked("livenessProbe")

    process = begin(command, "ready")
    until(lambda: kubelet() == (503, 503, 200))
    until(lambda: kubelet() == (200, 200, 200))
    process.terminate()
    process.wait(30)
    assert not log.exists()
    assert begin(command, "out-of-memory").wait(60) == 1
    assert log.read_text().startswith("gpu_out_of_memory: ")
