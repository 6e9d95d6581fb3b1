"""One bring-up that a user lived through, and what is right about it.

A service on a machine with 8 GPUs, TP=8. A reinstall left flashinfer-cubin 0.6.3 beside flashinfer
0.6.4, and the service crashed. After the fix, the journal still holds the crashed attempt. The new
one, whose first line is from 23:37:52, logs little: memory rises to 73,731 of 97,887 MiB on every
GPU, then the log is silent for 11 minutes while the workers use 1 h 41 min of CPU time, and
``/health`` answers at last.
"""
# ruff: noqa: E501 - the journal's lines as they are printed

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from scene import answered, found, gpu, listening, log, opened, proc, refused, tree

from vllm_startup import Event, Phase, Startup, StartupError, StartupReport, Timeouts, causes, probes
from vllm_startup._readings import LogCaughtUp, ProcessExited
from vllm_startup.testing import FakeClock, ScriptedProbe

MIB = 1 << 20
GPUS = 8
BASELINE, LOADED, TOTAL = 512, 73_731, 97_887
EARLIER = 70.8 * 1024  # MiB a GPU, in earlier good runs of this model

BEGAN = datetime(2026, 3, 9, 23, 37, 52, tzinfo=UTC).timestamp()
WATCHED_S = 3.0  # the watch begins so long after the service

# Seconds since the service was started.
ENGINE, RISE, STILL, COMPILED, LISTENS = 24, 60, 330, 990, 1011
CPU_S = 1 * 3600 + 41 * 60
SILENT_S = COMPILED - STILL


def journal(clock: str, text: str, *, pid: int = 5100) -> str:
    return f"Mar 09 {clock} gpu8 vllm[{pid}]: {text}"


def systemd(clock: str, text: str) -> str:
    return f"Mar 09 {clock} gpu8 systemd[1]: {text}"


def crashed(clock: str, name: str, pid: int, text: str) -> str:
    return journal(clock, f"({name} pid={pid}) ERROR 03-09 {clock} [core.py:1510] {text}")


MISMATCH = (
    "RuntimeError: flashinfer-cubin version (0.6.3) does not match flashinfer version (0.6.4)."
    " Please install the same version of both packages."
    " Set FLASHINFER_DISABLE_VERSION_CHECK=1 to bypass this check."
)

HISTORY = [
    systemd("23:12:01", "Started vllm.service - vLLM."),
    journal(
        "23:12:09",
        "(APIServer pid=5100) INFO 03-09 23:12:09 [utils.py:302]  ▄▄ ▄█ █     █ █▄▀▄█  version 0.17.1",
    ),
    journal(
        "23:12:10",
        "(APIServer pid=5100) INFO 03-09 23:12:10 [model.py:533] Resolved architecture: DeepseekV3",
    ),
    journal(
        "23:12:31",
        "(EngineCore_DP0 pid=5200) INFO 03-09 23:12:31 [core.py:95] Initializing a V1 LLM engine (v0.17.1)"
        " with config: model='/models/large'",
    ),
    crashed("23:12:58", "Worker_TP3", 5303, "WorkerProc failed to start."),
    crashed("23:12:58", "Worker_TP3", 5303, "Traceback (most recent call last):"),
    crashed(
        "23:12:58", "Worker_TP3", 5303, '  File "/opt/vllm/multiproc_executor.py", line 920, in worker_main'
    ),
    crashed("23:12:58", "Worker_TP3", 5303, "    worker = WorkerProc(*args, **kwargs)"),
    crashed("23:12:58", "Worker_TP3", 5303, MISMATCH),
    crashed("23:13:01", "EngineCore_DP0", 5200, "EngineCore failed to start."),
    crashed("23:13:01", "EngineCore_DP0", 5200, "Traceback (most recent call last):"),
    crashed("23:13:01", "EngineCore_DP0", 5200, '  File "/opt/vllm/core.py", line 1480, in run_engine_core'),
    crashed("23:13:01", "EngineCore_DP0", 5200, "    engine_core = EngineCoreProc(*args)"),
    crashed(
        "23:13:01",
        "EngineCore_DP0",
        5200,
        "Exception: WorkerProc initialization failed due to an exception in a background process."
        " See stack trace for root cause.",
    ),
    journal("23:13:03", "Traceback (most recent call last):"),
    journal("23:13:03", '  File "/opt/vllm/bin/vllm", line 6, in <module>'),
    journal("23:13:03", "    sys.exit(main())"),
    journal(
        "23:13:03",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore_DP0': 1}",
    ),
    systemd("23:13:05", "vllm.service: Main process exited, code=exited, status=1/FAILURE"),
    systemd("23:13:05", "vllm.service: Failed with result 'exit-code'."),
    systemd("23:37:52", "Started vllm.service - vLLM."),
]

