"""The command line: a thin caller of the public API."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Args:
        argv: The arguments without the program's name; None: those of this process.
    """
    import sys

    from vllm_startup._cli._commands import run

    return run(sys.argv[1:] if argv is None else argv)
