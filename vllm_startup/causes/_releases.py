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


def _at_least(package: str, limit: str | None) -> Cause:
    return DependencyVersionMismatch(
        message=f"another version of {package} is installed, {package}>={limit} is needed",
        hint=f"pip install '{package}>={limit}'",
        package=package,
        other="vllm",
        other_version=f">={limit}",
        retryable=False,
    )


def _other_cuda(package: str, version: str | None, wanted: str | None) -> Cause:
    return DependencyVersionMismatch(
        message=f"{package} is for CUDA {version}, torch for CUDA {wanted}",
        hint=f"reinstall torch and {package} from one index"
        if package != "the CUDA toolkit"
        else "point CUDA_HOME at the CUDA toolkit that torch was built for",
        package=package,
        version=version and f"CUDA {version}",
        other="torch",
        other_version=wanted and f"CUDA {wanted}",
        retryable=False,
    )


def _protobuf(version: str | None, wanted: str | None) -> Cause:
    return DependencyVersionMismatch(
        message=f"protobuf {version or 'of another version'} is installed, and code that was generated for "
        f"{wanted or 'another one'} is loaded",
        hint=f"pip install 'protobuf>={wanted}'" if wanted else None,
        package="protobuf",
        version=version,
        other_version=wanted,
        retryable=False,
    )


def _cluster(found: Found) -> Cause:
    ray, wanted = found.word("version"), found.word("wanted")
    if ray == wanted:
        return DependencyVersionMismatch(
            message=f"Python {found.word('other')} does not match the Ray cluster's {found.word('python')}",
            hint="use the same Python on all nodes of the cluster",
            package="python",
            version=found.word("other"),
            other="the Ray cluster",
            other_version=found.word("python"),
            retryable=False,
        )
    return unlike_versions("ray", ray, "the Ray cluster", wanted)


