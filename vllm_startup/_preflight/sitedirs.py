"""Where an interpreter's packages lie, by its own place alone."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

from vllm_startup._preflight.paths import is_file, is_folder

_MOST_BYTES: Final = 64 * 1024


@attrs.frozen(kw_only=True)
class Layout:
    """The folders that an interpreter looks for packages in, in its order."""

    version: str
    folders: tuple[str, ...]


def layout_of(python: Path, environ: Mapping[str, str], cwd: str) -> Layout | None:
    """The layout; None where the interpreter's place does not tell it.

    Args:
        python: The interpreter, its links not followed: a virtual environment's is one.
        environ: Its environment.
        cwd: Its working directory, for relative paths in ``PYTHONPATH``.
    """
    if environ.get("PYTHONHOME"):
        return None
    try:
        found = _virtual(python, environ) or _plain(python.resolve(), environ)
    except (OSError, RuntimeError):
        return None
    if found is None:
        return None
    asked = [os.path.join(cwd, part) for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]  # noqa: PTH118
    site = [folder for folder in found.folders if is_folder(folder)]
    linked = [line for folder in site for line in _pth_lines(folder)]
    folders = dict.fromkeys([*asked, *site, *linked])
    return attrs.evolve(found, folders=tuple(folders)) if site else None


def _virtual(python: Path, environ: Mapping[str, str]) -> Layout | None:
    """A virtual environment's, with the system's behind it where it has them (PEP 405)."""
    file = next((f for d in python.parents[:2] if is_file(f := d / "pyvenv.cfg")), None)
    if file is None:
        return None
    lines = (line.partition("=") for line in _text(file).splitlines())
    settings = {key.strip().lower(): value.strip() for key, _, value in lines}
    version = settings.get("version") or settings.get("version_info") or ""
    found = re.match(r"\d+\.\d+(?:\.\d+)?", version)
    if found is None:
        return None
    short = ".".join(found[0].split(".")[:2])
    folders = [str(file.parent / lib / f"python{short}" / "site-packages") for lib in ("lib", "lib64")]
    if settings.get("include-system-site-packages", "").lower() == "true":
        base = _plain(Path(settings.get("home", ""), f"python{short}").resolve(), environ)
        folders += base.folders if base is not None else ()
    return Layout(version=found[0], folders=tuple(_distinct(folders)))


def _plain(python: Path, environ: Mapping[str, str]) -> Layout | None:
    """Another interpreter's: a system's, a conda environment's, one that was built."""
    prefix = python.parent.parent
    named = re.fullmatch(r"python(\d+\.\d+)t?", python.name)
    there = [
        path.name.removeprefix("python") for path in (prefix / "lib").glob("python3.*") if is_folder(path)
    ]
    version = named[1] if named else there[0] if len(there) == 1 else None
    if version is None or not is_file(prefix / "lib" / f"python{version}" / "os.py"):
        return None
    own = [
        f"{prefix}/{lib}/python{version}/{kind}"
        for lib in ("lib", "lib64")
        for kind in ("site-packages", "dist-packages")
    ]
    if str(prefix) == "/usr":
        local = [f"/usr/local/lib/python{version}/{kind}" for kind in ("dist-packages", "site-packages")]
        own = [*local, "/usr/lib/python3/dist-packages", *own]
    users = []
    if not environ.get("PYTHONNOUSERSITE") and (home := environ.get("HOME")):
        base = environ.get("PYTHONUSERBASE") or f"{home}/.local"
        users = [f"{base}/lib/python{version}/site-packages"]
    return Layout(version=version, folders=tuple(_distinct([*users, *own])))


def _pth_lines(folder: str) -> Iterator[str]:
    """The folders that ``.pth`` files add, as legacy editable installs do; what they would run is not run."""
    for file in sorted(Path(folder).glob("*.pth")):
        for line in _text(file).splitlines():
            if line.strip() and not line.startswith(("#", "import ", "import\t")):
                path = Path(folder, line.strip())
                if is_folder(path):
                    yield str(path)


def _distinct(folders: list[str]) -> list[str]:
    """Each once, also where ``lib64`` is a link to ``lib``."""
    return list({os.path.realpath(folder): folder for folder in reversed(folders)}.values())[::-1]


def _text(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            return stream.read(_MOST_BYTES)
    except OSError:
        return ""
