"""Compile: kernels could not be compiled."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._remedies import apt, pip
from vllm_startup.causes._rules import CauseRule, Found


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Compile(Cause):
    """Kernels could not be compiled."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class CompilerMissing(Compile):
    """No compiler, or not its headers.

    Attributes:
        tool: The program or header that is missing.
    """

    tool: str | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class JitBuildFailed(Compile):
    """Compiling kernels at run time failed."""


# --- how they are told -------------------------------------------------------------------


_CUDA = "install the CUDA toolkit and set CUDA_HOME"


def _tool_hint(tool: str) -> str | None:
    return _CUDA if tool in ("nvcc", "ptxas") else pip(tool) or apt(tool)


def _compiler(tool: str, hint: str | None) -> Cause:
    return CompilerMissing(message=f"{tool} is missing", hint=hint, tool=tool, retryable=False)


def _header(found: Found) -> Cause:
    """A header that the compiler does not find: the system's, CUDA's, or the package's own."""
    return attrs.evolve(_compiler(found.word("tool") or "a header", None), confidence="likely")


def _build(found: Found) -> Cause:
    said = found.error.text if found.error is not None else found.text
    return JitBuildFailed(
        message=f"kernels could not be compiled: {said}",
        confidence="certain" if "rror:" in said and "CalledProcessError" not in said else "likely",
        retryable=False,
    )


def _unlinked(found: Found) -> Cause:
    library = found.word("library") or ""
    return JitBuildFailed(
        message=f"kernels could not be linked: the linker does not find lib{library}.so",
        hint="put the directory of libcuda.so (that of the driver, or of its stubs) into LIBRARY_PATH"
        if library == "cuda"
        else f"install lib{library} with its development files, or put its directory into LIBRARY_PATH",
        confidence="likely",
        retryable=False,
    )


def _traced(found: Found) -> Cause:
    return attrs.evolve(_build(found), confidence="likely")


