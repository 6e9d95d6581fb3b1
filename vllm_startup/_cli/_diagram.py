"""``vllm-startup diagram``."""

from __future__ import annotations

import argparse
from typing import Final

from vllm_startup._cli._output import say
from vllm_startup._cli._status import Exit

DESCRIPTION: Final = "Print the phases of a bring-up and the moves between them, as Mermaid text."
EPILOG: Final = ""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


def run(options: argparse.Namespace) -> int:
    """Print it."""
    from vllm_startup._phases import diagram

    say(diagram())
    return Exit.READY
