"""Install: packages whose versions do not belong together."""

from __future__ import annotations

from vllm_startup.causes._base import Cause
from vllm_startup.causes._install import DependencyVersionMismatch
from vllm_startup.causes._rules import CauseRule, Found


def _flashinfer(found: Found) -> Cause:
    return unlike_versions(
        found.word("package"), found.word("version"), found.word("other"), found.word("wanted")
    )


def unlike_versions(
    package: str | None, version: str | None, other: str | None, wanted: str | None
) -> DependencyVersionMismatch:
    """Two packages that must have the same version have not."""
    return DependencyVersionMismatch(
        message=f"{package} {version or ''} does not match {other} {wanted or ''}".replace("  ", " ").strip(),
        # Builds for one CUDA come from flashinfer's own index, not by version alone.
        hint=f"pip install {package}=={wanted}"
        if package and wanted and "+" not in (version or "")
        else None,
        package=package,
        version=version,
        other=other,
        other_version=wanted,
        retryable=False,
    )


def _required(found: Found) -> Cause:
    version = (found.word("version") or "").rstrip(".")
    return unfit_version(found.word("package") or "", version, "transformers", found.word("wanted") or "")


def unfit_version(package: str, version: str, other: str, wanted: str) -> DependencyVersionMismatch:
    """A package has a version outside the range that another one asks for."""
    return DependencyVersionMismatch(
        message=f"{package} {version} is installed, {package}{wanted} is needed",
        hint=f"pip install '{package}{wanted}'",
        package=package,
        version=version,
        other=other,
        other_version=wanted,
        retryable=False,
    )


def _wanted(found: Found) -> Cause:
    package = (found.word("package") or "").lower()
    wanted = (found.word("wanted") or "").replace(" ", "").rstrip(".")
    version = found.word("version")
    return DependencyVersionMismatch(
        message=f"{package} {version or 'of another version'} is installed, {package}{wanted} is needed",
        hint=f"pip install '{package}{wanted}'",
        package=package,
        version=version,
        other="vllm",
        other_version=wanted,
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="does not match flashinfer version",
        pattern=r"(?P<package>flashinfer-[\w-]{1,40}) version(?: \((?P<version>[\w.+]{1,40})\))? does "
        r"not match "
        r"(?P<other>flashinfer) version(?: \((?P<wanted>[\w.+]{1,40})\))?",
        build=_flashinfer,
        versions="flashinfer 0.4 to 0.6",
    ),
    CauseRule(
        literal="is required for a normal functioning of this module",
        pattern=r"(?P<package>[\w.-]{1,60})(?P<wanted>[<>=!~][^\s]{0,80}) is required for a normal "
        r"functioning of this "
        r"module, but found (?P=package)==(?P<version>[\w.+]{1,40})",
        build=_required,
        versions="transformers 4 to 5",
    ),
    CauseRule(
        literal="wrong. Please",
        pattern=r"(?P<package>[\w.-]{1,60}) version is wrong\. Please\s+install (?P=package)"
        r"(?P<wanted>[<>=!~]=?[\w.,<>=!~]{1,40})",
        build=_wanted,
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal=" is required, but ",
        pattern=r"(?P<package>[A-Za-z][\w.-]{0,60}) (?P<wanted>[<>=~]{1,2} ?[\d.]{1,20}) is required, but "
        r"(?:\w{1,60}==)?(?P<version>[\w.]{1,30}) is installed",
        build=_wanted,
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="use torchao version",
        pattern=r"[Pp]lease use (?P<package>torchao) version (?P<wanted>[<>=]{1,2} ?[\d.]{1,20}\d)",
        build=_wanted,
        versions="0.14 to 0.33",
    ),
    CauseRule(
        literal="Numba needs NumPy",
        pattern=r"Numba needs (?P<package>NumPy) (?P<limit>\d[\d.]{0,20}) or (?P<side>less|greater)\. "
        r"Got NumPy (?P<version>[\d.]{1,20}\d)",
        build=lambda found: unfit_version(
            "numpy",
            found.word("version") or "",
            "numba",
            (">=" if found.word("side") == "greater" else "<=")
            + (found.word("limit") or "")
            + ("" if found.word("side") == "greater" else ".*"),
        ),
        versions="numba 0.5x to 0.6x",
    ),
)
