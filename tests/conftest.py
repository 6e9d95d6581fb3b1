"""Its folder is on the path of the tests: they share helpers that stand beside it."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from vllm_startup import pytest_plugin

# The same examples each time. New ones are looked for by hand, and take as long as they take:
# tests/run tests/fuzz --hypothesis-profile=long
settings.register_profile("short", deadline=None, max_examples=100, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=20_000)
settings.load_profile("short")

pytest_plugins = ["pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-way",
        action="store_true",
        help="every way out of a launch in every phase, also with a real vLLM",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--every-way"):
        return
    left_out = [item for item in items if item.get_closest_marker("every_way")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_configure(config: pytest.Config) -> None:
    """Load the plugin where the package was not installed with its entry points."""
    if not config.pluginmanager.is_registered(pytest_plugin):
        config.pluginmanager.register(pytest_plugin, "vllm_startup")


@pytest.fixture(autouse=True, scope="module")
def _few_objects_to_collect() -> None:
    """What thousands of tests before have left is not looked through at each collection of garbage: that
    takes a fifth of a second in the end, counts as a probe's cost, and some tests collect a hundred times."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _signals_end() -> Iterator[None]:
    """Hangups and Ctrl-C end programs here as on a terminal: who runs the tests under nohup or in a
    script's background ignores them, and so would whatever they start."""
    ends = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in ends.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def real() -> Path:
    """Where ``tests/real/setup.sh`` installed vLLM."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = Path(os.environ.get("VLLM_STARTUP_REAL") or cache / "vllm-startup-tests")
    if not (path / "venv" / "made-by-setup").exists():
        message = f"no real vLLM in {path}: run tests/real/setup.sh"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a driver's library that a test drives (probes/nvml_stub.c)."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.fail("these tests need a C compiler (apt-get install gcc)")
    folder = tmp_path_factory.mktemp("nvml")
    output, source = folder / "libnvidia-ml.so.1", Path(__file__).parent / "probes" / "nvml_stub.c"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, *options, "-o", output, source], check=True, timeout=60)
    return folder
