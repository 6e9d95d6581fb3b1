"""The starts that the tests with a real vLLM look at: how each is made, what happens to it, who watches."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import attrs
from real_server import Server, free_port

from vllm_startup import StartupError, Timeouts, wait_until_ready_sync

TOTAL_S = 300.0  # a start takes 20 to 60 s, thrice that on a machine that is busy otherwise
STALL_S = 8.0
# The tests want to see a tree end: 5 s on an idle machine, more than the default of 10 s on a busy one.
EXIT_GRACE_S = 60.0
API_KEY = "sk-not-to-be-seen-anywhere"
LOADING = "Starting to load model"

Json = dict[str, Any]


@attrs.frozen(kw_only=True)
class Start:
    """One start of a server and one watch over it.

    Attributes:
        arguments: After ``vllm serve MODEL --port PORT``. ``{place}`` is the start's own directory.
        environment: On top of what all starts have.
        by: Who watches: `vllm_startup.wait_until_ready_sync`, or ``vllm-startup wait``.
        watch: Arguments of the former.
        options: Arguments of the latter.
        port_taken: Whether somebody else listens on the port.
        meanwhile: What happens to the server while it starts.
        then: What else is looked at once it is ready.
    """

    model: str = "tiny"
    arguments: tuple[str, ...] = ("--enforce-eager",)
    environment: Mapping[str, str] = attrs.field(factory=dict)
    by: Literal["api", "cli"] = "api"
    watch: Mapping[str, Any] = attrs.field(factory=dict)
    options: tuple[str, ...] = ()
    port_taken: bool = False
    meanwhile: Callable[[Server], object] | None = None
    then: Callable[[Server], Json] | None = None


@attrs.frozen(kw_only=True)
class Watched:
    """What a watch said.

    Attributes:
        report: The report, as JSON.
        events: The events, as JSON.
        asked_at: When the watch was asked for, in seconds since the epoch.
        noticed_at: When it had its answer.
        error: What was raised; None for a server that is ready, and for the command line.
        status: The command line's exit status.
        said: What the command line wrote to standard error.
    """

    report: Json
    events: list[Json]
    asked_at: float
    noticed_at: float
    error: StartupError | None = None
    status: int | None = None
    said: str = ""


@attrs.frozen(kw_only=True)
class Bringup:
    """A start that is over: what the watch said, and what its observer saw.

    Attributes:
        alive: What ran of the server when the watch returned.
        left: What was left of it after it had been asked to end; for a failed start, ``alive``.
        victim: The process that something was done to.
        later: What further watches said of the ready server.
    """

    watched: Watched
    log: Path
    recording: Path
    port: int
    pid: int
    listened_at: float | None
    exited_at: float | None
    alive: dict[int, str]
    left: dict[int, str]
    victim: int | None = None
    later: Json = attrs.field(factory=dict)


def look_again(server: Server) -> Json:
    """Further watches over a server that is ready: each attaches late."""

    def late(**watch: Any) -> Watched:
        return watch_by_api(server, None, {"timeouts": Timeouts(10), **watch})

    return {
        "model": late(until="model", model="first"),
        "any_model": late(until="model", pid=None, log=None),
        "other_model": late(until="model", model="second", timeouts=Timeouts(1)),
        "engine": late(until="engine"),
        "without_log": late(log=None),
        "stable": late(stable_for=1.0, log=None),
    }


def kill_worker(server: Server) -> int:
    """Kill the worker while it loads weights."""
    server.wait_for_line(LOADING)
    return server.signal_to("VLLM::Worker", signal.SIGKILL)


def suspend_engine(server: Server) -> int:
    """Stop the engine while its worker loads weights."""
    server.wait_for_line(LOADING)
    return server.signal_to("VLLM::EngineCore", signal.SIGSTOP)


_JSON_LOGS = {
    "version": 1,
    "formatters": {
        "json": {
            "class": "pythonjsonlogger.json.JsonFormatter",
            "format": "%(asctime)s %(levelname)s %(name)s %(message)s",
        }
    },
    "handlers": {
        "out": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stdout"}
    },
    "loggers": {"vllm": {"handlers": ["out"], "level": "INFO", "propagate": False}},
}

# Two run at a time, in this order: the long ones first, so that no long one is left alone at the end.
STARTS: Mapping[str, Start] = {
    "compiled": Start(
        arguments=(),
        environment={"VLLM_CACHE_ROOT": "{place}/vllm", "TORCHINDUCTOR_CACHE_DIR": "{place}/inductor"},
    ),
    "dp2": Start(arguments=("--enforce-eager", "-dp", "2")),
    "engine-suspended": Start(
        model="big", meanwhile=suspend_engine, watch={"timeouts": Timeouts(TOTAL_S, stall=STALL_S)}
    ),
    "tp2": Start(arguments=("--enforce-eager", "-tp", "2")),
    "worker-killed": Start(model="big", meanwhile=kill_worker),
    "eager": Start(
        arguments=("--enforce-eager", "--served-model-name", "first"),
        watch={"until": "inference"},
        then=look_again,
    ),
    "kv-cache-too-small": Start(model="long"),
    "corrupt-weights": Start(model="corrupt"),
    "json-logs": Start(
        arguments=("--enforce-eager", "--api-key", API_KEY),
        environment={"VLLM_LOGGING_CONFIG_PATH": "{place}/logging.json"},
        by="cli",
        options=("--until", "inference", "--api-key-file", "{place}/key"),
    ),
    "log-level-warning": Start(environment={"VLLM_LOGGING_LEVEL": "WARNING"}, by="cli"),
    "logging-not-configured": Start(environment={"VLLM_CONFIGURE_LOGGING": "0"}),
    "port-taken": Start(port_taken=True),
    "model-missing": Start(model="missing", by="cli"),
}


def bring_up(name: str, *, real: Path, place: Path, temporary: Path) -> Bringup:
    """Start the server, watch it to its end, stop it.

    Args:
        name: One of `STARTS`.
        real: Where ``tests/real/setup.sh`` installed vLLM.
        place: A directory for this start's files.
        temporary: One with a short name for vLLM's sockets.
    """
    start = STARTS[name]
    (place / "logging.json").write_text(json.dumps(_JSON_LOGS))
    (place / "key").write_text(API_KEY + "\n")
    with ExitStack() as stack:
        port = free_port()
        if start.port_taken:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        command = [
            *(f"{real}/venv/bin/vllm", "serve", f"{real}/models/{start.model}", "--port", str(port)),
            *(argument.format(place=place) for argument in start.arguments),
        ]
        environment = environment_of(real, temporary) | {
            key: value.format(place=place) for key, value in start.environment.items()
        }
        server = stack.enter_context(Server(command, environment=environment, port=port, place=place))
        return _see_through(start, server, place)


def _see_through(start: Start, server: Server, place: Path) -> Bringup:
    done: list[Any] = []
    actor = None
    if (meanwhile := start.meanwhile) is not None:
        actor = threading.Thread(target=lambda: done.append(meanwhile(server)), name="actor")
        actor.start()
    recording = place / "recording.jsonl"
    if start.by == "api":
        watched = watch_by_api(server, recording, start.watch)
    else:
        watched = watch_by_cli(server, place, [option.format(place=place) for option in start.options])
    alive = server.alive()
    if actor is not None:
        actor.join()
    ready = watched.report["outcome"] == "ready"
    later = start.then(server) if ready and start.then is not None else {}
    return Bringup(
        watched=watched,
        log=server.log,
        recording=recording,
        port=server.port,
        pid=server.pid,
        listened_at=server.listened_at,
        exited_at=server.exited_at,
        alive=alive,
        left=server.stop() if ready else alive,
        victim=done[0] if done else None,
        later=later,
    )


def watch_by_api(server: Server, recording: Path | None, watch: Mapping[str, Any]) -> Watched:
    """Watch as a script does."""
    events: list[Json] = []
    asked_at = time.time()
    arguments: Json = {
        "pid": server.pid,
        "log": server.log,
        "timeouts": Timeouts(TOTAL_S),
        "exit_grace": EXIT_GRACE_S,
        "record": recording,
    }
    error: StartupError | None = None
    try:
        report = wait_until_ready_sync(
            server.url, on_event=lambda event: events.append(event.to_dict()), **{**arguments, **watch}
        )
    except StartupError as failure:
        error, report = failure, failure.report
    noticed_at = time.time()
    return Watched(
        report=report.to_dict(), events=events, asked_at=asked_at, noticed_at=noticed_at, error=error
    )


def watch_by_cli(server: Server, place: Path, options: list[str]) -> Watched:
    """Watch as a shell does."""
    command = [
        *(sys.executable, "-m", "vllm_startup", "wait", server.url),
        *("--pid", str(server.pid), "--log", str(server.log), "--timeout", str(TOTAL_S), "--json"),
        *("--record", str(place / "recording.jsonl"), "--events", str(place / "events.jsonl")),
        *options,
    ]
    asked_at = time.time()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=TOTAL_S + 30
    )
    try:
        report = json.loads(done.stdout)
        events = [json.loads(line) for line in (place / "events.jsonl").read_text().splitlines()]
    except (OSError, ValueError):
        raise AssertionError(f"vllm-startup wait ended with {done.returncode}: {done.stderr}") from None
    noticed_at = datetime.fromisoformat(events[-1]["ts"]).timestamp()
    return Watched(
        report=report,
        events=events,
        asked_at=asked_at,
        noticed_at=noticed_at,
        status=done.returncode,
        said=done.stderr,
    )


def environment_of(real: Path, temporary: Path) -> dict[str, str]:
    inherited = {key: os.environ[key] for key in ("HOME", "LANG", "LD_LIBRARY_PATH") if key in os.environ}
    return {
        **inherited,
        "PATH": f"{real}/venv/bin:{os.environ.get('PATH', os.defpath)}",
        "TMPDIR": str(temporary),
        "HF_HOME": f"{real}/cache/huggingface",
        "HF_HUB_OFFLINE": "1",
        "TORCHINDUCTOR_CACHE_DIR": f"{real}/cache/inductor",
        "VLLM_CACHE_ROOT": f"{real}/cache/vllm",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # bound, two starts at a time would share one core
        "VLLM_NO_USAGE_STATS": "1",
    }
