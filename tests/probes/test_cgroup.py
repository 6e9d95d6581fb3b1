"""The control group's counter of kills, on trees of files and on the kernel's own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_startup._readings import MemoryEvents, ProbeNote, Reading
from vllm_startup.probes import Probe
from vllm_startup.probes._cgroup import CgroupProbe

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")

GIB = 1024**3


class Tree:
    """A file system with one process in one group."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def process(self, cgroup: str) -> None:
        (self.root / "proc" / "42").mkdir(parents=True)
        (self.root / "proc" / "42" / "cgroup").write_text(cgroup)

    def group(self, path: str, **files: str) -> Path:
        at = self.root / "sys/fs/cgroup" / path
        at.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (at / name.replace("_", ".", 1)).write_text(text)
        return at


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def events(kills: int) -> str:
    return f"low 0\nhigh 0\nmax 12\noom 3\noom_kill {kills}\noom_group_kill 0\n"


async def looks(probe: CgroupProbe, times: int = 1) -> list[Reading]:
    return [reading for _ in range(times) for reading in await probe.sample(0.0)]


def probe_of(tree: Tree) -> CgroupProbe:
    return CgroupProbe(42, system=str(tree.root))


async def test_version_2(tree: Tree) -> None:
    tree.process("0::/system.slice/vllm.service\n")
    tree.group(
        "system.slice/vllm.service",
        memory_events=events(0),
        memory_max=f"{64 * GIB}\n",
        memory_current=f"{3 * GIB}\n",
    )
    seen = await looks(probe_of(tree))
    assert seen == [MemoryEvents(oom_kills=0, limit_bytes=64 * GIB, used_bytes=3 * GIB)]


async def test_version_1(tree: Tree) -> None:
    tree.process("9:name=systemd:/\n4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/\n")
    tree.group(
        "memory/docker/abc",
        memory_oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        memory_limit_in_bytes="9223372036854771712\n",
        memory_usage_in_bytes=f"{GIB}\n",
    )
    assert await looks(probe_of(tree)) == [MemoryEvents(oom_kills=2, used_bytes=GIB)]


@pytest.mark.parametrize("path", ["/", "/../other", "/docker/abc"], ids=["root", "beside ours", "not shown"])
async def test_in_a_container_the_group_is_the_root(tree: Tree, path: str) -> None:
    tree.process(f"0::{path}\n")
    tree.group(".", memory_events=events(1), memory_max="max\n")
    assert await looks(probe_of(tree)) == [MemoryEvents(oom_kills=1)]


async def test_it_tells_only_what_has_changed(tree: Tree) -> None:
    tree.process("0::/a\n")
    at = tree.group("a", memory_events=events(0))
    probe = probe_of(tree)
    assert len(await looks(probe, 5)) == 1
    (at / "memory.events").write_text(events(1))
    assert await looks(probe, 5) == [MemoryEvents(oom_kills=1)]


async def test_the_process_may_be_gone_before_its_group_is_read_again(tree: Tree) -> None:
    tree.process("0::/a\n")
    at = tree.group("a", memory_events=events(0))
    probe = probe_of(tree)
    await looks(probe)
    (tree.root / "proc" / "42" / "cgroup").unlink()
    (at / "memory.events").write_text(events(1))
    assert await looks(probe) == [MemoryEvents(oom_kills=1)]


async def test_it_ends_with_its_group(tree: Tree) -> None:
    tree.process("0::/a\n")
    at = tree.group("a", memory_events=events(0))
    probe = probe_of(tree)
    await looks(probe)
    (at / "memory.events").unlink()
    assert await looks(probe) == []
    with pytest.raises(StopAsyncIteration):
        await probe.sample(0.0)


@pytest.mark.parametrize(
    ("cgroup", "content"),
    [(None, None), ("0::/a\n", None), ("0::/a\n", "low 0\n"), ("1:cpu:/a\n", events(1))],
    ids=["no process", "no files", "a kernel that does not count", "another controller"],
)
async def test_where_there_is_nothing_to_see_it_says_so_once(
    tree: Tree, cgroup: str | None, content: str | None
) -> None:
    if cgroup is not None:
        tree.process(cgroup)
    if content is not None:
        tree.group("a", memory_events=content)
    probe = probe_of(tree)
    (note,) = await looks(probe)
    assert isinstance(note, ProbeNote)
    assert note.code == "cgroup_unavailable"
    with pytest.raises(StopAsyncIteration):
        await probe.sample(0.0)


def test_an_interval_is_positive() -> None:
    with pytest.raises(ValueError, match="interval_s must be positive"):
        CgroupProbe(1, interval_s=0)


async def test_it_is_a_probe() -> None:
    probe = CgroupProbe(1)
    assert isinstance(probe, Probe)
    await probe.aclose()


# --- the kernel's own ---------------------------------------------------------------------


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A real group with 64 MiB, where we may make one."""
    name = f"vllm-startup-test-{os.getpid()}"
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    at, limit = (v1 / name, "memory.limit_in_bytes") if v1.is_dir() else (v2 / name, "memory.max")
    try:
        at.mkdir()
        (at / limit).write_text(str(64 * 1024**2))
        if not v1.is_dir():
            (at / "memory.swap.max").write_text("0")
    except OSError as error:
        if at.is_dir():
            at.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    yield at
    at.rmdir()


async def test_a_real_kill_for_memory_is_counted(small_group: Path) -> None:
    hog = "import sys; sys.stdin.readline(); x = bytearray(300_000_000); print(len(x))"
    join = f'echo $$ > {small_group}/cgroup.procs; exec "$0" -c "$1"'
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", join, sys.executable, hog, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert process.stdin is not None
    probe = CgroupProbe(process.pid)
    while str(process.pid) not in (small_group / "cgroup.procs").read_text().split():
        await asyncio.sleep(0.01)
    before = await looks(probe)
    process.stdin.write(b"\n")
    assert await process.wait() == -signal.SIGKILL
    after = await looks(probe)
    assert [reading.oom_kills for reading in (*before, *after) if isinstance(reading, MemoryEvents)] == [0, 1]
    assert isinstance(after[0], MemoryEvents)
    assert after[0].limit_bytes == 64 * 1024**2


async def test_a_glance_tells_whether_anything_was_counted(tree: Tree) -> None:
    tree.process("0::/vllm\n")
    tree.group("vllm", memory_events=events(0), memory_max="max\n", memory_current="0\n")
    probe = probe_of(tree)
    assert probe.glance(0.0)  # nothing is known yet
    await probe.sample(0.0)
    assert not probe.glance(0.2)
    tree.group("vllm", memory_events=events(1), memory_max="max\n", memory_current="0\n")
    assert probe.glance(0.4)
    assert [
        reading.oom_kills for reading in await probe.sample(0.4) if isinstance(reading, MemoryEvents)
    ] == [1]
