"""A server in a container of Docker's or Podman's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from vllm_startup._arguments import ServerArguments, parse_command
from vllm_startup.probes._protocol import Probe
from vllm_startup.targets._containers.engine import Engine, EngineError, NoSuchContainerError
from vllm_startup.targets._containers.engine_address import addresses
from vllm_startup.targets._containers.lines import LogDecoder
from vllm_startup.targets._containers.state import ContainerState, Life
from vllm_startup.targets._following import MainProcess
from vllm_startup.targets._here import Here
from vllm_startup.targets._place import Place
from vllm_startup.targets._target import Site, TargetError

if TYPE_CHECKING:
    from vllm_startup.targets._containers.watch import Start

_SERVICE: Final = "com.docker.compose.service"
_PROJECT: Final = "com.docker.compose.project"
_ONE_OFF: Final = "com.docker.compose.oneoff"
_PORT: Final = 8000
_ANY_HOST: Final = ("", "0.0.0.0", "::")
_NEAR: Final = 3
_SHARED_NETWORK: Final = "container:"


class ContainerTarget:
    """A container, found by its name. Made by `container`."""

    def __init__(self, name: str, *, engine: str | None = None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be the name of a container, not {name!r}")
        if not name or not name.isprintable() or any(letter.isspace() for letter in name):
            raise TargetError(f"container {name!r} is no name of a container; docker ps --all lists them")
        self._name = name
        self._engine = engine
        self._place: Place | None = None

    def at(self, place: Place) -> ContainerTarget:
        """The container of that name on another machine."""
        other = ContainerTarget(self._name, engine=self._engine)
        other._place = place
        return other

    def locate(self, *, gpus: Iterable[int | str] | None = None) -> Site:
        """Find the container, and say what looks at it. It may block for seconds."""
        from vllm_startup.targets._containers.far import PlacedProcesses
        from vllm_startup.targets._containers.local import LocalProcesses, granted_gpus
        from vllm_startup.targets._containers.log import LogProbe
        from vllm_startup.targets._containers.probes import EventsProbe, StateProbe
        from vllm_startup.targets._containers.watch import Watch

        engine, inspected = self._found()
        state = ContainerState.of(inspected)
        name = state.name
        main = MainProcess()
        local: LocalProcesses | None = None
        there: PlacedProcesses | None = None

        def watched() -> bool:
            return (local is not None and local.seen) or (there is not None and there.seen)

        life = Life(name, watched=watched)
        watch = Watch(engine, name, life=life, main=main, skew_s=engine.skew_s)
        granted = granted_gpus(inspected)
        if self._place is not None:
            chosen = _gpu_names(granted) if gpus is None else list(gpus)
            there = PlacedProcesses(self._place, main, life, gpus=chosen, on_exit=watch.wake)
        elif _is_here(engine):
            local = LocalProcesses(main, life, gpus=gpus, granted=granted, on_exit=watch.wake)
        probes: list[Probe] = [StateProbe(watch, state), EventsProbe(watch), LogProbe(watch)]
        if local is not None:
            probes += local.probes
        elif there is not None:
            probes += there.probes
        elif gpus is not None:
            from vllm_startup.probes import GpuProbe

            probes.append(GpuProbe(gpus=gpus))
        given = _given_arguments(inspected)
        own_url = None
        if (local or there) and (given is None or given.in_script):
            own_url = partial(self._own_url, engine, name, lambda: main.pid if watched() else None)
        return Site(
            name=f"container {name}",
            url=lambda: _likely_url(
                engine, inspected if watch.start is None else _again(engine, watch.start)
            ),
            own_url=own_url,
            start=lambda: _which(watch.start or state),
            probes=probes,
            tree_pids=None if local is None else local.tree_pids,
            runs=lambda: (life.newest or state).alive,
        )

    def _own_url(self, engine: Engine, name: str, main: Callable[[], int | None]) -> str | None:
        """Where its server is reached, by the arguments that a script gives it; None until it does."""
        import httpx

        pid, place = main(), self._place or Here()
        found = None if pid is None else place.arguments_of(pid)
        if found is None:
            return None
        try:
            return _url(engine, _inspect(engine, name), found)
        except (EngineError, httpx.TransportError):  # gone meanwhile, or the engine is
            return None

    def read_log(self) -> Iterator[str]:
        """The lines of its newest start, as ``docker logs --timestamps`` prints them, and how it ended."""
        import httpx

        engine, inspected = self._found()
        state = ContainerState.of(inspected)
        decoder = LogDecoder(tty=state.tty)
        query = {"stdout": True, "stderr": True, "timestamps": True}
        since = f"{state.lines_since:.6f}" if state.lines_since else None
        try:
            with engine.read(f"/containers/{state.id}/logs", **query, since=since) as chunks:
                for chunk in chunks:
                    yield from (line.dated for line in decoder.feed(chunk))
        except (EngineError, httpx.TransportError) as error:
            raise TargetError(f"the log of container {state.name} cannot be read: {error}") from error
        if state.started_at is None and not state.error:
            raise TargetError(f"container {state.name} was not started yet; docker start {state.name}")
        yield from _last_words(state)

    # --- which one -------------------------------------------------------------------------

    def _found(self) -> tuple[Engine, Mapping[str, Any]]:
        """The engine that has the container, and what it says of it.

        Raises:
            TargetError: No engine can be asked, or none has it.
        """
        place = self._place
        candidates = addresses(self._engine) if place is None else place.engines(self._engine)
        troubles: list[str] = []
        missing: TargetError | None = None
        for address in candidates:
            if (trouble := address.trouble()) is not None:
                troubles.append(f"{address} ({trouble})")
                continue
            engine = Engine(address)
            engine.connect()
            try:
                return engine, self._inspected(engine)
            except TargetError as error:
                missing = missing or error
        if missing is not None:
            raise missing
        named = candidates[0].found_by
        if named != "usual socket":
            raise TargetError(f"the container engine that {named} names does not answer: {troubles[0]}")
        raise TargetError(
            f"no container engine answers at {', '.join(troubles)}; start one (systemctl start docker, or"
            " systemctl --user start podman.socket), or say where it is with engine="
        )

    def _inspected(self, engine: Engine) -> Mapping[str, Any]:
        import httpx

        try:
            if "/" not in self._name:
                try:
                    return _inspect(engine, self._name)
                except NoSuchContainerError:
                    pass
            return _inspect(engine, self._of_service(engine.ask("/containers/json", all=True)))
        except (EngineError, httpx.TransportError) as error:
            raise TargetError(f"the engine at {engine.address} refuses to tell: {error}") from error

    def _of_service(self, listed: list[Mapping[str, Any]]) -> str:
        """The container of a Compose service, by ``service`` or ``project/service``."""
        known: dict[str, list[str]] = {}
        for item in listed:
            labels, name = item.get("Labels") or {}, _first_name(item)
            service, project = labels.get(_SERVICE), labels.get(_PROJECT)
            if name is not None:
                known.setdefault(name, [])
            if name is None or service is None or str(labels.get(_ONE_OFF)).lower() == "true":
                continue
            known.setdefault(service, []).append(name)
            known.setdefault(f"{project}/{service}", []).append(name)
        match known.get(self._name, ()):
            case [only]:
                return only
            case []:
                raise TargetError(f"container {self._name!r} does not exist{_near(self._name, known)}")
            case several:
                names = ", ".join(sorted(several))
                raise TargetError(f"{self._name!r} is a service with several containers; give one: {names}")


def container(name: str, engine: str | None = None) -> ContainerTarget:
    """A server in a container, with its log, state, exit codes and, where they are seen, processes.

    Found are Docker's and Podman's containers, on whichever engine has one of that name: ``engine``;
    ``DOCKER_HOST`` (with ``DOCKER_TLS_VERIFY`` and ``DOCKER_CERT_PATH``); Docker's current context;
    ``CONTAINER_HOST``; else the usual sockets of Docker and Podman. A container that is replaced by one
    of the same name, as Compose does, is followed to the new one.

    A container that has ended is a failed start, with the cause that its log names.

    Args:
        name: A container's name or id, a Compose service (``vllm``) or ``project/service``.
        engine: Where its engine answers: ``unix:///path``, ``tcp://host:port``.

    Raises:
        TypeError: ``name`` is no string.
        TargetError: ``name`` cannot be a name.
    """
    return ContainerTarget(name, engine=engine)


def _inspect(engine: Engine, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = engine.ask(f"/containers/{quote(name, safe='')}/json")
    return found


def _again(engine: Engine, start: Start) -> Mapping[str, Any]:
    """What the engine says by now of the container of a start."""
    import httpx

    try:
        return _inspect(engine, start.id)
    except (EngineError, httpx.TransportError) as error:
        raise TargetError(f"the engine at {engine.address} refuses to tell: {error}") from error


def _which(start: Start | ContainerState) -> tuple[str, str | None]:
    """What tells a start of a container's from others, also those of another container of its name."""
    return start.id, start.started


