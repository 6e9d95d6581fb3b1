"""A real vLLM before its start, and after its API server was killed."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_server import Server, free_port
from real_starts import environment_of

import vllm_startup
from vllm_startup._cleanup import _end
from vllm_startup._launching.end_tree import processes
from vllm_startup._orphans import UNTITLED, Seen, orphans

pytestmark = pytest.mark.real


@pytest.fixture
def temporary() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vllm-") as path:
        yield Path(path)


@pytest.mark.parametrize(
    "words",
    [
        ["vllm", "serve"],
        ["env", "HF_HUB_OFFLINE=1", "nice", "vllm", "serve"],
        ["python3", "-m", "vllm.entrypoints.openai.api_server", "--model"],
        ["bash", "-c", 'exec vllm serve "$0" --port "$1"'],
    ],
)
def test_a_good_start_has_no_fault(real: Path, temporary: Path, words: list[str]) -> None:
    port = str(free_port())
    model = str(real / "models" / "tiny")
    command = [*words, model, port] if words[0] == "bash" else [*words, model, "--port", port]
    found = vllm_startup.preflight(command, env=environment_of(real, temporary), timeout=30)
    assert found.causes == ()
    assert found.python in (f"{real}/venv/bin/python", f"{real}/venv/bin/python3")  # what its scripts name
    # The wheel's companions for pictures and sound are not installed, and a text model needs none of them.
    assert [warning.code for warning in found.warnings] == ["requirements_missing"]
    [note] = [check.note for check in found.checks if check.name == "gpus"]
    unknown = "the command's arguments hold variables whose values are not known"
    assert note == (unknown if words[0] == "bash" else "this vLLM was built for cpu")


def test_what_is_wrong_with_a_start_is_known_in_a_second(real: Path, temporary: Path) -> None:
    command = ["vllm", "serve", str(real / "models" / "missing"), "--host", "192.0.2.1"]
    found = vllm_startup.preflight(command, env=environment_of(real, temporary))
    assert {cause.kind for cause in found.causes} == {"model_not_found", "invalid_arguments"}


class Untitled(Seen):
    """A machine on which some have no title, as before 0.10.1 and without setproctitle."""

    def __init__(self, pids: frozenset[int]) -> None:
        super().__init__()
        self._pids = pids

    def arguments(self, pid: int) -> tuple[str, ...]:
        spawned = ("python3", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork")
        return spawned if pid in self._pids else super().arguments(pid)


def test_the_engine_of_a_killed_server_is_found_and_ended(
    real: Path, temporary: Path, tmp_path: Path
) -> None:
    port = free_port()
    command = ["vllm", "serve", str(real / "models" / "tiny"), "--enforce-eager", "--port", str(port)]
    environment = environment_of(real, temporary)
    command[0] = str(real / "venv" / "bin" / "vllm")
    with Server(command, environment=environment, port=port, place=tmp_path) as server:
        server.wait_for_line("Starting to load model")
        tree = set(server.alive())
        assert not tree & {one.pid for one in orphans()}, "its server lives"
        os.kill(server.pid, signal.SIGKILL)
        left = tree - {server.pid}
        deadline = time.monotonic() + 20
        while not (found := [one for one in orphans() if one.pid in left]):
            assert time.monotonic() < deadline, server.alive()
            time.sleep(0.1)
        assert {one.name for one in found} == {"VLLM::EngineCore", "VLLM::Worker"}
        titled = frozenset(one.pid for one in found if one.name.startswith("VLLM::"))
        untitled = orphans(processes(), seen=Untitled(titled))
        assert titled <= {one.pid for one in untitled if one.name == UNTITLED}
        assert _end(found, 1.0) == []
        assert not set(server.alive()) & {one.pid for one in found}  # a tracker ends by itself
