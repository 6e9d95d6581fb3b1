"""Start a server, watch it, and leave nothing of it behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, cast

import attrs

from vllm_startup._arguments import parse_command
from vllm_startup._clock import Clock
from vllm_startup._events import Event
from vllm_startup._launching.end_tree import KILL_AFTER_S
from vllm_startup._launching.gpu_release import GpuRelease
from vllm_startup._launching.guarded import Guarded, LeftProcess, describe
from vllm_startup._launching.output import OutputTail
from vllm_startup._launching.server import Server, Wish
from vllm_startup._readings import Tier
from vllm_startup._report import Baseline
from vllm_startup._rules import Rule
from vllm_startup._startup import Startup
from vllm_startup._wait import DEFAULT_URL, LogSource, watch
from vllm_startup.probes._protocol import Probe

_LOG_MODE: Final = 0o600  # a server's log holds prompts, and in older versions the API key


class TreeEndError(RuntimeError):
    """Processes of a launched server could not be ended.

    Args:
        left: Those processes.
    """

    def __init__(self, left: Sequence[LeftProcess]) -> None:
        super().__init__(left)
        self.left = tuple(left)

    def __str__(self) -> str:
        """Which, and what that usually means."""
        return describe(self.left)


def launch(
    command: Sequence[str | os.PathLike[str]],
    *,
    url: str | None = None,
    log: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    gpus: Iterable[int | str] | None = None,
    probes: Sequence[Probe] = (),
    rules: Sequence[Rule] = (),
    until: Tier = "health",
    stable_for: float = 0.0,
    model: str | None = None,
    api_key: str | None = None,
    verify: bool | str | os.PathLike[str] | None = None,
    exit_grace: float = 10.0,
    raise_early: bool = False,
    on_event: Callable[[Event], object] | None = None,
    record: str | os.PathLike[str] | None = None,
    baseline: Baseline | None = None,
    clock: Clock | None = None,
    kill_after: float = KILL_AFTER_S,
) -> Launch:
    """Start a server that lives as long as the ``async with`` block, unless it is detached.

    It gets a session and a process group of its own, no input, and a small guardian as its parent. On
    any way out of the block everything that descends from it gets SIGTERM, and after ``kill_after``
    SIGKILL, also what has left the group or lost its parent; then it is checked that nothing lives, and
    what vLLM would leave in ``$TMPDIR`` and ``/dev/shm`` is removed. If this program dies itself, even by
    SIGKILL, the guardian does the same.

    Args:
        command: The program and its arguments.
        url: Where it will listen, if not where its arguments say.
        log: A file to which its output is appended; created for this user alone. It outlives us.
            Without it the output goes through a pipe, which is drained, and its newest part kept.
        env: All of its environment, instead of ours.
        cwd: Its working directory, instead of ours.
        gpus: As for `wait_until_ready`, like all that follows but ``kill_after``.
        probes: Further probes; each wait uses them, so that only one wait can be made with them.
        rules: Further rules.
        until: How much ready means.
        stable_for: For how many seconds it must hold.
        model: The model that must be listed.
        api_key: The key for ``/v1``.
        verify: Whether to check the server's certificate.
        exit_grace: How many seconds a failed start's processes may take to be gone.
        raise_early: Raise as soon as the cause is known.
        on_event: Called with every event.
        record: A file to which everything seen by the first wait is written.
        baseline: An earlier report of the same model.
        clock: The time of the watches, for tests.
        kill_after: Seconds from SIGTERM to SIGKILL when the tree is ended; 0 for SIGKILL at once.

    Returns:
        An async context manager. Entering it starts the server and gives a `Server`; it raises
        `OSError` if the command cannot be started. Leaving it raises `TreeEndError` if something of the
        tree could not be ended; where another exception is under way, that one gets a note instead.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument makes no sense; the message names it and the fix.
        RuntimeError: This platform has no such processes.
    """
    if sys.platform == "win32" or not sys.executable:
        raise RuntimeError("launch needs a POSIX system and a Python program to run; use wait_until_ready")
    environ = dict(os.environ if env is None else env)
    arguments = _checked_command(command)
    _check_environment(environ)
    if not 0 <= kill_after < float("inf"):
        raise ValueError(f"kill_after must be 0 or more seconds, not {kill_after!r}")
    place = None if cwd is None else os.fspath(cwd)
    gpus = gpus if gpus is None or isinstance(gpus, str) else tuple(gpus)
    found = parse_command(arguments, environ=environ, cwd=place) if url is None else None
    likely = url if found is None else found.url
    certain = None if found is not None and found.in_script else likely

    from vllm_startup.probes import GpuProbe

    recordings = iter([record])

    def look(wish: Wish, server: Server | None, output: LogSource | None) -> Startup:
        return watch(
            (url or DEFAULT_URL) if server is None else certain,
            **_subject(server),
            log=output,
            gpus=gpus,
            probes=probes,
            rules=rules,
            until=until if wish.until is None else wish.until,
            stable_for=stable_for if wish.stable_for is None else wish.stable_for,
            model=model if wish.model is None else wish.model,
            api_key=api_key,
            verify=verify,
            timeouts=wish.timeouts,
            exit_grace=exit_grace,
            raise_early=raise_early,
            on_event=on_event,
            record=None if server is None else next(recordings, None),
            baseline=baseline,
            clock=clock,
        )

    look(Wish(), None, None)  # what makes no sense is to be refused before anything is started
    return Launch(
        Plan(
            command=arguments,
            environ=environ,
            cwd=place,
            url=likely,
            log=None if log is None else Path(log),
            kill_after=float(kill_after),
            look=look,
            gpus=GpuProbe(gpus=gpus, environ=lambda: environ),
        )
    )


@attrs.frozen(kw_only=True)
class Plan:
    """What a launch does."""

    command: tuple[str, ...]
    environ: Mapping[str, str]
    cwd: str | None
    url: str | None
    log: Path | None
    kill_after: float
    look: Callable[[Wish, Server | None, LogSource | None], Startup]
    gpus: Probe


class Launch:
    """What `launch` returns: the life of one server, as an async context manager."""

    def __init__(self, plan: Plan, guarded: Guarded | None = None) -> None:
        self.plan = plan
        self._guarded = guarded or Guarded()
        self._entered = False
        self._output: OutputTail | None = None
        self._server: Server | None = None
        self._gpus = GpuRelease(plan.gpus)
        self._detached = False

    async def __aenter__(self) -> Server:
        """Start the server."""
        if self._entered:
            raise RuntimeError("a launch can be entered once; make another one to start the server again")
        self._entered = True
        try:
            self._gpus.begin()
            self._server = await self._start()
        except BaseException as error:
            await self._leave(error)
            raise
        return self._server

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server, unless it was detached."""
        await self._leave(error)

    async def _start(self) -> Server:
        from vllm_startup.probes._log import OwnLog

        plan = self.plan
        log: OwnLog | None = None
        if plan.log is not None:
            output = os.open(plan.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _LOG_MODE)
            log = OwnLog(plan.log, os.fstat(output).st_size)
        else:
            reading, output = os.pipe()
            self._output = OutputTail(reading, self._guarded.note_store)
        try:
            process = await self._guarded.start(
                plan.command, environ=plan.environ, cwd=plan.cwd, output=output, kill_after=plan.kill_after
            )
        finally:
            os.close(output)

        def look(wish: Wish) -> Startup:
            return plan.look(wish, server, log or cast("OutputTail", self._output).follow())

        server = Server(process=process, url=plan.url, log=plan.log, watch=look, release=self._detach)
        return server

    def _detach(self) -> None:
        self._detached = True
        self._guarded.say("release")

    async def _leave(self, error: BaseException | None) -> None:
        """Leave nothing behind, whatever comes in between."""
        left: list[LeftProcess] = []
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._gpus.aclose)
            if self._output is not None:
                stack.callback(self._guarded.remove_files)
                stack.callback(self._output.close)
            try:
                if self._server is not None:
                    await self._server.close()
            finally:
                left = await self._end()
            if not self._detached and not left:
                await self._gpus.wait()
        if left and error is None:
            raise TreeEndError(left)
        if left and error is not None:
            error.add_note(describe(left))

    async def _end(self) -> list[LeftProcess]:
        if self._detached:
            await self._guarded.release()
            return []
        return await self._guarded.end()


