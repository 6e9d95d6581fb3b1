"""What a log's first bytes say of the rest: compressed, or text in another encoding than UTF-8."""

from __future__ import annotations

import codecs
from typing import Final

COMPRESSIONS: Final = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
}
UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""How text begins that PowerShell's ``>`` has written."""


def compression(head: bytes) -> str | None:
    """The name of the compression; None where there is none that is known."""
    return next((name for magic, name in COMPRESSIONS.items() if head.startswith(magic)), None)


def decoder(head: bytes) -> codecs.IncrementalDecoder | None:
    """What decodes text that begins so; None for text in UTF-8."""
    return codecs.getincrementaldecoder("utf-16")("replace") if head.startswith(UTF_16) else None
