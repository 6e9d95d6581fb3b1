"""Hardware: builds and compilers that do not know the GPU's architecture."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._hardware import GpuArchitectureUnsupported
from vllm_startup.causes._rules import CauseRule, Found


def _no_kernels(_: Found) -> Cause:
    return GpuArchitectureUnsupported(
        message="this build holds no kernels for the GPU's architecture",
        hint="use a vLLM wheel or image that was built for the GPU's compute capability",
        retryable=False,
    )


def _no_kernels_likely(found: Found) -> Cause:
    return attrs.evolve(_no_kernels(found), confidence="likely", hint=None)


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="no kernel image is available for execution on the device",
        build=_no_kernels,
        versions="CUDA error 209",
    ),
    CauseRule(
        literal="error: invalid device function", build=_no_kernels, versions="CUDA error 98, HIP error 98"
    ),
    CauseRule(
        literal="rocBLAS error: Cannot read ",
        pattern=r"^rocBLAS error: Cannot read [^\n]{1,300} for GPU arch : (?P<arch>gfx\w{1,12})",
        where="both",
        ends=True,
        build=lambda found: GpuArchitectureUnsupported(
            message=f"rocBLAS holds no kernels for the GPU's architecture {found.word('arch')}",
            hint="use a ROCm build that was made for this GPU",
            retryable=False,
        ),
        versions="rocBLAS 4 to 5",
    ),
    CauseRule(
        literal="Unknown GPU architecture: ",
        pattern=r"Unknown GPU architecture: (?P<arch>gfx\w{1,12})",
        build=lambda found: GpuArchitectureUnsupported(
            message=f"AITER does not know the GPU's architecture {found.word('arch')}",
            hint="start with VLLM_ROCM_USE_AITER=0",
            retryable=False,
        ),
        versions="AITER 0.1",
    ),
    CauseRule(
        literal="FlashInfer requires ",
        pattern=r"FlashInfer requires (?:GPUs with )?sm\d+",
        build=lambda _: GpuArchitectureUnsupported(
            message="FlashInfer has no kernels for a GPU that old",
            confidence="likely",
            hint="start with VLLM_USE_FLASHINFER_SAMPLER=0 and another attention backend than FLASHINFER",
            retryable=False,
        ),
        versions="flashinfer 0.2 to 0.6",
    ),
    CauseRule(
        literal="is not defined for option 'gpu-name'",
        pattern=r"Value '(?P<arch>[\w.]{1,20})' is not defined for option 'gpu-name'",
        where="both",
        explains=("jit_build_failed",),
        build=lambda found: GpuArchitectureUnsupported(
            message=f"the bundled ptxas does not know the GPU's architecture {found.word('arch')}",
            hint="set TRITON_PTXAS_PATH to the ptxas of a newer CUDA toolkit",
            retryable=False,
        ),
        versions="CUDA 12.0 to 13.0",
    ),
    CauseRule(
        literal="Unsupported gpu architecture",
        pattern=r"Unsupported gpu architecture '(?P<arch>\w{1,20})'",
        where="both",
        explains=("jit_build_failed",),
        build=lambda found: GpuArchitectureUnsupported(
            message=f"the installed nvcc does not know the GPU's architecture {found.word('arch')}",
            hint="install a newer CUDA toolkit and point CUDA_HOME at it",
            retryable=False,
        ),
        versions="CUDA 11 to 13",
    ),
    CauseRule(literal="device kernel image is invalid", build=_no_kernels_likely, versions="CUDA error 200"),
    CauseRule(
        literal="Unable to find code object for all current devices",
        where="both",
        ends=True,
        build=_no_kernels,
        versions="HIP error 209",
    ),
    *(
        CauseRule(literal=status, build=_no_kernels_likely, versions="cuBLAS 11 to 13, hipBLAS")
        for status in ("CUBLAS_STATUS_ARCH_MISMATCH", "HIPBLAS_STATUS_ARCH_MISMATCH")
    ),
    CauseRule(
        literal="No supported CUDA architectures found",
        build=lambda _: GpuArchitectureUnsupported(
            message="FlashInfer cannot build a kernel for this GPU with the installed CUDA toolkit",
            retryable=False,
        ),
        versions="flashinfer 0.3 to 0.6",
    ),
    CauseRule(
        literal=" requires CUDA >= ",
        pattern=r"SM \d{1,2}\.\w requires CUDA >= (?P<wanted>[\d.]{1,6}\d)",
        build=lambda found: GpuArchitectureUnsupported(
            message=f"the GPU's architecture needs CUDA {found.word('wanted')} to build kernels",
            hint=f"install a CUDA toolkit of {found.word('wanted')} or newer and point CUDA_HOME at it",
            retryable=False,
        ),
        versions="flashinfer 0.4 to 0.6",
    ),
    CauseRule(
        literal=" is not supported on this GPU",
        pattern=r"is not supported on this GPU \((?:SM)?\d",
        build=_no_kernels_likely,
        versions="flashinfer 0.5 to 0.6",
    ),
    CauseRule(
        literal=" only supported on ",
        pattern=r"^(?:\w{1,40}\.){0,4}\w{1,40}Error: [^\n]{1,160} (?:is|are) only supported on SM ?\d",
        build=_no_kernels_likely,
        versions="flashinfer 0.5 to 0.6",
    ),
    CauseRule(
        literal=" does not support compute capability ",
        build=_no_kernels_likely,
        versions="flashinfer 0.5 to 0.6",
    ),
    CauseRule(
        literal="Unsupported architecture",
        pattern=r"Assertion error \([^)\n]{1,200}\): Unsupported architecture",
        build=_no_kernels_likely,
        versions="DeepGEMM 2",
    ),
    CauseRule(
        literal="Unknown CUDA arch ",
        pattern=r"Unknown CUDA arch \((?P<arch>[\w.+]{1,20})\) or GPU not supported",
        build=lambda found: GpuArchitectureUnsupported(
            message=f"this torch cannot build for the GPU's architecture {found.word('arch')}",
            hint="correct TORCH_CUDA_ARCH_LIST, or use a newer torch",
            retryable=False,
        ),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="invalid value for --gpu-architecture",
        where="both",
        explains=("jit_build_failed",),
        build=lambda _: GpuArchitectureUnsupported(
            message="the bundled NVRTC does not know the GPU's architecture",
            hint="use a build for a newer CUDA",
            retryable=False,
        ),
        versions="NVRTC 11 to 13",
    ),
    CauseRule(
        literal=" requires .target ",
        pattern=r"Feature '(?P<feature>[\w.:]{1,60})' requires \.target (?P<arch>sm_\w{1,10})",
        where="both",
        explains=("jit_build_failed",),
        build=lambda found: GpuArchitectureUnsupported(
            message=f"a kernel uses {found.word('feature')}, which needs {found.word('arch')}",
            retryable=False,
        ),
        versions="ptxas 11 to 13",
    ),
)
