"""Its folder is on the path of the tests: they share helpers that stand beside it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from vllm_startup import pytest_plugin

pytest_plugins = ["pytester"]


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
