"""The installed vLLM: its release, and the hardware that it was built for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from vllm_startup._preflight.packages import Package, Packages

if TYPE_CHECKING:
    from packaging.version import Version

_COMMAND: Final = "vllm.entrypoints.cli"
_OTHER_HARDWARE: Final = (
    *("ascend", "cpu", "empty", "gaudi", "hpu", "metal", "neuron", "rbln", "rocm", "spyre", "tpu", "xpu"),
)
"""In names of builds and plug-ins, and behind the ``+`` of versions (``empty``: for whatever plug-in)."""


@attrs.frozen(kw_only=True)
class Vllm:
    """A vLLM that is installed.

    Attributes:
        packages: What makes it up: mostly ``vllm``; builds for other hardware have names of their own.
        release: Its version; None where it is no version.
        hardware: What it was built for, where that is not CUDA.
    """

    packages: tuple[Package, ...]
    release: Version | None
    hardware: str | None

    @property
    def since(self) -> tuple[int, ...]:
        """Its release as numbers; empty where it is not known, as it is for a build from a checkout."""
        return self.release.release if self.release is not None and self.release >= _first() else ()


def vllm_of(packages: Packages) -> Vllm | None:
    """The vLLM among some packages; None where there is none."""
    named = [package for name in packages.beginning("vllm") if (package := packages.get(name)) is not None]
    found = [each for each in named if each.name == "vllm" or _COMMAND in each.scripts]
    if not found:
        return None
    return Vllm(packages=tuple(found), release=version_of(found[0].version), hardware=_hardware(named))


def version_of(text: str) -> Version | None:
    """Text as a version; None where it is none."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        return None


def _first() -> Version:
    from packaging.version import Version

    return Version("0.4")  # below it stand the 0.1.dev of checkouts, which say nothing


def _hardware(packages: list[Package]) -> str | None:
    words = " ".join(f"{package.name} {package.version.partition('+')[2]}".lower() for package in packages)
    return next((name for name in _OTHER_HARDWARE if name in words), None)
