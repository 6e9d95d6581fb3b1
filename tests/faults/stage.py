"""A stand-in server with every probe on it, and the life that a fault is put into."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import scene

from vllm_startup import Rule, Startup, StartupError, Timeouts, probes
from vllm_startup.probes import Probe, Reading

SERVER = Path(__file__).with_name("stand_in_server.py")

BEFORE = (scene.api(scene.BANNER), scene.api(scene.ARCHITECTURE))
AFTER = (
    scene.engine(scene.INIT),
    scene.worker(scene.LOAD),
    scene.worker(scene.LOADED),
    scene.engine(scene.KV),
    scene.engine(scene.ENGINE_READY),
    scene.api(scene.ROUTES),
    scene.SERVED,
)
DEATH = scene.failing(scene.OOM)

STATUS = {"ready": 0, "failed": 1, "stalled": 3, "timed_out": 124}
"""The exit status of ``vllm-startup wait`` for each outcome."""

PROBES = ("process", "tree", "gpu", "caches", "cgroup", "log", "health")
"""All that watch a server of this machine, by their names."""


@attrs.define
class StandIn:
    """A stand-in that runs."""

    process: asyncio.subprocess.Process

    @classmethod
    async def start(cls, log: Path) -> StandIn:
        words = [sys.executable, "-I", "-S", str(SERVER), str(log)]
        pipe = asyncio.subprocess.PIPE
        it = cls(await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe))
        await it._answer()
        return it

    @property
    def pid(self) -> int:
        return self.process.pid

    async def do(self, name: str, *arguments: Any) -> Any:
        """Let it do something, and wait until it has."""
        self.begin(name, *arguments)
        return await self._answer()

    def begin(self, name: str, *arguments: Any) -> None:
        """Let it begin something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, arguments]).encode() + b"\n")

    async def _answer(self) -> Any:
        assert self.process.stdout is not None
        answer = await self.process.stdout.readline()
        return json.loads(answer) if answer else None

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.communicate()


@attrs.define
class Stage:
    """Where a fault happens.

    Attributes:
        folder: For files that the fault makes; what is left of it afterwards is not looked at.
        temporary: Where the package would put its temporary files: nothing may stay there.
        log: The server's log.
        record: What the watch has seen; None where the fault takes it away.
        memory_bytes: What a fault has measured.
        said: Lines that the server has written, all of which the watch must have seen in their order.
    """

    folder: Path
    temporary: Path
    log: Path
    record: Path | None
    server: StandIn
    port: int
    nvml: Path
    others: list[StandIn] = attrs.field(factory=list)
    said: list[str] = attrs.field(factory=list)
    clean_up: list[Callable[[], object]] = attrs.field(factory=list)
    watcher: asyncio.subprocess.Process | None = None
    whole_log: bool = True
    memory_bytes: int = 0

    async def say(self, *lines: str) -> None:
        """Let the server write lines."""
        self.said += lines
        await self.server.do("say", *lines)

    async def another(self) -> StandIn:
        """A process that has nothing to do with the server."""
        other = await StandIn.start(self.folder / f"other{len(self.others)}.log")
        self.others.append(other)
        return other

    def watched(self) -> bool:
        """Whether a watch has begun to read the log."""
        assert self.record is not None
        return self.record.exists() and bool(self.seen())

    def seen(self) -> list[str]:
        """The lines of the log that have reached the watch, as its recording has them; not the odd ones."""
        assert self.record is not None
        rows = (json.loads(line) for line in self.record.read_text("utf-8").split("\n") if line)
        lines = (line for row in rows if row.get("reading") == "log_lines" for line in row.get("lines", ()))
        return [line for line in lines if not line.startswith("odd ")]

    async def reading(self, kind: str) -> None:
        """Wait until the watch has seen such a reading."""
        assert self.record is not None
        async with asyncio.timeout(15):
            while f'"reading": "{kind}"' not in self.record.read_text("utf-8"):
                await asyncio.sleep(0.02)

    async def seen_all(self) -> None:
        """Wait until the watch has seen all that was said."""
        async with asyncio.timeout(10):
            while self.seen() != self.said:
                await asyncio.sleep(0.02)

    @property
    def environ(self) -> dict[str, str]:
        """Of a watcher whose driver is the stub: a file says what GPUs there are."""
        return {**os.environ, "NVML_STUB": str(self.folder / "gpus"), "LD_LIBRARY_PATH": str(self.nvml)}

    async def end(self) -> None:
        for stand_in in (self.server, *self.others):
            await stand_in.end()
        while self.clean_up:
            self.clean_up.pop()()


Wrap = Callable[[Probe], Probe]
Act = Callable[[Stage], Awaitable[None]]


async def nothing(_stage: Stage) -> None:
    """No fault."""


async def comes_up(stage: Stage) -> None:
    """The server goes on to its end."""
    await stage.say(*AFTER)
    if stage.whole_log:
        await stage.seen_all()
    await stage.server.do("listen", stage.port)


async def dies(stage: Stage) -> None:
    """The server goes on and dies of something that its log names."""
    await stage.say(*DEATH)
    stage.server.begin("exit", 1)


async def stays(_stage: Stage) -> None:
    """The server does nothing more: what follows is the fault's."""


