"""Containers as Docker tells of them, through an engine that answers like it."""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from fake_engine import ID, NEVER, NOW, FakeEngine, ended, inspected, stamp

import vllm_startup
from vllm_startup import StartupError, StartupReport, Timeouts, causes
from vllm_startup._diagnosing import diagnose
from vllm_startup._readings import LogLines, NotRestarted, ProbeNote, ProcessExited, ProcessFound, Reading
from vllm_startup._report import ExitStatus
from vllm_startup.targets import TargetError, container
from vllm_startup.targets._containers.container import _again
from vllm_startup.targets._containers.engine import Engine
from vllm_startup.targets._containers.engine_address import parse_engine
from vllm_startup.targets._containers.log import LogProbe
from vllm_startup.targets._containers.probes import StateProbe
from vllm_startup.targets._containers.state import ContainerState, Life
from vllm_startup.targets._containers.watch import Start, Watch

FAILURE = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."


@pytest.fixture
async def engine(short_path: Path) -> AsyncIterator[FakeEngine]:
    async with FakeEngine().listening(short_path / "s") as listening:
        yield listening


async def waited(engine: FakeEngine, act: Callable[[], object], **options: Any) -> StartupReport:
    """The report of a wait during which something happens, once the container is known."""
    options = {"timeouts": Timeouts(20), "until": "engine", **options}
    startup = await asyncio.to_thread(
        lambda: vllm_startup.watch(target=container("vllm", engine=engine.url), **options)
    )
    async with startup:
        async for event in startup.events():
            if event.event == "phase_entered":
                break
        while not any("/events" in request for request in engine.requests):
            await asyncio.sleep(0.005)
        act()
        try:
            return await startup.wait_until_ready()
        except StartupError as error:
            return error.report


def codes(report: StartupReport) -> list[str]:
    return [warning.code for warning in report.warnings]


# --- how it ended ------------------------------------------------------------------------------


async def test_a_main_process_that_is_killed_for_memory_is_told_by_the_engine(engine: FakeEngine) -> None:
    def kill() -> None:
        engine.become(**ended(137, OOMKilled=True))
        engine.tell("oom")
        engine.tell("die", exitCode="137")

    report = await waited(engine, kill)
    assert isinstance(report.cause, causes.HostOutOfMemory)
    assert report.cause.confidence == "certain"
    assert report.cause.message == (
        "the kernel killed container vllm for memory: its control group was out of it (limit 64.0 GiB)"
    )


async def test_a_worker_that_is_killed_for_memory_is_told_before_its_aftermath(engine: FakeEngine) -> None:
    async def die() -> None:
        await asyncio.sleep(0.2)
        engine.say("(EngineCore pid=55) ERROR 11-30 12:00:00 [core.py:1] EngineCore failed to start.")
        engine.become(**ended(1, OOMKilled=True))
        engine.tell("die", exitCode="1")

    def kill() -> None:
        engine.tell("oom", at=NOW + 50)
        tasks.append(asyncio.create_task(die()))

    tasks: list[asyncio.Task[None]] = []
    report = await waited(engine, kill)
    assert isinstance(report.cause, causes.HostOutOfMemory)
    assert report.cause.process == "a process of container vllm"


async def test_a_stop_that_ends_in_a_kill_is_a_stop(engine: FakeEngine) -> None:
    def stop() -> None:
        engine.tell("kill", signal="15", at=NOW + 50)
        engine.tell("kill", signal="9")
        engine.become(**ended(137))
        engine.tell("die", exitCode="137")
        engine.tell("stop")

    report = await waited(engine, stop)
    assert isinstance(report.cause, causes.ShutdownRequested)
    assert report.cause.signal == 15
    assert report.exit == ExitStatus(code=None, signal=9)
    assert report.cause.evidence[0].text == "pid 1 was asked to end by SIGTERM, and was ended by SIGKILL"
    (warning,) = (w for w in report.warnings if w.code == "container_stopped")
    assert warning.text == "container vllm was told to stop (SIGTERM), and ended with status 137"


