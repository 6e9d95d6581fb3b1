"""Recordings: what a watch saw, on disk and back."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from vllm_startup import Rule, Startup, StartupError, Timeouts, _recording, causes, probes
from vllm_startup import _readings as r
from vllm_startup._machine.terms import Terms
from vllm_startup._readings import Observation
from vllm_startup._recording import Recorder, RecordingError
from vllm_startup.testing import FakeClock, ScriptedProbe, failed_after, hung_after, ready_after, replay

if TYPE_CHECKING:
    from vllm_startup.testing import Scenario

EVERY_READING: list[r.Reading] = [
    r.LogOpened(source="vllm.log", stream=True),
    r.LogLines(lines=("one", "zwei ▄█"), partial="50%|", history=True),
    r.LogCaughtUp(),
    r.OwnLogBegins(),
    r.LogEnded(),
    r.ProcessFound(pid=7, started_at=1.5, age_s=2.5, command=("vllm", "serve")),
    r.ProcessTree(
        root=7,
        processes=(
            r.ProcessSample(
                pid=7,
                ppid=1,
                started_at=1.5,
                name="vllm",
                cpu_s=1.0,
                rss_bytes=5,
                read_bytes=6,
                status="stopped",
            ),
        ),
    ),
    r.ProcessTree(root=7, processes=()),
    r.ProcessExited(pid=7, name="vllm", code=1, root=True),
    r.GpuMemory(gpus=(r.GpuSample(index=0, uuid="GPU-a", used_bytes=1, total_bytes=2, tree_bytes=1),)),
    r.CacheSize(what="hub", total_bytes=9),
    r.NotRestarted(reason="start-limit-hit"),
    r.MemoryEvents(oom_kills=1, limit_bytes=2**36, used_bytes=2**35),
    r.Connection(state="listening", owner="foreign", owner_pid=3, detail="x"),
    r.AddressFound(url="http://127.0.0.1:9000"),
    r.Answer(tier="health", ok=False, status=503, detail="busy"),
    r.ProbeBroken(error="OSError()"),
    r.ProbeRecovered(),
    r.ProbeNote(code="note", text="text"),
    r.WatchPaused(paused_s=9.0),
]


@attrs.frozen(kw_only=True)
class OwnReading(probes.Reading):
    secret: str


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def recorded(path: Path, *seen: probes.Reading, **terms: Any) -> Path:
    """A recording of these readings, a second apart."""
    recorder = Recorder(path)
    recorder.begin(Terms(**terms), wall=0.0, utc_offset_s=3600.0)
    for second, reading in enumerate(seen):
        recorder.write(Observation(at=float(second), probe="p", reading=reading))
    recorder.end(float(len(seen)))
    return path


@pytest.mark.parametrize("reading", EVERY_READING, ids=lambda reading: type(reading).__name__)
def test_each_kind_of_reading_survives_the_file(tmp_path: Path, reading: probes.Reading) -> None:
    seen: list[probes.Reading] = []
    replay(recorded(tmp_path / "r.jsonl", reading), rules=[Rule(None, seen.append)])
    assert seen == [reading]


def test_every_kind_of_reading_is_tried() -> None:
    kinds = {kind.__name__ for kind in r.Reading.__subclasses__() if kind.__module__ == r.__name__}
    assert {type(reading).__name__ for reading in EVERY_READING} == kinds


def test_the_header_comes_first_and_the_end_last(tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.jsonl", r.LogEnded(), url="http://a:1", timeouts=Timeouts(60))
    first, middle, last = rows(path)
    assert (first["recording"], first["started_unix"], first["utc_offset_s"]) == (1, 0.0, 3600.0)
    assert first["terms"]["url"] == "http://a:1"
    assert first["timeouts"]["total"] == 60
    assert middle == {"at": 0.0, "probe": "p", "reading": "log_ended"}
    assert last == {"at": 1.0, "end": True}


def test_a_reading_of_the_callers_own_is_kept_for_people_and_skipped(tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.jsonl", OwnReading(secret="x"))
    assert rows(path)[1]["reading"] == "own_reading"
    assert "OwnReading" in rows(path)[1]["repr"]
    assert replay(path).outcome == "unfinished"


def test_secrets_are_not_written(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "r.jsonl",
        r.LogLines(lines=("--api-key hunter2secret", "Authorization: Bearer abcdefsecret")),
        r.ProcessFound(pid=7, command=("vllm", "serve", "--api-key=hunter2secret")),
        r.ProbeNote(code="x", text="http://me:hunter2secret@host/"),
    )
    assert "secret" not in path.read_text("utf-8")


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.jsonl")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(sys.platform != "linux", reason="a regular file whose mode nobody may change is in /proc")
def test_a_file_whose_mode_cannot_be_tightened_is_refused_by_name_and_closed() -> None:
    path = "/proc/self/comm"
    with pytest.raises(OSError, match=path):
        Recorder(path)
    assert path not in {os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()}


def test_an_old_recording_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("x" * 10_000)
    path.chmod(0o644)
    recorded(path)
    assert len(rows(path)) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_what_is_no_file_is_not_removed(tmp_path: Path) -> None:
    """``record=/dev/full`` must not delete the device."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        recorded(path)
        assert stat.S_ISFIFO(path.stat().st_mode)
    finally:
        os.close(reader)


