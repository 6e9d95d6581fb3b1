"""The bring-up that a user lived through, on real parts: a systemd unit on a GPU box that is reached by SSH.

A reinstall left flashinfer-cubin 0.6.3 beside flashinfer 0.6.4, and the service crashed. After the fix,
the journal still holds that; the new start logs little, memory rises to 73,731 of 97,887 MiB on all of
eight GPUs and stands still, then nothing is said while the workers compute, and ``/health`` answers at
last. Here that takes a minute and a quarter. The box is a systemd and an sshd of the tests' own with a
network of their own; its ``nvidia-smi`` is a script. The watcher comes from another network namespace.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sshd as server
from sshd import Sshd
from systemd_sandbox import Sandbox, python

pytestmark = pytest.mark.slow

GPUS = 8
BASELINE, LOADED, TOTAL = 512, 73_731, 97_887
EARLIER = 70.8 * 1024  # MiB a GPU, in earlier good runs of this model
MIB = 1 << 20
SILENT_S = 66.0  # memory has to stand still for a minute before that means anything
STALL_S = 40

NVIDIA_SMI = """#!/bin/sh
case $1 in --query-gpu=*)
    for i in 0 1 2 3 4 5 6 7; do echo "$i, GPU-$i, NVIDIA RTX PRO 6000, $(cat {used}), 97887"; done
esac
"""

CRASH = """
import sys, time
def say(name, text): print(f"({name} pid=7) {text}", flush=True)
say("APIServer", "INFO 03-09 23:12:09 [utils.py:302] version 0.17.1")
say("APIServer", "INFO 03-09 23:12:10 [model.py:533] Resolved architecture: DeepseekV3")
say("EngineCore_DP0", "INFO 03-09 23:12:31 [core.py:95] Initializing a V1 LLM engine (v0.17.1)")
for text in (
    "WorkerProc failed to start.",
    "Traceback (most recent call last):",
    '  File "/opt/vllm/multiproc_executor.py", line 920, in worker_main',
    "    worker = WorkerProc(*args, **kwargs)",
    "RuntimeError: flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4). Please install"
    " the same version of both packages. Set FLASHINFER_DISABLE_VERSION_CHECK=1 to bypass this check.",
):
    say("Worker_TP3", f"ERROR 03-09 23:12:58 [core.py:1510] {text}")
say("EngineCore_DP0", "ERROR 03-09 23:13:01 [core.py:1510] EngineCore failed to start.")
print("Traceback (most recent call last):")
print('  File "/opt/vllm/bin/vllm", line 6, in <module>')
print("    sys.exit(main())")
print("RuntimeError: Engine core initialization failed. See root cause above.", flush=True)
sys.exit(1)
"""

# A server that says nothing: its processes have vLLM's titles, its memory is what nvidia-smi shows, and
# its workers use the processor while they compile.
SILENT = """
import http.server, multiprocessing, os, sys, threading, time
folder, port, silent_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
def title(name):
    open("/proc/self/comm", "w").write(name[:15])
    libc = __import__("ctypes").CDLL(None)
    libc.prctl(15, name[:15].encode(), 0, 0, 0)
def memory(mib):
    with open(folder + "/used.new", "w") as file: file.write(str(mib))
    os.replace(folder + "/used.new", folder + "/used")
def worker(rank):
    title(f"VLLM::Worker_TP{rank}")
    time.sleep(14)
    until = time.monotonic() + silent_s
    while time.monotonic() < until:
        sum(range(20_000))
        time.sleep(0.004)
    time.sleep(600)
def engine():
    title("VLLM::EngineCore")
    for rank in range(2): multiprocessing.Process(target=worker, args=(rank,), daemon=True).start()
    time.sleep(600)
multiprocessing.set_start_method("fork")
print("WARNING 03-09 23:38:00 [system_utils.py:255] Found ulimit of 20000 and failed to automatically"
      " increase with error current limit exceeds maximum limit.", flush=True)
time.sleep(2)
multiprocessing.Process(target=engine).start()
time.sleep(4)
for step in range(8):
    memory(int(512 + (73_731 - 512) * (step + 1) / 8))
    time.sleep(1)
time.sleep(2 + silent_s)
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Healthy).serve_forever()
"""


class Box(Sshd):
    """The GPU box: sshd inside a systemd's namespaces, on a network of its own."""

    def __init__(self, sandbox: Sandbox, network: str, address: str) -> None:
        self.sandbox = sandbox
        self.network = network
        super().__init__(Path(tempfile.mkdtemp(prefix="sshd-", dir=sandbox.folder)), address=address)
        sandbox.run("mkdir", "-p", "/run/sshd")
        self.used = self.folder / "used"
        self.used.write_text(str(BASELINE))
        self.program("nvidia-smi", NVIDIA_SMI.format(used=self.used))

    def command(self, *argv: str) -> list[str]:
        """What to run so that a command runs there."""
        return self.sandbox.command(*argv)


@pytest.fixture
def box(systemd: Sandbox) -> Iterator[Box]:
    """The GPU box."""
    if server.MISSING or not server.have_networks():
        pytest.skip("needs OpenSSH and network namespaces")
    with server.network(f"vs{os.getpid()}") as (name, address):
        made = Box(systemd, name, address)
        made.start()
        try:
            yield made
        finally:
            made.stop()
            systemd.run("systemctl", "stop", "vllm.service", check=False)
            systemd.remove("vllm.service")


