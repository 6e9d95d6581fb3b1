"""Looking as somebody who is not root, and whom the password file does not know."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

NOBODY = 54321


def as_nobody(function: Callable[[], T]) -> T:
    """What ``function`` returns in a process of that user; the exception that it raises is raised."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        outcome: Any
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            outcome = (function(), None)
        except BaseException as error:  # noqa: BLE001 - it is raised where it is asked for
            outcome = (None, error)
        with os.fdopen(writing, "wb") as file:
            pickle.dump(outcome, file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        value, raised = pickle.load(file)
    os.waitpid(child, 0)
    if raised is not None:
        raise raised
    found: T = value
    return found
