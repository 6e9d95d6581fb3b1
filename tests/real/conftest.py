"""Runs the starts that the selected tests ask for, two at a time, each of them once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from real_starts import STARTS, Bringup, bring_up

AT_A_TIME = 2  # a start takes one core and up to 2 GB
RESULT_LIMIT_S = 600.0


@pytest.fixture(scope="session")
def real() -> Path:
    """Where ``setup.sh`` installed vLLM."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = Path(os.environ.get("VLLM_STARTUP_REAL") or cache / "vllm-startup-tests")
    if not (path / "venv" / "made-by-setup").exists():
        message = f"no real vLLM in {path}: run tests/real/setup.sh"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture(scope="session")
def bringups(
    request: pytest.FixtureRequest, real: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Bringup]]:
    """Gives the result of a start by its name; all that are asked for begin with the first request."""
    asked = {
        item.callspec.params.get("bringup")
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    }
    temporary = Path(tempfile.mkdtemp(prefix="vllm-"))
    pool = ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="start")
    futures: dict[str, Future[Bringup]] = {
        name: pool.submit(bring_up, name, real=real, place=tmp_path_factory.mktemp(name), temporary=temporary)
        for name in STARTS
        if name in asked
    }
    yield lambda name: futures[name].result(RESULT_LIMIT_S)
    pool.shutdown(cancel_futures=True)
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture
def bringup(request: pytest.FixtureRequest, bringups: Callable[[str], Bringup]) -> Bringup:
    """The start that the test's parameter names."""
    return bringups(request.param)
