"""A subcommand that raises what it is told to."""

from __future__ import annotations

import argparse

DESCRIPTION = ""
EPILOG = ""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind")


def run(options: argparse.Namespace) -> int:
    if options.kind == "interrupt":
        raise KeyboardInterrupt
    raise LookupError(f"secret \x1b[31m of {options.kind}")
