"""The README's Compose file and pod manifest fit the published schemas, and the pod's probes are answered.

In containers they run in ``tests/targets/test_container_examples.py``, and the unit file under a systemd in
``tests/targets/test_unit_example.py``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from examples import NAMED, TEXT, example, free_port, with_ports

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


# --- what the pod runs ------------------------------------------------------------------------------


def test_the_pods_probes_are_answered(tmp_path: Path) -> None:
    programs = {
        "vllm-startup": f'exec {sys.executable} -m vllm_startup "$@"',
        "vllm": f'exec {sys.executable} -m vllm_startup._demo --speed 5 vllm "$@"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    container = POD["spec"]["containers"][0]
    ports = {"8000": free_port(), "8001": free_port()}
    named = {port["name"]: ports[str(port["containerPort"])] for port in container["ports"]}
    command = [
        *with_ports(container["command"], ports),
        *container["args"],
        *("--port", str(named["http"])),
    ]

    def asked(probe: str) -> int:
        get = container[probe]["httpGet"]
        url = f"http://127.0.0.1:{named[get['port']]}{get['path']}"
        try:
            with urllib.request.urlopen(url, timeout=5) as found:
                status: int = found.status
                return status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def until(wanted: tuple[int, int, int]) -> None:
        end = time.monotonic() + 60
        while (asked("startupProbe"), asked("readinessProbe"), asked("livenessProbe")) != wanted:
            assert time.monotonic() < end
            time.sleep(0.1)

    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)
    try:
        until((503, 503, 200))
        until((200, 200, 200))
    finally:
        process.terminate()
        process.wait(30)