def test_a_link_is_followed_not_replaced(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    target.touch()
    link.symlink_to(target)
    recorded(link)
    assert link.is_symlink()
    assert len(rows(target)) == 2


@pytest.mark.parametrize("where", ["missing/r.jsonl", "."])
def test_a_place_where_nothing_can_be_written_is_refused(tmp_path: Path, where: str) -> None:
    with pytest.raises(OSError):
        Recorder(tmp_path / where)


def test_text_that_is_no_unicode_is_written_all_the_same(tmp_path: Path) -> None:
    path = recorded(
        tmp_path / "r.jsonl", r.LogLines(lines=("caf\udce9",)), r.ProbeNote(code="x", text="\udce9")
    )
    assert len(rows(path)) == 4


# --- live and back ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scenario",
    [
        ready_after(60),
        ready_after(60, log=False),
        failed_after(20, lines=["ValueError: no"]),
        hung_after(30),
    ],
    ids=["ready", "ready without a log", "failed", "stalled"],
)
async def test_a_recorded_watch_replays_to_its_report(tmp_path: Path, scenario: Scenario) -> None:
    path = tmp_path / "r.jsonl"
    clock = FakeClock(start=1234.5678)
    async with Startup(scenario.probes(), url="http://a:1", record=path, clock=clock) as startup:
        try:
            live = await startup.wait_until_ready()
        except StartupError as error:
            live = error.report
    assert replay(path).to_dict() == live.to_dict()


async def test_a_replay_computes_with_the_very_numbers_of_the_watch(tmp_path: Path) -> None:
    """A report tells milliseconds; numbers that differ in their last bit now and then fall to another one."""
    path, clock = tmp_path / "r.jsonl", FakeClock(start=98_765.432_1, wall=1_796_083_464.075_739_1)
    lines = [f"(APIServer pid=10) INFO 12-01 00:04:{s} [api.py:1] Resolved architecture: A" for s in (20, 21)]
    log = ScriptedProbe(
        "log",
        [
            (1 / 3, r.LogOpened(source="vllm.log")),
            (1 / 3, r.LogLines(lines=tuple(lines), history=True)),
            (2 / 3, r.LogLines(lines=(lines[-1].replace("api", "core").replace("APIServer", "EngineCore"),))),
        ],
    )
    async with Startup([log], record=path, clock=clock, timeouts=Timeouts(7)) as startup:
        with pytest.raises(StartupError):
            await startup.wait_until_ready()
        live = startup._running()
    again = _recording.replay(path)
    spans = [[(s.phase, s.started_at, s.ended_at) for s in m.attempt.course.spans] for m in (live, again)]
    assert spans[0] == spans[1] != []
    assert (live.now, live.attempt.began_at) == (again.now, again.attempt.began_at)


