"""What follows a failure and is never its cause, and what can be told when nothing else is there."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from vllm_startup._diagnosis.evidence import with_evidence
from vllm_startup._diagnosis.tone import is_harmless

if TYPE_CHECKING:
    from vllm_startup._log.exceptions import RaisedError
    from vllm_startup._log.lines import Line
    from vllm_startup.causes import Cause

_IN_SUBPROCESS: Final = "Error raised in subprocess"

WRAPPERS: Final = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "Engine process failed to start",
    "Worker failed with error",
    _IN_SUBPROCESS,
    "please check the stack trace above for the root cause",
    "See stack trace for the root cause",
    "See stack trace above for the root cause",
    "EngineCore encountered an issue",
    "EngineDeadError",
    "Engine loop is not running",
    "Engine loop has died",
    "Background loop has errored already",
    "Background loop is stopped",
    "vllm.model_executor.models.registry' returned non-zero exit status",
    "vllm.model_executor.models.registry']' returned non-zero exit status",
    "died with exit code",
    "ray.exceptions.RayTaskError",
    "UnpickleableError",
    "RuntimeError: cancelled",
    "ChildProcessError: worker died",  # until 0.10, V0
    "RuntimeError: Executor failed.",
    "RuntimeError: Worker failed",
    "RuntimeError: EngineCoreProc failed to start.",  # 0.7
    "RuntimeError: WorkerProc failed to start.",  # 0.8
    "At least one Worker is dead. Dead Workers: ",  # until 0.10, V0 on Ray
    "Ray workers have not started successfully",
    "Input socket thread died during startup",
    "Task was destroyed but it is pending",
    "TBE Subprocess[task_distribute] raise error",  # CANN: "main process disappeared!"
)
"""Exceptions that only say that another process failed (vLLM 0.4 to 0.33)."""

ENDINGS: Final = (
    "EngineCore failed to start.",
    "WorkerProc failed to start.",
    "EngineCore hit an exception:",
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "Engine process failed to start",
    "died unexpectedly",
    "died with exit code",
    "died, exit code: ",  # until 0.10, V0
    "Application startup failed",
    "Frontend process failed during engine core initialization",
    "Got fatal signal from worker processes, shutting down",  # 0.8
)
"""Once one of these is read, the start cannot succeed any more."""

_PROCESSES: Final = (
    "EngineCore",
    "SpawnProcess",
    "ForkProcess",
    "Process-",
    "VllmWorker",
    "ApiServer",
    "APIServer",
    "Worker",
)

FATAL_HEADLINES: Final = (
    "EngineCore failed to start",
    "WorkerProc failed to start",
    "WorkerProc hit an exception",
    "WorkerProc failed.",  # 0.14 and newer, after it had started
    "RayWorkerProc failed",  # 0.20 and newer
    "EngineCore hit an exception",
    "EngineCore encountered a fatal error",
    "Error executing method",
    "Exception in worker",
    "Engine core encountered",
    "Worker proc ",
    *(f"Process {name}" for name in _PROCESSES),
)
"""What stands before the traceback of an exception that ended its process."""

INSPECTION: Final = ("Error in inspecting model architecture", "Error in loading model architecture")
"""What ends a start without a word of its own: until 0.6 the architecture is called unsupported then."""

HARMLESS_HEADLINES: Final = (
    "Exception ignored in",
    "Task exception was never retrieved",
    "Exception in thread",
)

IDLE_HEADLINES: Final = (
    "Exception ignored in",
    "_report_usage_worker",
    "_report_continuous_usage",
    "Error saving model info cache",
)
"""Finalisers, the thread that reports usage, a cache: whatever they meet, the start goes on."""

_MAX_PROCESSES: Final = 4096

HEADLINES: Final = (
    *FATAL_HEADLINES,
    *INSPECTION,
    *dict.fromkeys((*HARMLESS_HEADLINES, *IDLE_HEADLINES)),
)

# A consequence of another process's end more often than a cause.
SECONDARY_TYPES: Final = frozenset(
    {
        "BrokenPipeError",
        "EOFError",
        "ConnectionResetError",
        "CancelledError",
        "SystemExit",
        "EngineDeadError",
        "EngineGenerateError",
        "KeyboardInterrupt",
        "GeneratorExit",
    }
)

SHUTDOWNS: Final = ("trigger received signal=SIG",)  # 0.23 and newer
"""The server is asked to end; after a failure it says so too."""

STOPS: Final = (
    "[shutdown] API server: shutdown triggered",  # 0.23 and newer
    "Shutting down FastAPI HTTP server",  # until 0.22
)
"""A server that was up stops in good order, since it was asked to."""

READY: Final = ("Application startup complete", '/health HTTP/1.1" 200', *STOPS)
"""The server was up: what ends it later is no failed start."""

KILLS: Final = "force killing "
"""The server is about to kill a process of its own that did not end when it was told to (0.23 and newer)."""

# Said by an engine or a worker at work, in every version: who they were is told after their death.
_AT_WORK: Final = (
    "Initializing a V1 LLM engine",
    "world_size=",
    "Starting to load model",
    "Loading model from",
)

FENCE: Final = "```"
"""Stands around a log that is pasted into an issue: what follows is another excerpt."""

# What Python's resource tracker and torch say when the processes that they served are gone. So does a helper
# that a start goes on without: it counts only as a log's last words.
GONE: Final = (
    "objects to clean up at shutdown",
    "destroy_process_group() was not called before program exit",
)

# An engine is complete: a program without a server ends in good order after it has used that.
_COMPLETE: Final = (
    "Graph capturing finished in ",
    "init engine (profile, create kv cache, warmup model) took ",
)

LITERALS: Final = (
    FENCE,
    *GONE,
    *_COMPLETE,
    *ENDINGS,
    *SHUTDOWNS,
    "Failed core proc(s)",
    *READY,
    KILLS,
    *_AT_WORK,
    "Stopping ",
    *HEADLINES,
)

# How an exception passes on another process's words.
_QUOTED: Final = (
    r"Worker failed with error '(.*)', please check",
    r'Worker failed with error "(.*)", please check',
    r"Worker failed with error ['\"](.*)",  # its end is not there
)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)


def is_wrapper(error: RaisedError) -> bool:
    """Whether an exception only says that something else failed."""
    said = error.full.partition("\n")[0]  # what follows may be another writer's
    return any(map(said.__contains__, WRAPPERS))


def quoted(error: RaisedError) -> str | None:
    """The other process's words that an exception passes on; None where it does not."""
    if "Worker failed with error" not in error.text:
        return None
    for pattern in _QUOTED:
        found = _compiled(pattern).search(error.text)
        if found is not None:
            return found[1]
    return None


