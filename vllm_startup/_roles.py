"""Which part a process plays, told from the name that vLLM gives it.

The names stand in log prefixes (``(EngineCore_DP0 pid=1)``, vLLM 0.8 and newer) and, with
``VLLM::`` before them, in process titles (0.10.1 and newer).
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

TITLE_PREFIX = "VLLM::"


class Role(StrEnum):
    """A process's part in the server."""

    API_SERVER = "api_server"
    ENGINE = "engine"
    WORKER = "worker"
    COORDINATOR = "coordinator"
    LAUNCHER = "launcher"


# Longest first where one begins another. "Vllm" forms: 0.8 to 0.10.1; Ray's: from Ray itself.
_BEGINNINGS: tuple[tuple[str, Role], ...] = (
    ("EngineCore", Role.ENGINE),
    ("DPMoEEngineCoreActor", Role.ENGINE),
    ("DPEngineCoreActor", Role.ENGINE),
    ("VllmWorker", Role.WORKER),
    ("Worker", Role.WORKER),
    ("RayWorker", Role.WORKER),
    ("APIServer", Role.API_SERVER),
    ("ApiServer", Role.API_SERVER),
    ("RustFrontend", Role.API_SERVER),
    ("DPCoordinator", Role.COORDINATOR),
    ("DP_Coordinator", Role.COORDINATOR),
    ("VLLM_DP_Coordinator", Role.COORDINATOR),
    ("DPSupervisor", Role.LAUNCHER),
    ("MainProcess", Role.LAUNCHER),
)


def bare(name: str) -> str:
    """A process title's name as log prefixes have it."""
    return name.removeprefix(TITLE_PREFIX).strip()


@lru_cache(maxsize=1024)
def role_of(name: str) -> Role | None:
    """The role that a log prefix's or a process title's name stands for; None for others."""
    return next((role for beginning, role in _BEGINNINGS if bare(name).startswith(beginning)), None)


def data_parallel_index(name: str) -> int | None:
    """The engine that a name belongs to (the N of ``_DPN``); None where it does not say."""
    _, found, rest = name.partition("_DP")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return int(digits) if found and digits else None
