"""A container's processes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vllm_startup._readings import ProcessExited, ProcessSample, ProcessTree
from vllm_startup.probes._system import this_system
from vllm_startup.targets._containers.local import (
    LocalProcesses,
    Pids,
    file_environment,
    gpu_environment,
    granted_gpus,
    is_of_container,
)
from vllm_startup.targets._containers.state import ContainerState, Life
from vllm_startup.targets._following import MainProcess

linux = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")


def status(proc: Path, pid: int, numbers: str) -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    (folder / "status").write_text(f"Name:\tpython\nPid:\t{pid}\nNSpid:\t{numbers}\nThreads:\t1\n")


def sample(pid: int, ppid: int, started_at: float = 1.0) -> ProcessSample:
    return ProcessSample(pid=pid, ppid=ppid, started_at=started_at, name="python", cpu_s=0.0)


def test_processes_have_the_numbers_of_the_innermost_namespace(tmp_path: Path) -> None:
    status(tmp_path, 5001, "5001\t1")
    status(tmp_path, 5002, "5002\t77\t12")
    pids = Pids(proc=tmp_path)
    seen = pids.translated(ProcessTree(root=5001, processes=(sample(5001, 900), sample(5002, 5001))))
    assert seen == ProcessTree(root=1, processes=(sample(1, 0), sample(12, 1)))
    (tmp_path / "5002" / "status").unlink()
    gone = pids.translated(ProcessExited(pid=5002, name="python", signal=9))
    assert gone == ProcessExited(pid=12, name="python", signal=9)


def test_a_number_that_was_another_processes_is_looked_up_again(tmp_path: Path) -> None:
    status(tmp_path, 5001, "5001\t8")
    pids = Pids(proc=tmp_path)
    assert pids.inside(5001, 1.0) == 8
    status(tmp_path, 5001, "5001\t30")
    assert pids.inside(5001, 1.0) == 8
    assert pids.inside(5001, 2.0) == 30


def test_where_nobody_tells_a_process_keeps_its_number(tmp_path: Path) -> None:
    assert Pids(proc=tmp_path).inside(5001) == 5001


@linux
def test_a_process_that_ends_is_told_from_one_that_lives() -> None:
    pids = Pids()
    assert not pids.ends(os.getpid())
    child = subprocess.Popen(["true"])
    deadline = time.monotonic() + 5
    while not pids.ends(child.pid):  # a zombie, as nobody has waited for it
        assert time.monotonic() < deadline
    child.wait()
    assert pids.ends(child.pid)


@linux
def test_a_process_of_this_machine_is_no_containers(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "30"])
    try:
        now = time.time()
        assert not is_of_container(child.pid, "4f1c" * 16, now, shared=False)  # no pid 1 of anything
        assert is_of_container(child.pid, "4f1c" * 16, now, shared=True)
        assert not is_of_container(child.pid, "4f1c" * 16, now - 3600, shared=True)
        (tmp_path / str(child.pid)).mkdir()
        group = f"0::/system.slice/docker-{'4f1c' * 16}.scope\n"
        (tmp_path / str(child.pid) / "cgroup").write_text(group)
        assert is_of_container(child.pid, "4f1c" * 16, None, shared=False, proc=tmp_path)
    finally:
        child.kill()
        child.wait()
    assert not is_of_container(child.pid, "4f1c" * 16, now, shared=True)


@linux
def test_its_main_process_is_known_before_its_tree_is_looked_at() -> None:
    """Else nobody could tell whose socket answers, and a stranger's answer would count."""
    ours = os.getpid()
    began = this_system().stat(ours)
    assert began is not None
    life = Life("vllm", watched=lambda: False)
    local = LocalProcesses(MainProcess(), life, on_exit=lambda: None)
    assert list(local.tree_pids()) == []
    for pid, shared, expected in ((ours, True, [ours]), (ours, False, [])):
        state = ContainerState(
            id="4f1c" * 16,
            name="vllm",
            status="running",
            pid=pid,
            started="now",
            started_at=began.started_at,
            shares_pids=shared,
        )
        life.look(state, wall=time.time())
        assert list(local.tree_pids()) == expected


@pytest.mark.parametrize(
    ("inspected", "gpus"),
    [
        ({}, None),
        ({"HostConfig": {"DeviceRequests": [{"Count": -1}]}}, None),
        ({"HostConfig": {"DeviceRequests": [{"Count": 2}]}}, ("0", "1")),
        ({"HostConfig": {"DeviceRequests": [{"Count": 0, "DeviceIDs": ["2", "GPU-5"]}]}}, ("2", "GPU-5")),
        (
            {"HostConfig": {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=3"]}]}},
            ("3",),
        ),
        ({"HostConfig": {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]}}, None),
        ({"Config": {"Env": ["NVIDIA_VISIBLE_DEVICES=1, 4"]}}, ("1", "4")),
        ({"Config": {"Env": ["NVIDIA_VISIBLE_DEVICES=all"]}}, None),
    ],
)
def test_gpus_are_those_that_the_engine_gave(
    inspected: dict[str, object], gpus: tuple[str, ...] | None
) -> None:
    assert granted_gpus(inspected) == gpus


@pytest.mark.parametrize(
    ("environment", "visible"),
    [
        ({"A": "b"}, "2,5"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "5"),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, "5,2"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5"}, "GPU-5"),
        ({"CUDA_VISIBLE_DEVICES": "7"}, "7"),
    ],
)
def test_in_a_container_gpus_are_counted_from_the_first_that_was_given(
    environment: dict[str, str], visible: str
) -> None:
    assert gpu_environment(environment, ("2", "5"))["CUDA_VISIBLE_DEVICES"] == visible
    assert gpu_environment(environment, None) == environment


def test_its_files_lie_where_this_machine_reaches_them() -> None:
    seen = file_environment({"HF_HOME": "/cache/hf", "USER": "vllm"}, "/proc/7/root")
    assert seen["HF_HOME"] == "/proc/7/root/cache/hf"
    assert seen["HOME"] == "/proc/7/root/root"
    assert seen["TMPDIR"] == "/proc/7/root/tmp"
    assert seen["USER"] == "vllm"
    assert file_environment({}, "/proc/7/root") == {}  # not ours to read: its probe says so
