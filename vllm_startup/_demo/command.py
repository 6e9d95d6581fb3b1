"""The command that starts a simulated server."""

from __future__ import annotations

import math
import socket
import sys

from vllm_startup._demo.settings import SCENARIOS, VERSIONS, Scenario, Settings


def simulated_server(
    scenario: Scenario = "ready",
    *,
    speed: float = 1.0,
    version: str = VERSIONS[-1],
    port: int | None = None,
    model: str = "Qwen/Qwen3-8B",
) -> list[str]:
    """The command of a server without a model that starts, prints, listens and fails as vLLM does.

    It is a real tree of processes with vLLM's titles: a main process that binds its port at once and
    listens last, an engine, two workers that compute and read a file. Once ready it answers ``/health``,
    ``/v1/models`` and ``/v1/completions``. It needs neither vLLM nor a GPU::

        async with vllm_startup.launch(simulated_server(speed=5)) as server:
            report = await server.wait_until_ready(until="inference")

    Args:
        scenario: ``ready``; ``out-of-memory``, where a worker runs out of GPU memory while it loads;
            ``killed``, where one is killed then; ``hang``, where they wait for each other for ever.
        speed: How much faster than real; at 1 it is ready after about 10 s.
        version: Which vLLM's output it has: ``0.17.1`` or ``0.32.0``.
        port: Where it listens, on loopback; a free one by default.
        model: The name of its model.

    Raises:
        ValueError: An argument makes no sense.
    """
    if scenario not in SCENARIOS:
        raise ValueError(f"scenario must be one of {', '.join(SCENARIOS)}, not {scenario!r}")
    if version not in VERSIONS:
        raise ValueError(f"version must be one of {', '.join(VERSIONS)}, not {version!r}")
    if not 0 < speed < math.inf:
        raise ValueError(f"speed must be above 0, not {speed!r}")
    settings = Settings(host="127.0.0.1", port=_free_port() if port is None else port, model=model)
    options = ["--scenario", scenario, "--speed", f"{speed:g}", "--version", version]
    return [sys.executable, "-m", "vllm_startup._demo", *options, *settings.serve()]


def _free_port() -> int:
    """A port that nobody has now; somebody may take it before the server does, as with any such choice."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
