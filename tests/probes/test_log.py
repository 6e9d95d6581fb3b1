from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vllm_startup._readings import LogCaughtUp, LogLines, LogOpened, ProbeNote, Reading
from vllm_startup.probes._log import TAIL_LINES, FileFollower, LogFileProbe, _file_system, is_local
from vllm_startup.probes._protocol import Probe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def descriptors() -> int:
    """How many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "vllm.log"


class Follow:
    """A follower of a file, driven look by look."""

    def __init__(self, path: Path) -> None:
        self.follower = FileFollower(path)

    def look(self) -> list[Reading]:
        """Look until there is nothing more to read now."""
        seen: list[Reading] = []
        while True:
            self.follower.step()
            seen += self.follower.take()
            if not self.follower.behind:
                return plain(seen)

    def lines(self) -> list[str]:
        return [line for reading in self.look() if isinstance(reading, LogLines) for line in reading.lines]


def plain(seen: Iterable[Reading]) -> list[Reading]:
    """What was read, without what is told of the history as such."""
    told = [r for r in seen if not isinstance(r, LogCaughtUp)]
    return [LogOpened(source=r.source, stream=r.stream) if isinstance(r, LogOpened) else r for r in told]


def test_the_opening_tells_when_the_file_was_last_written_to_and_how_it_ended(log: Path) -> None:
    log.write_text("\n".join(f"line {i}" for i in range(1000)))
    os.utime(log, (1000.0, 2000.0))
    follower = FileFollower(log)
    follower.step()
    (opened, *_) = follower.take()
    follower.close()
    assert isinstance(opened, LogOpened)
    assert opened.modified_at == 2000.0
    assert opened.tail == tuple(f"line {i}" for i in range(1000 - TAIL_LINES, 1000))


def test_the_opening_reaches_back_to_the_last_stamp_of_a_start_that_failed(log: Path) -> None:
    """Its API server's traceback, a hundred lines without a stamp, comes last; the stamp tells the zone."""
    stamped = "(EngineCore pid=1) ERROR 11-30 14:28:13 [core.py:1] EngineCore failed to start."
    log.write_text("\n".join([stamped] + ["  File " + "x" * 150] * 150))
    follower = FileFollower(log)
    follower.step()
    (opened, *_) = follower.take()
    follower.close()
    assert isinstance(opened, LogOpened)
    assert stamped in opened.tail


def test_the_end_of_the_history_is_told_once(log: Path) -> None:
    log.write_text("a\n" * 50_000)
    follower = FileFollower(log)
    seen: list[Reading] = []
    while follower.step() or follower.behind:
        seen += follower.take()
    with log.open("a") as file:
        file.write("b\n")
    follower.step()
    seen += follower.take()
    assert [reading for reading in seen if isinstance(reading, LogCaughtUp)] == [LogCaughtUp()]
    assert isinstance(seen[-2], LogCaughtUp)
    assert seen[-1] == LogLines(lines=("b",))
    follower.close()


@pytest.mark.parametrize("slice_bytes", [1, 5, 1000])
def test_where_the_own_servers_words_begin_is_told_between_the_lines(log: Path, slice_bytes: int) -> None:
    log.write_text("old\nunfinishednew\n")
    follower = FileFollower(log, own_from=len("old\nunfinished"), slice_bytes=slice_bytes)
    seen: list[Reading] = []
    while follower.step() or follower.behind:
        seen += follower.take()
    told = [r.lines if isinstance(r, LogLines) else type(r).__name__ for r in seen]
    assert [each for r in told[1:] for each in (r if isinstance(r, tuple) else (r,)) if each] == [
        "old",
        "unfinished",
        "OwnLogBegins",
        "new",
        "LogCaughtUp",
    ]
    follower.close()


def test_a_log_that_is_shorter_than_it_was_is_the_own_servers_from_its_start(log: Path) -> None:
    log.write_text("new\n")
    follower = FileFollower(log, own_from=1000)
    follower.step()
    assert [type(r).__name__ for r in follower.take()] == ["LogOpened", "LogLines", "LogCaughtUp"]
    follower.close()


def test_an_empty_or_missing_log_has_no_history_to_end(log: Path) -> None:
    log.touch()
    follower = FileFollower(log)
    follower.step()
    assert follower.take() == [LogOpened(source=str(log))]
    follower.close()


