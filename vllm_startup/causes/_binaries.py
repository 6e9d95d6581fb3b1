"""Install: compiled extensions that were built for other binaries."""

from __future__ import annotations

from typing import Final

import attrs

from vllm_startup.causes._base import Cause
from vllm_startup.causes._install import BinaryIncompatible
from vllm_startup.causes._rules import CauseRule, Found

_UNDEFINED: Final = (
    r"(?<![^\s:'\"(])(?P<library>[^\s:'\"(]{1,300}): undefined symbol: (?P<symbol>[\w@.]{1,300})"
)
_OLDER: Final = r"(?<![^\s:'\"(])(?P<library>[^\s:'\"(]{1,300}): version `(?P<symbol>[\w.]{1,60})' not found"

_REINSTALL: Final = (
    "reinstall vLLM and torch together in a clean environment, without older flash-attn or xformers wheels"
)
_NEWER_LIBSTDC: Final = (
    "use a newer distribution or image; where LD_LIBRARY_PATH or conda brings an older libstdc++ than the "
    "system's, take it out"
)
_OLDER_HINTS: Final = {
    "GLIBCXX": _NEWER_LIBSTDC,
    "CXXABI": _NEWER_LIBSTDC,
    "GLIBC": "use a newer distribution or image, or a build for this one's glibc",
}


def _binary(found: Found) -> Cause:
    library = found.word("library")
    return BinaryIncompatible(
        message=f"{library} was built for other binaries than those installed",
        hint=_REINSTALL,
        library=library,
        symbol=found.word("symbol"),
        retryable=False,
    )


def _older(found: Found) -> Cause:
    library, symbol = found.word("library"), found.word("symbol") or ""
    return BinaryIncompatible(
        message=f"{library} is older than what this build needs: it has no {symbol}",
        hint=_OLDER_HINTS.get(symbol.partition("_")[0], _REINSTALL),
        library=library,
        symbol=symbol,
        retryable=False,
    )


def _other_numpy() -> BinaryIncompatible:
    return BinaryIncompatible(
        message="a compiled module was built for another NumPy than the one installed",
        hint="reinstall the module that the traceback names, or pip install 'numpy<2'",
        confidence="likely",
        library="numpy",
        retryable=False,
    )


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
        literal="undefined symbol: ",
        pattern=_UNDEFINED,
        build=_binary,
        versions="glibc",
    ),
    CauseRule(
        literal="' not found (required by ",
        pattern=_OLDER,
        build=_older,
        versions="glibc",
    ),
    *(
        CauseRule(
            literal="Failed to import from vllm._",
            pattern=rf"^Failed to import from vllm\._\w{{1,60}}(?: with|:) ImportError\(.{{0,20}}{said}",
            where="line",
            offered=False,
            explains=("binary_incompatible",),
            build=build,
            versions="0.4 to 0.33",
        )
        for said, build in ((_UNDEFINED, _binary), (_OLDER, _older))
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
        literal="Tried to instantiate class '_",
        pattern=r"Tried to instantiate class '(?P<library>_\w{1,60})\.(?P<symbol>\w{1,100})', but it does",
        build=lambda found: attrs.evolve(_binary(found), confidence="likely"),
        versions="0.5 to 0.33, torch 2.x",
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
)