def _corrupt_cache(_: Found) -> Cause:
    return JitBuildFailed(
        message="what an earlier start compiled cannot be used",
        hint="remove the directory torch_compile_cache under VLLM_CACHE_ROOT (~/.cache/vllm)",
        retryable=True,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="No working C++ compiler found",
        pattern=r"No working C\+\+ compiler found(?:[^\n]{0,120}?'(?P<tool>[^'\n]{1,100})'\))?",
        build=lambda found: _compiler(
            found.word("tool") or "a C++ compiler", f"{apt('g++')}, or start with --enforce-eager"
        ),
        versions="torch 2.x",
    ),
    CauseRule(
        literal="Failed to find C compiler",
        build=lambda _: _compiler("a C compiler", f"{apt('gcc')}, or set CC to a C compiler"),
        versions="triton 2 to 3.5",
    ),
    CauseRule(
        literal="Python.h: No such file or directory",
        where="both",
        explains=("jit_build_failed",),
        build=lambda _: _compiler(
            "Python.h", f"{apt('Python.h')}, in the version of the Python that runs vLLM"
        ),
        versions="gcc",
    ),
    CauseRule(
        literal="Could not find nvcc",
        where="both",
        build=lambda _: _compiler("nvcc", _CUDA),
        versions="flashinfer 0.2 to 0.6",
    ),
    CauseRule(
        literal="CUDA_HOME environment variable is not set",
        build=lambda _: _compiler("nvcc", _CUDA),
        versions="torch 1.x to 2.9",
    ),
    CauseRule(
        literal="not found",
        pattern=r"(?:^|\n)(?:/bin/)?(?:ba|da|z)?sh: (?:line )?(?:\d+: )?(?:/\S{0,200}/)?"
        r"(?P<tool>nvcc|gcc|g\+\+|cc|c\+\+|ninja|ptxas): (?:command )?not found",
        where="both",
        explains=("jit_build_failed",),
        build=lambda found: _compiler(
            found.word("tool") or "a compiler", _tool_hint(found.word("tool") or "")
        ),
        versions="dash, bash",
    ),
    CauseRule(
        literal="fatal error: ",
        pattern=r"fatal error: (?P<tool>[\w./+-]{1,120}): No such file or directory",
        where="both",
        rank="generic",
        explains=("jit_build_failed",),
        build=_header,
        versions="gcc, nvcc",
    ),
    CauseRule(
        literal=" error: ",
        pattern=r"(?:^|\n)(?P<place>[^\s:(]{1,300}\.(?:cu|cuh|h|hpp|cpp|cc|c)(?::\d+(?::\d+)?|\(\d+\))): "
        r"(?:fatal )?error: (?P<what>[^\n]{1,400})",
        where="both",
        rank="generic",
        explains=("jit_build_failed",),
        offered=False,
        build=lambda found: JitBuildFailed(
            message=f"{found.word('place')}: {found.word('what')}", retryable=False
        ),
        versions="gcc, nvcc",
    ),
    CauseRule(
        literal="cannot find -l",
        pattern=r"\bld(?:\.\w{1,10})?: cannot find -l(?P<library>[\w.+-]{1,60})",
        where="both",
        rank="weak",
        explains=("jit_build_failed",),
        build=_unlinked,
        versions="binutils 2.20 to 2.4x",
    ),
    CauseRule(
        literal="Assertion error (",
        pattern=r"Assertion error \(\S{0,300}/jit/\w{1,60}\.hpp:\d{1,6}\): exit_code == 0",
        build=_traced,
        versions="DeepGEMM 2",
    ),
    CauseRule(literal="Ninja build failed", rank="weak", build=_build, versions="flashinfer 0.2 to 0.6"),
    CauseRule(literal="NVCC compilation failed", rank="weak", build=_build, versions="DeepGEMM 1 to 2"),
    CauseRule(literal="Error building extension", rank="weak", build=_build, versions="torch 1.x to 2.9"),
    CauseRule(literal="C++ compile error", rank="generic", build=_build, versions="torch 2.x"),
    CauseRule(literal="BackendCompilerFailed", rank="weak", build=_build, versions="torch 2.x"),
    CauseRule(literal="InductorError", rank="weak", build=_build, versions="torch 2.7 to 2.9"),
    # Whatever of torch.compile's failed, on the way from the model to kernels.
    CauseRule(literal="torch._dynamo.exc.", rank="weak", build=_traced, versions="torch 2.x"),
    CauseRule(literal="torch._inductor.exc.", rank="weak", build=_traced, versions="torch 2.x"),
    CauseRule(literal="triton.compiler.errors.", rank="generic", build=_build, versions="triton 2 to 3.5"),
    CauseRule(literal="PTXASError", rank="generic", build=_build, versions="triton 3"),
    CauseRule(literal="No valid triton configs", rank="weak", build=_build, versions="torch 2.x"),
    CauseRule(
        literal="returned non-zero exit status",
        pattern=r"CalledProcessError: Command '?\[?'?[^']{0,200}\b(?:gcc|g\+\+|cc|c\+\+|nvcc|ninja|ptxas)'",
        rank="weak",
        build=_build,
        versions="triton 2 to 3.5",
    ),
    CauseRule(
        literal="Cannot find ",
        pattern=r"^\w{1,40}Error: Cannot find `?(?P<tool>nvcc|ptxas(?:-\w{1,20})?|cuobjdump|nvdisasm)\b",
        build=lambda found: _compiler(found.word("tool") or "", _CUDA),
        versions="triton 3",
    ),
    CauseRule(
        literal="Cannot find CUDA ",
        pattern=r"^\w{1,40}Error: Cannot find CUDA (?:path|headers)\b",
        build=lambda _: _compiler("nvcc", _CUDA),
        versions="tilelang 0.1",
    ),
    CauseRule(
        literal="Could not find CUDA installation",
        build=lambda _: _compiler("nvcc", _CUDA),
        versions="tvm-ffi 0.1",
    ),
    CauseRule(
        literal="nvcc not found at ",
        build=lambda _: _compiler("nvcc", "point CUDA_HOME at a whole CUDA toolkit"),
        versions="torch 2.x",
    ),
    CauseRule(
        literal="ROCM_HOME environment variable is not set",
        build=lambda _: _compiler("hipcc", "install ROCm and set ROCM_HOME"),
        versions="torch 2.x",
    ),
    CauseRule(
        literal="fatal error: cannot execute ",
        pattern=r"fatal error: cannot execute ['‘](?P<tool>cc1(?:plus)?|as|ld)['’]",
        where="both",
        explains=("jit_build_failed",),
        build=lambda found: _compiler(
            found.word("tool") or "", apt("g++") if found.word("tool") == "cc1plus" else apt("gcc")
        ),
        versions="gcc",
    ),
    CauseRule(literal="PTX codegen error", rank="weak", build=_build, versions="triton 3"),
    CauseRule(
        literal="failed with error code",
        pattern=r"`ptxas` failed with error code",
        rank="weak",
        build=_build,
        versions="triton 2 to 3",
    ),
    CauseRule(literal="PassManager::run failed", rank="generic", build=_traced, versions="triton 3"),
    CauseRule(
        literal="map::at", exceptions=("IndexError",), rank="generic", build=_traced, versions="triton 2 to 3"
    ),
    CauseRule(
        literal="LLVM ERROR: Cannot select",
        where="line",
        ends=True,
        build=lambda _: JitBuildFailed(
            message="LLVM has no instruction of the GPU's for what a kernel asks for", retryable=False
        ),
        versions="triton 2 to 3, LLVM",
    ),
    CauseRule(
        literal="a PTX JIT compilation failed",
        build=lambda _: JitBuildFailed(
            message="the driver could not compile a kernel's PTX: it is older than what made it, or the "
            "kernel needs another GPU",
            confidence="likely",
            retryable=False,
        ),
        versions="CUDA error 218",
    ),
    CauseRule(literal="NVRTC compilation failed", rank="weak", build=_build, versions="DeepGEMM 2, cupy"),
    CauseRule(literal="NVRTC_ERROR_COMPILATION", rank="weak", build=_build, versions="CUDA 12 to 13"),
    CauseRule(literal="DSLRuntimeError", rank="weak", build=_traced, versions="CUTLASS DSL 4"),
    CauseRule(
        literal="vLLM failed to compile the model",
        rank="generic",
        build=_corrupt_cache,
        versions="0.10 to 0.33",
    ),
    CauseRule(literal="Inductor cache lookup failed", build=_corrupt_cache, versions="0.7 to 0.33"),
)
