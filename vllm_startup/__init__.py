"""Wait until a vLLM server is ready, and say why it never will be."""

from vllm_startup import causes, probes
from vllm_startup._clock import Clock
from vllm_startup._events import (
    AttemptEnded,
    AttemptStarted,
    Because,
    CauseFound,
    Ended,
    Event,
    PhaseEntered,
    ProbeBroke,
    ProbeRecovered,
    ProgressSeen,
    TierReached,
    Warned,
)
from vllm_startup._exceptions import StartupError, StartupStalled, StartupTimeout
from vllm_startup._log.lines import Line
from vllm_startup._machine.reporting import Status
from vllm_startup._phases import Phase
from vllm_startup._report import StartupReport
from vllm_startup._rules import Advance, Progress, Rule
from vllm_startup._startup import Startup
from vllm_startup._timeouts import Timeouts
from vllm_startup._wait import wait_until_ready, wait_until_ready_sync, watch
from vllm_startup.probes._protocol import Probe

__all__ = [
    "Advance",
    "AttemptEnded",
    "AttemptStarted",
    "Because",
    "CauseFound",
    "Clock",
    "Ended",
    "Event",
    "Line",
    "Phase",
    "PhaseEntered",
    "Probe",
    "ProbeBroke",
    "ProbeRecovered",
    "Progress",
    "ProgressSeen",
    "Rule",
    "Startup",
    "StartupError",
    "StartupReport",
    "StartupStalled",
    "StartupTimeout",
    "Status",
    "TierReached",
    "Timeouts",
    "Warned",
    "causes",
    "probes",
    "wait_until_ready",
    "wait_until_ready_sync",
    "watch",
]


def __getattr__(name: str) -> str:
    """Read the version when it is asked for."""
    if name == "__version__":
        from vllm_startup._versions import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
