"""The GPU probe through the real binding, on a library that a test drives (nvml_stub.c)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stub is found by LD_LIBRARY_PATH")

HERE = Path(__file__).parent
MIB = 2**20
TOTAL = 97_887 * MIB


class Machine:
    """The machine that the stub shows, and a child process that looks at it."""

    def __init__(self, folder: Path, library: Path | None) -> None:
        self._state = folder / "machine"
        self.show()
        path = {} if library is None else {"LD_LIBRARY_PATH": str(library)}
        self.process = subprocess.Popen(
            [sys.executable, HERE / "nvml_child.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **path, "NVML_STUB": str(self._state)},
        )

    def show(self, *lines: str) -> None:
        new = self._state.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in lines))
        new.rename(self._state)

    def ask(self, do: str, **command: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **command}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def sample(self, now: float = 0.0, **command: Any) -> Any:
        return self.ask("sample", now=now, **command)

    def used_mib(self, now: float = 0.0, **command: Any) -> dict[str, int]:
        """Take a sample that must hold readings of memory only."""
        [[kind, reading]] = self.sample(now, **command)
        assert kind == "GpuMemory"
        return {gpu["uuid"]: gpu["used_bytes"] // MIB for gpu in reading["gpus"]}

    def calls(self) -> str:
        """Return the initialisations (I) and shutdowns (S) so far."""
        file = self._state.with_name("machine.calls")
        return file.read_text() if file.exists() else ""

    def await_no_thread(self) -> None:
        _until(lambda: self.ask("threads") == ["MainThread"])


@pytest.fixture
def machine(tmp_path: Path, nvml_library: Path) -> Iterator[Machine]:
    yield from _running(Machine(tmp_path, nvml_library))


@pytest.fixture
def bare_machine(tmp_path: Path) -> Iterator[Machine]:
    yield from _running(Machine(tmp_path, None))


def _running(machine: Machine) -> Iterator[Machine]:
    with machine.process as process:
        yield machine
        assert process.stdin is not None
        process.stdin.close()  # a stuck driver does not keep it
        try:
            assert process.wait(timeout=5) == 0
        finally:
            process.kill()


def gpu(index: int, used_mib: int = 0, model: str = "NVIDIA H200") -> str:
    return f"gpu GPU-{index:08d}-aaaa {TOTAL} {used_mib * MIB} {model}"


def test_reads_eight_gpus_and_follows_their_memory(machine: Machine) -> None:
    machine.show(*(gpu(i, 4) for i in range(8)))
    machine.ask("create")
    [[kind, reading]] = machine.sample(0)
    assert kind == "GpuMemory"
    assert reading["gpus"][7] == {
        "index": 7,
        "uuid": "GPU-00000007-aaaa",
        "used_bytes": 4 * MIB,
        "total_bytes": TOTAL,
        "tree_bytes": None,
    }
    machine.show(*(gpu(i, 73_731) for i in range(8)))
    assert machine.used_mib(1) == {f"GPU-{i:08d}-aaaa": 73_731 for i in range(8)}
    machine.show(*(gpu(i, 4) for i in range(8)))
    assert machine.used_mib(2) == {f"GPU-{i:08d}-aaaa": 4 for i in range(8)}


def test_initialises_once_for_several_probes_and_shuts_down_after_the_last(machine: Machine) -> None:
    machine.show(gpu(0))
    for probe in range(3):
        machine.ask("create")
        machine.sample(probe=probe)
    assert machine.calls() == "I"
    for probe in range(3):
        machine.ask("close", probe=probe)
    assert machine.calls() == "IS"
    machine.await_no_thread()
    machine.ask("create")
    assert machine.used_mib(probe=3) == {"GPU-00000000-aaaa": 0}
    assert machine.calls() == "ISI"


def test_a_forked_child_does_not_shut_down_what_its_parent_initialised(machine: Machine) -> None:
    machine.show(gpu(0, 7))
    machine.ask("create")
    machine.sample(0)
    assert machine.ask("fork") == 0
    assert machine.calls() == "I"
    assert machine.used_mib(1) == {"GPU-00000000-aaaa": 7}


@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetMemoryInfo_v2"])
def test_a_call_that_hangs_stops_neither_the_loop_nor_the_way_out(machine: Machine, function: str) -> None:
    machine.show(gpu(0), f"hang {function}")
    machine.ask("create")
    answer = machine.sample(0, limit_s=0.3)
    assert answer["error"] == "TimeoutError"
    assert answer["ticks"] >= 10  # 30 where the machine is idle
    assert machine.sample(1)["error"] == "StillRunningError"
    assert machine.ask("close")["took_s"] < 0.5  # that the process then ends is what the fixture asserts


def test_a_call_that_hung_and_returned_is_read_again(machine: Machine) -> None:
    machine.show(gpu(0), "hang nvmlDeviceGetMemoryInfo_v2")
    machine.ask("create", gpus=[0, 5])
    assert machine.sample(0, limit_s=0.05)["error"] == "TimeoutError"
    machine.show(gpu(0, 9))
    time.sleep(0.05)
    note, memory = machine.sample(1)
    assert note[1]["code"] == "gpu_not_found"  # said by the call that nobody awaited
    assert memory[1]["gpus"][0]["used_bytes"] == 9 * MIB


def test_a_probe_closed_during_a_hang_releases_the_driver_when_it_answers(machine: Machine) -> None:
    machine.show(gpu(0), "hang nvmlDeviceGetMemoryInfo_v2")
    machine.ask("create")
    machine.sample(0, limit_s=0.05)
    machine.ask("close")
    machine.show(gpu(0))
    _until(lambda: machine.calls() == "IS")
    machine.await_no_thread()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (999, "Unknown Error (code 999)"),
        (9, "Driver Not Loaded (code 9)"),
        (15, "GPU is lost (code 15)"),
        (18, "version mismatch. (code 18); the driver was replaced under running programs"),
        (10, "Timeout (code 10)"),
    ],
)
def test_a_driver_that_vanishes_is_told_and_found_again(machine: Machine, code: int, words: str) -> None:
    machine.show(gpu(0), gpu(1))
    machine.ask("create")
    machine.used_mib(0)
    machine.show(gpu(0), gpu(1), f"fail nvmlDeviceGetMemoryInfo_v2 {code}", f"fail nvmlInitWithFlags {code}")
    told = machine.sample(10)
    assert told["error"] == "DriverError"
    assert words in told["text"]
    assert machine.sample(10.9) == told  # not asked again yet
    assert machine.sample(11)["error"] == "DriverError"
    machine.show(gpu(0, 3), gpu(1, 4))
    assert machine.sample(12.9)["error"] == "DriverError"  # the second wait is 2 s
    assert machine.used_mib(13) == {"GPU-00000000-aaaa": 3, "GPU-00000001-aaaa": 4}
    assert machine.calls() == "ISI"


def test_one_gpu_that_stays_lost_is_told_and_the_others_are_watched(machine: Machine) -> None:
    machine.show(gpu(0), gpu(1))
    machine.ask("create")
    machine.used_mib(0)
    machine.show(gpu(0), gpu(1), "fail nvmlDeviceGetMemoryInfo_v2 15 GPU-00000001-aaaa")
    assert machine.sample(10)["error"] == "DriverError"
    note, memory = machine.sample(11)
    assert note == [
        "ProbeNote",
        {
            "code": "gpu_lost",
            "text": "GPU 1 (GPU-00000001-aaaa) was lost: the driver could not reach it",
            "awaits": False,
        },
    ]
    assert [sample["index"] for sample in memory[1]["gpus"]] == [0]
    assert machine.used_mib(12) == {"GPU-00000000-aaaa": 0}


def test_gpus_keep_their_numbers_when_one_falls_off_the_bus(machine: Machine) -> None:
    machine.show(gpu(0), gpu(1), gpu(2, 5))
    machine.ask("create", gpus=[1, 2])
    machine.used_mib(0)
    machine.show(gpu(0), gpu(2, 5), "fail nvmlDeviceGetMemoryInfo_v2 999")
    machine.sample(1)
    machine.show(gpu(0), gpu(2, 5))
    note, memory = machine.sample(2)
    assert note[1]["code"] == "gpu_lost"
    assert [(s["index"], s["uuid"]) for s in memory[1]["gpus"]] == [(2, "GPU-00000002-aaaa")]


def test_unified_memory_is_told_once_and_never_read_as_zero(machine: Machine) -> None:
    failing = ["fail nvmlDeviceGetMemoryInfo 3", "fail nvmlDeviceGetMemoryInfo_v2 3"]
    machine.show(gpu(0, model="NVIDIA GB10"), *failing)
    machine.ask("create")
    assert machine.sample(0) == [
        [
            "ProbeNote",
            {
                "code": "gpu_memory_unsupported",
                "text": "GPU 0 (GPU-00000000-aaaa) does not tell its memory (unified with the host's)",
                "awaits": False,
            },
        ]
    ]
    assert machine.sample(1)["error"] == "StopAsyncIteration"
    assert machine.calls() == "IS"
    machine.await_no_thread()


@pytest.mark.parametrize("code", [13, 25, 3])
def test_a_driver_without_the_newer_memory_call_is_asked_by_the_older(machine: Machine, code: int) -> None:
    machine.show(gpu(0, 100), f"fail nvmlDeviceGetMemoryInfo_v2 {code}")
    machine.ask("create")
    assert machine.used_mib() == {"GPU-00000000-aaaa": 612}  # with the driver's own 512


def test_a_mig_slice_is_read_by_its_uuid(machine: Machine) -> None:
    parent = [gpu(0, 900), gpu(1, 901), "fail nvmlDeviceGetMemoryInfo_v2 4 GPU-00000001-aaaa"]
    slices = [
        f"mig MIG-{name} GPU-00000001-aaaa {9_856 * MIB} {used * MIB}" for name, used in (("a", 5), ("b", 6))
    ]
    machine.show(*parent, *slices)
    machine.ask("create", gpus=["MIG-b"])
    [[_, reading]] = machine.sample(0)
    assert reading["gpus"] == [
        {
            "index": 1,
            "uuid": "MIG-b",
            "used_bytes": 6 * MIB,
            "total_bytes": 9_856 * MIB,
            "tree_bytes": None,
        }
    ]
    machine.ask("create", environ={"CUDA_VISIBLE_DEVICES": "MIG-a"})
    assert machine.used_mib(probe=1) == {"MIG-a": 5}


def test_a_mig_parent_that_is_not_ours_to_read_is_told_once(machine: Machine) -> None:
    machine.show(gpu(0, 900), gpu(1, 901), "fail nvmlDeviceGetMemoryInfo_v2 4 GPU-00000001-aaaa")
    machine.ask("create")
    note, memory = machine.sample(0)
    assert note[1] == {
        "code": "gpu_memory_not_permitted",
        "text": "GPU 1 (GPU-00000001-aaaa) does not let us read its memory; "
        "where MIG is on, name the slice's UUID in gpus=",
        "awaits": False,
    }
    assert [sample["index"] for sample in memory[1]["gpus"]] == [0]
    assert machine.used_mib(1) == {"GPU-00000000-aaaa": 900}


def test_tells_what_the_tree_holds_where_the_driver_names_its_processes(machine: Machine) -> None:
    owners = [f"process GPU-00000000-aaaa 71 {3 * MIB}", f"process GPU-00000000-aaaa 72 {4 * MIB}"]
    machine.show(gpu(0, 50), gpu(1, 50), *owners, f"process GPU-00000000-aaaa 99 {9 * MIB}")
    machine.ask("create", tree=[71, 72, 73])
    [[_, reading]] = machine.sample(0)
    assert [sample["tree_bytes"] for sample in reading["gpus"]] == [7 * MIB, 0]
    machine.show(gpu(0, 50), gpu(1, 50), "process GPU-00000000-aaaa 71 -1")  # as under vGPU
    [[_, reading]] = machine.sample(1)
    assert [sample["tree_bytes"] for sample in reading["gpus"]] == [None, 0]
    machine.show(gpu(0, 50), gpu(1, 50), f"process GPU-00000000-aaaa 4242 {9 * MIB}")  # the host's pids
    [[_, reading]] = machine.sample(2)
    assert [sample["tree_bytes"] for sample in reading["gpus"]] == [None, None]


def test_says_which_gpus_there_are_when_one_is_asked_for_that_is_not(machine: Machine) -> None:
    machine.show(gpu(0), gpu(1))
    machine.ask("create", gpus=[4])
    assert machine.sample(0) == [
        [
            "ProbeNote",
            {
                "code": "gpu_not_found",
                "text": "gpus names 4, which is no single GPU here; there are: "
                "0 (GPU-00000000-aaaa), 1 (GPU-00000001-aaaa)",
                "awaits": False,
            },
        ]
    ]
    assert machine.sample(1)["error"] == "StopAsyncIteration"


def test_without_a_loaded_driver_says_so_once_and_ends(machine: Machine) -> None:
    machine.show("fail nvmlInitWithFlags 9")
    machine.ask("create")
    [[kind, note]] = machine.sample(0)
    assert (kind, note["code"]) == ("ProbeNote", "nvml_unavailable")
    assert "Driver Not Loaded" in note["text"]
    assert machine.sample(1)["error"] == "StopAsyncIteration"
    machine.await_no_thread()


def test_a_mismatched_driver_at_first_is_a_failure_that_may_pass(machine: Machine) -> None:
    machine.show(gpu(0), "fail nvmlInitWithFlags 18")
    machine.ask("create")
    assert machine.sample(0)["error"] == "DriverError"
    machine.show(gpu(0, 2))
    assert machine.used_mib(1) == {"GPU-00000000-aaaa": 2}


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has the real library")
def test_without_the_library_says_so_once_and_ends(bare_machine: Machine) -> None:
    bare_machine.ask("create")
    [[kind, note]] = bare_machine.sample(0)
    assert (kind, note["code"]) == ("ProbeNote", "nvml_unavailable")
    assert "libnvidia-ml.so.1" in note["text"]
    assert bare_machine.sample(1)["error"] == "StopAsyncIteration"
    bare_machine.await_no_thread()
