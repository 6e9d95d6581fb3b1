"""Whether a path is there, where what may not be looked at counts as not there (`pathlib` raises for it)."""

from __future__ import annotations

import os
from pathlib import Path


def exists(path: str | Path) -> bool:
    """Whether anything is there."""
    return os.path.exists(path)  # noqa: PTH110 - see above


def is_folder(path: str | Path) -> bool:
    """Whether a folder is there."""
    return os.path.isdir(path)  # noqa: PTH112 - see above


def is_file(path: str | Path) -> bool:
    """Whether a file is there."""
    return os.path.isfile(path)  # noqa: PTH113 - see above


def hidden(path: str | Path) -> int | None:
    """The error with which a path may not even be looked at; None where it may, or is not there."""
    try:
        Path(path).stat()
    except PermissionError as error:
        return error.errno
    except (OSError, ValueError):
        pass
    return None
