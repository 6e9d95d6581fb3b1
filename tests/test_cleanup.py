"""Ending what dead servers left is tried in a pid namespace, where there are no other processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "namespace" / "cleanup_cases.py"
NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells who was left")
def test_what_dead_servers_left_is_found_and_ended() -> None:
    """The tests in `CASES`: run here they would end what other tests, or other people, have left."""
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("pid namespaces cannot be made here")
    words = [*NAMESPACE, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