@pytest.fixture
def follow(log: Path) -> Follow:
    return Follow(log)


@pytest.fixture(autouse=True)
def _no_descriptor_is_left(follow: Follow) -> Iterator[None]:
    before = descriptors()
    yield
    follow.follower.close()
    assert descriptors() <= before


def append(path: Path, data: str) -> None:
    with path.open("a") as file:
        file.write(data)


def test_what_is_there_is_history_and_what_comes_is_not(log: Path, follow: Follow) -> None:
    log.write_text("a\nb\n")
    assert follow.look() == [LogOpened(source=str(log)), LogLines(lines=("a", "b"), history=True)]
    append(log, "c\n")
    assert follow.look() == [LogLines(lines=("c",))]
    assert follow.look() == []


def test_a_missing_log_is_told_once_and_awaited(log: Path, follow: Follow) -> None:
    assert follow.look() == [ProbeNote(code="log_missing", text=f"there is no log at {log} yet")]
    assert follow.look() == []
    log.write_text("a\n")
    assert follow.look() == [LogOpened(source=str(log)), LogLines(lines=("a",))]


def test_a_missing_folder_is_a_missing_log(tmp_path: Path) -> None:
    follow = Follow(tmp_path / "none" / "vllm.log")
    assert [type(reading) for reading in follow.look()] == [ProbeNote]
    (tmp_path / "none").write_text("a file in the folder's place")
    assert follow.look() == []


def test_an_empty_log_is_opened(log: Path, follow: Follow) -> None:
    log.touch()
    assert follow.look() == [LogOpened(source=str(log))]
    append(log, "a\n")
    assert follow.look() == [LogLines(lines=("a",))]


def test_an_unfinished_line_is_told_when_it_has_waited_for_a_look(log: Path, follow: Follow) -> None:
    log.write_text("")
    follow.look()
    append(log, "\rbar 10%")
    assert follow.look() == []
    assert follow.look() == [LogLines(partial="\rbar 10%")]
    assert follow.look() == []
    append(log, "\rbar 20%")
    assert follow.look() == [LogLines(partial="\rbar 20%")]
    append(log, "\n")
    assert follow.look() == [LogLines(lines=("\rbar 10%\rbar 20%",))]
    assert follow.look() == []


def test_a_bar_that_redraws_between_all_looks_is_told_all_the_same(log: Path, follow: Follow) -> None:
    log.write_text("")
    follow.look()
    told = []
    for percent in (10, 20, 30):
        append(log, f"\rbar {percent}%")
        told += follow.look()
    assert told == [LogLines(partial="\rbar 20%"), LogLines(partial="\rbar 30%")]


def test_an_unfinished_line_of_history_that_is_finished_later_is_not_history(
    log: Path, follow: Follow
) -> None:
    log.write_text("a\nb")
    assert follow.look()[1:] == [LogLines(lines=("a",), history=True)]
    assert follow.look() == [LogLines(partial="b", history=True)]
    append(log, "c\n")
    assert follow.look() == [LogLines(lines=("bc",))]


def test_a_truncated_log_is_read_from_its_start(log: Path, follow: Follow) -> None:
    log.write_text("one\ntwo\nthr")
    follow.look()
    log.write_text("new\n")
    assert follow.lines() == ["thr", "new"]


@pytest.mark.parametrize(("head", "packing"), [(b"\x1f\x8b\x08", "gzip"), (b"\xff\xfei\0", "UTF-16")])
def test_a_log_that_is_no_plain_text_is_told_once(
    head: bytes, packing: str, log: Path, follow: Follow
) -> None:
    log.write_bytes(head)
    note = ProbeNote(
        code="log_unreadable", text=f"the log at {log} is in {packing}: nothing in it can be read"
    )
    assert note in follow.look()
    append(log, "more\n")
    assert note not in follow.look()


def test_the_hole_that_a_writer_leaves_behind_after_truncation_is_skipped(log: Path, follow: Follow) -> None:
    with log.open("w") as file:
        file.write("x" * 100_000 + "\n")
        file.flush()
        follow.look()
        os.truncate(log, 0)
        follow.look()
        file.write("after\n")
    assert follow.lines() == ["after"]


