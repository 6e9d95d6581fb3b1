"""Versions for reports and recordings."""

from __future__ import annotations

import sys
from functools import cache


@cache
def version() -> str:
    """This library's version."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("vllm-startup")
    except PackageNotFoundError:
        return "unknown"


def versions() -> dict[str, str]:
    """The versions that a report names."""
    return {"vllm_startup": version(), "python": ".".join(map(str, sys.version_info[:3]))}
