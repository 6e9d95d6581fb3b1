"""The README's examples, as they are written there."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
NAMED = r"<!-- test: {} -->\n```{}\n(.*?)```"


def example(name: str, language: str) -> str:
    """The block under ``<!-- test: name -->``."""
    found = re.search(NAMED.format(re.escape(name), language), TEXT, re.DOTALL)
    assert found is not None, f"the README has no block {name!r}"
    return found.group(1)
