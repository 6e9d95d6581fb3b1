"""Install: the installation does not hold together."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._remedies import apt, pip
from vllm_startup.causes._rules import CauseRule, Found, compiled


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


def _module(found: Found) -> Cause:
    return module_missing((found.word("module") or "").rstrip("."))


def module_missing(module: str) -> ModuleMissing:
    """A Python module is not installed."""
    return ModuleMissing(
        message=f"the Python module {module} is not installed",
        hint=pip(module),
        module=module,
        retryable=False,
    )


def _program(found: Found) -> Cause:
    return program_missing(found.word("program") or "")


def program_missing(program: str) -> ProgramMissing:
    """A program that is run is not installed."""
    return ProgramMissing(
        message=f"the program {program} is not installed",
        hint=pip(program) or apt(program),
        program=program,
        retryable=False,
    )


def _not_executed(found: Found) -> Cause:
    program = found.word("program") or ""
    return ProgramMissing(
        message=f"systemd could not start {program}, which does not exist",
        hint=f"correct the path in ExecStart=, or install what brings {program}",
        program=program,
        retryable=False,
    )


def _component(found: Found) -> Cause:
    component = (found.word("component") or "").rstrip(".")
    told = compiled(r"`(pip install [^`\n]{1,200})`").search(found.text)
    return ComponentMissing(
        message=f"{component} is not installed",
        hint=told[1] if told else pip(component.removesuffix(" backend").lower()),
        component=component,
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
        literal="No module named ",
        pattern=r"No module named '(?P<module>[\w.]{1,200})'",
        exceptions=("ModuleNotFoundError", "ImportError"),
        rank="generic",
        build=_module,
        versions="Python",
    ),
    CauseRule(
        literal="(look up to see its traceback)",
        pattern=r"No module named '(?P<module>[\w.]{1,200})'",
        rank="generic",
        build=_module,
        versions="transformers 4",
    ),
    CauseRule(
        literal="packages that were not found in your environment",
        pattern=r"not found in your environment: (?P<module>[\w.-]{1,80})",
        build=_module,
        versions="transformers 4 to 5",
    ),
    CauseRule(
        literal=" library but it was not found in your environment",
        pattern=r"requires the (?P<module>[\w.-]{1,60}) library but it was not found in your\s+environment",
        build=lambda found: attrs.evolve(_module(found), hint=pip((found.word("module") or "").lower())),
        versions="transformers 4 to 5",
    ),
    CauseRule(
        literal="No such file or directory: ",
        pattern=r"No such file or directory: '(?P<program>[\w+.-]{1,60}"
        r"|(?:/usr)?(?:/local)?/s?bin/[\w+.-]{1,60})'",
        exceptions=("FileNotFoundError",),
        frame="_execute_child",
        build=_program,
        versions="Python",
    ),
    CauseRule(
        literal="No such file or directory: ",
        pattern=r"No such file or directory: '(?:/\S{0,200}/)?(?P<program>ninja|nvcc|ptxas|hipcc"
        r"|(?:gcc|g\+\+|cc|c\+\+|clang(?:\+\+)?))'",
        exceptions=("FileNotFoundError",),
        build=_program,
        versions="Python",
    ),
    CauseRule(
        literal="not found",
        pattern=r"^(?:[^\s:]{1,200}: )?(?:line )?(?:\d+: )?(?P<program>vllm|python3?): (?:command )?"
        r"not found$",
        where="line",
        ends=True,
        build=_program,
        versions="bash, dash",
    ),
    CauseRule(
        literal="executable file not found in $PATH",
        pattern=r'exec: "(?P<program>[^"]{1,100})": executable file not found',
        where="both",
        ends=True,
        build=_program,
        versions="runc, Docker, Kubernetes",
    ),
    CauseRule(
        literal="Failed at step EXEC spawning ",
        pattern=r"Failed at step EXEC spawning (?P<program>/.{1,300}): No such file or directory$",
        where="line",
        ends=True,
        build=_not_executed,
        versions="systemd 219 to 257",
    ),
    CauseRule(
        literal="Error while finding module specification for ",
        pattern=r"No module named '(?P<module>[\w.]{1,200})'",
        where="line",
        ends=True,
        build=_module,
        versions="Python",
    ),
    CauseRule(
        literal="No module named vllm",
        pattern=r"python[\d.]*: No module named (?P<module>vllm[\w.]{0,100})",
        where="line",
        ends=True,
        build=_module,
        versions="Python",
    ),
    CauseRule(
        literal="Ninja is required to load C++ extensions",
        build=lambda _: ProgramMissing(
            message="ninja is not installed", hint="pip install ninja", program="ninja", retryable=False
        ),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="is not available",
        pattern=r"RuntimeError: (?P<component>NIXL|Mooncake|MoRIIO|FlashMLA|DeepEP"
        r"|(?:FlashInfer|DeepGEMM)(?: backend)?) is not available",
        build=_component,
        versions="0.9 to 0.33",
    ),
    CauseRule(
        literal=" install ",
        pattern=r"(?:^(?:Import|ModuleNotFound|Value)Error: |Value error, )"
        r"(?:[^\n]{0,300} )?[Pp]lease install "
        r"(?:(?:it|them|the) )?(?:(?:by|via|with|using):? `?pip install )?(?P<component>[\w.-]{1,60})",
        rank="generic",
        build=_component,
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="pip install",
        pattern=r"^(?:Import|ModuleNotFound)Error: (?:Package )?'?(?P<component>[A-Za-z][\w.-]{0,60}"
        r"(?: Inference)?)'? is (?:required|not installed)",
        rank="generic",
        build=_component,
        versions="0.14 to 0.33",
    ),
    CauseRule(
        literal="ImportError: Package ",
        pattern=r"^ImportError: Package '(?P<component>[\w.-]{1,60})' is not installed",
        build=_component,
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="No package metadata was found for ",
        pattern=r"No package metadata was found for (?P<component>[\w.-]{1,60})",
        build=_component,
        versions="Python",
    ),
    CauseRule(
        literal="fastokens",
        pattern=r"'(?P<component>fastokens)' package \(>= [\w.]{1,20}\) is required",
        build=_component,
        versions="0.32 to 0.33",
    ),
    CauseRule(
        literal="Using Ray backend",
        pattern=r"backend requires installation of (?P<component>\w{1,40})",
        build=_component,
        versions="0.20 to 0.33",
    ),
    CauseRule(
        literal=" kernels not found",
        pattern=r"(?P<component>DeepEP|MoRI) kernels not found",
        build=_component,
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="pplx_kernels not found",
        pattern=r"(?P<component>pplx_kernels) not found",
        build=_component,
        versions="0.10 to 0.14",
    ),
    CauseRule(
        literal="NIXL is unavailable",
        pattern=r"(?P<component>NIXL) is unavailable",
        build=_component,
        versions="0.33",
    ),
    CauseRule(
        literal="NIXL; install",
        pattern=r" requires (?P<component>NIXL); install",
        build=_component,
        versions="0.33",
    ),
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
)