async def test_one_that_is_removed_ended_as_the_engine_last_said(engine: FakeEngine) -> None:
    def remove() -> None:
        engine.tell("kill", signal="15", at=NOW + 50)
        engine.containers.clear()
        engine.tell("die", exitCode="0")
        engine.tell("destroy")

    report = await waited(engine, remove)
    assert isinstance(report.cause, causes.ShutdownRequested)
    assert report.exit == ExitStatus(code=0, signal=None)


async def test_a_kill_is_no_stop(engine: FakeEngine) -> None:
    def kill() -> None:
        engine.tell("kill", signal="9")
        engine.become(**ended(137))
        engine.tell("die", exitCode="137")

    report = await waited(engine, kill)
    assert isinstance(report.cause, causes.ProcessKilled)
    assert report.cause.signal == 9


async def test_a_command_that_is_not_in_the_image_is_named(engine: FakeEngine) -> None:
    error = (
        "failed to create task for container: failed to create shim task: OCI runtime create failed: runc"
        ' create failed: unable to start container process: exec: "vllm": executable file not found in $PATH'
    )
    state = {"Status": "created", "StartedAt": "0001-01-01T00:00:00Z", "FinishedAt": "0001-01-01T00:00:00Z"}
    engine.become(**{**ended(127, Error=error), **state})
    report = await waited(engine, lambda: None)
    assert isinstance(report.cause, causes.ProgramMissing)
    assert report.cause.program == "vllm"


async def test_last_words_that_come_after_the_end_still_name_the_cause(engine: FakeEngine) -> None:
    async def speak() -> None:
        await asyncio.sleep(0.1)
        for line in (
            "Traceback (most recent call last):",
            '  File "/opt/vllm/core.py", line 1, in run',
            FAILURE,
        ):
            engine.say(f"(EngineCore pid=55) ERROR 11-30 12:00:00 [core.py:1] {line}", stream=2)
        engine.become(**ended(1))

    def die() -> None:
        engine.tell("die", exitCode="1")
        tasks.append(asyncio.create_task(speak()))

    tasks: list[asyncio.Task[None]] = []
    report = await waited(engine, die)
    assert isinstance(report.cause, causes.NoKvCacheMemory)


async def test_the_log_of_a_start_that_is_over_is_read_before_it_is_judged(engine: FakeEngine) -> None:
    for line in ("Traceback (most recent call last):", '  File "/opt/vllm/core.py", line 1, in run', FAILURE):
        engine.say(f"(EngineCore pid=55) ERROR 11-30 12:00:00 [core.py:1] {line}", stream=2)
    engine.become(**ended(1))
    engine.slow_s = 0.5
    report = await waited(engine, lambda: None)
    assert isinstance(report.cause, causes.NoKvCacheMemory)


async def test_an_end_that_is_seen_before_it_is_heard_of_waits_for_what_led_to_it(engine: FakeEngine) -> None:
    def stop() -> None:
        engine.become(**ended(0))
        engine.tell("resize")
        loop = asyncio.get_running_loop()
        loop.call_later(0.15, lambda: engine.tell("kill", signal="15"))
        loop.call_later(0.15, lambda: engine.tell("die", exitCode="0"))

    report = await waited(engine, stop)
    assert isinstance(report.cause, causes.ShutdownRequested)


# --- restarts ------------------------------------------------------------------------------------


async def test_restarts_that_docker_makes_are_attempts(engine: FakeEngine) -> None:
    def die() -> None:
        policy = engine.containers["vllm"]["HostConfig"]["RestartPolicy"]
        policy.update(Name="on-failure", MaximumRetryCount=1)
        engine.become(Restarting=True, Pid=0, ExitCode=1, FinishedAt=stamp(NOW + 60), Status="restarting")
        engine.tell("die", exitCode="1")
        tasks.append(asyncio.create_task(again()))

    async def again() -> None:
        await asyncio.sleep(0.4)
        engine.containers["vllm"]["RestartCount"] = 1
        started = stamp(NOW + 61)
        engine.become(Restarting=False, Pid=1 << 30, Status="running", StartedAt=started)
        engine.say("(APIServer pid=1) INFO 11-30 12:00:00 [api_utils.py:299]  version 0.32.0", at=NOW + 62)
        engine.tell("start", at=NOW + 61)
        await asyncio.sleep(0.4)
        engine.become(**ended(3, FinishedAt=stamp(NOW + 90), StartedAt=started))
        engine.tell("die", exitCode="3", at=NOW + 90)

    tasks: list[asyncio.Task[None]] = []
    report = await waited(engine, die, restarts=5)
    assert isinstance(report.cause, causes.RestartLoop)
    exits = [attempt.exit and attempt.exit.code for attempt in report.attempts]
    assert exits == [1, 3]
    assert "the restart policy of container vllm allows for 1 restarts" in report.warnings[-1].text


