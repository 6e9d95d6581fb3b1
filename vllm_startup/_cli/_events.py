"""Events as JSON lines, in a file or on standard output, each flushed as it happens."""

from __future__ import annotations

import os
from types import TracebackType
from typing import IO, Final, Self

from vllm_startup._cli import _output
from vllm_startup._cli._status import UsageError
from vllm_startup._events import Event
from vllm_startup._json import json_text

# O_NONBLOCK: a named pipe that nobody reads is an error at once, not a wait for ever.
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC


def _created(path: str) -> IO[str]:
    descriptor = os.open(path, _FLAGS, 0o600)  # events hold lines of the log
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "w", encoding="utf-8")


class EventLines:
    """Where events are written to; nowhere without a target."""

    def __init__(self, file: IO[str] | None = None, *, to_stdout: bool = False) -> None:
        self._file = file
        self._to_stdout = to_stdout

    @classmethod
    def open(cls, target: str | None, *, json_report: bool) -> Self:
        """Open ``--events``: a file that is replaced, or ``-`` for standard output.

        Raises:
            UsageError: It cannot be written, or standard output is taken by the report.
        """
        if target is None:
            return cls()
        if target == "-":
            if json_report:
                raise UsageError("--json and --events - both write to standard output; give --events a file")
            return cls(to_stdout=True)
        try:
            return cls(_created(target))
        except OSError as error:
            raise UsageError(f"--events {target!r} cannot be written: {error.strerror or error}") from error

    def write(self, event: Event) -> None:
        """Write one event. A full disk ends the writing, not the wait."""
        if self._file is None and not self._to_stdout:
            return
        line = json_text(event.to_dict())
        try:
            if self._file is None:
                _output.say_json(line)
            else:
                self._file.write(f"{line}\n")
                self._file.flush()
        except (OSError, _output.OutputError) as error:
            _output.tell(f"warning: --events is not written any more: {error}")
            self._to_stdout = False
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError:
                pass  # said when it was written
