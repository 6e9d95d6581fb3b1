"""Another machine that is this one: shells run here, with the programs of a folder first in their path."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from vllm_startup.targets._ssh.connection import Connection, ConnectionLostError

BUSYBOX = shutil.which("busybox")
SHELLS = ["dash", "bash", *(["busybox"] if BUSYBOX else [])]
_APPLETS = ("sh", "head", "tail", "stat", "date", "tr", "env", "cat", "readlink")


class Near(Connection):
    """A connection that leads nowhere else.

    Args:
        folder: Where programs are put.
        shell: Which program ``sh`` is there.
        greeting: What the login shell prints before it does anything.
    """

    def __init__(self, folder: Path, shell: str = "dash", *, greeting: str = "") -> None:
        super().__init__("gpubox")
        self._greets = f"printf %s {shlex.quote(greeting)}; " if greeting else ""
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.down = False
        self.generation = 1
        if shell == "busybox":
            assert BUSYBOX is not None
            for name in _APPLETS:
                (self.bin / name).symlink_to(BUSYBOX)
        elif (found := shutil.which(shell)) is not None:
            (self.bin / "sh").symlink_to(found)

    def program(self, name: str, script: str) -> None:
        """Put a program there."""
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def client(self, command: str) -> list[str]:
        return ["env", f"PATH={self.bin}:/usr/bin:/bin", "sh", "-c", self._greets + command]

    def ensure(self) -> None:
        self.check()

    def check(self) -> None:
        if self.down:
            raise ConnectionLostError("the connection to gpubox is lost: gone")

    def await_loss(self, generation: int) -> None:
        self.check()
