"""The vLLM server that a command starts, behind wrappers such as ``env``, ``uv run`` and ``bash -c``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Final

import attrs

_MODULES: Final = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
_CLI_MODULES: Final = ("vllm", "vllm.entrypoints.cli.main")
_SCRIPTS: Final = ("vllm/entrypoints/openai/api_server.py", "vllm/entrypoints/api_server.py")
_SHELLS: Final = frozenset({"bash", "sh", "dash", "zsh", "ash", "ksh"})
_SHELL_VALUES: Final = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})
_EMPTY: Final = frozenset({"-", "-i", "--ignore-environment"})
_DEEPEST: Final = 4  # a shell in a shell in a shell
_SERVE: Final = "serve"
_CHANGE_PATH: Final = frozenset(
    {".", "conda", "eval", "mamba", "micromamba", "ml", "module", "pyenv", "source"}
)
_ACTIVATE: Final = "/bin/activate"


@attrs.frozen(kw_only=True)
class ServerCommand:
    """A vLLM server behind its wrappers.

    Attributes:
        program: The words up to the one that names the server: ``uv run vllm``, ``python3 -m MODULE``,
            ``sh exec vllm`` where a shell is given it as text.
        arguments: The words behind it, without ``serve``.
        environ: The environment that it gets.
        folder: Where a script changes to before, as it says it; empty where it does not.
        in_script: Whether it stands in a shell's text, whose words are the shell's to fill in.
        path_known: Whether ``PATH`` is as ``environ`` has it, and no shell's own files have changed it.
    """

    program: tuple[str, ...]
    arguments: tuple[str, ...]
    environ: Mapping[str, str]
    folder: str = ""
    in_script: bool = False
    path_known: bool = True


def find_server(command: Sequence[str], environ: Mapping[str, str] | None = None) -> ServerCommand | None:
    """Find the server that a command starts; None where it starts none, or starts it inside a script.

    Args:
        command: The program and its arguments.
        environ: The environment that the command gets.
    """
    return _server_part(command, dict(environ or {}), _DEEPEST)


def find_servers_in_script(script: str, environ: Mapping[str, str]) -> list[ServerCommand]:
    """The servers that a shell script's plain commands start, whichever of them it runs."""
    return list(_in_script(script, dict(environ), _DEEPEST))


def _server_part(command: Sequence[str], environ: dict[str, str], depth: int) -> ServerCommand | None:
    words = list(command)
    for index, word in enumerate(words):
        if _assignment().fullmatch(word):
            name, _, value = word.partition("=")
            environ[name] = value
        elif (rest := _after_server(words, index)) is not None:
            at = len(words) - len(rest)
            program = words[: at - 1 if words[at - 1] == _SERVE else at]
            return ServerCommand(program=tuple(program), arguments=tuple(rest), environ=dict(environ))
        elif depth and (script := _shell_script(words, index)) is not None:
            found = next(_in_script(script, environ, depth - 1), None)
            return found and attrs.evolve(
                found,
                program=(*words[: index + 1], *found.program),
                path_known=found.path_known and not _reads_own_files(words[index + 1 : index + 2]),
            )
        elif word.rpartition("/")[2] == "env":
            _forget(words[index + 1 :], environ)
    return None


def _after_server(words: list[str], index: int) -> list[str] | None:
    word, rest = words[index], words[index + 1 :]
    if word.rpartition("/")[2] == "vllm" or (word in _CLI_MODULES and words[index - 1 : index] == ["-m"]):
        return rest[1:] if rest[:1] == [_SERVE] else None
    if word == "-m" and rest[:1] and rest[0] in _MODULES:
        return rest[1:]
    return rest if word.endswith(_SCRIPTS) else None


def _forget(options: list[str], environ: dict[str, str]) -> None:
    """What ``env`` takes out of the environment."""
    for option, following in pairwise([*options, ""]):
        if option in _EMPTY:
            environ.clear()
        elif option in ("-u", "--unset"):
            environ.pop(following, None)
        elif option.startswith(("-u", "--unset=")):
            environ.pop(option.removeprefix("--unset=").removeprefix("-u"), None)
        elif not option.startswith("-"):
            return


def _shell_script(words: list[str], index: int) -> str | None:
    """The text behind ``bash -c`` and the like."""
    if words[index].rpartition("/")[2] not in _SHELLS:
        return None
    rest = iter(words[index + 1 :])
    for option in rest:
        if option in _SHELL_VALUES:
            next(rest, None)
        elif not option.startswith(("-", "+")):
            return None
        elif not option.startswith("--") and "c" in option:
            return next(rest, None)
    return None


def _reads_own_files(options: Sequence[str]) -> bool:
    """Whether a shell is a login or an interactive one: ``-lc``, ``--login``."""
    return any(
        option == "--login"
        or (option[:1] == "-" and option[:2] != "--" and not {"l", "i"}.isdisjoint(option))
        for option in options
    )


def _in_script(script: str, environ: dict[str, str], depth: int) -> Iterator[ServerCommand]:
    """The servers that a script's commands start. Only plain commands are understood."""
    folder, path_known = "", True
    for command in _commands(script):
        words = [_expanded(word, environ) for word in command]
        if len(words) > 1 and words[0] in (".", "source") and words[1].endswith(_ACTIVATE):
            place = words[1].removesuffix(_ACTIVATE)
            environ["VIRTUAL_ENV"] = place
            environ["PATH"] = f"{place}/bin:{environ.get('PATH', '')}"
        elif words[:1] == ["cd"]:
            to = words[1] if len(words) > 1 else environ.get("HOME", "")
            folder = to if to.startswith("/") or not folder else f"{folder}/{to}"
            if not environ.get("VIRTUAL_ENV", "/").startswith("/"):
                path_known = False  # it was activated from another folder
        elif words[:1] and words[0] in _CHANGE_PATH:
            path_known = False
        elif (found := _server_part(words, environ, depth)) is not None:
            known = found.path_known and path_known
            yield attrs.evolve(found, folder=found.folder or folder, in_script=True, path_known=known)


def _commands(script: str) -> Iterator[list[str]]:
    import shlex

    lexer = shlex.shlex(script.replace("\\\n", " "), posix=True, punctuation_chars=";&|<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    command: list[str] = []
    redirected = comment = False
    try:
        for word in lexer:
            if word and set(word) <= set(";&|\n"):
                if not comment or "\n" in word:
                    yield command
                    command, redirected, comment = [], False, False
            elif word and set(word) <= set("<>&"):
                redirected = True
            elif word.startswith("#"):
                comment = True
            elif not redirected and not comment:
                command.append(word)
    except ValueError:
        pass  # an unclosed quote: what stands before it is all that can be read
    yield command


@cache
def _assignment() -> re.Pattern[str]:
    return re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


@cache
def _variable() -> re.Pattern[str]:
    return re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]*))?\})")


def _expanded(word: str, environ: Mapping[str, str]) -> str:
    return _variable().sub(lambda m: environ.get(m[1] or m[2]) or m[3] or "", word)