def _first_name(item: Mapping[str, Any]) -> str | None:
    names = [str(name).removeprefix("/") for name in item.get("Names") or ()]
    return next((name for name in names if "/" not in name), None)  # "/other/alias" is a link


def _near(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    names = sorted(known)
    near = get_close_matches(name, names, n=_NEAR, cutoff=0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    containers = [item for item in names if "/" not in item]
    return f"; there are: {', '.join(containers[:10])}" if containers else "; the engine has no containers"


def _gpu_names(granted: tuple[str, ...] | None) -> list[int | str] | None:
    return None if granted is None else [int(name) if name.isdecimal() else name for name in granted]


def _is_here(engine: Engine) -> bool:
    """Whether the engine's machine may be this one: its processes are looked for, then."""
    return engine.address.uds is not None and sys.platform == "linux"


# --- where its server listens -----------------------------------------------------------------


def _url(engine: Engine, inspected: Mapping[str, Any], arguments: ServerArguments) -> str | None:
    """Where the server in a container is reached from here.

    Raises:
        TargetError: It is not reached from here, as far as can be told.
    """
    if arguments.url is None:
        return None  # it never listens
    scheme = "https" if arguments.tls else "http"
    host = engine.address.host or "127.0.0.1"
    port = int(arguments.url.rpartition(":")[2]) if arguments.uds is None else _PORT
    inspected = _network_owner(engine, inspected)
    mode = (inspected.get("HostConfig") or {}).get("NetworkMode")
    if mode == "host":
        own = arguments.host if arguments.host not in (None, *_ANY_HOST) else None
        return _address(scheme, own if own and engine.address.host is None else host, port)
    settings = inspected.get("NetworkSettings") or {}
    published = _published(settings.get("Ports") or {}, port)
    if published is not None:
        ip, number = published
        return _address(scheme, host if ip in _ANY_HOST else ip, number)
    if engine.address.host is None:
        for network in [settings, *(settings.get("Networks") or {}).values()]:
            if network.get("IPAddress"):
                return _address(scheme, network["IPAddress"], port)
    name = str(inspected.get("Name", "")).removeprefix("/")
    raise TargetError(
        f"container {name} publishes no port for its server's {port}; give the address at which it is"
        " reached from here, or watch it with until='engine'"
    )


def _likely_url(engine: Engine, inspected: Mapping[str, Any]) -> str | None:
    """The same, by what is known from outside of what the server is given."""
    return _url(engine, inspected, _given_arguments(inspected) or _guessed_arguments(inspected))


def _given_arguments(inspected: Mapping[str, Any]) -> ServerArguments | None:
    """What the container's command says; None where that is a script of its image's."""
    config = inspected.get("Config") or {}
    command = [str(inspected.get("Path") or ""), *map(str, inspected.get("Args") or ())]
    words = [str(word).partition("=") for word in config.get("Env") or ()]
    environ = {name: value for name, _, value in words}
    return parse_command(command, environ=environ, cwd=config.get("WorkingDir") or "/")


def _guessed_arguments(inspected: Mapping[str, Any]) -> ServerArguments:
    """What a script gives the server, as likely as not: the only port that is published, else exposed."""
    published = (inspected.get("NetworkSettings") or {}).get("Ports") or {}
    exposed = (inspected.get("Config") or {}).get("ExposedPorts") or {}
    for names in ([name for name, bound in published.items() if bound], exposed):
        match [name.removesuffix("/tcp") for name in names if name.endswith("/tcp")]:
            case [only] if only.isdigit():
                return ServerArguments(port=int(only))
    return ServerArguments()


def _network_owner(engine: Engine, inspected: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container whose network it shares, such as that of its pod; itself where it has its own."""
    mode = str((inspected.get("HostConfig") or {}).get("NetworkMode") or "")
    if not mode.startswith(_SHARED_NETWORK):
        return inspected
    import httpx

    try:
        return _inspect(engine, mode.removeprefix(_SHARED_NETWORK))
    except (EngineError, httpx.TransportError):
        return inspected


def _published(ports: Mapping[str, Any], port: int) -> tuple[str, int] | None:
    """Where a container's port is published: the address (empty for any) and the port there."""
    for entry in ports.get(f"{port}/tcp") or ():
        return str(entry.get("HostIp") or ""), int(entry["HostPort"])
    return None


def _address(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


# --- a log that is read once --------------------------------------------------------------------


def _last_words(state: ContainerState) -> Iterator[str]:
    """What its engine says of its end, in the words of Compose and Kubernetes."""
    if state.alive:
        return
    if state.error:
        yield f"Error: {state.error}"
        return
    if state.oom_killed:
        yield f"{state.name}: OOMKilled"
    yield f"{state.name} exited with code {state.exit_code}"
