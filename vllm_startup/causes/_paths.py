"""HostResource: what cannot be read or written, and full disks."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._host import disk_full, path_not_readable, path_not_writable
from vllm_startup.causes._rules import CauseRule, Found


def _disk_full(found: Found) -> Cause:
    return disk_full(found.word("path"))


_WRITES = frozenset(
    {"makedirs", "mkdir", "mkdtemp", "replace", "write_text", "write_bytes", "write", "_create_symlink"}
)


def _denied(found: Found) -> Cause:
    functions = found.error.functions[-4:] if found.error is not None else ()
    if any(function in _WRITES for function in functions):
        return _not_writable(found)
    path = found.word("path") or ""
    if path.endswith((".json", ".safetensors", ".bin", ".model", ".jinja", ".py", ".pem", ".key")):
        return attrs.evolve(path_not_readable(path, found.number("errno")), confidence="likely")
    return attrs.evolve(_not_writable(found), confidence="likely")


def _not_writable(found: Found) -> Cause:
    return path_not_writable(found.word("path"), found.number("errno"))


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="No space left on device",
        pattern=r"No space left on device(?: \(os error 28\))?(?:: '(?P<path>[^']{1,400})')?",
        rank="generic",
        build=_disk_full,
        versions="glibc, Rust",
    ),
    CauseRule(
        literal="Disk quota exceeded",
        pattern=r"Disk quota exceeded(?:: '(?P<path>[^']{1,400})')?",
        rank="generic",
        build=_disk_full,
        versions="glibc",
    ),
    CauseRule(
        literal="denied: ",
        pattern=r"\[Errno (?P<errno>1|13)\] .{0,30}?: '(?P<path>[^']{1,400})'",
        exceptions=("PermissionError", "OSError"),
        rank="generic",
        build=_denied,
        versions="Python",
    ),
    CauseRule(
        literal="Read-only file system",
        pattern=r"\[Errno (?P<errno>30)\] Read-only file system(?:: '(?P<path>[^']{1,400})')?",
        build=_not_writable,
        versions="Python",
    ),
    CauseRule(
        literal="PermissionError at",
        pattern=r"PermissionError at (?P<path>\S{1,400}) when downloading",
        build=_not_writable,
        versions="transformers 4.40 to 5.x",
    ),
)
