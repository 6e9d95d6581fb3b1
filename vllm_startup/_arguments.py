"""A vLLM server's own command: where it will listen, and what it was asked to do.

vLLM takes its arguments from the command line and from one YAML file (``--config``), the command
line last; ``vllm/utils/argparse_utils.py`` of 0.32 is the source of what is read here and how. Its
port stands in no environment variable: ``VLLM_PORT`` is the first of its internal ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from vllm_startup._server_command import ServerCommand, find_server

_DEFAULT_PORT: Final = 8000
_SUPERVISOR_PORT: Final = 9256  # --data-parallel-supervisor-port, 0.22 and newer
_WILDCARDS: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
_MOST_CONFIG_BYTES: Final = 1024 * 1024

_VALUE: Final = (
    "--host", "--port", "--uds", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs", "--root-path",
    "--model", "--config", "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size",
    "--data-parallel-size-local", "--data-parallel-supervisor-port", "--gpu-memory-utilization",
)  # fmt: skip
_VALUES: Final = ("--served-model-name", "--api-key")
_FLAGS: Final = ("--headless", "--grpc", "--data-parallel-multi-port-external-lb")
_SHORT: Final = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-dpl": "--data-parallel-size-local",
    "-dpm": "--data-parallel-multi-port-external-lb",
    "--device-memory-utilization": "--gpu-memory-utilization",  # 0.32 and newer
}


@attrs.frozen(kw_only=True)
class ServerArguments:
    """What a vLLM server's command says. None is what it leaves to vLLM's defaults.

    Attributes:
        model: The name or path of the model.
        served_model_names: The names under which the API knows it; empty for the model's own.
        uds: The absolute path of the unix socket to listen on.
        tls: Whether it answers with HTTPS.
        root_path: The path under which a proxy shows it. The server itself answers without it too.
        needs_api_key: Whether ``/v1`` asks for a key. The key itself is never kept.
        headless: Whether it has no API server, and so never listens.
        grpc: Whether it speaks gRPC instead of HTTP.
        multi_port: Whether every rank has a port of its own, and a supervisor one for all.
        in_script: Whether they stand in a shell's text: the server's own may be others.
    """

    model: str | None = None
    served_model_names: tuple[str, ...] = ()
    host: str | None = None
    port: int | None = None
    uds: str | None = None
    tls: bool = False
    ssl_ca_certs: str | None = None
    root_path: str | None = None
    needs_api_key: bool = False
    config: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    data_parallel_size_local: int | None = None
    supervisor_port: int | None = None
    gpu_memory_utilization: float | None = None
    headless: bool = False
    grpc: bool = False
    multi_port: bool = False
    in_script: bool = False

    @property
    def url(self) -> str | None:
        """Where HTTP is answered, as seen from the same machine; None where it never is."""
        if self.headless or self.grpc:
            return None
        if self.uds is not None:
            return f"https+unix://{self.uds}" if self.tls else f"unix://{self.uds}"
        host = _WILDCARDS.get(self.host or "", self.host)
        port = (self.supervisor_port or _SUPERVISOR_PORT) if self.multi_port else self.port or _DEFAULT_PORT
        return f"{'https' if self.tls else 'http'}://{f'[{host}]' if ':' in str(host) else host}:{port}"


def parse_command(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
    read: Callable[[Path], str] | None = None,
) -> ServerArguments | None:
    """Read the arguments of the vLLM server that a command starts.

    The server may stand behind wrappers (``env``, ``uv run``, ``numactl``, ``bash -c``).

    Args:
        command: The program and its arguments.
        environ: The environment that it gets.
        cwd: Its working directory, for relative paths.
        read: Reads a config file where that is on another machine; may raise OSError.

    Returns:
        None where the command starts no vLLM server, or starts it inside a script.
    """
    found = find_server(command, environ)
    return None if found is None else read_arguments(found, cwd=cwd, read=read)


def read_arguments(
    server: ServerCommand, *, cwd: str | None = None, read: Callable[[Path], str] | None = None
) -> ServerArguments:
    """Read the arguments of a server that was found."""
    told = _read(given_options(server, cwd=cwd, read=read), server.environ, cwd)
    return attrs.evolve(told, in_script=server.in_script)


def given_options(
    server: ServerCommand, *, cwd: str | None = None, read: Callable[[Path], str] | None = None
) -> dict[str, list[str]]:
    """Each option under its long name with its words, those of the config file too; ``""`` for the model."""
    given: dict[str, list[str]] = {}
    for name, words in _options(_with_config(list(server.arguments), cwd, read or _config_text)):
        if name in _FLAGS or (name and words):
            given[name] = words
        elif words:
            given.setdefault("", words)
        elif name:
            given.setdefault(name, [])
    return given


def arguments_of_process(pid: int, *, own: bool = False) -> ServerArguments | None:
    """The arguments of a process's server, by its own command line or a descendant's.

    Args:
        pid: The process.
        own: Whether what stands in a shell's text is left out: the server's own arguments count alone.

    Returns:
        None where it cannot be read, or there is no vLLM server's command.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except (psutil.Error, OSError, ValueError, OverflowError):
        return None
    for member in family:
        found = _of_process(member.pid)
        if found is not None and not (own and found.in_script):
            return found
    return None


def url_of_process(pid: int, *, own: bool = False) -> str | None:
    """Where the server of a process listens; as `arguments_of_process` finds it."""
    found = arguments_of_process(pid, own=own)
    return None if found is None else found.url