def printed(error: RaisedError) -> str | None:
    """What a program printed that an exception tells of; None where it tells of none."""
    before, found, after = error.text.partition(f"{_IN_SUBPROCESS}:\n")
    return after if found and not before else None


@cache
def _core_procs() -> re.Pattern[str]:
    return re.compile(r"Failed core proc\(s\): \{([^}]*)\}")


@cache
def _died() -> re.Pattern[str]:
    return re.compile(
        r"(?:[Ww]orker proc|Worker|Engine core proc|[Pp]rocess) (\S+)(?: \(PID: \d+\)| pid \d+)? died"
        r"(?: unexpectedly(?: \(exit code: (-?\d+|None)\))?| with exit code (-?\d+)"
        r"|, exit code: (-(?!15\b)\d+))"  # -15: ended by its parent, after another
    )


@cache
def _killed() -> re.Pattern[str]:
    return re.compile(r"force killing (?:sub|remaining) process \S{1,60} pid (\d{1,10})\b")


class Ends:
    """How processes ended, as far as the log says, and who was seen at work before."""

    def __init__(self) -> None:
        self.wrapper: tuple[str, str | None, int] | None = None  # text, process, line
        self.wrapper_lost = False
        self.codes: dict[str, tuple[int | None, str, int]] = {}  # process: (code, text, line)
        self.engines: dict[int, str] = {}
        self.workers: dict[int, str] = {}
        self.engine_spoke_of_failure = False
        self.shutdown: tuple[str, str | None, int] | None = None  # text, process, line
        self.stop: tuple[str, str | None, int] | None = None
        self.gone: tuple[str, str | None, int] | None = None
        self.complete = False
        self.killed: set[int] = set()

    def read(self, text: str, *, process: str | None, line: int) -> None:
        """Note what an exception's text or a line says of ends."""
        if len(self.codes) > _MAX_PROCESSES:
            return
        text = " ".join(text.split())  # it may have been wrapped
        found = _core_procs().search(text)
        if found is not None:
            for part in found[1].split(","):
                name, _, code = part.partition(":")
                if name.strip():
                    self.codes.setdefault(name.strip(" '\""), (_int(code), text, line))
        found = _died().search(text)
        if found is not None:
            self.codes.setdefault(found[1], (_int(found[2] or found[3] or found[4] or ""), text, line))
        if "EngineCore failed to start" in text or "WorkerProc initialization failed" in text:
            self.engine_spoke_of_failure = True
        if any(map(text.__contains__, ("WorkerProc initialization failed", "Worker proc", "RayWorkerProc"))):
            self.wrapper_lost = True
        if self.wrapper is None or "WorkerProc" in text:
            self.wrapper = (text, process, line)

    def heard(self, line: Line) -> None:
        """Note whom the server kills itself, and that it was asked to end, unless a failure came before."""
        if KILLS in line.message and (found := _killed().search(line.message)) is not None:
            self.killed.add(int(found[1]))
        if any(map(line.message.__contains__, GONE)):
            self.gone = (line.message, line.process, line.number)
        if any(map(line.message.__contains__, _COMPLETE)):
            self.complete = True
        if self.wrapper is not None or self.shutdown is not None:
            return
        asked = line.process == "systemd" and line.message.startswith("Stopping ")
        if asked or any(map(line.message.__contains__, SHUTDOWNS)):
            self.shutdown = (line.message, line.process, line.number)
        elif self.stop is None and any(map(line.message.__contains__, STOPS)):
            self.stop = (line.message, line.process, line.number)

    def saw(self, line: Line) -> None:
        """Note who is at work."""
        if line.pid is None or line.process is None or line.role is None:
            return
        seen = {"engine": self.engines, "worker": self.workers}.get(line.role.value)
        if seen is not None and len(seen) < _MAX_PROCESSES:
            seen[line.pid] = line.process


