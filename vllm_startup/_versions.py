"""Versions for reports and recordings."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("vllm-startup")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"


__version__ = _installed()


def versions() -> dict[str, str]:
    """The versions that a report names."""
    return {"vllm_startup": __version__, "python": ".".join(map(str, sys.version_info[:3]))}
