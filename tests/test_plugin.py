"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OPTIONS = (
    "-p",
    "vllm_startup.pytest_plugin",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:asyncio",
    "-p",
    "no:vllm_startup",
)
ROOT = Path(__file__).parents[1]


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return pytester


def test_the_fixtures_are_there_without_an_import(inner: pytest.Pytester) -> None:
    inner.makepyfile("""
        import asyncio

        def test_clock(vllm_startup_clock):
            asyncio.run(vllm_startup_clock.sleep(3600))
            assert vllm_startup_clock.now() == 3600

        def test_probe(vllm_startup_probe):
            assert vllm_startup_probe("mine", []).name == "mine"

        def test_wait(vllm_startup_wait, vllm_startup_clock):
            from vllm_startup.testing import ready_after
            wait = vllm_startup_wait(ready_after(60))
            assert wait.clock is vllm_startup_clock
            assert wait.sync("http://a:1").ready_s == 60

        def test_replay(vllm_startup_replay):
            assert vllm_startup_replay([]).outcome == "unfinished"
    """)
    inner.runpytest_subprocess(*OPTIONS).assert_outcomes(passed=4)


def test_each_test_gets_a_clock_of_its_own(inner: pytest.Pytester) -> None:
    inner.makepyfile("""
        import asyncio, pytest

        @pytest.mark.parametrize("n", [1, 2])
        def test_clock(vllm_startup_clock, n):
            assert vllm_startup_clock.now() == 0
            asyncio.run(vllm_startup_clock.sleep(1))
    """)
    inner.runpytest_subprocess(*OPTIONS).assert_outcomes(passed=2)


def test_the_fixtures_explain_themselves(inner: pytest.Pytester) -> None:
    shown = inner.runpytest_subprocess(*OPTIONS, "--fixtures").stdout.str()
    _, _, ours = shown.partition("fixtures defined from vllm_startup.pytest_plugin")
    for name in ("vllm_startup_clock", "vllm_startup_probe", "vllm_startup_wait", "vllm_startup_replay"):
        assert f"{name} -- " in ours
    assert "no docstring available" not in ours


def test_importing_the_plugin_imports_nothing_heavy() -> None:
    """It is loaded by every pytest in an environment that holds the package."""
    code = (
        "import sys, pytest; before = set(sys.modules); import vllm_startup.pytest_plugin;"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, timeout=60
    )
    assert done.stdout.split() == ["vllm_startup"]


def test_a_failure_reads_well(inner: pytest.Pytester) -> None:
    inner.makepyfile("""
        def test_wait(vllm_startup_wait):
            from vllm_startup.testing import killed_after
            vllm_startup_wait(killed_after(60)).sync()
    """)
    result = inner.runpytest_subprocess(*OPTIONS)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*process_killed in *"])
