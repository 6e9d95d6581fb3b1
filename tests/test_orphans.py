"""Who was left by a dead server: vLLM's own processes alone, and none that anybody living answers for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from vllm_startup._launching.end_tree import Process
from vllm_startup._orphans import UNTITLED, Seen, orphans

SPAWNED = (
    "/v/bin/python3",
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main()",
    "--multiprocessing-fork",
)
VLLM = b"7f00 r-xp 0 00:00 0 /v/lib/python3.12/site-packages/vllm/_C.abi3.so\n"
TORCH = b"7f00 r-xp 0 00:00 0 /opt/vllm/lib/python3.12/site-packages/torch/lib/libtorch.so\n"


class Fake(Seen):
    """Files of ``/proc`` that a test writes."""

    def __init__(self, files: Mapping[tuple[int, str], bytes]) -> None:
        super().__init__()
        self._files = files

    def _read(self, pid: int, name: str) -> bytes | None:
        return self._files.get((pid, name))


class Machine:
    """Processes as a test makes them up."""

    def __init__(self) -> None:
        self.table: dict[int, Process] = {}
        self.files: dict[tuple[int, str], bytes] = {}

    def add(
        self,
        pid: int,
        parent: int,
        words: Iterable[str],
        *,
        name: str | None = None,
        maps: bytes | None = b"",
        zombie: bool = False,
        inner_pid: int | None = None,
    ) -> None:
        arguments = tuple(words)
        program = (name or arguments[0].rpartition("/")[2])[:15]
        self.table[pid] = Process(
            pid=pid, start=pid * 10, parent=parent, session=pid, zombie=zombie, name=program
        )
        self.files[pid, "cmdline"] = "\0".join((*arguments, "")).encode()
        inner = "" if inner_pid is None else f"\t{inner_pid}"
        self.files[pid, "status"] = f"Name:\tx\nUid:\t1000\t1001\t1000\t1000\nNSpid:\t{pid}{inner}\n".encode()
        if maps is not None:
            self.files[pid, "maps"] = maps

    def orphans(self) -> list[tuple[int, str]]:
        return [(one.pid, one.name) for one in orphans(self.table, seen=Fake(self.files))]


@pytest.fixture
def machine() -> Machine:
    found = Machine()
    found.add(1, 0, ["/sbin/init"], name="systemd")
    return found


@pytest.mark.parametrize(
    "title",
    [
        "VLLM::EngineCore",
        "VLLM::EngineCore_DP3",
        "VLLM::Worker_TP0",
        "VLLM::APIServer_1",
        "VLLM::DPCoordinator",
    ],
)
def test_a_process_of_vllms_that_init_adopted_is_left_over(machine: Machine, title: str) -> None:
    machine.add(50, 1, [title])
    assert machine.orphans() == [(50, title)]


def test_whose_it_is_and_who_it_is_are_told(machine: Machine) -> None:
    machine.add(50, 1, ["VLLM::EngineCore"])
    [found] = orphans(machine.table, seen=Fake(machine.files))
    assert (found.user, found.process.start) == (1001, 500)


def test_all_that_descends_from_it_goes_with_it(machine: Machine) -> None:
    machine.add(50, 1, ["VLLM::EngineCore"])
    machine.add(52, 50, ["VLLM::Worker_TP1"])
    machine.add(51, 50, ["VLLM::Worker_TP0"])
    machine.add(53, 51, ["/usr/local/cuda/bin/nvcc", "-c", "x.cu"])
    machine.add(54, 50, ["sh"], zombie=True)
    machine.add(60, 1, ["bash"])
    assert machine.orphans() == [
        (50, "VLLM::EngineCore"),
        (51, "VLLM::Worker_TP0"),
        (53, "nvcc"),
        (52, "VLLM::Worker_TP1"),
    ]


def test_a_living_servers_engines_are_not_left_over(machine: Machine) -> None:
    machine.add(40, 1, ["/v/bin/python3", "/v/bin/vllm", "serve", "m"])
    machine.add(50, 40, ["VLLM::EngineCore"])
    machine.add(51, 50, ["VLLM::Worker_TP0"])
    assert machine.orphans() == []


def test_a_program_that_uses_vllm_as_a_library_is_a_living_parent(machine: Machine) -> None:
    machine.add(40, 1, ["python3", "batch.py"], maps=VLLM)
    machine.add(50, 40, ["VLLM::EngineCore"])
    assert machine.orphans() == []


@pytest.mark.parametrize(
    ("words", "maps"),
    [
        (["/v/bin/python3", "/v/bin/vllm", "serve", "m"], b""),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], b""),
        (["python3", "app.py"], VLLM),
        (["python3", "app.py"], VLLM.replace(b".so", b".so (deleted)")),  # reinstalled under its feet
        (["python3", "app.py"], None),  # not ours to see: it may be
    ],
)
def test_the_first_process_of_a_container_may_be_the_server(words: list[str], maps: bytes | None) -> None:
    machine = Machine()
    machine.add(1, 0, words, maps=maps)
    machine.add(50, 1, ["VLLM::EngineCore"])
    assert machine.orphans() == []


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["tini", "--", "vllm", "serve", "m"], "tini"),
        (["/sbin/docker-init", "--", "vllm", "serve", "m"], "docker-init"),
        (["/bin/bash", "-c", "vllm serve m; true"], "bash"),
        (["/bin/sh", "/entrypoint.sh"], "entrypoint.sh"),
        (["python3", "supervise.py"], "python3"),
        (["/pause"], "pause"),
        (["/usr/bin/agent", "--listen"], "agent"),
    ],
)
@pytest.mark.parametrize("maps", [TORCH, None])
def test_the_first_process_of_a_container_may_be_somebody_else(
    words: list[str], name: str, maps: bytes | None
) -> None:
    machine = Machine()
    machine.add(1, 0, words, name=name, maps=TORCH if "python3" in words else maps)
    machine.add(50, 1, ["VLLM::EngineCore"])
    assert machine.orphans() == [(50, "VLLM::EngineCore")]


def test_a_service_manager_adopts_what_its_users_leave(machine: Machine) -> None:
    machine.add(30, 1, ["/lib/systemd/systemd", "--user"], name="systemd", maps=None)
    machine.add(50, 30, ["VLLM::EngineCore"])
    assert machine.orphans() == [(50, "VLLM::EngineCore")]


def test_containers_are_looked_into_from_outside(machine: Machine) -> None:
    machine.add(30, 1, ["containerd-shim-runc-v2"])
    machine.add(40, 30, ["bash", "-c", "vllm serve m; sleep 1"], inner_pid=1)
    machine.add(50, 40, ["VLLM::EngineCore"], inner_pid=9)
    assert machine.orphans() == [(50, "VLLM::EngineCore")]
    machine.add(40, 30, ["python3", "/usr/bin/vllm", "serve", "m"], inner_pid=1)
    assert machine.orphans() == []


@pytest.mark.parametrize("parent", [["bash"], ["tmux"], ["python3", "x.py"], ["sshd"]])
def test_a_parent_that_is_not_known_to_adopt_is_one(machine: Machine, parent: list[str]) -> None:
    machine.add(40, 1, parent, maps=b"")
    machine.add(50, 40, ["VLLM::EngineCore"])
    assert machine.orphans() == []


def test_a_process_whose_parent_is_not_to_be_seen_is_not_judged(machine: Machine) -> None:
    machine.add(50, 0, ["VLLM::EngineCore"])
    machine.add(51, 4711, ["VLLM::EngineCore"])
    assert machine.orphans() == []


# --- without a title --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "library", ["_C.abi3.so", "_C_AVX512.abi3.so", "_moe_C.abi3.so", "_rocm_C.cpython-312.so"]
)
def test_a_spawned_process_with_vllms_library_in_memory_is_vllms(machine: Machine, library: str) -> None:
    machine.add(50, 1, SPAWNED, maps=TORCH + VLLM.replace(b"_C.abi3.so", library.encode()))
    assert machine.orphans() == [(50, UNTITLED)]


def test_an_engine_without_the_library_is_known_by_its_workers(machine: Machine) -> None:
    machine.add(50, 1, SPAWNED, maps=TORCH)
    machine.add(51, 50, SPAWNED, maps=VLLM)
    assert machine.orphans() == [(50, UNTITLED), (51, UNTITLED)]


def test_a_spawned_program_that_uses_vllm_is_not_vllms_own(machine: Machine) -> None:
    """Somebody's job, whose starter is gone: the titles of its engines tell that it lives on purpose."""
    machine.add(50, 1, SPAWNED, maps=VLLM)
    machine.add(51, 50, ["VLLM::EngineCore"])
    assert machine.orphans() == []


@pytest.mark.parametrize(
    ("words", "maps"),
    [
        (SPAWNED, TORCH),  # a data loader in an environment that is called vllm
        (SPAWNED, None),  # not ours to see
        (("python3", "train.py"), VLLM),  # nobody's child by multiprocessing
        (("VLLM::Nonsense",), VLLM),
        (("VLLM::MainProcess",), b""),
        (("vi", "VLLM::EngineCore"), b""),
        (("grep", "VLLM::"), b""),
    ],
)
def test_what_is_not_vllms_is_nobodys_business(
    machine: Machine, words: tuple[str, ...], maps: bytes | None
) -> None:
    machine.add(50, 1, words, maps=maps)
    assert machine.orphans() == []


def test_what_has_ended_is_not_left_over(machine: Machine) -> None:
    machine.add(50, 1, ["VLLM::EngineCore"], zombie=True)
    assert machine.orphans() == []