# All that the new attempt says (log level WARNING): warnings that are no causes.
SPOKEN: list[tuple[float, str]] = [
    (
        8,
        journal(
            "23:38:00",
            "(APIServer pid=9100) WARNING 03-09 23:38:00 [system_utils.py:255] Found ulimit of 20000 and failed"
            " to automatically increase with error current limit exceeds maximum limit.",
            pid=9100,
        ),
    ),
    (
        26,
        journal(
            "23:38:18",
            "(Worker_TP0 pid=9300) WARNING 03-09 23:38:18 [custom_all_reduce.py:92] Custom allreduce is disabled"
            " because it's not supported on more than two PCIe-only GPUs.",
            pid=9100,
        ),
    ),
    (
        31,
        journal(
            "23:38:23",
            "(Worker_TP0 pid=9300) WARNING 03-09 23:38:23 [fused_moe.py:886] Using default MoE config. Performance"
            " might be sub-optimal! Config file not found at /opt/vllm/configs/E=256,N=256.json",
            pid=9100,
        ),
    ),
]

SERVED: list[tuple[float, str]] = [
    (LISTENS - 2, journal("23:54:41", "INFO:     Started server process [9100]", pid=9100)),
    (LISTENS - 2, journal("23:54:41", "INFO:     Waiting for application startup.", pid=9100)),
    (LISTENS - 1, journal("23:54:42", "INFO:     Application startup complete.", pid=9100)),
]


