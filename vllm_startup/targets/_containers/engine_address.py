"""Where a container engine answers: as the caller says, as Docker's and Podman's own tools would find it."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import attrs

from vllm_startup.targets._target import TargetError

_TCP_PORT: Final = 2375
_TLS_PORT: Final = 2376
"""As Docker's documentation reserves them."""

_REACH_LIMIT_S: Final = 5.0


@attrs.frozen(kw_only=True)
class EngineAddress:
    """One place where an engine may answer.

    Attributes:
        uds: The path of its socket; None for TCP.
        host: Its host; None for a socket on this machine.
        certificates: A folder with ``ca.pem``, ``cert.pem`` and ``key.pem``; None without TLS.
        verify: Whether its certificate is checked.
        found_by: What named it, for people: ``DOCKER_HOST``, ``context gpubox``.
    """

    uds: str | None = None
    host: str | None = None
    port: int = _TCP_PORT
    certificates: Path | None = None
    tls: bool = False
    verify: bool = True
    found_by: str = ""

    @property
    def base(self) -> str:
        """What requests begin with."""
        if self.uds is not None:
            return "http://engine"
        host = f"[{self.host}]" if ":" in str(self.host) else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    def __str__(self) -> str:
        if self.uds is not None:
            return f"unix://{self.uds}"
        return self.base.replace("http://", "tcp://").replace("https://", "tcp://")

    def context(self) -> ssl.SSLContext | bool:
        """What checks the engine's certificate, and shows ours; False without TLS.

        Raises:
            TargetError: A certificate is missing or is none.
        """
        if not self.tls:
            return False
        folder = self.certificates
        try:
            ca = folder / "ca.pem" if folder is not None else None
            made = ssl.create_default_context(cafile=ca if ca is not None and ca.exists() else None)
            if folder is not None and (folder / "cert.pem").exists():
                made.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        except (OSError, ssl.SSLError) as error:
            raise TargetError(
                f"the certificates for the engine {self} cannot be used: {error}; {folder} must hold"
                " ca.pem, cert.pem and key.pem"
            ) from error
        if not self.verify:
            made.check_hostname = False
            made.verify_mode = ssl.CERT_NONE
        return made

    def trouble(self) -> str | None:
        """Connect, and say what is in the way; None where somebody listens. It may block for seconds."""
        try:
            if self.uds is not None:
                with socket.socket(socket.AF_UNIX) as link:
                    link.settimeout(_REACH_LIMIT_S)
                    link.connect(self.uds)
            else:
                socket.create_connection((str(self.host), self.port), _REACH_LIMIT_S).close()
        except PermissionError:
            return f"this user may not use the socket: {_permission(str(self.uds))}"
        except FileNotFoundError:
            return "not there"
        except ConnectionRefusedError:
            return "nothing listens there"
        except OSError as error:
            return error.strerror or str(error)
        return None


def _permission(path: str) -> str:
    if "podman" in path:
        return "run as its owner, or start one of this user's own: systemctl --user start podman.socket"
    return "add the user to the group docker (sudo usermod -aG docker USER, then log in again), or use sudo"


def parse_engine(text: str, *, found_by: str = "engine=") -> EngineAddress:
    """Read an engine's address: ``unix:///path``, ``/path``, ``tcp://host:port``.

    Raises:
        TargetError: It is no address of an engine. The message says what to write instead.
    """
    if not isinstance(text, str):
        raise TypeError(f"engine must be a string such as 'unix:///var/run/docker.sock', not {text!r}")
    if text.startswith("/"):
        return EngineAddress(uds=text, found_by=found_by)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise TargetError(f"{found_by} {text!r} is no address of a container engine: {error}") from error
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        return EngineAddress(uds=parts.path, found_by=found_by)
    if parts.scheme == "ssh":
        raise TargetError(
            f"{found_by} {text!r} leads over SSH: watch the container there with the ssh target,"
            f" ssh({parts.netloc!r}, container(…)); on the command line --ssh {parts.netloc} --container …"
        )
    if parts.scheme in ("tcp", "http", "https") and parts.hostname:
        tls = parts.scheme == "https"
        return EngineAddress(
            host=parts.hostname,
            port=port or (_TLS_PORT if tls else _TCP_PORT),
            tls=tls,
            found_by=found_by,
        )
    raise TargetError(
        f"{found_by} {text!r} is no address of a container engine; write unix:///path/of.sock or tcp://host:port"
    )


