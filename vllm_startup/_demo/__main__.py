"""One process of a simulated server."""

from __future__ import annotations

import sys
from importlib import import_module

from vllm_startup._demo.settings import parse


def main() -> int:
    """Be the process that the arguments ask for."""
    settings = parse(sys.argv[1:])
    name = "api_server" if settings.role == "server" else settings.role
    status: int | None = import_module(f"vllm_startup._demo.{name}").run(settings)
    return status or 0


if __name__ == "__main__":
    sys.exit(main())
