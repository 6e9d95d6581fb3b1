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


def _denied_to_rust(found: Found) -> Cause:
    """Rust's libraries tell no path: tokenizers and safetensors read, Xet writes to the cache."""
    if found.error is not None and found.error.name in ("Exception", "SafetensorError"):
        return attrs.evolve(
            path_not_readable("", 13),
            message="a file of the model may not be read",
            path=None,
            confidence="likely",
        )
    return attrs.evolve(path_not_writable(None, 13), confidence="likely")


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
    CauseRule(
        literal="no space left on device",
        where="both",
        rank="generic",
        build=lambda _: disk_full(None),
        versions="Go: Docker, Kubernetes",
    ),
    CauseRule(
        literal="The node was low on resource: ephemeral-storage",
        where="line",
        ends=True,
        build=lambda _: disk_full(None),
        versions="Kubernetes",
    ),
    *(
        CauseRule(
            literal=said,
            pattern=rf"\[Errno (?P<errno>\d+)\] {said}: '(?P<path>[^']{{1,400}})'",
            exceptions=("OSError",),
            rank="generic",
            build=lambda found: attrs.evolve(
                path_not_readable(found.word("path") or "", found.number("errno")), confidence="likely"
            ),
            versions="glibc",
        )
        for said in ("Input/output error", "Stale file handle", "Transport endpoint is not connected")
    ),
    CauseRule(
        literal="Permission denied (os error 13)",
        build=_denied_to_rust,
        versions="Rust: safetensors, tokenizers, hf_xet",
    ),
    CauseRule(
        literal="No usable temporary directory found in",
        build=lambda _: attrs.evolve(
            path_not_writable(None, None),
            message="no directory for temporary files can be written",
            hint="set TMPDIR to a directory that can be written",
        ),
        versions="Python",
    ),
    CauseRule(
        literal="no locator available for file",
        pattern=r"cannot cache function '[^'\n]{1,200}': no locator available for "
        r"file '(?P<path>[^'\n]{1,400})'",
        build=lambda found: attrs.evolve(
            path_not_writable(found.word("path"), None),
            message="numba can write neither beside the module that it compiles nor to the user's cache",
            hint="set NUMBA_CACHE_DIR to a directory that can be written",
        ),
        versions="numba 0.4x to 0.6x",
    ),
    CauseRule(
        literal="No locks available",
        pattern=r"\[Errno (?P<errno>37)\] No locks available(?:: '(?P<path>[^']{1,400})')?",
        build=lambda found: attrs.evolve(
            _not_writable(found), message="the file system has no locks, as some network file systems"
        ),
        versions="glibc",
    ),
    CauseRule(
        literal="mkdir: cannot create directory ",
        pattern=r"^mkdir: cannot create directory ['‘](?P<path>[^'’\n]{1,400})['’]: "
        r"(?:Permission denied|Read-only file system)$",
        where="line",
        rank="weak",
        build=_not_writable,
        versions="coreutils 8 to 9",
    ),
    *(
        CauseRule(
            literal=said,
            pattern=pattern,
            where="line",
            ends=True,
            build=lambda found: attrs.evolve(
                path_not_readable(found.word("path") or "", 13),
                message=f"{found.word('path')} may not be executed",
                hint="chmod +x it, and see that its file system is not mounted noexec",
            ),
            versions=versions,
        )
        for said, pattern, versions in (
            (
                "Failed at step EXEC spawning ",
                r"Failed at step EXEC spawning (?P<path>/.{1,300}): Permission denied$",
                "systemd 219 to 257",
            ),
            (": permission denied", r'exec: "(?P<path>[^"]{1,300})": permission denied', "runc, Docker"),
        )
    ),
    CauseRule(
        literal="Unable to open /dev/kfd ",
        pattern=r"^(?:\w{1,40}Error: )?Unable to open (?P<path>/dev/kfd) read-write: Permission denied",
        where="both",
        build=lambda found: attrs.evolve(
            _not_writable(found),
            hint="give the user the groups render and video (docker: --device /dev/kfd --group-add render)",
        ),
        versions="ROCm 5 to 7",
    ),
    *(
        CauseRule(
            literal=said,
            exceptions=("OperationalError",),
            build=lambda _: attrs.evolve(
                path_not_writable(None, None),
                message="a cache's database may not be written",
                hint="set OUTLINES_CACHE_DIR or HOME to a directory that can be written",
                confidence="likely",
            ),
            versions="SQLite 3",
        )
        for said in ("unable to open database file", "attempt to write a readonly database")
    ),
    CauseRule(literal="database or disk is full", build=lambda _: disk_full(None), versions="SQLite 3"),
)
