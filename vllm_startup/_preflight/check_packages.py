"""Checks of the program, and of the packages that it will find: whether they go together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import attrs

from vllm_startup._preflight.facts import Facts
from vllm_startup._preflight.installation import Installation
from vllm_startup._preflight.launch import program_path
from vllm_startup._preflight.packages import Package, TwiceError, canonical
from vllm_startup._preflight.result import NotCheckedError
from vllm_startup._preflight.tools import chosen_environment
from vllm_startup._preflight.vllm_package import version_of, vllm_of
from vllm_startup._report import WarningReport
from vllm_startup.causes._base import Cause, Evidence
from vllm_startup.causes._install import program_missing
from vllm_startup.causes._releases import unfit_version, unlike_versions

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_UNCHECKED: Final = "FLASHINFER_DISABLE_VERSION_CHECK"
_BUILT_FOR_ONE_CUDA: Final = "flashinfer-jit-cache"
_FLASHINFER: Final = ("flashinfer-python", "flashinfer-cubin", _BUILT_FOR_ONE_CUDA)
_MOST_NAMED: Final = 6


def program(facts: Facts) -> Iterator[Cause]:
    """Whether what the command runs is there: its first word, and the server's own."""
    launch = facts.launch
    words = {launch.command[0]: (launch.environ, launch.cwd)}
    try:
        server = facts.server()
    except NotCheckedError:
        pass
    else:
        *before, named = server.command.program
        plain = named.rpartition("/")[2] == "vllm" and before[-1:] != ["-m"]
        ours = server.other_user is None and chosen_environment(before, server.environ, server.cwd) is None
        if plain and ours and (server.command.path_known or "/" in named):
            words[named] = (server.environ, server.cwd)
    for word, (environ, cwd) in words.items():
        if program_path(word, environ, cwd) is None:
            where = "it is no file that can be run" if "/" in word else f"PATH is {environ.get('PATH', '')}"
            yield attrs.evolve(program_missing(word), evidence=(Evidence(text=where),))


def flashinfer(facts: Facts) -> Iterator[Cause | WarningReport]:
    """Whether FlashInfer's packages have one version, as its import demands (0.4 to 0.6)."""
    installation = facts.installation()
    if facts.environ().get(_UNCHECKED):
        raise NotCheckedError(f"{_UNCHECKED} is set")
    packages = installation.packages
    try:
        core, *parts = (packages.get(name) for name in _FLASHINFER)
    except TwiceError as error:
        yield WarningReport(code="package_twice", text=str(error))
        return
    if core is None:
        if vllm_of(packages) is None:
            raise NotCheckedError(f"no vLLM is known to {installation.python}")
        return
    for part in parts:
        if part is not None and not _alike(part, core):
            name = canonical(part.name)
            cause = unlike_versions(name, part.version, "flashinfer", core.version)
            yield _as_sure(cause, installation, part, core)


def requirements(facts: Facts) -> Iterator[Cause | WarningReport]:
    """Whether the installed packages have the versions that vLLM's own metadata asks for."""
    installation = facts.installation()
    vllm = vllm_of(installation.packages)
    if vllm is None:
        raise NotCheckedError(f"no vLLM is known to {installation.python}")
    for package in vllm.packages:
        missing: list[str] = []
        for requirement in _asked(package, installation):
            try:
                found = installation.packages.get(requirement.name)
            except TwiceError as error:
                yield WarningReport(code="package_twice", text=str(error))
                continue
            if found is None:
                missing.append(str(requirement).partition(";")[0].strip())
            elif not _fits(found.version, requirement):
                yield _unfit(found, requirement, package, installation)
        if missing:
            yield _told_missing(missing, package)


def _alike(part: Package, core: Package) -> bool:
    """Whether FlashInfer takes them for one version, as it compares them itself."""
    if canonical(part.name) == _BUILT_FOR_ONE_CUDA:
        return part.version.startswith(core.version)  # 0.6.4+cu130
    return part.version == core.version or version_of(part.version) == version_of(core.version)


def _as_sure(cause: Cause, installation: Installation, *packages: Package) -> Cause:
    """With where the packages lie, and as sure as what may change them allows."""
    there = tuple(
        Evidence(text=f"{canonical(package.name)} {package.version} in {package.place}")
        for package in packages
    )
    if installation.changes is None:
        return attrs.evolve(cause, evidence=there)
    may = Evidence(text=f"{installation.changes} may install other versions before it starts")
    return attrs.evolve(cause, evidence=(*there, may), confidence="likely")


def _unfit(found: Package, requirement: Requirement, package: Package, installation: Installation) -> Cause:
    cause: Cause = unfit_version(found.name, found.version, package.name, str(requirement.specifier))
    asks = Evidence(
        text=f"{package.name} {package.version} requires {requirement.name}{requirement.specifier}"
    )
    cause = _as_sure(cause, installation, found)
    # Often enough it works all the same: newer releases of transformers are put in by hand.
    return attrs.evolve(cause, evidence=(asks, *cause.evidence), confidence="likely")


def _told_missing(missing: list[str], package: Package) -> WarningReport:
    named = ", ".join(missing[:_MOST_NAMED])
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    text = (
        f"{package.name} {package.version} requires what is not installed: {named}{more};"
        " some models do without"
    )
    return WarningReport(code="requirements_missing", text=text)


def _asked(package: Package, installation: Installation) -> Iterable[Requirement]:
    """The requirements that hold for this interpreter, extras left aside."""
    from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
    from packaging.requirements import InvalidRequirement, Requirement

    short = ".".join(installation.version.split(".")[:2])
    here = {"python_version": short, "python_full_version": installation.version, "extra": ""}
    for text in package.requires:
        try:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate(here):
                yield requirement
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
            continue  # written for another installer


def _fits(version: str, requirement: Requirement) -> bool:
    """Whether a version fits; builds of one release for other hardware (``+cu130``) count as alike."""
    import re

    from packaging.specifiers import SpecifierSet

    parsed = version_of(version)
    if parsed is None or requirement.url is not None:
        return True
    wanted = SpecifierSet(re.sub(r"\+[a-z0-9.]+", "", str(requirement.specifier), flags=re.IGNORECASE))
    return wanted.contains(parsed.public, prereleases=True)
