"""Tools that choose a Python environment for what they run: ``uv run``, ``conda run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import attrs

from vllm_startup._preflight.paths import is_file, is_folder
from vllm_startup._preflight.result import NotCheckedError

_CONDA: Final = frozenset({"conda", "mamba", "micromamba"})
_UNKNOWN: Final = frozenset({"hatch", "pdm", "pipenv", "pipx", "pixi", "poetry", "rye", "uvx"})
_UV_OWN: Final = (
    "--with",
    "--isolated",
    "--no-project",
    "--script",
    "--python",
    "-p",
    "--package",
    "--active",
)
"""Options of ``uv run`` with which it takes, or makes, another environment than the project's."""


@attrs.frozen(kw_only=True)
class ChosenEnvironment:
    """The environment that a tool runs a command in.

    Attributes:
        prefix: Its folder, with ``bin`` in it.
        changes: What the tool may change in it before; None where it changes nothing.
    """

    prefix: str
    changes: str | None = None


def chosen_environment(
    words: Sequence[str], environ: Mapping[str, str], cwd: str
) -> ChosenEnvironment | None:
    """The environment that a command's wrappers choose; None where they choose none.

    Args:
        words: The wrappers, in front of the server's program.
        environ: The server's environment.
        cwd: The working directory.

    Raises:
        NotCheckedError: They choose one, and which it is cannot be told.
    """
    for index, word in enumerate(words):
        name, rest = word.rpartition("/")[2], list(words[index + 1 :])
        if name in _UNKNOWN:
            raise NotCheckedError(f"{name} chooses the environment; name it with --python")
        if name == "uv" and rest[:1] == ["run"]:
            return _of_uv(rest[1:], environ, cwd)
        if name in _CONDA and rest[:1] == ["run"]:
            return _of_conda(rest[1:], environ, cwd)
    return None


def _of_uv(options: list[str], environ: Mapping[str, str], cwd: str) -> ChosenEnvironment | None:
    if any(option.partition("=")[0] in _UV_OWN for option in options):
        raise NotCheckedError("uv run chooses the environment; name it with --python")
    folder = Path(cwd, _value(options, "--directory", "--project") or ".")
    project = next((each for each in (folder, *folder.parents) if is_file(each / "pyproject.toml")), None)
    if project is None:
        active = environ.get("VIRTUAL_ENV")
        near = next((each / ".venv" for each in (folder, *folder.parents) if is_folder(each / ".venv")), None)
        found = Path(active) if active else near
        return None if found is None else ChosenEnvironment(prefix=str(found))
    place = project / (environ.get("UV_PROJECT_ENVIRONMENT") or ".venv")
    if not is_folder(place / "bin"):
        raise NotCheckedError("uv run has yet to make the environment")
    still = "--no-sync" in options or environ.get("UV_NO_SYNC")
    return ChosenEnvironment(prefix=str(place), changes=None if still else "uv run")


def _of_conda(options: list[str], environ: Mapping[str, str], cwd: str) -> ChosenEnvironment:
    prefix, name = _value(options, "-p", "--prefix"), _value(options, "-n", "--name")
    places = [Path(cwd, prefix)] if prefix else []
    if name:
        roots = [environ.get("MAMBA_ROOT_PREFIX"), environ.get("CONDA_ROOT")]
        if program := environ.get("CONDA_EXE"):
            roots.append(str(Path(program).parent.parent))
        places = [Path(root, "envs", name) for root in roots if root]
        places.append(Path(environ.get("HOME", "/"), ".conda", "envs", name))
    found = next((place for place in places if is_folder(place / "bin")), None)
    if found is None:
        raise NotCheckedError("where the conda environment lies cannot be told; name it with --python")
    return ChosenEnvironment(prefix=str(found))


def _value(options: Sequence[str], *names: str) -> str | None:
    for option, following in pairwise([*options, ""]):
        name, equals, value = option.partition("=")
        if name in names:
            return value if equals else following
    return None