def _of_process(pid: int) -> ServerArguments | None:
    import psutil

    try:
        process = psutil.Process(pid)
        command = process.cmdline()
    except (psutil.Error, OSError):
        return None
    environ: dict[str, str] = {}
    cwd: str | None = None
    try:
        environ, cwd = process.environ(), process.cwd()
    except (psutil.Error, OSError):
        pass  # the command line alone is readable by everybody
    return parse_command(command, environ=environ, cwd=cwd, read=partial(_text_seen_by, pid))


def _text_seen_by(pid: int, path: Path) -> str:
    """A file as a process finds it, which may be in a container."""
    try:
        return _config_text(Path(f"/proc/{pid}/root", *path.parts[1:]) if path.is_absolute() else path)
    except PermissionError:  # another user's process
        return _config_text(path)


# --- its arguments ----------------------------------------------------------------------------


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each option under its full name with the words that belong to it; ``""`` for the model.

    What an unknown option takes is not known: words behind it are taken to be its own.
    """
    name, words = "", list[str]()
    for word in arguments:
        if word.startswith("-") and not _is_number(word):
            yield name, words
            name, found, value = word.partition("=")
            name = _full_name(name)
            words = [value] if found else []
        elif name in _FLAGS or (name in _VALUE and words):
            yield name, words
            name, words = "", [word]
        else:
            words.append(word)
    yield name, words


def _full_name(option: str) -> str:
    if option.startswith("--"):
        option = option.partition(".")[0].replace("_", "-")
    return _SHORT.get(option, option)


def _is_number(word: str) -> bool:
    return word[1:].replace(".", "", 1).isdigit()


def _with_config(arguments: list[str], cwd: str | None, read: Callable[[Path], str]) -> list[str]:
    """The arguments with those of the config file before them, as vLLM puts them together.

    vLLM reads the file only where ``--config`` and its path are two words.
    """
    if "--config" not in arguments[:-1]:
        return arguments
    path = arguments[arguments.index("--config") + 1]
    told = arguments[: 0 if arguments[0].startswith("-") else 1]
    return [*told, *_config_arguments(Path(cwd or ".", path), read), *arguments[len(told) :]]


def _read(given: Mapping[str, Sequence[str]], environ: Mapping[str, str], cwd: str | None) -> ServerArguments:
    one = {name: words[0] for name, words in given.items() if words}
    uds = one.get("--uds")
    return ServerArguments(
        model=one.get("") or one.get("--model"),
        served_model_names=tuple(given.get("--served-model-name", ())),
        host=one.get("--host"),
        port=_port(one.get("--port")),
        uds=None if uds is None else str(Path(cwd or "/", uds)),
        tls="--ssl-keyfile" in one or "--ssl-certfile" in one,
        ssl_ca_certs=one.get("--ssl-ca-certs"),
        root_path=one.get("--root-path"),
        needs_api_key=bool(given.get("--api-key")) or bool(environ.get("VLLM_API_KEY")),
        config=one.get("--config"),
        tensor_parallel_size=_whole(one.get("--tensor-parallel-size")),
        pipeline_parallel_size=_whole(one.get("--pipeline-parallel-size")),
        data_parallel_size=_whole(one.get("--data-parallel-size")),
        data_parallel_size_local=_whole(one.get("--data-parallel-size-local")),
        supervisor_port=_port(one.get("--data-parallel-supervisor-port")),
        gpu_memory_utilization=_decimal(one.get("--gpu-memory-utilization")),
        headless="--headless" in given,
        grpc="--grpc" in given,
        multi_port="--data-parallel-multi-port-external-lb" in given,
    )


def _port(text: str | None) -> int | None:
    """A port; None for what is none, of which the server itself will say so."""
    port = _whole(text)
    return port if port is not None and 0 < port < 65536 else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None


def _decimal(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


# --- the config file --------------------------------------------------------------------------


def _config_text(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_MOST_CONFIG_BYTES)


def _config_arguments(path: Path, read: Callable[[Path], str]) -> list[str]:
    try:
        text = read(path)
    except OSError:
        return []
    arguments: list[str] = []
    for key, value in _yaml(text).items():
        if isinstance(value, bool):
            arguments += [f"--{key}"] if value else []
        elif isinstance(value, list):
            arguments += [f"--{key}", *map(str, value)] if value else []
        elif not isinstance(value, dict):
            arguments += [f"--{key}", str(value)]
    return arguments


def _yaml(text: str) -> Mapping[str, object]:
    try:
        import yaml
    except ImportError:
        return flat_yaml(text)
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def flat_yaml(text: str) -> dict[str, object]:
    """The top level of a YAML file: ``key: value`` and lists of words. What is nested is left away."""
    found: dict[str, object] = {}
    items: list[object] | None = None
    for line in text.splitlines():
        bare = re.sub(r"(?:^|\s)#.*", "", line).rstrip()
        if items is not None and bare.lstrip().startswith("- "):
            items.append(_scalar(bare.lstrip()[2:].strip()))
            continue
        key, colon, value = bare.partition(":")
        if not colon or not key.strip() or key != key.lstrip() or (value and not value[0].isspace()):
            continue
        value = value.strip()
        if value.startswith("[") and value.endswith("]"):
            found[key] = [_scalar(part.strip()) for part in value[1:-1].split(",") if part.strip()]
        elif value:
            found[key] = _scalar(value)
        else:
            found[key] = items = []
    return found


def _scalar(text: str) -> object:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return {"true": True, "false": False}.get(text.lower(), text)
