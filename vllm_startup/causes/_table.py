"""The README's table of causes, made from the classes themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from vllm_startup import causes
from vllm_startup.causes._base import Cause

BEGIN: Final = "<!-- generated: causes -->"
END: Final = "<!-- end -->"

# In the order in which a start meets them.
_FAMILIES: Final = (
    "Install",
    "LaunchArguments",
    "ModelAccess",
    "ModelSupport",
    "Devices",
    "Driver",
    "Hardware",
    "HostResource",
    "Distributed",
    "Checkpoint",
    "GpuMemory",
    "Compile",
    "Crash",
    "Server",
    "Limit",
    "Unknown",
)


def table() -> str:
    """Every kind in a Markdown table: its family, its fields, and what it is."""
    rows = ["| family | kind | fields | what happened |", "| --- | --- | --- | --- |"]
    for family in _FAMILIES:
        shown = f"`{family}`"
        for kind in _kinds(family):
            fields = ", ".join(f"`{name}`" for name in _fields(kind))
            rows.append(f"| {shown} | `{kind.kind}` | {fields} | {_first_line(kind)} |")
            shown = ""
    return "\n".join(rows)


def _kinds(family: str) -> Iterator[type[Cause]]:
    base = getattr(causes, family)
    for name in causes.__all__:
        kind = getattr(causes, name)
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base:
            yield kind


def _fields(kind: type[Cause]) -> list[str]:
    common = {each.name for each in attrs.fields(Cause)}
    return [each.name for each in attrs.fields(kind) if each.name not in common]


def _first_line(kind: type[Cause]) -> str:
    return (kind.__doc__ or "").partition("\n")[0].replace("``", "`").rstrip(".")
