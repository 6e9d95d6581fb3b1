"""OpenSSH's client as a process of ours: what it says, where its sockets are, and its end."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Final

import attrs

_END_S: Final = 2.0  # how long a client may take to end when it is asked to
_REST_S: Final = 0.05  # between two looks whether the socket is there

# sockaddr_un holds 108 bytes (104 on macOS) with its end; the client first binds a name that is 17 longer.
_LONGEST_FOLDER: Final = 84


@attrs.define
class Held:
    """What must not outlive a connection, nor this program."""

    folder: str = ""
    master: subprocess.Popen[bytes] | None = None
    reader: threading.Thread | None = None

    def end_master(self) -> None:
        """End the client, and with it all that goes through it."""
        master, self.master = self.master, None
        if master is None:
            return
        for pipe in (master.stdin, master.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        master.terminate()
        try:
            master.wait(_END_S)
        except subprocess.TimeoutExpired:
            master.kill()
            master.wait()
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.join(_END_S)  # longer only where a jump host's client outlives it
        elif master.stderr is not None:
            master.stderr.close()

    def release(self) -> None:
        """Leave nothing behind."""
        self.end_master()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def output(
    process: subprocess.Popen[bytes], deadline: float, abandoned: Callable[[], bool]
) -> Iterator[tuple[IO[bytes] | None, bytes]]:
    """What a process writes, until it ends or the time runs out; between, nothing, now and then."""
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            selector.register(stream, selectors.EVENT_READ, stream)
        while selector.get_map() and not abandoned() and time.monotonic() < deadline:
            ready = selector.select(_REST_S)
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                yield key.data, data
            if not ready:
                yield None, b""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REST_S)


def drain(stream: IO[bytes], words: deque[str]) -> None:
    """Read what the master says: a full pipe would stop it."""
    with stream:
        for line in stream:
            words.append(line.decode("utf-8", "replace").strip())


def private_folder() -> str:
    """A new folder that is ours alone, with a path that is short enough for sockets."""
    base = tempfile.gettempdir()
    if len(base) + len("/vllm-ssh-12345678") > _LONGEST_FOLDER:
        base = "/tmp"
    return tempfile.mkdtemp(prefix="vllm-ssh-", dir=base)
