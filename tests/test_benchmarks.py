"""The benchmarks run, and print what the README's table is made from."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

KEYS = {"question", "arguments", "budget", "results", "within_budget", "machine"}
RESULTS = {
    "ready": {"ours", "poll_1s", "poll_0.1s"},
    "death": {"exit_1", "exit_0", "kill", "aftermath", "alive"},
    "cost": {"interpreter_cpu_s", "starts"},
    "flood": {"literals", "uninteresting", "start", "starts_per_s", "long_line_ms"},
    "size": {"sizes", "growth_mib"},
    "imports": {
        "bare",
        "attrs_and_transitions",
        "vllm_startup",
        "wait_until_ready",
        "every_name",
        "urllib",
        "httpx",
    },
    "many": {"address", "servers"},
    "causes": {"cases", "recordings"},
    "phases": {"tests/recordings"},
}


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """What each prints; all run at once, since they mostly wait, and quick figures mean nothing."""
    ways = [argument for way in ("poll_1s", "mirakuru", "wait_on") for argument in ("--only", way)]
    none = tmp_path_factory.mktemp("peers") / "none"
    more = {"peers": ("--no-install", "--peers-dir", str(none), *ways)}
    with ThreadPoolExecutor(len(RESULTS) + 1) as pool:
        running = {name: pool.submit(run, name, "--quick", *more.get(name, ())) for name in (*RESULTS, *more)}
        yield lambda name: json.loads(running[name].result())
    assert not none.exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in servers name their processes in /proc")
@pytest.mark.parametrize("name", RESULTS)
def test_a_benchmark_prints_one_object_with_the_documented_keys(
    name: str, quick: Callable[[str], Any]
) -> None:
    printed = quick(name)
    assert printed.keys() == KEYS
    assert printed["results"].keys() == RESULTS[name]
    assert printed["arguments"]["seed"] == 1
    assert printed["arguments"]["quick"] is True
    assert isinstance(printed["within_budget"], bool)
    assert {"date", "cpu", "cpus", "load", "python", "versions"} <= printed["machine"].keys()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in servers name their processes in /proc")
def test_the_peers_that_need_no_installation_are_measured_and_the_others_named(
    quick: Callable[[str], Any],
) -> None:
    printed = quick("peers")
    assert printed.keys() == KEYS
    found = printed["results"]
    assert found.keys() == {"peers", "missing", "ahead_of_ours"}
    assert found["peers"].keys() == {"ours", "ours_launch", "poll_1s"}
    assert found["missing"].keys() == {"mirakuru", "wait_on"}
    assert all(reason for reason in found["missing"].values())
    naive, launched = found["peers"]["poll_1s"], found["peers"]["ours_launch"]
    assert {death["never"] for death in naive["death"].values()} == {1}
    assert {how: death["named"] for how, death in launched["death"].items()} == dict.fromkeys(
        RESULTS["death"], True
    )


@pytest.mark.parametrize("name", [*RESULTS, "peers", "table"])
def test_a_benchmark_explains_itself(name: str) -> None:
    assert f"python benchmarks/{name}.py" in run(name, "--help")


MACHINE = {
    "date": "2026-01-02",
    "system": "Linux",
    "kernel": "6.8",
    "cpu": "a processor",
    "cpus": 2,
    "python": "3.11.7",
    "versions": {"attrs": "26.1.0"},
}
READY = {
    "results": {
        "ours": {"median_ms": 25.4, "p95_ms": 44.0},
        "poll_1s": {"median_ms": 512.0, "p95_ms": 961.5},
        "poll_0.1s": {"median_ms": 55.0, "p95_ms": 99.0},
    },
    "machine": MACHINE,
}
TABLE = """\
| | budget | vllm_startup | naive |
| --- | --- | --- | --- |
| ready noticed after the server listens (median, p95) | 30 ms, 150 ms | 25 ms, 44 ms \
| 512 ms, 962 ms every second, 55 ms, 99 ms every 0.1 s |

Measured on 2026-01-02: 2 cores of a processor, Linux 6.8, Python 3.11.7, attrs 26.1.0."""


def test_the_table_is_written_between_the_markers(tmp_path: Path) -> None:
    (tmp_path / "ready.json").write_text(json.dumps(READY))
    readme = tmp_path / "README.md"
    readme.write_text("# Title\n<!-- benchmarks:begin -->\nold\n<!-- benchmarks:end -->\nafter\n")
    printed = run("table", "--results", str(tmp_path), "--only", "ready", "--readme", str(readme))
    assert printed == f"{TABLE}\n"
    assert readme.read_text() == (
        f"# Title\n<!-- benchmarks:begin -->\n{TABLE}\n<!-- benchmarks:end -->\nafter\n"
    )


DEATH = {"never": 0, "told": {"median_ms": 14.2}, "raised": {"median_ms": 1353.0}, "named": True}
NEVER = {"never": 1, "told": None, "raised": None, "named": False}
WAYS = {"ours": ("ours", DEATH), "poll": ("a poll", NEVER)}
PEERS = {
    "results": {
        "peers": {
            name: {
                "title": title,
                "ready": {"median_ms": 25.4, "p95_ms": 44.0},
                "death": dict.fromkeys(RESULTS["death"], death),
            }
            for name, (title, death) in WAYS.items()
        },
        "missing": {"wait_on": "there is no npm on this machine"},
    },
    "machine": MACHINE,
}


def test_each_way_to_wait_is_one_row_and_a_missing_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text(json.dumps(PEERS))
    rows = run("table", "--results", str(tmp_path), "--only", "peers").splitlines()
    assert f"| ours | 25 ms, 44 ms |{' 14 ms, ends 1.4 s |' * 5} 5 of 5 |" in rows
    assert f"| a poll | 25 ms, 44 ms |{' never |' * 5} 0 of 5 |" in rows
    assert f"| `wait_on` | not measured |{'  |' * 6}" in rows


def test_a_quick_run_is_never_written_into_a_readme(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(BENCHMARKS / "table.py"),
        "--quick",
        "--readme",
        str(tmp_path / "README.md"),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2
    assert "--quick" in ran.stderr
