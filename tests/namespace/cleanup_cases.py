"""Real processes that their server left: shown, ended, and nobody else touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from orphaned import Family, alive, family, titled

import vllm_startup
from vllm_startup import Cleanup
from vllm_startup._launching.end_tree import read_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells who was left")

ENGINE, WORKER = "VLLM::EngineCore_DP7", "VLLM::Worker_TP7"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
MIB = 2**20

Start = Callable[..., Family]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Family] = []

    def run(*children: tuple[str, str]) -> Family:
        started.append(family(*children))
        return started[-1]

    yield run
    for each in started:
        each.end()


@attrs.frozen
class Ran:
    status: int
    out: str
    err: str


def command(*words: str, **environ: str) -> Ran:
    line = [sys.executable, "-m", "vllm_startup", "cleanup", *words]
    done = subprocess.run(
        line, capture_output=True, text=True, env={**os.environ, **environ}, timeout=60, check=False
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def named(found: Cleanup, pids: tuple[int, ...]) -> dict[int, bool]:
    """Which of these were found, and whether they were ended."""
    return {process.pid: process.ended for process in found.processes if process.pid in pids}


def test_a_living_server_has_left_nothing(start: Start) -> None:
    server = start((ENGINE, titled(ENGINE)))
    found = vllm_startup.cleanup(kill=True)
    assert named(found, server.children) == {}
    assert alive(server.children[0])


def test_what_a_killed_server_leaves_is_shown_and_not_touched(start: Start) -> None:
    left = start((ENGINE, titled(ENGINE)), (WORKER, titled(WORKER))).orphan()
    found = vllm_startup.cleanup()
    assert named(found, left) == dict.fromkeys(left, False)
    assert not found.ok
    assert all(alive(pid) for pid in left)
    [engine] = [process for process in found.processes if process.pid == left[0]]
    assert (engine.name, engine.user) == (ENGINE, os.geteuid())
    assert 0 < engine.age_s < 60


def test_it_is_ended_when_that_is_asked_for(start: Start) -> None:
    living = start((ENGINE, titled(ENGINE)))
    left = start(
        (ENGINE, titled(ENGINE)), (WORKER, titled(WORKER, STUBBORN + "import time\ntime.sleep(600)"))
    ).orphan()
    found = vllm_startup.cleanup(kill=True, kill_after=0.3)
    assert named(found, left) == dict.fromkeys(left, True)
    assert found.ok
    assert not any(alive(pid) for pid in left)
    assert alive(living.children[0])
    assert vllm_startup.cleanup().processes == ()


def test_children_that_outlive_their_orphaned_parent_are_ended_too(start: Start, tmp_path: Path) -> None:
    """An engine that ends at once at SIGTERM leaves its workers to others, who are known all the same."""
    pids = tmp_path / "pids"
    engine = titled(
        ENGINE,
        "import os, signal, subprocess, sys, time\n"
        f"child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(pids)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)\n",
    )
    left = start((ENGINE, engine)).orphan()
    deadline = time.monotonic() + 10
    while not (pids.exists() and pids.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child = int(pids.read_text())
    found = vllm_startup.cleanup(kill=True, kill_after=0.3)
    assert named(found, (*left, child)) == {left[0]: True, child: True}
    assert not alive(child)


def test_a_pid_that_is_anothers_by_now_is_not_hit() -> None:
    """Identity is pid and start: the very end of it is in `send`, which is tested with the trees."""
    from vllm_startup._cleanup import _end
    from vllm_startup._orphans import Orphan

    bystander = subprocess.Popen(["sleep", "600"])
    try:
        process = read_process(bystander.pid)
        assert process is not None
        stale = process._replace(start=process.start - 1)
        assert _end([Orphan(process=stale, name=ENGINE, user=os.geteuid())], 0.1) == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_another_users_are_shown_and_left(start: Start) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    left = start((ENGINE, titled(ENGINE))).orphan()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        found = vllm_startup.cleanup(kill=True, kill_after=0.1)
        told = json.dumps([named(found, left), [warning.code for warning in found.warnings], found.ok])
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as file:
        told = json.load(file)
    # Whether pid 1 runs vLLM is not everybody's to see; where it is not, nothing is claimed.
    assert told in ([{str(left[0]): False}, ["other_users"], False], [{}, [], True])
    assert alive(left[0])


def test_a_socket_that_an_ended_engine_was_bound_to_is_removed(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "ipc"
    bound = f"import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind({str(path)!r})\n{STUBBORN}"
    start((ENGINE, titled(ENGINE, bound + "import time\ntime.sleep(600)\n"))).orphan()
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert vllm_startup.cleanup(kill=True, kill_after=0.3).ok
    assert not path.exists()


def test_misuse_is_told() -> None:
    with pytest.raises(ValueError, match="kill_after must be 0 or more"):
        vllm_startup.cleanup(kill=True, kill_after=-1)


def test_elsewhere_there_is_nothing_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(NotImplementedError, match="needs Linux's /proc"):
        vllm_startup.cleanup()


# --- the command ------------------------------------------------------------------------------------


def test_nothing_is_one_line() -> None:
    assert command() == Ran(0, "nothing is left of dead vLLM servers\n", "")


def test_what_is_left_is_a_table_and_status_1(start: Start) -> None:
    left = start((ENGINE, titled(ENGINE)), (WORKER, titled(WORKER))).orphan()
    ran = command()
    lines = ran.out.splitlines()
    assert (ran.status, ran.err) == (1, "")
    assert lines[0] == "2 processes of dead vLLM servers are left"
    assert sorted(line.split()[:2] for line in lines[2:4]) == sorted(
        [[str(left[0]), ENGINE], [str(left[1]), WORKER]]
    )
    assert lines[-1] == "  vllm-startup cleanup --kill ends them"


def test_ending_them_is_status_0(start: Start) -> None:
    left = start((ENGINE, titled(ENGINE))).orphan()
    ran = command("--kill")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith("1 process of dead vLLM servers was ended\n")
    assert not alive(left[0])


@pytest.fixture
def gpu(tmp_path: Path, nvml_library: Path) -> Callable[..., dict[str, str]]:
    """Shows one GPU, and who holds how much of it; the environment to look with."""
    state = tmp_path / "machine"

    def show(used_mib: int, *held: tuple[int, int]) -> dict[str, str]:
        lines = [f"gpu GPU-0 {97_887 * MIB} {used_mib * MIB} H200"]
        lines += [f"process GPU-0 {pid} {size * MIB}" for pid, size in held]
        new = state.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in lines))
        new.rename(state)
        return {"LD_LIBRARY_PATH": str(nvml_library), "NVML_STUB": str(state)}

    return show


def test_memory_that_comes_back_is_shown(start: Start, gpu: Callable[..., dict[str, str]]) -> None:
    [engine] = start((ENGINE, titled(ENGINE))).orphan()
    environ = gpu(73_731, (engine, 73_000), (1, 100))
    assert f"{engine}  {ENGINE}  up " in command(**environ).out
    assert "holds 71.29 GiB of GPU 0\n" in command(**environ).out
    assert "  GPU 0: 72.00 of 95.09 GiB in use\n" in command(**environ).out
    line = [sys.executable, "-m", "vllm_startup", "cleanup", "--kill"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env={**os.environ, **environ}) as process:
        deadline = time.monotonic() + 30
        while alive(engine):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.3)  # a driver takes its time
        gpu(731, (1, 100))
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "  GPU 0: 72.00 -> 0.71 of 95.09 GiB in use\n" in out


def test_preflight_names_them_as_who_holds_the_memory(
    start: Start, gpu: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    [engine] = start((ENGINE, titled(ENGINE))).orphan()
    program = tmp_path / "vllm"
    program.write_text("")
    program.chmod(0o755)
    line = [sys.executable, "-m", "vllm_startup", "preflight", "--json", "--", str(program), "serve", "m"]
    environ = {**os.environ, **gpu(73_731, (engine, 73_000))}
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, env=environ, check=False)
    [cause] = json.loads(done.stdout)["causes"]
    assert cause["kind"] == "gpu_memory_not_free"
    assert cause["evidence"][1]["text"].startswith(f"process {engine} ({ENGINE} ")
    assert cause["evidence"][1]["text"].endswith(" holds 71.29 GiB")
    assert cause["hint"].startswith(
        "vllm-startup cleanup shows engines of dead servers, and ends them with --kill; or"
    )


def test_memory_that_stays_is_shown_too(start: Start, gpu: Callable[..., dict[str, str]]) -> None:
    [engine] = start((ENGINE, titled(ENGINE))).orphan()
    ran = command("--kill", "--json", **gpu(73_731, (engine, 73_000)))
    report = json.loads(ran.out)
    assert report["gpus"] == [
        {
            "index": 0,
            "uuid": "GPU-0",
            "before_bytes": 73_731 * MIB,
            "total_bytes": 97_887 * MIB - 512 * MIB,
            "after_bytes": 73_731 * MIB,
        }
    ]
    assert report["ok"] is True
    assert report["processes"][0]["ended"] is True


def test_a_driver_that_fails_does_not_keep_it_from_its_work(
    start: Start, gpu: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    [engine] = start((ENGINE, titled(ENGINE))).orphan()
    environ = gpu(0)
    (tmp_path / "machine").write_text("fail nvmlInitWithFlags 999\n")
    ran = command("--kill", **environ)
    assert ran.status == 0
    assert "warning: who holds GPU memory is not known: NVML failed" in ran.out
    assert not alive(engine)


def test_signals_are_not_sent_to_who_only_looks(start: Start) -> None:
    left = start((ENGINE, titled(ENGINE))).orphan()
    for _ in range(3):
        assert command("--json").status == 1
    assert alive(left[0])
