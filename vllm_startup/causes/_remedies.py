"""What repairs a thing: the package that holds a tool or a module, the variable that moves a cache."""

from __future__ import annotations

from typing import Final

# On Debian and Ubuntu, as the official images are.
_APT: Final = {
    "gcc": "gcc",
    "cc": "gcc",
    "g++": "g++",
    "c++": "g++",
    "Python.h": "python3-dev",
    "git": "git",
    "ldconfig": "libc-bin",
    "libGL.so.1": "libgl1",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libsndfile.so.1": "libsndfile1",
    "libnuma.so.1": "libnuma1",
    "libibverbs.so.1": "libibverbs1",
    "librdmacm.so.1": "librdmacm1",
    "libtbb.so.12": "libtbb12",
    "libgomp.so.1": "libgomp1",
    "ffmpeg": "ffmpeg",
    "numactl": "numactl",
}

# Of what vLLM, its models and its plug-ins import: the distribution, where it is certain.
_PIP: Final = {
    "PIL": "pillow",
    "av": "av",
    "blobfile": "blobfile",
    "cv2": "opencv-python-headless",
    "einops": "einops",
    "flash_attn": "flash-attn",
    "flashinfer": "flashinfer-python",
    "librosa": "librosa",
    "lmcache": "lmcache",
    "mistral_common": "mistral-common",
    "mooncake": "mooncake-transfer-engine",
    "ninja": "ninja",
    "nixl": "nixl",
    "pynvml": "nvidia-ml-py",
    "ray": "ray",
    "sentencepiece": "sentencepiece",
    "setuptools": "setuptools",
    "soundfile": "soundfile",
    "tiktoken": "tiktoken",
    "timm": "timm",
    "torch": "torch",
    "transformers": "transformers",
    "uvloop": "uvloop",
    "vllm": "vllm",
    "yaml": "pyyaml",
}

# Part of a path, and the variable that puts what is there elsewhere; the first that fits counts.
_MOVES: Final = (
    ("huggingface", "HF_HOME"),
    ("/hub/models--", "HF_HOME"),
    ("modelscope", "MODELSCOPE_CACHE"),
    ("torchinductor", "TORCHINDUCTOR_CACHE_DIR"),
    (".triton", "TRITON_CACHE_DIR"),
    ("flashinfer", "FLASHINFER_WORKSPACE_BASE"),
    ("cache/vllm", "VLLM_CACHE_ROOT"),
    ("torch_compile_cache", "VLLM_CACHE_ROOT"),
    (".config/vllm", "VLLM_CONFIG_ROOT"),
    (".nv/ComputeCache", "CUDA_CACHE_PATH"),
    (".config/matplotlib", "MPLCONFIGDIR"),
)


def apt(thing: str) -> str | None:
    """How a tool, a header or a library is installed; None where that is not certain."""
    package = _APT.get(thing)
    return None if package is None else f"apt-get install {package} (Debian, Ubuntu)"


def pip(module: str) -> str | None:
    """How a module is installed; None where its package is not certain."""
    package = _PIP.get(module.partition(".")[0])
    return None if package is None else f"pip install {package}"


def elsewhere(path: str | None) -> str | None:
    """How what vLLM writes under a path is put elsewhere; None where that is not certain."""
    for part, variable in _MOVES:
        if path and part in path:
            return f"set {variable} to a directory that can be written and has room"
    if path in ("/.cache", "/.config", "/.triton", "/nonexistent"):
        return "set HOME to a directory that can be written"
    return None