@pytest.fixture(scope="module", autouse=True)
def in_utc() -> Iterator[None]:
    """The journal's stamps name no zone: they are read in the watcher's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


# --- what each probe sees -----------------------------------------------------------------


def memory(second: float) -> int:
    """MiB in use on each GPU."""
    if second < RISE:
        return BASELINE
    if second < STILL:
        return BASELINE + int((LOADED - BASELINE) * (second - RISE) / (STILL - RISE))
    return LOADED


def cpu(second: float) -> float:
    """CPU time of each worker: they wait for the disk, then compile."""
    return 0.2 * second + max(0.0, min(second, COMPILED) - STILL) * (CPU_S / SILENT_S / GPUS - 0.2)


def read(second: float) -> int:
    """Bytes of the checkpoint that each worker has read."""
    return int(540e9 / GPUS * max(0.0, min(second, STILL) - RISE) / (STILL - RISE))


def processes(second: float) -> probes.Reading:
    server = proc(9100, "vllm", min(second, 20.0), ppid=1)
    if second < ENGINE:
        return tree(server, root=9100)
    core = proc(9200, "VLLM::EngineCore_DP0", second, ppid=9100)
    workers = [
        proc(9300 + rank, f"VLLM::Worker_TP{rank}", cpu(second), ppid=9200, read=read(second))
        for rank in range(GPUS)
    ]
    return tree(server, core, *workers, root=9100)


def every_second(until: float, look: Any, begin: float = WATCHED_S) -> list[tuple[float, probes.Reading]]:
    return [(second - WATCHED_S, look(second)) for second in range(int(begin), int(until) + 1)]


def watched(seen: list[tuple[float, probes.Reading]]) -> list[tuple[float, probes.Reading]]:
    return [(at - WATCHED_S, reading) for at, reading in seen]


def journal_probe(*, until: float = LISTENS + 1, served: bool = True) -> ScriptedProbe:
    lines = [*SPOKEN, *(SERVED if served else [])]
    return ScriptedProbe(
        "log",
        [
            (0, [opened(), log(*HISTORY, history=True), LogCaughtUp()]),
            *watched([(at, log(line)) for at, line in lines if at < until]),
        ],
    )


def process_probe(*ending: tuple[float, probes.Reading]) -> ScriptedProbe:
    return ScriptedProbe(
        "process", [(0, found(9100, age_s=WATCHED_S, started_at=BEGAN)), *watched(list(ending))]
    )


def tree_probe(until: float = LISTENS) -> ScriptedProbe:
    return ScriptedProbe("tree", every_second(until, processes))


def gpu_probe(look: Any = None, until: float = LISTENS) -> ScriptedProbe:
    return ScriptedProbe(
        "gpu", every_second(until, look or (lambda second: gpu(*[memory(second)] * GPUS, total_mib=TOTAL)))
    )


def health_probe() -> ScriptedProbe:
    answers = [(LISTENS, [listening(), answered()])]
    return ScriptedProbe("health", [(0, refused()), *[(at - WATCHED_S, seen) for at, seen in answers]])


BASELINE_REPORT = {
    "gpus": [{"uuid": f"GPU-{i}", "used_bytes": int(EARLIER * MIB)} for i in range(GPUS)],
    "phases": [],
}


def startup(*seen: ScriptedProbe, clock: FakeClock | None = None, **terms: Any) -> Startup:
    return Startup(
        seen,
        url="http://127.0.0.1:8000",
        baseline=BASELINE_REPORT,
        clock=clock or FakeClock(wall=BEGAN + WATCHED_S),
        **terms,
    )


async def whole(*seen: ScriptedProbe) -> tuple[StartupReport, list[Event]]:
    async with startup(*seen) as watch:
        report = await watch.wait_until_ready()
        return report, [event async for event in watch.events()]


def everything() -> list[ScriptedProbe]:
    return [journal_probe(), process_probe(), tree_probe(), gpu_probe(), health_probe()]


def began(report: StartupReport) -> dict[str, float]:
    return {span.phase.value: span.started_s for span in report.phases}


# --- all evidence -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def complete(in_utc: None) -> tuple[StartupReport, list[Event]]:
    """The whole bring-up, watched with every probe."""
    return asyncio.run(whole(*everything()))


@pytest.fixture
def report(complete: tuple[StartupReport, list[Event]]) -> StartupReport:
    return complete[0]


@pytest.fixture
def told(complete: tuple[StartupReport, list[Event]]) -> list[Event]:
    return complete[1]


def test_the_first_attempt_failed_by_a_version_mismatch_with_the_command_that_fixes_it(
    report: StartupReport,
) -> None:
    first = report.attempts[0]
    assert first.outcome == "failed"
    assert first.cause is not None
    assert first.cause.kind == "dependency_version_mismatch"
    assert first.cause.fields == {
        "package": "flashinfer-cubin",
        "version": "0.6.3",
        "other": "flashinfer",
        "other_version": "0.6.4",
    }
    assert first.cause.hint is not None
    assert "pip install flashinfer-cubin==0.6.4" in first.cause.hint
    assert first.exit is not None
    assert first.exit.code == 1
    assert first.started_at == "2026-03-09T23:12:01.000Z"


def test_the_second_is_a_new_attempt_that_did_not_fail(report: StartupReport, told: list[Event]) -> None:
    assert [attempt.outcome for attempt in report.attempts] == ["failed", "ready"]
    assert report.started_at == "2026-03-09T23:37:52.000Z"
    assert report.outcome == "ready"
    assert report.cause is None
    assert report.ready_s == LISTENS
    assert [event for event in told if event.event in {"cause_found", "attempt_ended"}] == []


def test_its_weights_are_loaded_when_memory_stands_still_evenly_near_the_earlier_footprint(
    report: StartupReport,
) -> None:
    compiling = next(span for span in report.phases if span.phase is Phase.COMPILING)
    assert compiling.started_s == pytest.approx(STILL, abs=1.5)
    assert "8 GPUs at 73,731 of 97,887 MiB, evenly, near its earlier footprint" in compiling.because[0].text


def test_every_phase_is_dated_to_when_its_evidence_began(report: StartupReport) -> None:
    found_at = began(report)
    assert list(found_at) == [
        "launching",
        "configuring",
        "initializing",
        "loading_weights",
        "compiling",
        "starting_server",
        "ready",
    ]
    assert found_at["configuring"] == pytest.approx(8, abs=1)
    assert found_at["initializing"] == pytest.approx(ENGINE, abs=1)
    assert found_at["loading_weights"] == pytest.approx(RISE, abs=12)
    assert found_at["starting_server"] == pytest.approx(LISTENS - 1, abs=2)


@pytest.mark.parametrize("second", [STILL + 120, STILL + 400, COMPILED - 1])
async def test_in_the_silence_it_is_compiling_and_not_stalled(second: int) -> None:
    clock = FakeClock(autojump=False, wall=BEGAN + WATCHED_S)
    async with startup(*everything(), clock=clock) as watch:
        await clock.advance(second - WATCHED_S)
        status = watch.status
    assert (status.phase, status.outcome, status.cause) == (Phase.COMPILING, None, None)
    assert status.quiet_s <= 2.0
    assert status.summary.startswith("compiling, ")


def test_the_silence_is_longer_than_the_stall_limit_that_it_survives(report: StartupReport) -> None:
    limits = Timeouts()
    assert limits.stall is not None
    assert limits.stall < SILENT_S
    assert report.limits == limits


def test_harmless_warnings_are_no_causes_and_nothing_else_is_warned_of(
    report: StartupReport, told: list[Event]
) -> None:
    assert report.cause is None
    assert report.disputed == ()
    assert report.warnings == ()
    assert [event for event in told if event.event == "probe_broken"] == []


def test_the_gpus_stand_in_the_report_with_their_baselines(report: StartupReport) -> None:
    assert len(report.gpus) == GPUS
    assert {g.baseline_bytes // MIB for g in report.gpus} == {BASELINE}
    assert {g.total_bytes // MIB for g in report.gpus} == {TOTAL}


# --- less evidence ------------------------------------------------------------------------


async def test_with_the_log_alone_the_crash_stays_in_the_past() -> None:
    clock = FakeClock(autojump=False, wall=BEGAN + WATCHED_S)
    async with startup(journal_probe(), clock=clock) as watch:
        await clock.advance(COMPILED - WATCHED_S)
        silent = watch.report()
        await clock.advance(60)
        served = watch.report()
    assert (silent.outcome, silent.cause) == ("unfinished", None)
    assert silent.phase in {Phase.CONFIGURING, Phase.INITIALIZING}
    assert [w.code for w in silent.warnings] == ["stall_unarmed"]
    assert [a.outcome for a in silent.attempts] == ["failed", "unfinished"]
    assert silent.attempts[0].cause is not None
    assert silent.attempts[0].cause.kind == "dependency_version_mismatch"
    assert silent.started_at == "2026-03-09T23:37:52.000Z"
    assert silent.elapsed_s == COMPILED
    assert (served.outcome, served.phase) == ("unfinished", Phase.STARTING_SERVER)


async def test_without_any_log_the_phases_are_told_by_the_others() -> None:
    report, told = await whole(process_probe(), tree_probe(), gpu_probe(), health_probe())
    found_at = began(report)
    assert report.outcome == "ready"
    assert list(found_at) == [
        "launching",
        "initializing",
        "loading_weights",
        "compiling",
        "starting_server",
        "ready",
    ]
    assert found_at["compiling"] == pytest.approx(STILL, abs=1.5)
    assert [event for event in told if event.event == "cause_found"] == []
    assert len(report.attempts) == 1


async def test_a_gpu_that_lags_is_no_plateau_and_is_named() -> None:
    def look(second: float) -> probes.Reading:
        used = [memory(second)] * GPUS
        used[5] = min(used[5], 20_000)
        return gpu(*used, total_mib=TOTAL)

    clock = FakeClock(autojump=False, wall=BEGAN + WATCHED_S)
    async with startup(
        journal_probe(served=False), process_probe(), tree_probe(), gpu_probe(look), clock=clock
    ) as watch:
        await clock.advance(STILL + 300 - WATCHED_S)
        status = watch.status
    assert status.phase is Phase.LOADING_WEIGHTS
    assert "GPU 5 is behind the others" in status.summary


def falling(at: float) -> Any:
    return lambda second: gpu(*[memory(second) if second < at else BASELINE + 4] * GPUS, total_mib=TOTAL)


async def test_memory_that_falls_back_means_that_it_died_even_when_the_log_says_nothing() -> None:
    """Seen from outside: no process probe, so that nobody else can tell."""
    seen = [journal_probe(served=False), gpu_probe(falling(700)), ScriptedProbe("health", [(0, refused())])]
    async with startup(*seen) as watch:
        with pytest.raises(StartupError) as caught:
            await watch.wait_until_ready()
    error = caught.value
    assert isinstance(error.cause, causes.ProcessVanished)
    assert error.cause.confidence == "likely"
    assert "memory" in error.cause.message
    assert error.report.phase in {Phase.LOADING_WEIGHTS, Phase.COMPILING}
    assert [attempt.outcome for attempt in error.report.attempts] == ["failed", "failed"]
    assert error.report.elapsed_s == pytest.approx(700 + 3 + 10, abs=2)


async def test_a_second_crash_without_a_word_is_told_by_the_kernel_where_it_can() -> None:
    dead = (
        (700.0, ProcessExited(pid=9100, name="vllm", root=True, signal=9)),
        (700.2, tree(root=9100)),
    )
    seen = [
        journal_probe(served=False),
        process_probe(*dead),
        tree_probe(until=699),
        gpu_probe(falling(701), until=720),
    ]
    async with startup(*seen) as watch:
        with pytest.raises(StartupError) as caught:
            await watch.wait_until_ready()
    assert caught.value.cause.kind == "process_killed"
    assert caught.value.report.elapsed_s == pytest.approx(700, abs=1)
    assert "flashinfer" not in str(caught.value)
