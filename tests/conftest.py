"""Its folder is on the path of the tests: they share helpers that stand beside it."""

from __future__ import annotations

import pytest

from vllm_startup import pytest_plugin

pytest_plugins = ["pytester"]


def pytest_configure(config: pytest.Config) -> None:
    """Load the plugin where the package was not installed with its entry points."""
    if not config.pluginmanager.is_registered(pytest_plugin):
        config.pluginmanager.register(pytest_plugin, "vllm_startup")
