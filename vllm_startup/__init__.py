"""Wait until a vLLM server is ready, and say why it never will be."""

from typing import TYPE_CHECKING

from vllm_startup._lazy import exports

if TYPE_CHECKING:
    from vllm_startup import causes, probes, targets, testing
    from vllm_startup._cleanup import Cleanup, cleanup
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
    from vllm_startup._launching.guarded import LeftProcess, ServerProcess
    from vllm_startup._launching.launch import Launch, TreeEndError, launch
    from vllm_startup._launching.server import Server
    from vllm_startup._log.lines import Line
    from vllm_startup._machine.reporting import Status
    from vllm_startup._phases import Phase
    from vllm_startup._preflight.preflight import preflight
    from vllm_startup._preflight.result import Preflight
    from vllm_startup._report import StartupReport
    from vllm_startup._rules import Advance, Progress, Rule
    from vllm_startup._startup import Startup
    from vllm_startup._timeouts import Timeouts
    from vllm_startup._versions import __version__
    from vllm_startup._wait import wait_until_ready, wait_until_ready_sync, watch
    from vllm_startup.probes._protocol import Probe

__all__ = [
    "Advance",
    "AttemptEnded",
    "AttemptStarted",
    "Because",
    "CauseFound",
    "Cleanup",
    "Clock",
    "Ended",
    "Event",
    "Launch",
    "LeftProcess",
    "Line",
    "Phase",
    "PhaseEntered",
    "Preflight",
    "Probe",
    "ProbeBroke",
    "ProbeRecovered",
    "Progress",
    "ProgressSeen",
    "Rule",
    "Server",
    "ServerProcess",
    "Startup",
    "StartupError",
    "StartupReport",
    "StartupStalled",
    "StartupTimeout",
    "Status",
    "TierReached",
    "Timeouts",
    "TreeEndError",
    "Warned",
    "__version__",
    "causes",
    "cleanup",
    "launch",
    "preflight",
    "probes",
    "targets",
    "testing",
    "wait_until_ready",
    "wait_until_ready_sync",
    "watch",
]

_HOMES = {
    **dict.fromkeys(("causes", "probes", "targets", "testing"), ""),
    **dict.fromkeys(("Cleanup", "cleanup"), "_cleanup"),
    "Clock": "_clock",
    **dict.fromkeys(
        (
            "AttemptEnded",
            "AttemptStarted",
            "Because",
            "CauseFound",
            "Ended",
            "Event",
            "PhaseEntered",
            "ProbeBroke",
            "ProbeRecovered",
            "ProgressSeen",
            "TierReached",
            "Warned",
        ),
        "_events",
    ),
    **dict.fromkeys(("StartupError", "StartupStalled", "StartupTimeout"), "_exceptions"),
    **dict.fromkeys(("LeftProcess", "ServerProcess"), "_launching.guarded"),
    **dict.fromkeys(("Launch", "TreeEndError", "launch"), "_launching.launch"),
    "Line": "_log.lines",
    "Status": "_machine.reporting",
    "Phase": "_phases",
    "Preflight": "_preflight.result",
    "preflight": "_preflight.preflight",
    "Probe": "probes._protocol",
    "StartupReport": "_report",
    **dict.fromkeys(("Advance", "Progress", "Rule"), "_rules"),
    "Server": "_launching.server",
    "Startup": "_startup",
    "Timeouts": "_timeouts",
    "__version__": "_versions",
    **dict.fromkeys(("wait_until_ready", "wait_until_ready_sync", "watch"), "_wait"),
}

__getattr__ = exports(__name__, _HOMES)
