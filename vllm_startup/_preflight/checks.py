"""The table of checks. A new one is a function of the facts and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

import attrs

from vllm_startup._preflight import (
    check_environment,
    check_gpus,
    check_model,
    check_packages,
    check_port,
    check_storage,
)
from vllm_startup._preflight.facts import Facts
from vllm_startup._report import WarningReport
from vllm_startup.causes._base import Cause

Finding: TypeAlias = Cause | WarningReport


@attrs.frozen
class Check:
    """A check.

    Attributes:
        name: What it looks at.
        look: Yields what is wrong. It may block, and raises `NotCheckedError` where it cannot know.
    """

    name: str
    look: Callable[[Facts], Iterable[Finding]]


CHECKS: Final = (
    Check("program", check_packages.program),
    Check("flashinfer", check_packages.flashinfer),
    Check("requirements", check_packages.requirements),
    Check("environment", check_environment.service_links),
    Check("files", check_environment.files),
    Check("user", check_environment.user),
    Check("port", check_port.port),
    Check("model", check_model.model),
    Check("gpus", check_gpus.gpus),
    Check("gpu_memory", check_gpus.gpu_memory),
    Check("shared_memory", check_storage.shared_memory),
    Check("caches", check_storage.caches),
)
"""In the order in which they are told; they run side by side."""
