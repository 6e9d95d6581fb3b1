"""Install: the installation does not hold together."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
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


def _flashinfer(found: Found) -> Cause:
    package, version = found.word("package"), found.word("version")
    other, wanted = found.word("other"), found.word("wanted")
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
    package, wanted = found.word("package"), found.word("wanted")
    return DependencyVersionMismatch(
        message=f"{package} {found.word('version')} is installed, {package}{wanted} is needed",
        hint=f"pip install '{package}{wanted}'",
        package=package,
        version=(found.word("version") or "").rstrip("."),
        other="transformers",
        other_version=wanted,
        retryable=False,
    )


def _api(found: Found) -> Cause:
    module, name = found.word("module"), found.word("name")
    package = (module or "a package").partition(".")[0]
    return DependencyApiMismatch(
        message=f"{module or package} has no {name}: the installed {package} is not the release that is "
        f"needed",
        module=module,
        name=name,
        retryable=False,
    )


def _binary(found: Found) -> Cause:
    library = found.word("library")
    return BinaryIncompatible(
        message=f"{library} was built for other binaries than those installed",
        hint="reinstall vLLM and torch together in a clean environment, without older flash-attn or "
        "xformers wheels",
        library=library,
        symbol=found.word("symbol"),
        retryable=False,
    )


def _library_hint(library: str) -> str | None:
    if library.startswith(("libcudart", "libcublas", "libcudnn", "libnvrtc", "libcusparse", "libcufft")):
        return "install the vLLM wheel for the CUDA major version that torch uses, or correct LD_LIBRARY_PATH"
    if library.startswith("libnccl"):
        return "reinstall nvidia-nccl-cu12 (or cu13), or set VLLM_NCCL_SO_PATH"
    if library.startswith("libGL"):
        return "install libgl1"
    return None


def _module(found: Found) -> Cause:
    module = (found.word("module") or "").rstrip(".")
    return ModuleMissing(
        message=f"the Python module {module} is not installed", module=module, retryable=False
    )


_PACKAGES = {"ninja": "pip install ninja", "gcc": "install gcc", "g++": "install g++", "git": "install git"}


def _program(found: Found) -> Cause:
    program = found.word("program") or ""
    return ProgramMissing(
        message=f"the program {program} is not installed",
        hint=_PACKAGES.get(program),
        program=program,
        retryable=False,
    )


def _component(found: Found) -> Cause:
    component = found.word("component")
    return ComponentMissing(message=f"{component} is not installed", component=component, retryable=False)


def _inspection(_: Found) -> Cause:
    return ModelInspectionFailed(
        message="vLLM could not inspect the model's class, most often because a dependency is broken",
        hint="read the traceback above it, or import the model's module by hand",
        confidence="likely",
        retryable=False,
    )


def _platform(_: Found) -> Cause:
    return PlatformUnsupported(
        message="vLLM does not run on this operating system",
        hint="use Linux, WSL2 or a container",
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
        literal="cannot import name",
        pattern=r"cannot import name(?: '(?P<name>\w{1,100})' from (?:partially initialized module )?"
        r"'(?P<module>[\w.]{1,200})')?",
        rank="generic",
        build=_api,
        versions="Python",
    ),
    CauseRule(
        literal="has no attribute",
        pattern=r"^AttributeError: module '(?P<module>[\w.]{1,200})' has no attribute '(?P<name>\w{1,100})'",
        rank="generic",
        build=_api,
        versions="Python",
    ),
    CauseRule(
        literal="has no attribute",
        pattern=r"^AttributeError: '?(?P<module>\w{1,100}(?:Tokenizer|TokenizerFast|Config"
        r"|Processor)\w{0,20})'?(?: object)? "
        r"has no attribute '?(?P<name>\w{1,100})",
        rank="generic",
        build=lambda found: attrs.evolve(_api(found), confidence="likely"),
        versions="Python",
    ),
    CauseRule(
        literal="undefined symbol: ",
        pattern=r"(?<![^\s:])(?P<library>[^\s:]{1,300}): undefined symbol: (?P<symbol>[\w@.]{1,300})",
        build=_binary,
        versions="glibc",
    ),
    CauseRule(
        literal="' not found (required by ",
        pattern=r"(?<![^\s:])(?P<library>[^\s:]{1,300}): version `(?P<symbol>[\w.]{1,60})' not found",
        build=_binary,
        versions="glibc",
    ),
    CauseRule(
        literal="operator torchvision::",
        pattern=r"operator (?P<library>torchvision)::(?P<symbol>\w{1,60}) does not exist",
        build=_binary,
        versions="torchvision 0.15 to 0.24",
    ),
    CauseRule(
        literal="numpy.core.multiarray failed to import",
        build=lambda _: BinaryIncompatible(
            message="a compiled module was built for another NumPy than the one installed",
            library="numpy.core.multiarray",
            retryable=False,
        ),
        versions="numpy 1 and 2",
    ),
    CauseRule(
        literal="may indicate binary incompatibility",
        pattern=r"(?P<library>[\w.]{1,100}) size changed, may indicate binary incompatibility",
        build=_binary,
        versions="numpy",
    ),
    CauseRule(
        literal="cannot open shared object file",
        pattern=r"(?<![^\s:'])(?P<library>[^\s:']{1,200}): cannot open shared object file",
        exceptions=("ImportError", "OSError"),
        build=lambda found: SharedLibraryMissing(
            message=f"the shared library {found.word('library')} cannot be loaded",
            hint=_library_hint(found.word("library") or ""),
            library=found.word("library"),
            retryable=False,
        ),
        versions="glibc",
    ),
    CauseRule(
        literal="NVML Shared Library Not Found",
        build=lambda _: SharedLibraryMissing(
            message="the NVIDIA driver's library libnvidia-ml.so.1 cannot be loaded",
            hint="install the driver, or give the container its GPUs (--gpus all)",
            library="libnvidia-ml.so.1",
            retryable=False,
        ),
        versions="NVML 12",
    ),
    CauseRule(
        literal="libcuda.so cannot found",
        build=lambda _: SharedLibraryMissing(
            message="triton cannot find the NVIDIA driver's library libcuda.so",
            library="libcuda.so",
            retryable=False,
        ),
        versions="triton 2 to 3.5",
    ),
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
        literal="No such file or directory: ",
        pattern=r"No such file or directory: '(?P<program>[\w+.-]{1,60}"
        r"|(?:/usr)?(?:/local)?/s?bin/[\w+.-]{1,60})'",
        exceptions=("FileNotFoundError",),
        frame="_execute_child",
        build=_program,
        versions="Python",
    ),
    CauseRule(
        literal="not found",
        pattern=r"^(?:/bin/)?\w{0,8}sh: (?:line )?(?:\d+: )?(?P<program>vllm|python3?): (?:command "
        r")?not found$",
        where="line",
        ends=True,
        build=_program,
        versions="bash, dash",
    ),
    CauseRule(
        literal="executable file not found in $PATH",
        pattern=r'exec: "(?P<program>[^"]{1,100})": executable file not found',
        where="line",
        ends=True,
        build=_program,
        versions="runc, Docker, Kubernetes",
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
        pattern=r"RuntimeError: (?P<component>NIXL|Mooncake|MoRIIO|UVA|FlashMLA|DeepEP"
        r"|(?:FlashInfer|DeepGEMM)(?: backend)?) is not available",
        build=_component,
        versions="0.9 to 0.33",
    ),
    CauseRule(
        literal="Please install",
        pattern=r"^ImportError: (?:.{0,300} )?[Pp]lease install (?P<component>[\w.-]{1,60})",
        rank="generic",
        build=_component,
        versions="0.4 to 0.33",
    ),
    CauseRule(
        literal="vLLM only supports Linux platform",
        build=_platform,
        versions="0.2 to 0.33",
    ),
    CauseRule(
        literal="No module named 'uvloop'",
        rank="generic",
        pattern=r"uvloop.{0,400}win32",
        build=_platform,
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
        literal="'_OpNamespace' '_",
        pattern=r"'_OpNamespace' '(?P<library>\w{1,60})' object has no attribute '(?P<symbol>\w{1,100})'",
        build=lambda found: attrs.evolve(_binary(found), confidence="likely"),
        versions="0.4 to 0.33, torch 2.x",
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
