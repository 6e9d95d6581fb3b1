from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that every user may enter, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="vllm-startup-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
