"""What a simulated server is asked for; given on from process to process as arguments."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Final, Literal, get_args

import attrs

Scenario = Literal["ready", "out-of-memory", "hang", "killed"]
SCENARIOS: Final[tuple[str, ...]] = get_args(Scenario)
VERSIONS: Final = ("0.17.1", "0.32.0")
"""The newest of the two forms that prefixes and lines have had; 0.31 changed them."""

WORKERS: Final = 2
SHARDS: Final = 8
SHARD_BYTES: Final = 4 * 1024 * 1024


@attrs.frozen(kw_only=True)
class Settings:
    """One simulated start.

    Attributes:
        speed: How much faster than at 1, where a start takes about 10 s.
        weights: The file descriptor of the weights; -1 before there is one.
        rank: Of this process, when it is a worker.
        answers: The file descriptor to which this process tells its parent what it has done.
    """

    scenario: str = "ready"
    speed: float = 1.0
    version: str = VERSIONS[-1]
    role: str = "server"
    host: str = ""
    port: int = 8000
    model: str = "Qwen/Qwen3-8B"
    weights: int = -1
    rank: int = 0
    answers: int = -1

    def rest(self, seconds: float) -> None:
        """Sleep for what are so many seconds at speed 1."""
        time.sleep(seconds / self.speed)

    def serve(self) -> list[str]:
        """What the server is told in vLLM's own words."""
        host = ["--host", self.host] if self.host else []
        return ["vllm", "serve", self.model, *host, "--port", str(self.port)]

    def command(self) -> list[str]:
        """The command that runs a process with these settings."""
        named = ("scenario", "speed", "version", "role", "weights", "rank", "answers")
        options = [f"--{name}={getattr(self, name)}" for name in named]
        return [sys.executable, "-m", "vllm_startup._demo", *options, *self.serve()]


def parse(arguments: Sequence[str]) -> Settings:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m vllm_startup._demo", description="A simulated vLLM.")
    parser.add_argument("--scenario", choices=SCENARIOS, default="ready")
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--version", choices=VERSIONS, default=VERSIONS[-1])
    parser.add_argument("--role", choices=("server", "engine", "worker"), default="server")
    for name in ("weights", "rank", "answers"):
        parser.add_argument(f"--{name}", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs=2, metavar="vllm serve")
    parser.add_argument("model")
    parser.add_argument("--host", default="")
    parser.add_argument("--port", type=int, default=8000)
    options = vars(parser.parse_args(arguments))
    if options.pop("words") != ["vllm", "serve"]:
        parser.error("give: vllm serve MODEL --port PORT")
    return Settings(**options)
