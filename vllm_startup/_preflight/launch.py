"""What is about to be started, and where: here, under another user, or in another place altogether."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import attrs

from vllm_startup._arguments import ServerArguments, given_options, read_arguments
from vllm_startup._preflight.paths import is_file
from vllm_startup._preflight.result import NotCheckedError
from vllm_startup._server_command import ServerCommand, find_server, find_servers_in_script

_ELSEWHERE: Final = frozenset(
    {
        *("apptainer", "bwrap", "chroot", "crictl", "ctr", "docker", "enroot", "flatpak", "kubectl"),
        *("lxc-attach", "machinectl", "mpirun", "nerdctl", "nsenter", "oc", "podman", "ray", "runc"),
        *("sbatch", "schroot", "singularity", "srun", "ssh", "systemd-nspawn", "systemd-run", "toolbox"),
        *("torchrun", "unshare"),
    }
)  # fmt: skip
"""What runs the server in another file system, network or machine, about which nothing here says anything."""

_OTHER_USER: Final = frozenset({"doas", "gosu", "pkexec", "runuser", "setpriv", "su", "su-exec", "sudo"})
_SHELLS: Final = frozenset({"ash", "bash", "dash", "ksh", "sh", "zsh"})
_CHANGE_FOLDER: Final = ("--chdir", "--directory")  # of env and uv
_MOST_SCRIPT_BYTES: Final = 64 * 1024


@attrs.frozen(kw_only=True)
class Launch:
    """A command as it would be started.

    Attributes:
        command: The program and its arguments.
        environ: Its environment.
        cwd: Its working directory.
        python: The interpreter to look at, where the caller names it.
    """

    command: tuple[str, ...]
    environ: Mapping[str, str]
    cwd: str
    python: str | None = None


@attrs.frozen(kw_only=True)
class Server:
    """The server that the command starts.

    Attributes:
        command: It behind its wrappers.
        cwd: The working directory of its wrappers.
        guessed: Whether a shell may do otherwise: a script of which nobody knows which way it takes, or
            one that reads files of its own before.
    """

    command: ServerCommand
    cwd: str
    guessed: bool = False

    @property
    def own_cwd(self) -> str:
        """Its own working directory: some wrappers change it."""
        folder = self.cwd
        for word, following in pairwise([*self.command.program, ""]):
            option, equals, value = word.partition("=")
            if option in _CHANGE_FOLDER:
                folder = os.path.join(folder, value if equals else following)  # noqa: PTH118 - as it is
        return folder

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment that it gets."""
        return self.command.environ

    @property
    def other_user(self) -> str | None:
        """What starts it as somebody else; None where it runs as we do."""
        return _first(self.command.program[:-1], _OTHER_USER)


@attrs.frozen(kw_only=True)
class Asked:
    """What its arguments ask for.

    Attributes:
        options: Every option under its long name, with its words; an unknown flag may have taken the model.
    """

    arguments: ServerArguments
    options: Mapping[str, Sequence[str]]

    def word(self, *names: str) -> str | None:
        """The first word of the first option that is given."""
        return next((words[0] for name in names if (words := self.options.get(name))), None)

    def has(self, *names: str) -> bool:
        """Whether one of the options is given, with a value or without."""
        return any(name in self.options for name in names)


def find(launch: Launch) -> Server:
    """Find the server of a command.

    Raises:
        NotCheckedError: There is none that can be read, or it runs elsewhere.
    """
    found = find_server(launch.command, launch.environ)
    if elsewhere := _first(found.program if found else launch.command, _ELSEWHERE):
        raise NotCheckedError(f"{elsewhere} starts it in another place: run preflight there")
    if found is not None:
        return _server(found, launch.cwd)
    servers = find_servers_in_script(_script_of(launch), launch.environ)
    if len(servers) != 1 or _first(servers[0].program[:-1], _ELSEWHERE) is not None:
        raise NotCheckedError("the command shows no vLLM server")
    return attrs.evolve(_server(servers[0], launch.cwd), guessed=True)


def _server(command: ServerCommand, cwd: str) -> Server:
    if "$" in command.folder or "`" in command.folder or command.folder.startswith("-"):
        raise NotCheckedError("the command changes to a folder that only a shell knows")
    folder = os.path.join(cwd, command.folder)  # noqa: PTH118 - as it is
    return Server(command=command, cwd=folder, guessed=not command.path_known)


def read(server: Server) -> Asked:
    """Read its arguments.

    Raises:
        NotCheckedError: Some of them are known to a shell only.
    """
    for word in server.command.arguments:
        if not word or "$" in word or "`" in word:
            raise NotCheckedError("the command's arguments hold variables whose values are not known")
    cwd = server.own_cwd
    return Asked(
        arguments=read_arguments(server.command, cwd=cwd), options=given_options(server.command, cwd=cwd)
    )


def program_path(word: str, environ: Mapping[str, str], cwd: str) -> str | None:
    """The file that a word of a command runs; None where there is none."""
    if "/" in word:
        path = Path(cwd, word)
        return str(path) if is_file(path) and os.access(path, os.X_OK) else None
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which(word, path=os.pathsep.join(os.path.join(cwd, folder) for folder in folders))  # noqa: PTH118


def _script_of(launch: Launch) -> str:
    """The text of the shell script that is run; empty where none is."""
    first, *rest = launch.command
    operand = next((word for word in rest if not word.startswith(("-", "+"))), "")
    path = str(Path(launch.cwd, operand)) if _name(first) in _SHELLS and operand else None
    path = path or program_path(first, launch.environ, launch.cwd)
    if path is None:
        return ""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - bounded
            text = file.read(_MOST_SCRIPT_BYTES)
    except OSError:
        return ""
    line = text.split(b"\n", 1)[0].decode("utf-8", "replace")
    is_shell = line.startswith("#!") and not _SHELLS.isdisjoint(map(_name, line[2:].split()))
    return text.decode("utf-8", "replace") if is_shell or _name(first) in _SHELLS else ""


def _first(words: Sequence[str], names: frozenset[str]) -> str | None:
    return next((name for word in words if (name := _name(word)) in names), None)


def _name(word: str) -> str:
    return word.rpartition("/")[2]
