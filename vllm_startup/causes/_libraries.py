"""Install: packages whose interfaces or binaries do not belong together."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._install import (
    BinaryIncompatible,
    DependencyApiMismatch,
    SharedLibraryMissing,
)
from vllm_startup.causes._remedies import apt
from vllm_startup.causes._rules import CauseRule, Found


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


def _signature(found: Found) -> Cause:
    module, name = found.word("module"), found.word("name")
    return DependencyApiMismatch(
        message=f"{module}() does not take {name} as it is called: the packages do not go together",
        confidence="likely",
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
    if library.startswith("libcuda."):
        return "install the NVIDIA driver, or give the container its GPUs (--gpus all)"
    return apt(library)


RULES: tuple[CauseRule, ...] = (
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
        pattern=r"^AttributeError: '?(?P<module>\w{0,100}(?:Tokenizer|Config"
        r"|Processor)\w{0,20})'?(?: object)? "
        r"has no attribute '?(?P<name>\w{1,100})",
        rank="generic",
        build=lambda found: attrs.evolve(_api(found), confidence="likely"),
        versions="Python",
    ),
    CauseRule(
        literal="TypeError: ",
        pattern=r"^TypeError: (?P<module>[\w.]{1,200})\(\) got (?:an unexpected keyword argument"
        r"|multiple values for argument) '(?P<name>\w{1,100})'",
        exceptions=("TypeError",),
        rank="vague",
        build=_signature,
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
        literal="'NoneType' object has no attribute 'c",
        pattern=r"'NoneType' object has no attribute '(?P<symbol>c(?:get_|set_|(?:de)?quantize|i?gemm)"
        r"\w{0,60})'",
        build=lambda found: BinaryIncompatible(
            message="bitsandbytes was installed without the binaries for this CUDA",
            hint="reinstall it: pip install -U bitsandbytes",
            confidence="likely",
            library="bitsandbytes",
            symbol=found.word("symbol"),
            retryable=False,
        ),
        versions="bitsandbytes 0.41 to 0.46",
    ),
    CauseRule(
        literal="'_OpNamespace' '_",
        pattern=r"'_OpNamespace' '(?P<library>\w{1,60})' object has no attribute '(?P<symbol>\w{1,100})'",
        build=lambda found: attrs.evolve(_binary(found), confidence="likely"),
        versions="0.4 to 0.33, torch 2.x",
    ),
)
