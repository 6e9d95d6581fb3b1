"""What the README's Compose file and pod manifest run, in containers of a real engine, as process 1."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from examples import example, free_port, with_ports
from podman_engine import IMAGE, REPOSITORY, Podman

COMPOSE = yaml.safe_load(example("compose.yaml", "yaml"))["services"]
POD = yaml.safe_load(example("pod.yaml", "yaml"))["spec"]["containers"][0]


class Image:
    """An image with our command, a simulated server as ``vllm``, and ``python3``: the machine's own files."""

    def __init__(self, engine: Podman, folder: Path) -> None:
        self.engine = engine
        self.ports = {"8000": free_port(), "8001": free_port()}
        self._folder = folder

    def run(self, command: Sequence[str], *, scenario: str, options: Sequence[str] = ()) -> None:
        """Run a container named ``vllm``."""
        programs = {
            "vllm-startup": "-m vllm_startup",
            "vllm": f"-m vllm_startup._demo --scenario {scenario} --speed 5 vllm",
            "python3": "",
        }
        for name, words in programs.items():
            (self._folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
            (self._folder / name).chmod(0o755)
        real = Path(sys.executable).resolve()
        shown = {"/usr", "/lib", "/lib64", sys.prefix, sys.base_prefix, str(real.parents[1]), str(REPOSITORY)}
        mounts = [f"--volume={path}:{path}:ro" for path in sorted(shown) if Path(path).exists()]
        mounts.append(f"--volume={self._folder}:/programs:ro")
        environ = ("--env=PATH=/programs:/usr/bin:/bin", f"--env=PYTHONPATH={REPOSITORY}")
        given = ("--detach", "--network=host", "--name=vllm", "--entrypoint", json.dumps(command[:1]))
        self.engine.run("run", *given, *mounts, *environ, *options, IMAGE, *command[1:])

    def with_ports(self, words: Sequence[str]) -> list[str]:
        return with_ports(words, self.ports)

    @property
    def state(self) -> Any:
        return self.engine.inspect("vllm")["State"]


@pytest.fixture
def image(box: Podman, tmp_path: Path) -> Image:
    return Image(box, tmp_path)


def test_compose_waits_until_the_server_is_healthy_and_then_begins(image: Image) -> None:
    service, client = COMPOSE["vllm"], COMPOSE["client"]
    kind, *check = image.with_ports(service["healthcheck"]["test"])
    assert kind == "CMD"  # which the engine runs in the container, again and again
    image.run(
        [*image.with_ports(service["entrypoint"]), *service["command"], "--port", str(image.ports["8000"])],
        scenario="ready",
    )

    def healthy() -> bool:
        try:
            image.engine.run("exec", "vllm", *check)
        except RuntimeError:
            return False
        return True

    assert not healthy()
    end = time.monotonic() + 60
    while not healthy():
        assert time.monotonic() < end, image.engine.run("logs", "vllm")
        assert image.state["Running"]
    asked = client["command"][-1].replace("vllm:8000", f"127.0.0.1:{image.ports['8000']}")
    with urllib.request.urlopen(asked, timeout=10) as answer:
        assert b"Qwen/Qwen3-8B" in answer.read()
    image.engine.run("stop", "--time=20", "vllm")
    assert image.state["ExitCode"] == 0


def test_a_pod_that_fails_leaves_its_cause_where_kubernetes_looks(image: Image, tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.touch()
    message.chmod(0o666)  # as Kubernetes makes and mounts it
    image.run(
        [*image.with_ports(POD["command"]), *POD["args"], "--port", str(image.ports["8000"])],
        scenario="out-of-memory",
        options=[f"--volume={message}:{POD['terminationMessagePath']}"],
    )
    image.engine.run("wait", "vllm")
    assert image.state["ExitCode"] == 1
    assert message.read_text().startswith("gpu_out_of_memory: ")
