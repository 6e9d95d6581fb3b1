"""Markers of the API server, of life without progress, and of the end. Data only."""

from __future__ import annotations

from vllm_startup._log.marker import Marker, Means
from vllm_startup._phases import Phase

_SERVER = Phase.STARTING_SERVER

_SINCE_EVER = ("<=0.8.5", "0.33.0")

_SYSTEMD = frozenset({"systemd"})


def _starting(name: str, literal: str, first: str, last: str, *patterns: str) -> Marker:
    return Marker(
        name=name,
        literal=literal,
        means=Means.SERVER_STARTING,
        phase=_SERVER,
        patterns=patterns,
        versions=(first, last),
    )


def _alive(name: str, literal: str, first: str, last: str, *patterns: str, at_start: bool = True) -> Marker:
    return Marker(
        name=name,
        literal=literal,
        means=Means.HEARTBEAT,
        patterns=patterns,
        at_start=at_start,
        any_level=True,
        versions=(first, last),
    )


STARTING = (
    _starting("supported_tasks", "Supported tasks: ", "0.11.1", "0.33.0"),
    _starting("supported_tasks_up_to_0_11", "Supported_tasks: ", "0.10.1.1", "0.11.0.post2"),
    _starting(
        "server_starts_up_to_0_17",
        "Starting vLLM API server ",
        "<=0.8.5",
        "0.17.1",
        r"on (?P<listen_address>\S{1,256})",
    ),
    _starting(
        "server_starts", "Starting vLLM server on ", "0.18.1", "0.33.0", r"on (?P<listen_address>\S{1,256})"
    ),
    _starting("rust_server_starts", "starting vLLM server", "0.22.1", "0.33.0"),
    _starting("routes", "Available routes are:", *_SINCE_EVER),
    _starting("lora_loaded", "Loaded new LoRA adapter: name ", *_SINCE_EVER),
    # The launcher of several API servers says it when all engines are up.
    _starting("api_servers_complete", "Waiting for API servers to complete ...", "0.9.1", "0.33.0"),
    # A program of one's own makes its engine after these, in the application's lifespan.
    Marker(name="uvicorn_process", literal="Started server process [", means=Means.SERVER_STARTING),
    Marker(name="uvicorn_waits", literal="Waiting for application startup.", means=Means.SERVER_STARTING),
)

SERVING = (
    Marker(
        name="uvicorn_started", literal="Application startup complete.", means=Means.SERVED, phase=_SERVER
    ),
    # Printed where uvicorn itself binds: not by "vllm serve".
    Marker(
        name="uvicorn_runs",
        literal="Uvicorn running on ",
        means=Means.SERVED,
        phase=_SERVER,
        patterns=(r"on (?P<listen_address>\S{1,256})",),
    ),
    Marker(
        name="request_served",
        literal=" HTTP/1.",
        means=Means.SERVED,
        phase=_SERVER,
        patterns=(r'^\S{1,80} - "(?:GET|POST|HEAD|PUT|DELETE|OPTIONS) /\S{0,2048} HTTP/1\.[01]" 2\d\d\b',),
        at_start=False,
    ),
    Marker(
        name="rust_ready",
        literal="OpenAI server is ready to accept requests",
        means=Means.SERVED,
        phase=_SERVER,
        versions=("0.22.1", "0.33.0"),
    ),
    Marker(
        name="rust_grpc_ready",
        literal="gRPC server is ready to accept requests",
        means=Means.SERVED,
        phase=_SERVER,
        versions=("0.32.0", "0.33.0"),
    ),
    Marker(
        name="grpc_started",
        literal="vLLM gRPC server started on ",
        means=Means.SERVED,
        phase=_SERVER,
        patterns=(r"on (?P<listen_address>\S{1,256})",),
        versions=("0.14.1", "0.33.0"),
    ),
    Marker(
        name="grpc_ready",
        literal="Server is ready to accept requests",
        means=Means.SERVED,
        phase=_SERVER,
        versions=("0.14.1", "0.33.0"),
    ),
    Marker(
        name="dp_supervisor_ready",
        literal="Started DPSupervisor on ",
        means=Means.SERVED,
        phase=_SERVER,
        versions=("0.22.1", "0.33.0"),
    ),
)

HEARTBEATS = (
    _alive("shm_waits", "No available shared memory broadcast block found in ", *_SINCE_EVER),
    _alive(
        "engines_awaited",
        "core engine proc(s) to ",
        "0.9.0.1",
        "0.33.0",
        r"^Waiting for \d{1,6} local, \d{1,6} remote core engine proc\(s\) to (?:connect|start)",
        at_start=False,
    ),
    _alive("coordinator_awaited", "Waiting for READY message from DP Coordinator...", "0.10.1.1", "0.33.0"),
    _alive("placement_group_awaited", "Waiting for creating a placement group of specs for ", *_SINCE_EVER),
    _alive("dp_servers_awaited", "Waiting for vLLM DP Servers to become ready.", "0.26.0", "0.33.0"),
)


