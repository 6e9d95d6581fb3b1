"""The facts that several checks rest on, each gathered once, by whichever check asks first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from vllm_startup._preflight import installation, launch
from vllm_startup._preflight.installation import Installation
from vllm_startup._preflight.launch import Asked, Launch, Server
from vllm_startup._preflight.result import NotCheckedError
from vllm_startup.probes._gpu_look import GpuLook, look

T = TypeVar("T")


class Once(Generic[T]):
    """A fact that is gathered when it is first asked for. Who asks meanwhile waits.

    Args:
        gather: Returns it, or raises; who asks again gets the same, or the same exception.
    """

    def __init__(self, gather: Callable[[], T]) -> None:
        self._gather = gather
        self._lock = threading.Lock()
        self._gathered: list[T] = []
        self._error: Exception | None = None

    def __call__(self) -> T:
        """The fact."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if not self._gathered:
                try:
                    self._gathered.append(self._gather())
                except Exception as error:
                    self._error = error
                    raise
            return self._gathered[0]

    @property
    def known(self) -> T | None:
        """The fact, where it was gathered by now."""
        return self._gathered[0] if self._gathered else None


class Facts:
    """What is known of a start before it.

    Args:
        start: The command as it would be started.
    """

    def __init__(self, start: Launch) -> None:
        self.launch = start
        self.server: Once[Server] = Once(lambda: launch.find(start))
        self.asked: Once[Asked] = Once(lambda: launch.read(self.server()))
        self.installation: Once[Installation] = Once(lambda: installation.find(start, self.server))
        self.gpus: Once[GpuLook] = Once(lambda: look(self.server().environ))

    def environ(self) -> Mapping[str, str]:
        """The server's environment; the command's, where the server is started inside something else."""
        try:
            return self.server().environ
        except NotCheckedError:
            return self.launch.environ
