"""Installations to look at: laid out as venv, conda and Debian do it, with metadata and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from vllm_startup._preflight.facts import Facts
from vllm_startup._preflight.launch import Launch


def add(site: Path, name: str, version: str, *requires: str, scripts: str = "") -> Path:
    """Install a package's metadata."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    (info / "METADATA").write_text("\n".join(lines) + "\n\nWhat it is.\n")
    if scripts:
        (info / "entry_points.txt").write_text(scripts)
    return info


@attrs.frozen
class Venv:
    """A virtual environment of Python 3.12."""

    prefix: Path

    @classmethod
    def make(cls, prefix: Path, *, config: str = "version = 3.12.3\n") -> Venv:
        venv = cls(prefix)
        venv.site.mkdir(parents=True)
        (prefix / "bin").mkdir()
        (prefix / "pyvenv.cfg").write_text(f"home = /usr/bin\n{config}")
        program(venv.python, "")
        program(venv.vllm, f"#!{venv.python}\nfrom vllm.entrypoints.cli.main import main\n")
        return venv

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python3"

    @property
    def vllm(self) -> Path:
        return self.prefix / "bin" / "vllm"

    @property
    def site(self) -> Path:
        return self.prefix / "lib" / "python3.12" / "site-packages"

    def add(self, name: str, version: str, *requires: str) -> Path:
        return add(self.site, name, version, *requires)


def program(path: Path, text: str) -> Path:
    """A file that may be executed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def facts(
    command: Sequence[str | Path],
    environ: Mapping[str, str] | None = None,
    *,
    cwd: Path | str = "/",
    python: Path | None = None,
) -> Facts:
    """The facts of a start that is asked about."""
    return Facts(
        Launch(
            command=tuple(map(str, command)),
            environ=dict(environ or {}),
            cwd=str(cwd),
            python=None if python is None else str(python),
        )
    )
