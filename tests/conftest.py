"""Its folder is on the path of the tests: they share helpers that stand beside it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from vllm_startup import pytest_plugin

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


@pytest.fixture(autouse=True, scope="session")
def _hangups_end() -> Iterator[None]:
    """Hangups end programs here as on a terminal: whoever runs the tests under nohup ignores them."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