def _dotted(numbers: str | None) -> str:
    return (numbers or "").replace(", ", ".")


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
    CauseRule(
        literal="Found an incompatible version of ",
        pattern=r"incompatible version of (?P<package>[\w.-]{1,60})\. Found version "
        r"(?P<version>[\w.+]{1,40}), but only versions? (?P<side>above|below|[<>]=?) ?"
        r"(?P<limit>[\w.]{1,30}\w) ",
        build=lambda found: unfit_version(
            found.word("package") or "",
            found.word("version") or "",
            "peft",
            {"above": ">=", "below": "<"}.get(found.word("side") or "", found.word("side") or "")
            + (found.word("limit") or ""),
        ),
        versions="peft 0.5 to 0.18",
    ),
    CauseRule(
        literal="is installed. Upgrade with",
        pattern=r"requires (?P<package>[\w.-]{1,60}?)(?P<wanted>[<>=!~]{1,2}[\d.]{1,20}), but version "
        r"(?P<version>[\w.]{1,30}) is installed",
        build=lambda found: unfit_version(
            found.word("package") or "", found.word("version") or "", "the kernel", found.word("wanted") or ""
        ),
        versions="kernels 0.1x",
    ),
    CauseRule(
        literal="You need a version of ",
        pattern=r"You need a version of (?P<package>[\w.-]{1,60}) (?P<wanted>[<>=]{1,2} ?[\d.]{1,20}\d)",
        build=_wanted,
        versions="transformers 4",
    ),
    CauseRule(
        literal="were compiled with different CUDA",
        pattern=r"PyTorch has CUDA [Vv]ersion[ =](?P<wanted>[\d.]{1,10}\d) (?:and|whereas) "
        r"(?P<package>torchvision|TorchAudio|torchaudio) has CUDA [Vv]ersion[ =](?P<version>[\d.]{1,10}\d)",
        build=lambda found: _other_cuda(
            (found.word("package") or "").lower(), found.word("version"), found.word("wanted")
        ),
        versions="torchvision 0.1x, torchaudio 2",
    ),
    CauseRule(
        literal="The detected CUDA version (",
        pattern=r"detected CUDA version \((?P<version>[\d.]{1,12})\) mismatches the version that was used "
        r"to\s+compile\s+PyTorch \((?P<wanted>[\d.]{1,12})\)",
        build=lambda found: _other_cuda("the CUDA toolkit", found.word("version"), found.word("wanted")),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="The current installed version of ",
        pattern=r"installed version of (?P<package>[\w+.-]{1,60}) \((?P<version>[\d.]{1,20})\) is "
        r"(?P<side>less|greater) than the m\w{6} required version by CUDA (?P<cuda>[\d.]{1,10}\d)",
        build=lambda found: DependencyVersionMismatch(
            message=f"{found.word('package')} {found.word('version')} is too "
            f"{'old' if found.word('side') == 'less' else 'new'} for CUDA {found.word('cuda')}",
            package=found.word("package"),
            version=found.word("version"),
            other="CUDA",
            other_version=found.word("cuda"),
            retryable=False,
        ),
        versions="torch 2.x",
    ),
    CauseRule(
        literal="is incompatible with the current pydantic version",
        pattern=r"pydantic-core version \((?P<version>[\w.]{1,30})\) is incompatible with the current "
        r"pydantic version, which requires (?P<wanted>[\w.]{1,30}\w)",
        build=lambda found: unlike_versions(
            "pydantic-core", found.word("version"), "pydantic", found.word("wanted")
        ),
        versions="pydantic 2.1x",
    ),
    CauseRule(
        literal="Version mismatch: this is the 'cffi' package",
        pattern=r"'cffi' package version (?P<version>[\w.]{1,30}),.{1,500}?'_cffi_backend' extension module, "
        r"we get version (?P<other>[\w.]{1,30}\w)",
        build=lambda found: DependencyVersionMismatch(
            message=f"cffi {found.word('version')} loads the extension of cffi {found.word('other')}",
            hint="pip install --force-reinstall cffi",
            package="cffi",
            version=found.word("version"),
            other="_cffi_backend",
            other_version=found.word("other"),
            retryable=False,
        ),
        versions="cffi 1 to 2",
    ),
    CauseRule(
        literal="Protobuf Gencode/Runtime",
        pattern=r"incompatible Protobuf Gencode/Runtime .{1,300}?gencode (?P<wanted>[\d.]{1,20}) runtime "
        r"(?P<version>[\d.]{1,20}\d)",
        build=lambda found: _protobuf(found.word("version"), found.word("wanted")),
        versions="protobuf 5.26 to 7",
    ),
    CauseRule(
        literal="be created directly",
        pattern=r"Descriptors cannot (?:not )?be created directly",
        build=lambda _: _protobuf(None, None),
        versions="protobuf 3.20 to 6",
    ),
    CauseRule(
        literal="Version mismatch: The cluster was started with",
        pattern=r"was started with:\s+Ray: (?P<wanted>[\w.]{1,30})\s+Python: (?P<python>[\w.]{1,30})\s"
        r".{1,300}?was started with:\s+Ray: (?P<version>[\w.]{1,30})\s+Python: (?P<other>[\w.]{1,30})",
        build=_cluster,
        versions="Ray 1 to 2.5x",
    ),
    CauseRule(
        literal="Ray version ",
        pattern=r"(?P<package>Ray) version (?P<limit>[\d.]{1,20})(?: or greater)? is required, but found "
        r"(?P<version>[\w.]{1,30}\w)",
        build=lambda found: unfit_version(
            "ray", found.word("version") or "", "vllm", f">={found.word('limit')}"
        ),
        versions="0.5 to 0.33",
    ),
    CauseRule(
        literal="is not supported on Python",
        pattern=r"^RuntimeError: (?:Dynamo|torch\.compile) is not supported on Python "
        r"(?P<limit>[<> ]{0,3}[\d.]{1,10}\d\+?)",
        build=lambda found: DependencyVersionMismatch(
            message=f"this torch cannot compile on Python {found.word('limit')}",
            hint="use an older Python, a newer torch, or start with --enforce-eager",
            package="python",
            version=found.word("limit"),
            other="torch",
            retryable=False,
        ),
        versions="torch 2.x",
    ),
    CauseRule(
        literal="VersionConflict",
        pattern=r"VersionConflict: \((?P<package>[\w.-]{1,60}) (?P<version>[\w.+]{1,40}) .{1,400}?"
        r"Requirement\.parse\('[\w.-]{1,60}(?:\[[^\]]{1,60}\])?(?P<wanted>[<>=!~][^';]{1,60})",
        build=lambda found: unfit_version(
            found.word("package") or "", found.word("version") or "", "vllm", found.word("wanted") or ""
        ),
        versions="setuptools, pkg_resources",
    ),
    CauseRule(
        literal="is required when VLLM_USE_FASTOKENS=1",
        pattern=r"(?P<package>fastokens) (?P<wanted>>= [\d.]{1,20}) is required when VLLM_USE_FASTOKENS=1 "
        r"\(found (?P<version>[\w.]{1,30})\)",
        build=_wanted,
        versions="0.33",
    ),
    CauseRule(
        literal="modeling backend requires transformers",
        pattern=r"requires (?P<package>transformers)(?P<wanted>[<>=]{1,2}[\d.]{1,20}\d)[^\n]{0,120}?, "
        r"but got (?P<version>[\w.]{1,30}\w)",
        build=_wanted,
        versions="0.11 to 0.33",
    ),
    CauseRule(
        literal="Support for Transformers v4 ",
        pattern=r"Support for Transformers v4 (?:is deprecated and )?was removed",
        build=lambda _: DependencyVersionMismatch(
            message="transformers 4 is installed, transformers 5 is needed",
            hint="pip install 'transformers>=5'",
            package="transformers",
            version="4",
            other="vllm",
            other_version=">=5",
            retryable=False,
        ),
        versions="0.24 to 0.33",
    ),
    CauseRule(
        literal="public API shipped with FlashInfer ",
        pattern=r"public API shipped with FlashInfer (?P<limit>[\d.]{1,20}\d) or newer",
        build=lambda found: _at_least("flashinfer-python", found.word("limit")),
        versions="0.32 to 0.33",
    ),
    CauseRule(
        literal="Please upgrade Mooncake",
        pattern=r"requires mooncake-transfer-engine>=(?P<limit>[\d.]{1,20}\d)",
        build=lambda found: _at_least("mooncake-transfer-engine", found.word("limit")),
        versions="0.30 to 0.33",
    ),
    CauseRule(
        literal="requires PyTorch >= ",
        pattern=r"requires PyTorch >= (?P<limit>[\d.]{1,20}\d)",
        exceptions=("RuntimeError", "ValueError", "ImportError"),
        build=lambda found: _at_least("torch", found.word("limit")),
        versions="0.25 to 0.33",
    ),
    CauseRule(
        literal="cuDNN version incompatibility",
        pattern=r"PyTorch was compiled +against \((?P<wanted>[\d, ]{1,20})\) but found runtime version "
        r"\((?P<version>[\d, ]{1,20})\)",
        build=lambda found: DependencyVersionMismatch(
            message=f"cuDNN {_dotted(found.word('version'))} is loaded, torch was built for "
            f"{_dotted(found.word('wanted'))}",
            hint="take other cuDNN libraries out of LD_LIBRARY_PATH, or reinstall torch's own",
            package="cudnn",
            version=_dotted(found.word("version")),
            other="torch",
            other_version=_dotted(found.word("wanted")),
            retryable=False,
        ),
        versions="torch 1.x to 2.9",
    ),
)
