"""Install: shared libraries that are missing, or cannot be loaded."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._install import SharedLibraryMissing
from vllm_startup.causes._remedies import apt
from vllm_startup.causes._rules import CauseRule, Found


def _library_hint(library: str) -> str | None:
    if library.startswith(("libcudart", "libcublas", "libcudnn", "libnvrtc", "libcusparse", "libcufft")):
        return "install the vLLM wheel for the CUDA major version that torch uses, or correct LD_LIBRARY_PATH"
    if library.startswith("libnccl"):
        return "reinstall nvidia-nccl-cu12 (or cu13), or set VLLM_NCCL_SO_PATH"
    if library.startswith("libcuda."):
        return "install the NVIDIA driver, or give the container its GPUs (--gpus all)"
    return apt(library)


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


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="cannot open shared object file",
        pattern=r"(?<![^\s:'])(?P<library>[^\s:']{1,200}): cannot open shared object file",
        exceptions=("ImportError", "OSError"),
        build=_unloadable,
        versions="glibc",
    ),
    CauseRule(
        literal="Failed to import from vllm._",
        pattern=r"^Failed to import from vllm\._\w{1,60}(?: with|:) ImportError\(['\"]{1,2}"
        r"(?P<library>[^\s:'\"]{1,200}): cannot open shared object file",
        where="line",
        offered=False,
        explains=("binary_incompatible",),
        build=_unloadable,
        versions="0.4 to 0.33",
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
    *(
        CauseRule(
            literal=said,
            pattern=rf"{said}(?P<library>\S{{0,200}}?lib\w{{2,20}}[\w.]{{0,40}})",
            build=lambda found: attrs.evolve(
                _missing(found.word("library") or ""), confidence="likely", hint=None
            ),
            versions="0.4 to 0.33",
        )
        for said in ("Failed to load NCCL library from ", "ValueError: Cannot find ")
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
)