async def test_a_start_that_was_over_before_it_was_looked_at_has_its_exit_code(engine: FakeEngine) -> None:
    def again() -> None:
        engine.tell("die", exitCode="5")
        engine.become(StartedAt=stamp(NOW + 61), FinishedAt=stamp(NOW + 60))
        engine.tell("start", at=NOW + 61)

    report = await waited(engine, again)
    assert report.attempts[0].exit is not None
    assert report.attempts[0].exit.code == 5


async def test_nothing_of_a_start_is_seen_before_it_was_told_nor_its_end_before_its_log_was_read(
    engine: FakeEngine,
) -> None:
    _, watch = probe_of(engine)
    probe = StateProbe(watch, ContainerState.of(inspected(**ended(1))))
    assert [type(reading) for reading in await probe.sample(0.0)] == [ProcessFound]
    assert watch.start is None
    telling = asyncio.create_task(probe.sample(0.0))
    await asyncio.sleep(0.05)
    assert watch.start is not None
    assert not telling.done()
    watch.read(watch.start)
    assert [type(reading) for reading in await telling] == [ProcessExited]
    await probe.aclose()


# --- its log -------------------------------------------------------------------------------------


def probe_of(engine: FakeEngine) -> tuple[LogProbe, Watch]:
    life = Life("vllm", watched=lambda: False)
    watch = Watch(Engine(parse_engine(engine.url)), "vllm", life=life)
    return LogProbe(watch), watch


async def read_all(engine: FakeEngine, until: str) -> list[LogLines]:
    """What the probe tells of the newest start, up to a line."""
    probe, watch = probe_of(engine)
    watch.engine._prefix = "/v1.47"
    state = StateProbe(watch, ContainerState.of(engine.containers["vllm"]))
    await state.sample(0.0)
    looking = asyncio.create_task(state.sample(0.0))
    read: list[LogLines] = []
    async with asyncio.timeout(10):
        while not any(line.endswith(until) for reading in read for line in reading.lines):
            read += [reading for reading in await probe.sample(0.0) if isinstance(reading, LogLines)]
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    await probe.aclose()
    await state.aclose()
    return read


