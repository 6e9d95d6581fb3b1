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


def _other_numpy() -> BinaryIncompatible:
    return BinaryIncompatible(
        message="a compiled module was built for another NumPy than the one installed",
        hint="reinstall the module that the traceback names, or pip install 'numpy<2'",
        confidence="likely",
        library="numpy",
        retryable=False,
    )


def _missing(library: str) -> SharedLibraryMissing:
    return SharedLibraryMissing(
        message=f"the shared library {library} cannot be loaded",
        hint=_library_hint(library),
        library=library,
        retryable=False,
    )


def _unloadable(found: Found) -> Cause:
    cause = _missing(found.word("library") or "")
    if "failed to map" not in found.text:
        return cause
    hint = "it is there: look for a file system mounted noexec, or a limit of the address space (ulimit -v)"
    return attrs.evolve(cause, hint=hint)


def _bitsandbytes(symbol: str | None) -> Cause:
    return BinaryIncompatible(
        message="bitsandbytes was installed without the binaries for this CUDA",
        hint="reinstall it: pip install -U bitsandbytes",
        confidence="likely",
        library="bitsandbytes",
        symbol=symbol,
        retryable=False,
    )


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
        pattern=r"^AttributeError: (?:partially initialized )?module '(?P<module>[\w.]{1,200})' "
        r"has no attribute '(?P<name>\w{1,100})'",
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
        build=_unloadable,
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
        build=lambda found: _bitsandbytes(found.word("symbol")),
        versions="bitsandbytes 0.41 to 0.46",
    ),
    CauseRule(
        literal="'_OpNamespace' '_",
        pattern=r"'_OpNamespace' '(?P<library>\w{1,60})' object has no attribute '(?P<symbol>\w{1,100})'",
        build=lambda found: attrs.evolve(_binary(found), confidence="likely"),
        versions="0.4 to 0.33, torch 2.x",
    ),
    CauseRule(
        literal="but this version of numpy is",
        pattern=r"module compiled against A[BP]I version \S{1,20} but this version of numpy is",
        build=lambda _: attrs.evolve(_other_numpy(), confidence="certain"),
        versions="numpy 1 and 2",
    ),
    CauseRule(
        literal="A module that was compiled using NumPy 1.x cannot be run in",
        build=lambda _: _other_numpy(),
        versions="numpy 2",
    ),
    CauseRule(
        literal="_ARRAY_API not found", build=lambda _: _other_numpy(), rank="generic", versions="numpy 2"
    ),
    CauseRule(
        literal="invalid ELF header",
        pattern=r"(?<![^\s:'])(?P<library>[^\s:']{1,300}): invalid ELF header",
        build=_binary,
        versions="glibc",
    ),
    CauseRule(
        literal="wrong ELF class",
        pattern=r"(?<![^\s:'])(?P<library>[^\s:']{1,300}): wrong ELF class",
        build=_binary,
        versions="glibc",
    ),
    *(
        CauseRule(
            literal=reason,
            pattern=rf"(?<![^\s:'])(?P<library>[^\s:']{{1,300}}): {reason}",
            exceptions=("ImportError", "OSError"),
            build=_unloadable,
            versions="glibc",
        )
        for reason in (
            "file too short",
            "cannot allocate memory in static TLS block",
            "failed to map segment from shared object",
            "cannot enable executable stack",
        )
    ),
    CauseRule(
        literal="error while loading shared libraries: ",
        pattern=r"^(?:[^\s:]{1,300}/)?(?:vllm|python[\d.]{0,5}): error while loading shared libraries: "
        r"(?P<library>[^\s:']{1,200}): ",
        where="line",
        ends=True,
        build=_unloadable,
        versions="glibc",
    ),
    CauseRule(
        literal="Unable to load any of {",
        pattern=r"Unable to load any of \{(?P<library>lib[\w.]{1,100})",
        where="both",
        build=_unloadable,
        versions="cuDNN 9",
    ),
    CauseRule(
        literal="Could not load library lib",
        pattern=r"^Could not load library (?P<library>lib[\w.]{1,100})\. Error: ",
        where="both",
        build=_unloadable,
        versions="cuDNN 8",
    ),
    CauseRule(
        literal="sndfile library not found",
        build=lambda _: _missing("libsndfile.so.1"),
        versions="soundfile",
    ),
    CauseRule(
        literal="PTX JIT compiler library not found",
        build=lambda _: attrs.evolve(
            _missing("libnvidia-ptxjitcompiler.so.1"),
            hint="install the driver's compiler library, or let the container have it "
            "(NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
        ),
        versions="CUDA error 221",
    ),
    CauseRule(
        literal="libcudart is not loaded in the current process",
        build=lambda _: attrs.evolve(_missing("libcudart"), confidence="likely", hint=None),
        versions="0.4 to 0.33, flashinfer",
    ),
    CauseRule(
        literal="Could not find libnvshmem_host.so",
        build=lambda _: _missing("libnvshmem_host.so"),
        versions="flashinfer 0.6",
    ),
    *(
        CauseRule(
            literal=said,
            build=lambda _: _bitsandbytes(None),
            versions="bitsandbytes 0.41 to 0.49",
        )
        for said in (
            "CUDA Setup failed despite GPU being available",
            "CUDA Setup failed despite CUDA being available",
            "not available in CPU-only version of bitsandbytes",
        )
    ),
    CauseRule(
        literal=" binary not found at ",
        pattern=r"Configured \w{1,10} binary not found at \S{1,400}libbitsandbytes",
        build=lambda _: _bitsandbytes(None),
        versions="bitsandbytes 0.43 to 0.49",
    ),
    CauseRule(
        literal="Native code method attempted to call: ",
        pattern=r"attempted to call: lib\.(?P<symbol>\w{1,80})",
        build=lambda found: _bitsandbytes(found.word("symbol")),
        versions="bitsandbytes 0.45 to 0.49",
    ),
    CauseRule(
        literal="Could not run '",
        pattern=r"Could not run '(?P<library>(?!aten)\w{1,60})::(?P<symbol>[\w.]{1,100})' with arguments "
        r"from the '\w{1,20}' backend",
        build=lambda found: attrs.evolve(_binary(found), confidence="likely"),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="No such operator ",
        pattern=r"No such operator (?P<library>\w{1,60})::(?P<symbol>\w{1,100})",
        build=lambda found: attrs.evolve(_binary(found), confidence="likely"),
        versions="torch 2.x",
    ),
    CauseRule(
        literal="Only a single TORCH_LIBRARY can be used to register the namespace",
        pattern=r"register the namespace (?P<library>\w{1,60})",
        build=lambda found: BinaryIncompatible(
            message=f"two builds of the extension {found.word('library')} are loaded into one process",
            hint="pip uninstall vllm until nothing is left, and install it once",
            confidence="likely",
            library=found.word("library"),
            retryable=False,
        ),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="PydanticImportError",
        pattern=r"PydanticImportError: `(?P<name>[^`]{1,200})` has been (?:moved|removed)",
        build=lambda found: DependencyApiMismatch(
            message=f"pydantic has no {found.word('name')}: another release of it is needed",
            module="pydantic",
            name=found.word("name"),
            retryable=False,
        ),
        versions="pydantic 2",
    ),
    *(
        CauseRule(
            literal=status,
            build=lambda _: attrs.evolve(
                _missing("libcudnn"),
                confidence="likely",
                hint="take other cuDNN libraries out of LD_LIBRARY_PATH, or reinstall torch's own",
            ),
            versions="cuDNN 9",
        )
        for status in ("CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED", "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH")
    ),
    CauseRule(
        literal="infer_schema(func): ",
        pattern=r"infer_schema\(func\): (?P<name>Parameter \w{1,60} has unsupported type)",
        build=lambda found: DependencyApiMismatch(
            message="torch cannot read how an operator is declared: another release of it is needed",
            confidence="likely",
            module="torch.library",
            name="infer_schema",
            retryable=False,
        ),
        versions="torch 2.4 to 2.9",
    ),
    CauseRule(
        literal="Are this object's requirements defined correctly?",
        pattern=r"Could not import module '(?P<name>\w{1,100})'",
        rank="vague",
        build=lambda found: DependencyApiMismatch(
            message=f"transformers could not import {found.word('name')}, for what it needs",
            confidence="likely",
            module="transformers",
            name=found.word("name"),
            retryable=False,
        ),
        versions="transformers 4.52 to 5",
    ),
)