def test_after_a_rotation_the_old_file_is_read_to_its_end_first(log: Path, follow: Follow) -> None:
    log.write_text("a\n")
    follow.look()
    append(log, "last\nunfinished")
    log.rename(log.with_suffix(".1"))
    log.write_text("new\n")
    assert follow.lines() == ["last"]
    assert follow.lines() == ["unfinished", "new"]
    append(log, "more\n")
    assert follow.lines() == ["more"]


def test_a_log_replaced_in_one_step_is_followed(log: Path, follow: Follow) -> None:
    log.write_text("a\n")
    follow.look()
    other = log.with_suffix(".new")
    other.write_text("b\n")
    other.replace(log)
    assert follow.look() == [LogLines(lines=("b",))]


def test_a_rotation_to_an_empty_file_leaves_the_old_one_followed(log: Path, follow: Follow) -> None:
    with log.open("w") as file:
        file.write("a\n")
        file.flush()
        follow.look()
        log.rename(log.with_suffix(".1"))
        log.touch()
        assert follow.look() == []
        file.write("b\n")
        file.flush()
        assert follow.lines() == ["b"]
        append(log, "c\n")
        assert follow.lines() == ["c"]


def test_a_deleted_log_is_followed_and_told(log: Path, follow: Follow) -> None:
    with log.open("w") as file:
        file.write("a\n")
        file.flush()
        follow.look()
        log.unlink()
        assert follow.look() == [
            ProbeNote(
                code="log_missing", text=f"the log at {log} was removed; what its writer still adds is read"
            )
        ]
        file.write("b\n")
        file.flush()
        assert follow.lines() == ["b"]
    log.write_text("c\n")
    assert follow.lines() == ["c"]


def test_a_directory_in_the_logs_place_is_an_error_and_then_the_log_goes_on(
    log: Path, follow: Follow
) -> None:
    log.write_text("a\n")
    follow.look()
    log.unlink()
    log.mkdir()
    with pytest.raises(ValueError, match="is a directory: name the file in it"):
        follow.look()
    log.rmdir()
    log.write_text("b\n")
    assert follow.lines() == ["b"]


def test_a_pipe_in_the_logs_place_does_not_block(log: Path, follow: Follow) -> None:
    os.mkfifo(log)
    for look in (follow.look, lambda: follow.follower._open(live=True)):  # it may come between the two
        with pytest.raises(ValueError, match="log must be a regular file"):
            look()