async def test_a_recording_replays_on_other_terms(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    async with Startup(ready_after(60).probes(), record=path, clock=FakeClock()) as startup:
        await startup.wait_until_ready()
    assert replay(path).outcome == "ready"
    assert replay(path, timeouts=Timeouts(30)).outcome == "timed_out"
    rule = Rule("Loading weights took", lambda _: causes.DiskFull(message="a rule that is tried out"))
    assert replay(path, rules=[rule]).outcome == "failed"


async def test_a_watch_that_is_left_early_replays_as_unfinished(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    clock = FakeClock(autojump=False)
    async with Startup(ready_after(60).probes(), record=path, clock=clock):
        await clock.advance(20)
    assert replay(path).outcome == "unfinished"
    assert replay(path).elapsed_s == 20.0


async def test_lines_stand_in_the_file_as_soon_as_they_were_seen(tmp_path: Path) -> None:
    """A watcher that is killed leaves what it saw."""
    path = tmp_path / "r.jsonl"
    clock = FakeClock(autojump=False)
    probe = ScriptedProbe("log", [(1, r.LogLines(lines=("here",)))])
    async with Startup([probe], record=path, clock=clock):
        await clock.advance(1)
        assert rows(path)[-1]["lines"] == ["here"]


FULL_DISK = """
import asyncio, resource, sys
from vllm_startup import Startup
from vllm_startup.testing import FakeClock, ready_after

async def main():
    async with Startup(ready_after(600).probes(), record=sys.argv[1], clock=FakeClock()) as startup:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        report = await startup.wait_until_ready()
        told = [event async for event in startup.events()]
    print(report.outcome, [(e.code) for e in told if e.event == "warning"])

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits on files are POSIX")
def test_a_full_disk_ends_the_recording_and_not_the_wait(tmp_path: Path) -> None:
    code = textwrap.dedent(FULL_DISK)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "r.jsonl")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "ready ['recording_failed']", done.stderr
    assert done.returncode == 0


# --- damaged recordings -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "no recording's header", id="empty"),
        pytest.param("hello\n", "line 1 is no JSON", id="no JSON"),
        pytest.param("[1]\n", "line 1 is no JSON object", id="a list"),
        pytest.param('{"t": 0.0, "text": "x"}\n', "no recording's header", id="another format"),
        pytest.param('{"recording": 2}\n', "has schema 2, and this version reads 1", id="newer"),
        pytest.param('{"recording": "x"}\n', "has schema 'x'", id="no number"),
        pytest.param('{"recording": 1}\n', "header is damaged", id="no terms"),
        pytest.param(
            '{"recording": 1, "terms": {"until": "soon"}, "timeouts": {}, "started_unix": 0}\n',
            "header is damaged.*until",
            id="wrong terms",
        ),
    ],
)
def test_what_is_no_recording_is_refused_with_a_reason(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(RecordingError, match=message):
        replay(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("{", "line 2 is no JSON", id="cut off"),
        pytest.param("{}", "line 2 is no observation", id="empty"),
        pytest.param(
            '{"at": "x", "probe": "p", "reading": "log_ended"}', "line 2 is no observation", id="no time"
        ),
        pytest.param(
            '{"at": 1, "probe": "p", "reading": "process_exited"}', "line 2 is no observation", id="no fields"
        ),
        pytest.param(
            '{"at": 1, "probe": "p", "reading": "gpu_memory", "gpus": 7}', "line 2 is no", id="wrong type"
        ),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = recorded(tmp_path / "r.jsonl")
    first, *rest = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([first, line, *rest]) + "\n")
    with pytest.raises(RecordingError, match=message):
        replay(path)


def test_a_recording_that_was_cut_off_goes_as_far_as_it_was_written(tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.jsonl", *EVERY_READING[:6])
    whole, wanted = path.read_text("utf-8"), replay(path)
    end = whole.rindex("\n", 0, -1) + 1
    for length in (end, end + 7):  # without its last line, and within it
        path.write_text(whole[:length])
        report = replay(path)
        assert report.outcome == "unfinished"
        assert [warning.code for warning in report.warnings][-1] == "recording_cut_off"
        assert [span.phase for span in report.phases] == [span.phase for span in wanted.phases] != []


@pytest.mark.parametrize("length", [0, 1, 40])
def test_a_recording_without_its_first_line_is_none(tmp_path: Path, length: int) -> None:
    path = recorded(tmp_path / "r.jsonl", *EVERY_READING)
    path.write_text(path.read_text("utf-8")[:length])
    with pytest.raises(RecordingError, match="line"):
        replay(path)


def test_nothing_may_follow_the_end(tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.jsonl")
    with path.open("a") as file:
        file.write('{"at": 9, "probe": "p", "reading": "log_ended"}\n')
    with pytest.raises(RecordingError, match="after the recording's end"):
        replay(path)


def test_readings_and_fields_of_newer_versions_are_passed_over(tmp_path: Path) -> None:
    path = recorded(tmp_path / "r.jsonl", r.ProcessTree(root=7, processes=()))
    first, tree, last = rows(path)
    tree["new_field"] = 1
    tree["processes"] = [
        {"pid": 7, "ppid": 1, "started_at": 0.0, "name": "vllm", "cpu_s": 0.0, "new_field": 1}
    ]
    news = {"at": 0.5, "probe": "p", "reading": "weather", "degrees": 7}
    path.write_text("".join(json.dumps(row) + "\n" for row in (first, tree, news, last)))
    assert replay(path).phase == "launching"


def test_a_recording_that_is_missing_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replay(tmp_path / "none.jsonl")


def test_times_cannot_be_given_beside_a_recording(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="holds its own times"):
        replay(recorded(tmp_path / "r.jsonl"), end_at=5.0)
