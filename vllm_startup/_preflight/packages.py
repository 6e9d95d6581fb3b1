"""Installed packages, by what their metadata says."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import PathDistribution
from pathlib import Path

import attrs

from vllm_startup._preflight.result import NotCheckedError

_INFO = re.compile(r"(?P<name>[A-Za-z0-9][\w.]*?)(?:-(?P<rest>[^-]+.*?))?\.(?:dist-info|egg-info)")


class TwiceError(NotCheckedError):
    """A package is installed twice in one folder."""


@attrs.frozen(kw_only=True)
class Package:
    """One installed package.

    Attributes:
        name: As its metadata has it.
        requires: Its requirements, as its metadata has them.
        scripts: Its entry points, as text.
    """

    name: str
    version: str
    place: str
    requires: tuple[str, ...] = ()
    scripts: str = ""


class Packages:
    """What an interpreter finds in its folders, each package in the first that has it.

    Args:
        folders: As in ``sys.path``.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self.folders = tuple(folders)

    def get(self, name: str) -> Package | None:
        """One package; None where it is not installed, or its metadata cannot be read.

        Raises:
            TwiceError: Two versions of it are installed in one folder: which counts is chance.
        """
        asked = canonical(name)
        read = [package for place in self._places.get(asked, ()) if (package := _read(place))]
        found = [package for package in read if canonical(package.name) == asked]
        if len({package.version for package in found}) > 1:
            versions = " and ".join(sorted(package.version for package in found))
            raise TwiceError(f"{found[0].place} holds {name} {versions}, of which one is a remnant")
        return found[0] if found else None

    def beginning(self, prefix: str) -> list[str]:
        """The names of those whose name begins so."""
        return sorted(name for name in self._places if name.startswith(prefix))

    @cached_property
    def _places(self) -> dict[str, list[Path]]:
        places: dict[str, list[Path]] = {}
        for folder in self.folders:
            here: dict[str, list[Path]] = {}
            for entry in _listed(folder):
                if (match := _INFO.fullmatch(entry)) is not None:
                    here.setdefault(canonical(match["name"]), []).append(Path(folder, entry))
            for name, found in here.items():
                places.setdefault(name, sorted(found))
        return places


def canonical(name: str) -> str:
    """A package's name as all spellings of it have it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _read(place: Path) -> Package | None:
    distribution = PathDistribution(place)
    try:
        metadata = distribution.metadata
        name, version = metadata["Name"], metadata["Version"]
        if not name or not version:
            return None
        return Package(
            name=str(name),
            version=str(version),
            place=str(place.parent),
            requires=tuple(distribution.requires or ()),
            scripts=distribution.read_text("entry_points.txt") or "",
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # garbage: what is not known is not claimed


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names are enough
    except OSError:
        return []