@pytest.fixture
def as_nobody(tmp_path: Path) -> Iterator[None]:
    """Root may read everything, so it becomes somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.mark.usefixtures("as_nobody")
def test_a_log_that_is_not_ours_to_read_is_an_error(log: Path, follow: Follow) -> None:
    os.seteuid(os.getuid())
    log.touch(mode=0)
    os.seteuid(65534 if os.getuid() == 0 else os.getuid())
    with pytest.raises(PermissionError, match=r"log '.*vllm.log' may not be read by this user"):
        follow.look()


def test_no_line_is_lost_or_doubled_over_many_slices(log: Path, follow: Follow) -> None:
    expected = [f"line {number} " + "x" * (number % 300) for number in range(20_000)]
    log.write_text("\n".join(expected) + "\n")
    readings = follow.look()
    batches = [reading for reading in readings if isinstance(reading, LogLines)]
    assert [line for batch in batches for line in batch.lines] == expected
    assert all(batch.history for batch in batches)
    assert max(len(batch.lines) for batch in batches) <= 2000


def test_one_sample_gives_a_bounded_number_of_lines(log: Path, follow: Follow) -> None:
    log.write_text("\n" * 65_536)
    follow.follower.step()
    taken = follow.follower.take()
    assert sum(len(reading.lines) for reading in taken if isinstance(reading, LogLines)) == 2000
    assert follow.follower.behind


def test_what_a_cancelled_look_saw_is_not_lost(log: Path, follow: Follow) -> None:
    log.write_text("a\n")
    follow.follower.step()  # in a thread, whose caller has left
    follow.follower.step()
    assert plain(follow.follower.take()) == [
        LogOpened(source=str(log)),
        LogLines(lines=("a",), history=True),
    ]


# --- the probe ----------------------------------------------------------------------------


async def test_the_probe_follows_its_file_and_leaves_nothing(log: Path) -> None:
    log.write_text("a\n")
    before = descriptors()
    probe = LogFileProbe(log, poll_s=0.01)
    assert isinstance(probe, Probe)
    assert (probe.name, probe.limit_s) == ("log", 10.0)
    assert plain(await probe.sample(0.0)) == [
        LogOpened(source=str(log)),
        LogLines(lines=("a",), history=True),
    ]
    assert plain(await probe.sample(0.0)) == []
    assert probe.interval_s == 0.01
    await probe.aclose()
    assert descriptors() == before


async def test_a_backlog_is_read_without_a_pause_and_gives_others_their_turn(log: Path) -> None:
    log.write_text("line\n" * 100_000)
    probe = LogFileProbe(log)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    samples = 0
    while samples == 0 or probe.interval_s == 0.0:
        await probe.sample(0.0)
        samples += 1
    task.cancel()
    assert samples >= 50
    assert turns >= samples - 1
    await probe.aclose()


async def test_a_broken_log_is_tried_again_at_leisure(log: Path) -> None:
    probe = LogFileProbe(log)
    os.mkfifo(log)
    with pytest.raises(ValueError, match="regular file"):
        await probe.sample(0.0)
    assert probe.interval_s == 0.5
    log.unlink()
    log.write_text("a\n")
    await probe.sample(0.0)
    await probe.sample(0.0)
    assert probe.interval_s == 0.04
    await probe.aclose()


async def test_on_a_remote_file_system_looks_are_made_in_a_thread(log: Path) -> None:
    log.write_text("a\n")
    probe = LogFileProbe(log, local=False)
    assert [type(reading) for reading in plain(await probe.sample(0.0))] == [LogOpened, LogLines]
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "vllm-startup log vllm.log"]
    await probe.aclose()
    await asyncio.to_thread(thread.join, 1.0)
    assert not thread.is_alive()


async def test_a_look_that_hangs_does_not_keep_anyone_from_leaving(log: Path) -> None:
    log.write_text("a\n")
    probe = LogFileProbe(log, local=False)
    go = threading.Event()
    assert probe._runner is not None
    stuck = asyncio.create_task(probe._runner.run(lambda: go.wait(5)))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="has not returned"):
        await probe.sample(0.0)
    await probe.aclose()
    go.set()
    await stuck


def test_a_directory_is_refused_at_construction(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"log must be a file, and '.*' is a directory: name the file in it"):
        LogFileProbe(tmp_path)


def test_a_pipe_is_refused_at_construction(log: Path) -> None:
    os.mkfifo(log)
    with pytest.raises(ValueError, match="give a pipe as an open stream"):
        LogFileProbe(log)


@pytest.mark.parametrize("poll_s", [0, -1.0, float("nan")])
def test_a_pause_that_is_none_is_refused(log: Path, poll_s: float) -> None:
    with pytest.raises(ValueError, match="poll_s must be more than 0 seconds"):
        LogFileProbe(log, poll_s=poll_s)


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:30 / /mnt/nfs rw shared:2 - nfs4 host:/export rw
31 30 0:31 / /mnt/nfs/local\\040disk rw - xfs /dev/sdb1 rw
32 22 0:32 / /home rw master:1 - ext4 /dev/sdc1 rw
33 22 0:33 / /home rw - fuse.sshfs host: rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/log/vllm.log", "ext4"),
        ("/mnt/nfs/vllm.log", "nfs4"),
        ("/mnt/nfs2/vllm.log", "ext4"),
        ("/mnt/nfs/local disk/vllm.log", "xfs"),
        ("/home/me/vllm.log", "fuse.sshfs"),
    ],
)
def test_the_nearest_and_latest_mount_decides(path: str, kind: str) -> None:
    assert _file_system(path, MOUNTS) == kind


@pytest.mark.parametrize(("path", "local"), [("/Users/me/vllm.log", True), ("/Volumes/nas/vllm.log", False)])
def test_without_mountinfo_the_place_decides(tmp_path: Path, path: str, local: bool) -> None:
    assert is_local(Path(path), mountinfo=tmp_path / "none") is local


def test_a_file_system_that_is_not_known_to_be_local_is_not_local() -> None:
    assert not is_local(Path("/proc/self/status"))
