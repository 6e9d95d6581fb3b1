"""Install: the installation does not hold together."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._remedies import apt, pip
from vllm_startup.causes._rules import CauseRule, Found


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Install(Cause):
    """The installation does not hold together."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DependencyVersionMismatch(Install):
    """Two packages' versions do not belong together.

    Attributes:
        package: The one that does not fit.
        version: Its version.
        other: The one that it must fit.
        other_version: That one's version, or the range that is wanted.
    """

    package: str | None = None
    version: str | None = None
    other: str | None = None
    other_version: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DependencyApiMismatch(Install):
    """A package lacks something that another one uses.

    Attributes:
        module: Where it was looked for.
        name: What was looked for.
    """

    module: str | None = None
    name: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BinaryIncompatible(Install):
    """A compiled extension was built for other binaries.

    Attributes:
        library: The extension.
        symbol: What it lacks.
    """

    library: str | None = None
    symbol: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class SharedLibraryMissing(Install):
    """A shared library cannot be loaded.

    Attributes:
        library: Which.
    """

    library: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ModuleMissing(Install):
    """A Python module is not installed.

    Attributes:
        module: Which.
    """

    module: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ProgramMissing(Install):
    """A program that is run is not installed.

    Attributes:
        program: Which.
    """

    program: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ComponentMissing(Install):
    """An optional part of vLLM that was asked for is not installed.

    Attributes:
        component: Which.
    """

    component: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class PlatformUnsupported(Install):
    """vLLM does not run on this operating system or processor."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ModelInspectionFailed(Install):
    """vLLM could not inspect the model's class, and nothing inside tells why."""


# --- how they are told -------------------------------------------------------------------


def module_missing(module: str) -> ModuleMissing:
    """A Python module is not installed."""
    return ModuleMissing(
        message=f"the Python module {module} is not installed",
        hint=pip(module),
        module=module,
        retryable=False,
    )


def program_missing(program: str) -> ProgramMissing:
    """A program that is run is not installed."""
    return ProgramMissing(
        message=f"the program {program} is not installed",
        hint=pip(program) or apt(program),
        program=program,
        retryable=False,
    )


def _inspection(_: Found) -> Cause:
    return ModelInspectionFailed(
        message="vLLM could not inspect the model's class, most often because a dependency is broken",
        hint="read the traceback above it, or import the model's module by hand",
        confidence="likely",
        retryable=False,
    )


def _on_windows(found: Found) -> bool:
    location = found.error.location if found.error is not None else None
    return location is not None and "\\" in location[0]


def _platform(_: Found) -> Cause:
    return PlatformUnsupported(
        message="vLLM does not run on this operating system",
        hint="use Linux, WSL2 or a container",
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="vLLM only supports Linux platform",
        build=_platform,
        versions="0.2 to 0.33, setup.py",
    ),
    CauseRule(
        literal="No module named 'uvloop'",
        build=lambda found: _platform(found) if _on_windows(found) else None,
        versions="Windows",
    ),
    CauseRule(
        literal="exec format error",
        where="line",
        ends=True,
        build=lambda _: PlatformUnsupported(
            message="the image or program was built for another processor",
            hint="use an image for this machine's architecture (docker: --platform)",
            retryable=False,
        ),
        versions="Linux, Docker",
    ),
    CauseRule(
        literal="UVA is not available",
        build=lambda _: PlatformUnsupported(
            message="the platform does not let the GPU read the host's memory, as WSL2 by default",
            hint="start with VLLM_WSL2_ENABLE_PIN_MEMORY=1, or with VLLM_USE_V2_MODEL_RUNNER=0",
            confidence="likely",
            retryable=False,
        ),
        versions="0.22 to 0.33",
    ),
    CauseRule(literal="uvloop does not support Windows", where="both", build=_platform, versions="uvloop"),
    CauseRule(
        literal="No module named 'resource'",
        exceptions=("ModuleNotFoundError",),
        build=_platform,
        versions="Python on Windows",
    ),
    CauseRule(
        literal="No module named 'fcntl'",
        exceptions=("ModuleNotFoundError",),
        build=_platform,
        versions="Python on Windows",
    ),
    CauseRule(
        literal="Error in inspecting model architecture",
        pattern=r"^Error in inspecting model architecture",
        where="line",
        rank="weak",
        build=_inspection,
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="failed to be inspected",
        rank="weak",
        build=_inspection,
        versions="0.6 to 0.33",
    ),
    CauseRule(
        literal="DLL load failed",
        exceptions=("ImportError",),
        build=_platform,
        versions="Python on Windows",
    ),
    CauseRule(
        literal="but your machine doesn't support",
        pattern=r"NumPy was built with baseline optimizations",
        build=lambda _: PlatformUnsupported(
            message="the processor lacks instructions that the installed NumPy was built for",
            hint="give the virtual machine the host's CPU model, or pip install 'numpy<2.4'",
            confidence="likely",
            retryable=False,
        ),
        versions="numpy 2.4",
    ),
    CauseRule(
        literal="Exec format error",
        pattern=r"\[Errno 8\] Exec format error",
        build=lambda _: PlatformUnsupported(
            message="a program that is run was built for another processor",
            hint="reinstall vLLM and torch on this machine, not from another's disk",
            retryable=False,
        ),
        versions="Python",
    ),
)