def _int(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def is_ending(line: Line) -> bool:
    """Whether a line says that the start cannot succeed any more."""
    if line.level is None and line.message.startswith("Process ") and _epitaph().match(line.message):
        return True
    return any(map(line.message.__contains__, ENDINGS)) and not is_harmless(line)


@cache
def _epitaph() -> re.Pattern[str]:
    """What multiprocessing prints of a process that an exception has ended, before its traceback."""
    names = "|".join(_PROCESSES)
    return re.compile(rf"Process (?:{names})[\w-]{{0,60}}:$")


def cause_of(ends: Ends) -> Cause | None:
    """The end of a process as the aftermath tells it; None without an aftermath."""
    if (asked := asked_to_end(ends)) is not None:
        return asked
    if ends.wrapper is None:
        return None
    return told_by_code(ends) or _vanished(ends)


def asked_to_end(ends: Ends) -> Cause | None:
    """The end of a server that somebody asked to end; None where nobody did."""
    return None if ends.shutdown is None else _asked(*ends.shutdown)


def stopped(ends: Ends) -> Cause | None:
    """The end of a server that had come up and stopped in good order; None where it says no such thing."""
    return None if ends.stop is None else _asked(*ends.stop)


def gone(ends: Ends, *, since: int) -> Cause | None:
    """That processes are gone, as a line tells that stands behind another one; None without such a line."""
    from vllm_startup.causes._unknown import ProcessExited

    if ends.complete or ends.gone is None or ends.gone[2] < since:
        return None
    text, process, line = ends.gone
    cause = ProcessExited(
        message=f"the server's processes are gone, and the log does not say why; {_COLLECT}",
        confidence="unknown",
    )
    return with_evidence(cause, text, process, line)


def _asked(text: str, process: str | None, line: int) -> Cause:
    from vllm_startup.causes._server import ShutdownRequested

    cause = ShutdownRequested(
        message="the server was asked to end while it was starting",
        signal=15 if "SIGTERM" in text else 2 if "SIGINT" in text else None,
        confidence="likely",
        retryable=True,
    )
    return with_evidence(cause, text, process, line)


_FRONT_ENDS: Final = ("apiserver", "rustfrontend")  # the latter 0.21 and newer
_CRASHES: Final = {4: "ILL", 6: "ABRT", 7: "BUS", 8: "FPE", 11: "SEGV"}
_COLLECT: Final = (
    "collect the lines above, the kernel's log (dmesg) and the container's or unit's exit status"
)


def told_by_code(ends: Ends) -> Cause | None:
    """The end of the first process whose exit code names a signal."""
    from vllm_startup.causes._crash import ProcessCrashed, ProcessKilled

    for name, (code, text, line) in ends.codes.items():
        if code is None or code >= 0:
            continue
        signal = -code
        if signal in _CRASHES:
            cause: Cause = ProcessCrashed(
                message=f"{name} crashed (SIG{_CRASHES[signal]})",
                signal=signal,
                process=name,
                confidence="certain",
            )
        else:
            cause = ProcessKilled(message=f"{name} was ended by signal {signal}", signal=signal, process=name)
        return with_evidence(cause, text, None, line)
    return None


def _vanished(ends: Ends) -> Cause:
    from vllm_startup.causes._crash import ProcessKilled, ProcessVanished
    from vllm_startup.causes._distributed import FrontendDied
    from vllm_startup.causes._unknown import ProcessExited

    assert ends.wrapper is not None
    text, process, line = ends.wrapper
    cause: Cause
    first = next(iter(ends.codes), "")
    if first.lower().startswith(_FRONT_ENDS):
        _, text, line = ends.codes[first]
        process = None
        cause = FrontendDied(
            message=f"{first}, an API server process, ended before the server was up; {_COLLECT}",
            confidence="likely",
        )
    elif ends.wrapper_lost and (ends.workers or ends.engines):  # else the lines above are not there
        (pid, name) = next(iter(ends.workers.items())) if len(ends.workers) == 1 else (None, first or None)
        cause = ProcessVanished(
            message=f"{name or 'a worker'} is gone, and the log does not say why; {_COLLECT}",
            process=name or "Worker",
            pid=pid,
            confidence="unknown",
        )
    elif first and ends.codes[first][0] is None and not ends.engine_spoke_of_failure:
        cause = ProcessVanished(
            message=f"{first} is gone, and the log does not say why; {_COLLECT}",
            process=first,
            confidence="unknown",
        )
    elif not ends.engine_spoke_of_failure and not ends.codes and ends.engines:
        name = next(iter(ends.engines.values()))
        cause = ProcessKilled(
            message=f"{name} ended without a word, as a killed process does; {_COLLECT}",
            process=name,
            confidence="unknown",
        )
    else:
        code = next((c for c, _, _ in ends.codes.values() if c is not None), None)
        cause = ProcessExited(
            message=f"the start failed, and the log holds only what follows; {_COLLECT}",
            exit_code=code,
            confidence="unknown",
        )
    return with_evidence(cause, text, process, line)
