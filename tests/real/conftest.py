"""Runs the starts that the selected tests ask for, two at a time, each of them once."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from real_starts import STARTS, Bringup, bring_up

AT_A_TIME = 2  # a start takes one core and up to 2 GB
RESULT_LIMIT_S = 1200.0  # four minutes for all of them, on an idle machine
FIGURES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash[FIGURES]:
        terminalreporter.write_line(line)


def figures(name: str, bringup: Bringup) -> str:
    """How soon the watch knew: after the port took a connection, or after the main process's end."""
    watched = bringup.watched
    seen_at = bringup.listened_at if watched.report["outcome"] == "ready" else bringup.exited_at
    delay = (
        f"{1000 * (watched.noticed_at - seen_at):.0f} ms after it" if seen_at is not None else "by a limit"
    )
    return f"{name:24}{watched.report['elapsed_s']:6.1f} s  {watched.report['outcome']:10}noticed {delay}"


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
    for name, future in futures.items():
        if future.done() and not future.cancelled() and future.exception() is None:
            request.config.stash[FIGURES].append(figures(name, future.result()))


@pytest.fixture
def bringup(request: pytest.FixtureRequest, bringups: Callable[[str], Bringup]) -> Bringup:
    """The start that the test's parameter names."""
    return bringups(request.param)