@attrs.frozen(kw_only=True)
class Fault:
    """A row of the table.

    Attributes:
        name: What goes wrong, in words.
        before: Done before the watch begins.
        during: Done when the watch has begun and the log's first lines are there.
        then: How the server goes on.
        wrap: What stands for a probe, by the probe's name.
        further: Probes, rules and other arguments of the watch.
        outcome: What must come out: a report's outcome, or the exception that every wait ends with.
        kind: The cause that it must have.
        fields: What the cause must tell of it.
        warned: Codes of warnings that it must have.
        whole_log: Whether the watch must have seen every line, in order, before it ended.
        records: Whether the watch is recorded to its end.
        by_command: Whether ``vllm-startup wait`` watches, in a process of its own, with ``options``.
    """

    name: str
    outcome: str | type[BaseException] = "ready"
    before: Act = nothing
    during: Act = nothing
    then: Act = comes_up
    wrap: Mapping[str, Wrap] = attrs.field(factory=dict)
    further: Callable[[], dict[str, Any]] = dict
    total_s: float | None = 20.0
    kind: str | None = None
    fields: Mapping[str, Any] = attrs.field(factory=dict)
    warned: frozenset[str] = frozenset()
    whole_log: bool = True
    records: bool = True
    by_command: bool = False
    options: tuple[str, ...] = ()


def probes_of(stage: Stage) -> list[Probe]:
    """All of them, as `vllm_startup.watch` would choose them."""
    root = probes.ProcessProbe(stage.server.pid)
    tree = probes.TreeProbe(stage.server.pid)
    return [
        root,
        tree,
        probes.GpuProbe(pid=stage.server.pid, tree_pids=lambda: tree.pids),
        probes.CacheProbe(stage.server.pid),
        probes.CgroupProbe(stage.server.pid),
        probes.LogFileProbe(stage.log),
        probes.HealthProbe(f"http://127.0.0.1:{stage.port}", tree_pids=lambda: tree.pids),
    ]


def watching(fault: Fault, stage: Stage) -> Startup:
    """A watch over the stage's server, with the fault's probes and arguments."""
    further = fault.further()
    made = probes_of(stage)
    assert {probe.name for probe in made} >= set(fault.wrap)
    looking = [fault.wrap.get(probe.name, lambda same: same)(probe) for probe in made]
    further.setdefault("timeouts", Timeouts(fault.total_s))
    further.setdefault("exit_grace", 0.5)
    return Startup([*looking, *further.pop("probes", ())], record=stage.record, **further)


@attrs.frozen
class Ending:
    """How a watch ended.

    Attributes:
        report: The report as JSON values.
        outcome: The report's, or the type of an exception that is none of ours.
    """

    report: dict[str, Any]
    outcome: str | type[BaseException]

    @property
    def cause(self) -> dict[str, Any]:
        return self.report["cause"] or {"kind": None, "fields": {}}

    @property
    def warned(self) -> set[str]:
        return {warning["code"] for warning in self.report["warnings"]}


async def play(fault: Fault, stage: Stage) -> Ending:
    """Watch the server while the fault happens."""
    stage.whole_log = fault.whole_log and fault.records
    await stage.say(*BEFORE)
    await fault.before(stage)
    return await (_by_command(fault, stage) if fault.by_command else _here(fault, stage))


async def _here(fault: Fault, stage: Stage) -> Ending:
    async with watching(fault, stage) as startup:
        waiting = asyncio.create_task(startup.wait_until_ready())
        await asyncio.sleep(0.1)
        await fault.during(stage)
        await fault.then(stage)
        await asyncio.wait([waiting], timeout=60)
        error = waiting.exception()
    report = startup.report()
    foreign = error is not None and not isinstance(error, StartupError)
    return Ending(json.loads(report.to_json()), type(error) if foreign else report.outcome)


async def _by_command(fault: Fault, stage: Stage) -> Ending:
    words = [sys.executable, "-m", "vllm_startup", "wait", f"http://127.0.0.1:{stage.port}", "--json"]
    words += ["--pid", str(stage.server.pid), "--log", str(stage.log), "--record", str(stage.record)]
    words += ["--timeout", str(fault.total_s), *fault.options]
    pipe = asyncio.subprocess.PIPE
    watcher = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe, env=stage.environ)
    stage.watcher = watcher
    try:
        async with asyncio.timeout(60):
            while not stage.watched():
                await asyncio.sleep(0.02)
            await fault.during(stage)
            await fault.then(stage)
            out, err = await watcher.communicate()
    finally:
        if watcher.returncode is None:
            watcher.kill()
            await watcher.communicate()
    assert b"Traceback" not in err, err.decode()
    report = json.loads(out)
    assert STATUS[report["outcome"]] == watcher.returncode
    return Ending(report, report["outcome"])


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Standing:
    """A probe in another's place: the same, but for what is wrong with it, and for its cadence."""

    limit_s: float | None = 0.5

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.name = probe.name

    @property
    def interval_s(self) -> float:
        return min(0.1, self.probe.interval_s)

    async def sample(self, now: float) -> Iterable[Reading]:
        return await self.probe.sample(now)

    async def aclose(self) -> None:
        await self.probe.aclose()


def always(match: Callable[[Any], Any]) -> list[Rule]:
    """A rule that is asked about every line of the story, and one about every reading."""
    return [Rule("a", match, name="mine"), Rule(None, match, name="mine too")]