def client(box: Box, folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run the command line on another host: in a network namespace that reaches the box by its address."""
    return subprocess.run(
        ["ip", "netns", "exec", box.network, *python("-m", "vllm_startup", *argv)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PATH": f"{box.client_bin()}:{os.environ['PATH']}", "TMPDIR": str(folder)},
    )


def service(box: Box, script: Path, *argv: str) -> str:
    words = " ".join([sys.executable, str(script), *argv])
    return f"ExecStart={words}\nKillMode=control-group\nTimeoutStopSec=2\n"


def test_the_users_incident(box: Box, short_path: Path, tmp_path: Path) -> None:
    crash, silent = box.folder / "crash.py", box.folder / "silent.py"
    crash.write_text(CRASH)
    silent.write_text(SILENT)
    box.sandbox.unit("vllm.service", service(box, crash), unit="Description=vLLM")
    box.sandbox.run("systemctl", "start", "vllm.service", check=False)
    state = ""
    until = time.monotonic() + 20
    while state != "failed":
        assert time.monotonic() < until
        state = box.sandbox.run("systemctl", "show", "-P", "ActiveState", "vllm.service").strip()
        time.sleep(0.1)

    # What is there before the fix.
    done = client(box, short_path, "diagnose", "--ssh", "gpubox", "--unit", "vllm", "--json")
    assert done.returncode == 1, done.stderr
    assert_is_the_mismatch(json.loads(done.stdout)["cause"])

    # The fix, and the restart: the long silent load.
    port = "8000"
    box.sandbox.unit(
        "vllm.service", service(box, silent, str(box.folder), port, str(SILENT_S)), unit="Description=vLLM"
    )
    box.sandbox.run("systemctl", "start", "vllm.service")
    baseline = tmp_path / "earlier.json"
    baseline.write_text(json.dumps(earlier()))
    events = tmp_path / "events.jsonl"
    done = client(
        box, short_path, "wait", "--ssh", "gpubox", "--unit", "vllm", "--json", "--events", str(events),
        "--stall", str(STALL_S), "--timeout", "200", "--baseline", str(baseline),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    told = [json.loads(line) for line in events.read_text().splitlines()]

    first, second = report["attempts"]
    assert first["outcome"] == "failed"
    assert_is_the_mismatch(first["cause"])
    assert first["exit"] == {"code": 1, "signal": None}
    assert (second["outcome"], report["outcome"], report["cause"]) == ("ready", "ready", None)
    assert report["url"] == "http://127.0.0.1:8000"

    phases = {span["phase"]: span for span in report["phases"]}
    assert list(phases) == ["launching", "configuring", "initializing", "loading_weights", "compiling",
                            "starting_server", "ready"]  # fmt: skip
    because = phases["compiling"]["because"][0]["text"]
    assert "memory stands still, the workers compute" in because
    assert "8 GPUs at 73,731 of 97,887 MiB, evenly, near its earlier footprint" in because
    # Dated to when it began, although it was taken for sure a minute later.
    assert 10 <= phases["compiling"]["started_s"] <= 25
    assert {gpu["baseline_bytes"] // MIB for gpu in report["gpus"]} == {BASELINE}
    assert {gpu["used_bytes"] // MIB for gpu in report["gpus"]} == {LOADED}
    # Longer without a word than the limit: what computes is not stalled.
    assert report["ready_s"] - phases["compiling"]["started_s"] > STALL_S
    assert [event for event in told if event["event"] in ("cause_found", "probe_broken")] == []
    assert report["warnings"] == []
    assert report["disputed"] == []
    assert list(short_path.iterdir()) == []  # of the connection nothing is left


def assert_is_the_mismatch(cause: dict[str, Any]) -> None:
    assert cause["kind"] == "dependency_version_mismatch"
    assert cause["fields"] == {
        "package": "flashinfer-cubin",
        "version": "0.6.3",
        "other": "flashinfer",
        "other_version": "0.6.4",
    }
    assert "pip install flashinfer-cubin==0.6.4" in cause["hint"]


def test_memory_that_falls_back_means_that_it_died(box: Box, short_path: Path) -> None:
    silent = box.folder / "silent.py"
    silent.write_text(SILENT)
    box.sandbox.unit("vllm.service", service(box, silent, str(box.folder), "8001", "600"))
    box.sandbox.run("systemctl", "start", "vllm.service")
    pid = box.sandbox.run("systemctl", "show", "-P", "MainPID", "vllm.service").strip()
    killer = subprocess.Popen(
        ["sh", "-c", f"sleep 14; {' '.join(box.command('kill', '-9', pid))}; echo {BASELINE} >{box.used}"]
    )
    done = client(box, short_path, "wait", "--ssh", "gpubox", "--unit", "vllm", "--json", "--timeout", "120")
    killer.wait()
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["cause"]["kind"] == "process_killed"
    assert report["cause"]["fields"]["signal"] == 9
    assert report["phase"] == "loading_weights"


def earlier() -> dict[str, Any]:
    """The report of an earlier good run, as far as it matters here."""
    return {
        "gpus": [{"uuid": f"GPU-{i}", "used_bytes": int(EARLIER * MIB)} for i in range(GPUS)],
        "phases": [],
    }
