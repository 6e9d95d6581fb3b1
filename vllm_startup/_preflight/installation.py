"""The Python that will run the server, and the packages that it will find: read from files, not run.

A ``vllm`` script names its interpreter in its first line, an interpreter's place tells where its packages
lie (site.py, PEP 405, Debian's dist-packages). Only where that place is not understood (a pyenv shim,
a relocated build) is the interpreter asked for its ``sys.path``, which imports nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from vllm_startup._preflight.launch import Launch, Server, program_path
from vllm_startup._preflight.packages import Packages
from vllm_startup._preflight.result import NotCheckedError
from vllm_startup._preflight.sitedirs import Layout, layout_of
from vllm_startup._preflight.tools import chosen_environment

_ASK: Final = "import json, sys; print(json.dumps([sys.version.split()[0], sys.path]))"
_ASK_LIMIT_S: Final = 3.0
_FIRST_BYTES: Final = 1024
_PYTHON: Final = r"(?:python|pypy)[\d.]*t?"
_POLYGLOT: Final = r"""'''exec' +"?([^"\s]+)"?"""
"""What installers write where the interpreter's path is too long for a first line, or holds a blank."""


@attrs.frozen(kw_only=True)
class Installation:
    """A Python with its packages.

    Attributes:
        python: The interpreter's path.
        version: Of the interpreter, as ``3.12.3`` or ``3.12``.
        packages: What it can import.
        changes: What may still change them before the start; None where nothing does.
    """

    python: str
    version: str
    packages: Packages
    changes: str | None = None


def find(launch: Launch, server: Callable[[], Server]) -> Installation:
    """Find the Python of a start.

    Raises:
        NotCheckedError: It cannot be told which it is, or where its packages lie.
    """
    changes = None
    if launch.python is not None:
        python, environ, cwd = launch.python, launch.environ, launch.cwd
    else:
        python, changes = _interpreter(server())
        environ, cwd = server().environ, server().own_cwd
    layout = layout_of(Path(python), environ, cwd) or _asked(python, environ, cwd)
    return Installation(
        python=python, version=layout.version, packages=Packages(layout.folders), changes=changes
    )


def _interpreter(server: Server) -> tuple[str, str | None]:
    """The interpreter's path, and what may still change its packages."""
    *before, named = server.command.program
    chosen = chosen_environment(before, server.environ, server.cwd)
    environ, changes = server.environ, None
    if chosen is not None:
        environ = {**environ, "PATH": f"{chosen.prefix}/bin:{environ.get('PATH', '')}"}
        changes = chosen.changes
    runs_script = named.rpartition("/")[2] == "vllm" and before[-1:] != ["-m"]
    word = named if runs_script else _python_word(before)
    if "/" not in word and chosen is None and not server.command.path_known:
        raise NotCheckedError("what a shell reads before may choose another Python; name it with --python")
    path = program_path(word, environ, server.cwd)
    if path is None:
        raise NotCheckedError(f"{word} was not found")
    return _interpreter_of(path, environ, server.cwd) if runs_script else path, changes


def _python_word(words: Sequence[str]) -> str:
    """The Python of ``python -m MODULE`` or ``python SCRIPT``."""
    word = next((w for w in reversed(words) if re.fullmatch(_PYTHON, w.rpartition("/")[2])), None)
    if word is None:
        raise NotCheckedError("the command shows no Python")
    return word


def _interpreter_of(script: str, environ: Mapping[str, str], cwd: str) -> str:
    """The interpreter that a script's first lines name."""
    try:
        with open(script, "rb") as file:  # noqa: PTH123 - bounded
            text = file.read(_FIRST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise NotCheckedError(f"{script} cannot be read: {error.strerror}") from error
    words = text.partition("\n")[0].removeprefix("#!").split() if text.startswith("#!") else []
    if words and words[0].endswith("/env"):
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    elif (polyglot := re.search(_POLYGLOT, text)) is not None:
        words = [polyglot[1]]
    if not words or not re.fullmatch(_PYTHON, words[0].rpartition("/")[2]):
        raise NotCheckedError(f"{script} does not show which Python runs it")
    path = program_path(words[0], environ, cwd)
    if path is None:
        raise NotCheckedError(f"{script} needs {words[0]}, which is not there")
    return path


def _asked(python: str, environ: Mapping[str, str], cwd: str) -> Layout:
    """Ask an interpreter whose place tells nothing."""
    try:
        answer = subprocess.run(
            [python, "-c", _ASK],
            env=dict(environ),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_LIMIT_S,
            check=True,
        ).stdout
        version, path = json.loads(answer)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NotCheckedError(f"where {python} has its packages cannot be told") from error
    return Layout(version=str(version), folders=tuple(os.path.join(cwd, str(part)) for part in path))  # noqa: PTH118
