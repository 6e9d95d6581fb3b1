"""Arguments of the library, in its own messages, by the names that they have on the command line."""

from __future__ import annotations

import re
from typing import Final

_OPTIONS: Final = {
    **{name: f"--{name}" for name in ("engine", "gpus", "log", "pid", "record", "until", "user")},
    "api_key": "--api-key-file",
}
_NAMED: Final = re.compile(
    # Not in a quoted address or path, which may hold anything.
    rf"(?<![^\s(])(?P<name>{'|'.join(_OPTIONS)})=(?:True|'(?P<text>[^']*)'|(?P<number>\d+))?"
)


def on_command_line(message: str, command: str) -> str:
    """A message of the library, such as ``say where it is with engine=``, for who typed a command."""
    if command == "diagnose":
        message = message.replace("pid= and log=", "FILE")  # it looks at no process
    return _NAMED.sub(_option, message)


def _option(found: re.Match[str]) -> str:
    option, value = _OPTIONS[found["name"]], found["text"] or found["number"]
    return option if value is None else f"{option} {value}"
