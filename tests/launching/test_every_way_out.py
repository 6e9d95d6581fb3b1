"""Every way out of a launch in every phase of a simulated start: nothing is left, by a look at the system."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from caller import Errand, Way
from traces import Traces
from trees import Tree, eventually

from vllm_startup.testing import simulated_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="whole trees are ended on Linux")

CALLER = Path(__file__).parents[1] / "caller.py"
SPEED = 8.0
PHASES = [
    *("launching", "configuring", "initializing", "loading_weights", "compiling"),
    *("allocating_kv_cache", "warming_up", "starting_server", "ready"),
]
WAYS: dict[Way, set[int]] = {  # and how the caller ends then
    "cancel": {0},
    "raise": {0},
    "SIGINT": {-signal.SIGINT, 1},  # CPython forgets it where another thread runs `exec` at that moment
    "SIGTERM": {-signal.SIGTERM},
    "SIGKILL": {-signal.SIGKILL},
}


@pytest.fixture
def traces(tmp_path: Path) -> Iterator[Traces]:
    place, temporary = tmp_path / "place", tmp_path / "temporary"
    place.mkdir()
    temporary.mkdir()
    made = Traces(tree=Tree(), place=place, temporary=temporary, port=int(simulated_server()[-1]))
    yield made
    for pid in made.processes():
        subprocess.run(["kill", "-9", str(pid)], check=False, stderr=subprocess.DEVNULL)


def call(traces: Traces, way: Way, phase: str) -> subprocess.CompletedProcess[str]:
    environment = {**traces.tree.env, "TMPDIR": str(traces.temporary)}
    errand = Errand(
        command=simulated_server(speed=SPEED, port=traces.port),
        environment=environment,
        place=str(traces.place),
        log=str(traces.place / "vllm.log"),
        way=way,
        phase=phase,
    )
    return subprocess.run(
        [sys.executable, str(CALLER), json.dumps(attrs.asdict(errand))],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    "way",
    [way if way in {"cancel", "SIGKILL"} else pytest.param(way, marks=pytest.mark.every_way) for way in WAYS],
)
def test_nothing_is_left(way: Way, phase: str, traces: Traces) -> None:
    done = call(traces, way, phase)

    assert done.returncode in WAYS[way], done
    assert way != "SIGINT" or done.stderr.rstrip().endswith("KeyboardInterrupt"), done
    told = [words["phase"] for words in map(json.loads, done.stdout.splitlines()) if "phase" in words]
    # A busy machine may see a phase only when it is over, and the process after its first lines.
    assert max(map(PHASES.index, told)) >= PHASES.index(phase)
    if way in {"cancel", "raise", "SIGINT"}:  # the caller itself has ended it
        assert traces.all() == []
    assert eventually(lambda: not traces.all()), traces.all()


def test_all_is_left_of_a_server_that_was_detached(traces: Traces) -> None:
    done = call(traces, "detach", "ready")

    assert done.returncode == 0, done
    assert len(traces.processes()) == 4
    assert traces.port_is_taken()
