"""What vLLM's processes print, in the form of one version."""

from __future__ import annotations

import os
import sys
import time
from typing import Final

BANNER: Final = (
    "",
    "       █     █     █▄   ▄█",
    " ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}",
    "  █▄█▀ █     █     █     █  model   {model}",
    "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
    "",
)
_SITE: Final = "/opt/vllm/lib/python3.12/site-packages/vllm"


class Printer:
    """One process's output.

    Up to 0.30 its standard output is wrapped, so that every line has the prefix, whoever prints it; from
    0.31 on, only what vLLM's own logger prints has it.

    Args:
        name: As in the prefix: ``APIServer``, ``Worker_TP0``.
        version: vLLM's.
    """

    def __init__(self, name: str, version: str) -> None:
        self.wrapped = version < "0.31"
        self._prefix = f"({name} pid={os.getpid()}) "

    def record(self, place: str, message: str, *, level: str = "INFO") -> None:
        """Print a record of vLLM's logger; the lines of one are ended by CR LF, but the last."""
        stamp = time.strftime("%m-%d %H:%M:%S")
        head = f"{self._prefix}{level} {stamp} [{place}] "
        write("\r\n".join(head + line for line in message.split("\n")) + "\n")

    def plain(self, text: str) -> None:
        """Print lines of somebody else: uvicorn, a traceback."""
        head = self._prefix if self.wrapped else ""
        write("".join(f"{head}{line}\n" for line in text.split("\n")))

    def shards(self, done: int, total: int, seconds: float) -> None:
        """Print the bar of the checkpoint's shards, whose every update is a line."""
        speed = f"{done / seconds:5.2f}it/s" if done else "?it/s"
        left = clock(seconds / done * (total - done)) if done else "?"
        self.plain(
            f"\rLoading safetensors checkpoint shards: {done * 100 // total:3d}% Completed"
            f" | {done}/{total} [{clock(seconds)}<{left}, {speed}]"
        )

    def graphs(self, mode: str, done: int, total: int, seconds: float) -> None:
        """Print the bar of the CUDA graphs, which stays on one line until it is full."""
        head = self._prefix if self.wrapped and done == 0 else ""
        bar = "█" * (done * 10 // total)
        speed = f"{done / seconds:5.2f}it/s" if done else "?it/s"
        write(
            f"{head}\rCapturing CUDA graphs ({mode}): {done * 100 // total:3d}%|{bar:<10}|"
            f" {done}/{total} [{clock(seconds)}<00:00, {speed}]" + ("\n" if done == total else "")
        )

    def traceback(self, place: str | None, title: str, error: str, *frames: str) -> None:
        """Print a traceback: as a record of level ERROR, or plain where there is no place."""
        lines = (
            [title, "Traceback (most recent call last):"] if title else ["Traceback (most recent call last):"]
        )
        for frame in frames:
            file, number, function, source = frame.split("|")
            lines += [f'  File "{_SITE}/{file}", line {number}, in {function}', f"    {source}"]
        text = "\n".join([*lines, error])
        if place is None:
            self.plain(text)
        else:
            self.record(place, text, level="ERROR")


def write(text: str) -> None:
    """Print at once and whole, as no other process may come in between."""
    data = text.encode()
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        sys.exit(1)


def clock(seconds: float) -> str:
    """Seconds as tqdm has them."""
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