def _subject(server: Server | None) -> dict[str, Any]:
    """Whom to watch. Where the kernel tells how it ended, it is asked.

    The guardian leaves the pid to it, dead or alive, and tells its status only afterwards: a watch that
    is told of an end before it has seen anything else would not wait for the log's lines.
    """
    if server is None:
        return {}
    return {"pid": server.pid} if sys.platform == "linux" else {"process": server.process}


def _checked_command(command: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    if isinstance(command, (str, bytes, os.PathLike)):
        raise TypeError(
            'command must be a list of the program and its arguments, such as ["vllm", "serve", "MODEL"],'
            f" not {command!r}; for a line of shell: ['bash', '-c', {command!r}]"
        )
    arguments = tuple(os.fspath(part) if isinstance(part, os.PathLike) else part for part in command)
    if not arguments:
        raise ValueError("command is empty: give the program and its arguments")
    for part in arguments:
        if not isinstance(part, str):
            raise TypeError(f"command must hold strings and paths, not {part!r}")
        if "\0" in part:
            raise ValueError(f"command holds {part!r}, and no program can be given a NUL character")
    if not arguments[0]:
        raise ValueError("command begins with an empty string: give the program first")
    return arguments


def _check_environment(environ: Mapping[str, str]) -> None:
    for name, value in environ.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env must map strings to strings; that of {name!r} is {type(value).__name__}")
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"env holds a variable that no program can be given: {name!r}")
