"""The README's examples, as they are written there."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
NAMED = r"<!-- test: {} -->\n```{}\n(.*?)```"


def example(name: str, language: str) -> str:
    """The block under ``<!-- test: name -->``."""
    found = re.search(NAMED.format(re.escape(name), language), TEXT, re.DOTALL)
    assert found is not None, f"the README has no block {name!r}"
    return found.group(1)


def free_port() -> int:
    """A port that nobody has now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found: int = listener.getsockname()[1]
        return found


def with_ports(words: Sequence[str], ports: Mapping[str, int]) -> list[str]:
    """The words of a command with other ports than the README's."""
    return [re.sub(r"\b800[01]\b", lambda found: str(ports[found.group()]), word) for word in words]
