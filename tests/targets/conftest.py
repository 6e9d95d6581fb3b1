"""A systemd of the tests' own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from systemd_sandbox import Sandbox, why_not


@pytest.fixture(scope="session")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A systemd that runs; skipped where there can be none."""
    reason = why_not()
    if reason is not None:
        if os.environ.get("CI") and os.geteuid() == 0:
            pytest.fail(f"no systemd for the tests: {reason}")
        pytest.skip(f"no systemd for the tests: {reason}")
    sandbox = Sandbox(tmp_path_factory.mktemp("systemd") / "sandbox")
    sandbox.boot()
    yield sandbox
    sandbox.shut_down()