@pytest.mark.parametrize("cut", [1, 3, 7, 64])
async def test_a_stream_that_breaks_anywhere_loses_no_line_and_doubles_none(
    engine: FakeEngine, cut: int
) -> None:
    for number in range(60):
        engine.say(f"line {number}", at=NOW + 1 + number // 20, stream=1 + number % 2)
    engine.cut = cut
    engine.breaks = [0, 5, 100, 1000, 1001, 40, 2000]
    read = await read_all(engine, "line 59")
    lines = [line.partition(" ")[2] for reading in read for line in reading.lines]
    assert lines == [f"line {number}" for number in range(60)]


async def test_what_was_there_is_history_with_its_own_times(engine: FakeEngine) -> None:
    engine.say("before", at=NOW + 1.5)
    asyncio.get_running_loop().call_later(0.1, lambda: engine.say("after", at=NOW + 9))
    read = await read_all(engine, "after")
    assert [(reading.lines, reading.history) for reading in read] == [
        ((f"{stamp(NOW + 1.5)} before",), True),
        (("after",), False),
    ]


async def test_lines_of_the_start_before_are_not_read(engine: FakeEngine) -> None:
    engine.become(StartedAt=stamp(NOW + 100), FinishedAt=stamp(NOW + 90))
    engine.say("of the start before", at=NOW + 90.2)
    engine.say("of this one", at=NOW + 99.9)
    (reading,) = await read_all(engine, "of this one")
    assert len(reading.lines) == 1


async def test_a_line_in_pieces_between_which_others_stand_is_one_line(engine: FakeEngine) -> None:
    from fake_engine import frame

    at = NOW + 1
    engine.lines = [
        (at, frame(f"{stamp(at)} {'x' * 16384}")),
        (at, frame(f"{stamp(at)} error\n", stream=2)),
        (at, frame(f"{stamp(at)} yz\n")),
        (at, frame(f"{stamp(at)} end\n")),
    ]
    (reading,) = await read_all(engine, "end")
    texts = [line.partition(" ")[2] for line in reading.lines]
    assert texts == ["error", "x" * 16384 + "yz", "end"]


async def test_a_driver_whose_log_cannot_be_read_is_told_once_and_holds_up_no_end(engine: FakeEngine) -> None:
    engine.refusal = (501, "configured logging driver does not support reading")

    def die() -> None:
        engine.become(**ended(9))
        engine.tell("die", exitCode="9")

    began = time.monotonic()
    report = await waited(engine, die)
    assert time.monotonic() - began < 1.5
    assert isinstance(report.cause, causes.ProcessExited)
    (note,) = (w for w in report.warnings if w.code == "log_unreadable")
    assert note.text.endswith("run the container with another --log-driver (json-file, local, journald)")


# --- read back ------------------------------------------------------------------------------------


def read_back(engine: FakeEngine) -> list[str]:
    return list(container("vllm", engine=engine.url).read_log())


async def test_a_log_that_is_read_back_ends_with_how_the_container_did(engine: FakeEngine) -> None:
    engine.say("on", at=NOW + 2)
    assert await asyncio.to_thread(read_back, engine) == [f"{stamp(NOW + 2)} on"]
    engine.become(**ended(137, OOMKilled=True))
    lines = await asyncio.to_thread(read_back, engine)
    assert lines[1:] == ["vllm: OOMKilled", "vllm exited with code 137"]
    assert isinstance(diagnose(lines).cause, causes.HostOutOfMemory)


async def test_a_log_that_cannot_be_read_back_is_wrong_usage(engine: FakeEngine) -> None:
    engine.become(Status="created", Running=False, Pid=0, StartedAt="0001-01-01T00:00:00Z")
    with pytest.raises(TargetError, match="container vllm was not started yet; docker start vllm"):
        await asyncio.to_thread(read_back, engine)
    engine.refusal = (501, "configured logging driver does not support reading")
    with pytest.raises(TargetError, match="the log of container vllm cannot be read: configured logging"):
        await asyncio.to_thread(read_back, engine)


# --- its health check -----------------------------------------------------------------------------


async def test_a_health_check_that_fails_is_a_warning_and_one_that_passes_no_readiness(
    engine: FakeEngine,
) -> None:
    def check() -> None:
        engine.become(Health={"Status": "healthy", "Log": []})
        engine.tell("health_status: healthy")
        loop = asyncio.get_running_loop()
        output = [{"Output": "curl: (7) Failed to connect\n"}]
        loop.call_later(0.2, lambda: engine.become(Health={"Status": "unhealthy", "Log": output}))
        loop.call_later(0.2, lambda: engine.tell("health_status: unhealthy"))

    report = await waited(engine, check, timeouts=Timeouts(0.6))
    assert report.outcome == "timed_out"
    (warning,) = (w for w in report.warnings if w.code == "container_health")
    assert warning.text == "the health check of container vllm says unhealthy: curl: (7) Failed to connect"


# --- where it listens ------------------------------------------------------------------------------


async def url_of(engine: FakeEngine, **network: Any) -> str | None:
    found = engine.containers["vllm"]
    found["HostConfig"]["NetworkMode"] = network.pop("mode", "bridge")
    found["Args"] = network.pop("args", found["Args"])
    found["Path"] = network.pop("path", found["Path"])
    found["Config"].update(network.pop("config", {}))
    found["NetworkSettings"].update(network)
    site = await asyncio.to_thread(container("vllm", engine=engine.url).locate)
    return await asyncio.to_thread(site.url)


BRIDGE = {"bridge": {"IPAddress": "172.17.0.2"}}


@pytest.mark.parametrize(
    ("network", "url"),
    [
        ({"mode": "host", "args": ["serve", "m", "--port", "9000"]}, "http://127.0.0.1:9000"),
        ({"mode": "host", "args": ["serve", "m", "--host", "10.1.2.3"]}, "http://10.1.2.3:8000"),
        ({"Ports": {"8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "18000"}]}}, "http://127.0.0.1:18000"),
        ({"Ports": {"8000/tcp": [{"HostIp": "10.0.0.5", "HostPort": "18000"}]}}, "http://10.0.0.5:18000"),
        ({"Ports": {"8000/tcp": None}, "Networks": BRIDGE}, "http://172.17.0.2:8000"),
        (
            {"Ports": {"9000/tcp": [{"HostIp": "", "HostPort": "1"}]}, "args": ["serve", "m", "--port=9000"]},
            "http://127.0.0.1:1",
        ),
        (
            {"Networks": BRIDGE, "args": ["serve", "m", "--ssl-certfile", "c", "--ssl-keyfile", "k"]},
            "https://172.17.0.2:8000",
        ),
        (
            {
                "path": "/start.sh",
                "args": [],
                "config": {"ExposedPorts": {"5000/tcp": {}}},
                "Networks": BRIDGE,
            },
            "http://172.17.0.2:5000",
        ),
        (
            {
                "path": "/start.sh",
                "args": [],
                "config": {"ExposedPorts": {"8000/tcp": {}, "5000/tcp": {}}},
                "Ports": {"8000/tcp": None, "5000/tcp": [{"HostIp": "", "HostPort": "81"}]},
            },
            "http://127.0.0.1:81",
        ),
    ],
    ids=[
        "host",
        "host address",
        "published",
        "published on one",
        "bridge",
        "port",
        "tls",
        "script",
        "script, published",
    ],
)
async def test_its_server_is_found_where_it_is_reached_from_here(
    engine: FakeEngine, network: dict[str, Any], url: str
) -> None:
    assert await url_of(engine, **network) == url


def replaced(engine: FakeEngine, **network: Any) -> None:
    """Another container of the same name, which has started."""
    new = inspected("vllm", StartedAt=stamp(NOW + 61))
    new["Id"] = "beef" * 16
    new["HostConfig"]["NetworkMode"] = "bridge"
    new["Args"] = network.pop("args", new["Args"])
    new["NetworkSettings"].update(network)
    engine.tell("die", exitCode="137")
    engine.containers["vllm"] = new
    engine.tell("start", at=NOW + 61)


async def asked_at(engine: FakeEngine, url: str | None, until: str) -> str | None:
    """Where the server is asked that took the place of another, a moment after its start was told."""
    target = container("vllm", engine=engine.url)
    startup = await asyncio.to_thread(lambda: vllm_startup.watch(url, target=target, restarts=1))
    async with startup:
        while not any("/events" in request for request in engine.requests):
            await asyncio.sleep(0.005)
        replaced(
            engine, args=["serve", "m", "--port", "9"], Ports={"9/tcp": [{"HostIp": "", "HostPort": "9"}]}
        )
        deadline = time.monotonic() + 5
        while len(startup.report().attempts) < 2 or startup.report().url != until:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.01)
        if url is not None:
            await asyncio.sleep(0.2)
        return startup.report().url


async def test_one_that_takes_its_place_is_asked_at_its_own_address(engine: FakeEngine) -> None:
    assert await url_of(engine, Ports={"8000/tcp": [{"HostIp": "", "HostPort": "1"}]}) == "http://127.0.0.1:1"
    assert await asked_at(engine, None, "http://127.0.0.1:9") == "http://127.0.0.1:9"


async def test_one_that_has_gone_meanwhile_is_asked_about_again(engine: FakeEngine) -> None:
    start = Start(id="beef" * 16, started=stamp(NOW), since=NOW, tty=False, earlier=False)
    with pytest.raises(TargetError, match="refuses to tell"):
        await asyncio.to_thread(_again, Engine(parse_engine(engine.url)), start)


async def test_one_that_takes_its_place_is_asked_where_the_caller_says(engine: FakeEngine) -> None:
    given = "http://127.0.0.1:2"
    assert await asked_at(engine, given, given) == given


async def test_a_container_in_anothers_network_is_reached_as_that_is(engine: FakeEngine) -> None:
    pod = inspected("pod")
    pod["Id"] = "beef" * 16
    pod["NetworkSettings"]["Ports"] = {"8000/tcp": [{"HostIp": "", "HostPort": "8001"}]}
    pod["HostConfig"]["NetworkMode"] = "bridge"
    engine.containers["pod"] = pod
    assert await url_of(engine, mode=f"container:{pod['Id']}") == "http://127.0.0.1:8001"


async def test_a_server_that_is_not_reached_from_here_needs_an_address(engine: FakeEngine) -> None:
    with pytest.raises(TargetError, match="publishes no port for its server's 8000; give the address"):
        await url_of(engine)


async def test_a_container_is_found_by_its_id(engine: FakeEngine) -> None:
    site = await asyncio.to_thread(container(ID[:12], engine=engine.url).locate)
    assert site.name == "container vllm"


# --- an engine elsewhere -----------------------------------------------------------------------------


async def test_an_engine_behind_tls_gets_the_users_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    ours = authority.issue_cert("user@example.org")
    ours.private_key_pem.write_to_path(tmp_path / "key.pem")
    ours.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    async with FakeEngine().listening_on_tcp(context) as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
        monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
        engine.containers["vllm"]["NetworkSettings"]["Ports"] = {
            "8000/tcp": [{"HostIp": "0.0.0.0", "HostPort": "80"}]
        }
        engine.containers["vllm"]["HostConfig"]["NetworkMode"] = "bridge"
        site = await asyncio.to_thread(container("vllm").locate)
        assert site.name == "container vllm"
        assert site.tree_pids is None  # its processes are not on this machine, for all that is known
        assert await asyncio.to_thread(site.url) == "http://127.0.0.1:80"
        monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path / "nothing"))
        with pytest.raises(TargetError, match="gives no answer"):
            await asyncio.to_thread(container("vllm").locate)


async def test_what_is_no_engine_is_named(short_path: Path) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope")
        writer.close()

    server = await asyncio.start_unix_server(refuse, short_path / "s")
    with pytest.raises(TargetError, match="is no container engine: nope"):
        await asyncio.to_thread(container("vllm", engine=f"unix://{short_path}/s").locate)
    server.close()


async def test_gpus_that_the_caller_names_are_watched_where_its_processes_are_not_seen() -> None:
    async with FakeEngine().listening_on_tcp() as elsewhere:
        located = await asyncio.to_thread(container("vllm", engine=elsewhere.url).locate, gpus=[0])
        names = [probe.name for probe in located.probes]
        assert names == ["container", "container events", "log", "gpu"]
        for probe in located.probes:
            await probe.aclose()


# --- around it ---------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
async def test_nothing_is_left_of_a_watch(engine: FakeEngine) -> None:
    async def watch_briefly() -> StartupReport:
        return await waited(engine, lambda: engine.say("on"), timeouts=Timeouts(0.2))

    assert (await watch_briefly()).outcome == "timed_out"
    async with asyncio.timeout(5):
        while engine.connections:
            await asyncio.sleep(0.01)
    tasks, files = asyncio.all_tasks(), open_files()
    await watch_briefly()
    async with asyncio.timeout(5):
        while engine.connections:
            await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == tasks
    assert open_files() == files


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_one_that_was_only_created_is_awaited() -> None:
    created = inspected(Status="created", Running=False, Pid=0, StartedAt=NEVER)
    (note,) = Life("vllm", watched=lambda: False).look(ContainerState.of(created), wall=NOW)
    assert isinstance(note, ProbeNote)
    assert (note.code, note.awaits) == ("container_not_started", True)


def test_starts_before_the_watch_are_told() -> None:
    life = Life("vllm", watched=lambda: False)
    found = {**inspected(), "RestartCount": 4}
    readings = life.look(ContainerState.of(found), wall=NOW + 5)
    notes = [reading.text for reading in readings if isinstance(reading, ProbeNote)]
    assert notes == ["the engine has started container vllm again 4 times before"]


def test_an_end_before_the_watch_says_when_and_one_that_is_seen_does_not() -> None:
    over = inspected(**ended(1, FinishedAt=stamp(NOW + 3)))
    assert exits(Life("vllm", watched=lambda: False).look(ContainerState.of(over), wall=NOW + 33)) == [30.0]
    life = Life("vllm", watched=lambda: False)
    assert exits(life.look(ContainerState.of(inspected()), wall=NOW + 1)) == []
    assert exits(life.look(ContainerState.of(over), wall=NOW + 4)) == [None]


def exits(readings: list[Reading]) -> list[float | None]:
    """How long ago the main process ended."""
    return [reading.ago_s for reading in readings if isinstance(reading, ProcessExited) and reading.root]


async def test_the_time_for_which_an_end_waits_for_the_log_is_none_of_the_starts(engine: FakeEngine) -> None:
    _, watch = probe_of(engine)
    probe = StateProbe(watch, ContainerState.of(inspected(**ended(1, FinishedAt=stamp(NOW + 3)))))
    seen: list[Reading] = [*await probe.sample(0.0)]
    reading_log = asyncio.ensure_future(probe.sample(0.0))
    await asyncio.sleep(0.5)
    watch.read(watch.start)
    seen += await reading_log
    (ago_s,) = exits(seen)
    assert ago_s == pytest.approx(watch.wall - (NOW + 3), abs=0.2)
    await probe.aclose()


def test_a_stop_of_the_start_before_is_none_of_the_next() -> None:
    life = Life("vllm", watched=lambda: False)
    life.look(ContainerState.of(inspected()), wall=NOW + 5)
    life.hear("stop", {}, NOW - 1)  # Docker tells it after the end, and may be late
    readings = life.look(ContainerState.of(inspected(**ended(1))), wall=NOW + 60)
    (exited,) = (reading for reading in readings if isinstance(reading, ProcessExited))
    assert (exited.code, exited.signal) == (1, None)


@pytest.mark.parametrize(
    ("policy", "limit", "restarts", "code", "reason"),
    [
        ("no", 0, 0, 1, "the restart policy of container vllm is 'no'"),
        ("", 0, 0, 1, "the restart policy of container vllm is 'no'"),
        ("always", 0, 9, 1, None),
        ("unless-stopped", 0, 9, 0, None),
        ("on-failure", 0, 9, 1, None),
        ("on-failure", 3, 2, 1, None),
        ("on-failure", 3, 3, 1, "the restart policy of container vllm allows for 3 restarts"),
        (
            "on-failure",
            3,
            0,
            0,
            "the restart policy of container vllm is 'on-failure', and it ended with status 0",
        ),
    ],
)
def test_whether_it_is_started_again_is_its_policys(
    policy: str, limit: int, restarts: int, code: int, reason: str | None
) -> None:
    life = Life("vllm", watched=lambda: False)
    found = {**inspected(), "RestartCount": restarts}
    found["HostConfig"]["RestartPolicy"] = {"Name": policy, "MaximumRetryCount": limit}
    life.look(ContainerState.of(found), wall=NOW + 5)
    found["State"].update(ended(code))
    assert not any(
        isinstance(reading, NotRestarted) for reading in life.look(ContainerState.of(found), wall=NOW + 60)
    )  # it may be about to be replaced
    readings = life.look(ContainerState.of(found), wall=NOW + 64)
    told = [reading.reason for reading in readings if isinstance(reading, NotRestarted)]
    assert told == ([] if reason is None else [reason])