def _stop(name: str, literal: str, first: str, last: str, *patterns: str) -> Marker:
    return Marker(
        name=name,
        literal=literal,
        means=Means.SHUTDOWN,
        patterns=patterns,
        any_level=True,
        versions=(first, last),
    )


# "[shutdown] Executor" and "[shutdown] MPClient" are no requests: a failing start says them too.
STOPPING = (
    _stop("api_shutdown", "[shutdown] API server: shutdown triggered", "0.23.0", "0.33.0"),
    _stop(
        "engine_shutdown",
        "[shutdown] EngineCore: trigger received signal=",
        "0.23.0",
        "0.33.0",
        r"signal=(?:SIG)?(?P<exit_signal>[A-Z]{1,10})",
    ),
    _stop("api_shutdown_up_to_0_22", "Shutting down FastAPI HTTP server.", "<=0.8.5", "0.22.1"),
    _stop(
        "dp_supervisor_shutdown",
        "DPSupervisor received ",
        "0.22.1",
        "0.33.0",
        r"received (?:SIG)?(?P<exit_signal>[A-Z]{1,10}), shutting down",
    ),
    _stop("grpc_shutdown", "Shutting down vLLM gRPC server...", "0.14.1", "0.33.0"),
    Marker(
        name="uvicorn_stops", literal="Shutting down", means=Means.SHUTDOWN, patterns=(r"^Shutting down$",)
    ),
    Marker(name="uvicorn_waits_to_stop", literal="Waiting for application shutdown.", means=Means.SHUTDOWN),
    Marker(name="uvicorn_stopped", literal="Application shutdown complete.", means=Means.SHUTDOWN),
    Marker(name="uvicorn_finished", literal="Finished server process [", means=Means.SHUTDOWN),
    Marker(
        name="interrupted",
        literal="KeyboardInterrupt: terminated",
        means=Means.SHUTDOWN,
        any_level=True,
        versions=_SINCE_EVER,
    ),
    Marker(
        name="systemd_stops",
        literal="Stopping ",
        means=Means.SHUTDOWN,
        patterns=(r"(?i)^Stopping (?:.{0,200}(?:vllm|llm|inference)|(?!session|user)\S{1,200}\.service\b)",),
        speakers=_SYSTEMD,
    ),
)


def _unit(name: str, literal: str) -> Marker:
    # In a journal of the whole machine, other units and sessions start all the time.
    units = r"(?:.{0,200}(?:vllm|llm|inference)|(?!Session |User |user@)\S{1,200}\.service\b)"
    return Marker(
        name=name,
        literal=literal,
        means=Means.START,
        phase=Phase.LAUNCHING,
        patterns=(rf"(?i)^{literal}{units}",),
        speakers=_SYSTEMD,
    )


SUPERVISORS = (
    _unit("systemd_starting", "Starting "),
    _unit("systemd_started", "Started "),
    # It may be refused: "Start request repeated too quickly."
    Marker(
        name="systemd_restarts",
        literal="Scheduled restart job, restart counter is at ",
        means=Means.EXIT,
        at_start=False,
        speakers=_SYSTEMD,
    ),
    Marker(
        name="systemd_exited",
        literal="Main process exited, code=",
        means=Means.EXIT,
        patterns=(
            r"code=(?:exited, status=(?P<exit_code>\d{1,3})|"
            r"(?:killed|dumped), status=\d{1,3}/(?P<exit_signal>[A-Z0-9]{1,10}))",
        ),
        at_start=False,
        speakers=_SYSTEMD,
    ),
    Marker(
        name="systemd_succeeded",
        literal="Deactivated successfully.",
        means=Means.EXIT,
        patterns=(r"\.service: Deactivated successfully\.$",),
        at_start=False,
        speakers=_SYSTEMD,
    ),
    Marker(
        name="compose_exited",
        literal=" exited with code ",
        means=Means.EXIT,
        patterns=(r"^[a-zA-Z0-9][\w.-]{0,127} exited with code (?P<exit_code>\d{1,3})(?: \(restarting\))?$",),
        at_start=False,
    ),
    Marker(
        name="supervisord_spawned",
        literal="spawned: ",
        means=Means.START,
        phase=Phase.LAUNCHING,
        patterns=(r"^spawned: '[^']{1,128}' with pid \d{1,10}",),
    ),
    Marker(
        name="supervisord_exited",
        literal="exited: ",
        means=Means.EXIT,
        any_level=True,
        patterns=(
            r"^exited: \S{1,128} \((?:exit status (?P<exit_code>\d{1,3})|"
            r"terminated by SIG(?P<exit_signal>[A-Z0-9]{1,10}))",
        ),
    ),
    Marker(
        name="slurm_exited",
        literal="Exited with exit code ",
        means=Means.EXIT,
        patterns=(r"^srun: error: .{1,256}: Exited with exit code (?P<exit_code>\d{1,3})$",),
        at_start=False,
    ),
)

SERVER = (*STARTING, *SERVING, *HEARTBEATS, *STOPPING, *SUPERVISORS)