def addresses(
    engine: str | None, *, environ: Mapping[str, str] | None = None, home: Path | None = None
) -> list[EngineAddress]:
    """Where to look for the engine, in this order: the first that is named alone, else the usual sockets.

    ``engine``; ``DOCKER_HOST`` (with ``DOCKER_TLS_VERIFY`` and ``DOCKER_CERT_PATH``); Docker's current
    context; ``CONTAINER_HOST``. A context named ``default`` stands for the usual sockets.

    Args:
        engine: What the caller says.
        environ: The environment; this program's when None.
        home: The user's home directory, for tests.

    Raises:
        TargetError: What names it makes no sense.
    """
    env = os.environ if environ is None else environ
    home = Path.home() if home is None else home
    if engine is not None:
        return [_with_tls(parse_engine(engine), env, home)]
    if host := env.get("DOCKER_HOST"):
        return [_with_tls(parse_engine(host, found_by="DOCKER_HOST"), env, home)]
    if (found := _of_context(env, home)) is not None:
        return [found]
    if host := env.get("CONTAINER_HOST"):
        return [parse_engine(host, found_by="CONTAINER_HOST")]
    return [EngineAddress(uds=path, found_by="usual socket") for path in _usual_sockets(env, home)]


def _with_tls(address: EngineAddress, env: Mapping[str, str], home: Path) -> EngineAddress:
    """The address with what Docker's own variables say of TLS."""
    verify, folder = env.get("DOCKER_TLS_VERIFY"), env.get("DOCKER_CERT_PATH")
    if address.uds is not None or not (verify or folder or address.tls):
        return address
    certificates = Path(folder) if folder else _config_folder(env, home)
    return attrs.evolve(
        address, tls=True, certificates=certificates, verify=bool(verify) or not folder or address.tls
    )


def _config_folder(env: Mapping[str, str], home: Path) -> Path:
    return Path(env.get("DOCKER_CONFIG") or home / ".docker")


def _of_context(env: Mapping[str, str], home: Path) -> EngineAddress | None:
    """The engine of Docker's current context; None where that is the default one."""
    folder = _config_folder(env, home)
    config = _json(folder / "config.json")
    name = env.get("DOCKER_CONTEXT") or config.get("currentContext")
    if not name or name == "default":
        return None
    digest = hashlib.sha256(str(name).encode()).hexdigest()
    meta = _json(folder / "contexts" / "meta" / digest / "meta.json")
    endpoint = meta.get("Endpoints", {}).get("docker", {})
    if not endpoint.get("Host"):
        raise TargetError(
            f"Docker's current context {name!r} names no engine; choose another one with docker context use,"
            " or give engine="
        )
    address = parse_engine(endpoint["Host"], found_by=f"context {name}")
    certificates = folder / "contexts" / "tls" / digest / "docker"
    if address.uds is not None or not (address.tls or certificates.is_dir()):
        return address
    return attrs.evolve(
        address, tls=True, certificates=certificates, verify=not endpoint.get("SkipTLSVerify", False)
    )


def _json(path: Path) -> dict[str, Any]:
    """What a file of Docker's configuration holds; nothing where it is missing or not ours to read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _usual_sockets(env: Mapping[str, str], home: Path) -> Iterator[str]:
    runtime = env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    yield "/var/run/docker.sock"
    yield f"{runtime}/docker.sock"
    yield str(home / ".docker" / "run" / "docker.sock")
    yield str(home / ".docker" / "desktop" / "docker.sock")
    yield f"{runtime}/podman/podman.sock"
    yield "/run/podman/podman.sock"
