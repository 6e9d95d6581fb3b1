"""Growth of real folders."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from vllm_startup._readings import CacheSize, ProbeNote
from vllm_startup.probes._cache import CacheProbe, Growth, compile_folders, hub_folders
from vllm_startup.probes._environ import has_ended, server_environment
from vllm_startup.probes._protocol import Probe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

LONG_AGO = 1_000_000_000


def write(path: Path, size: int, *, old: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    if old:
        os.utime(path, (LONG_AGO, LONG_AGO))
        os.utime(path.parent, (LONG_AGO, LONG_AGO))
    return path


def age(top: Path) -> None:
    """Make a tree look as if nobody had written to it for years."""
    for path in [top, *top.rglob("*")]:
        os.utime(path, (LONG_AGO, LONG_AGO))


@asynccontextmanager
async def probing(probe: CacheProbe) -> AsyncIterator[CacheProbe]:
    try:
        yield probe
    finally:
        await probe.aclose()


def at(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "TMPDIR": str(home / "tmp")}


# --- the probe ----------------------------------------------------------------------------


async def test_it_is_a_probe_with_a_look_every_five_seconds(tmp_path: Path) -> None:
    async with probing(CacheProbe(os.getpid(), environment=at(tmp_path))) as probe:
        assert isinstance(probe, Probe)
        assert (probe.name, probe.interval_s, probe.limit_s) == ("caches", 5.0, 10.0)


async def test_missing_folders_are_nothing_to_tell_until_they_appear(tmp_path: Path) -> None:
    async with probing(CacheProbe(os.getpid(), environment=at(tmp_path))) as probe:
        assert await probe.sample(0.0) == []
        write(tmp_path / ".cache/huggingface/hub/models--a--b/blobs/c.incomplete", 10_000)
        assert await probe.sample(5.0) == [CacheSize(what="hub", total_bytes=10_000)]
        write(tmp_path / ".cache/vllm/torch_compile_cache/0a/rank_0/x.so", 5_000)
        assert await probe.sample(10.0) == [
            CacheSize(what="hub", total_bytes=10_000),
            CacheSize(what="compile", total_bytes=5_000),
        ]


async def test_a_download_grows_and_its_end_is_no_growth(tmp_path: Path) -> None:
    blobs = tmp_path / ".cache/huggingface/hub/models--a--b/blobs"
    write(blobs / "old", 50_000, old=True)
    async with probing(CacheProbe(os.getpid(), environment=at(tmp_path))) as probe:
        assert await probe.sample(0.0) == [CacheSize(what="hub", total_bytes=0)]
        part = write(blobs / "new.incomplete", 10_000)
        assert await probe.sample(5.0) == [CacheSize(what="hub", total_bytes=10_000)]
        with part.open("ab") as file:
            file.write(b"x" * 8_000)
        assert await probe.sample(10.0) == [CacheSize(what="hub", total_bytes=18_000)]
        part.rename(blobs / "new")
        assert await probe.sample(15.0) == [CacheSize(what="hub", total_bytes=18_000)]


async def test_the_environment_is_the_servers_own(tmp_path: Path) -> None:
    code = "import sys; print(flush=True); sys.stdin.read()"
    server = subprocess.Popen(
        [sys.executable, "-c", code],
        env={"HF_HOME": str(tmp_path), "HOME": "/nonexistent"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    server.stdout.readline()
    async with probing(CacheProbe(server.pid)) as probe:
        assert await probe.sample(0.0) == []
        write(tmp_path / "hub/models--a--b/blobs/c.incomplete", 10_000)
        assert await probe.sample(5.0) == [CacheSize(what="hub", total_bytes=10_000)]
    server.communicate()


async def test_a_service_without_a_home_has_its_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = pwd.struct_passwd(("u", "x", os.getuid(), 0, "", str(tmp_path), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", {os.getuid(): user}.__getitem__)
    environment = {"TMPDIR": str(tmp_path / "tmp")}
    write(tmp_path / ".cache/huggingface/hub/models--a--b/blobs/c.incomplete", 10_000)
    async with probing(CacheProbe(os.getpid(), environment=environment)) as probe:
        assert await probe.sample(0.0) == [CacheSize(what="hub", total_bytes=10_000)]


async def test_of_a_process_that_has_ended_there_is_nothing_to_say() -> None:
    child = subprocess.Popen(["true"])
    while not has_ended(child.pid):  # a zombie, until it is waited for
        await asyncio.sleep(0.01)
    async with probing(CacheProbe(child.pid)) as probe:
        assert await probe.sample(0.0) == []
    child.wait()
    assert has_ended(child.pid)
    assert not has_ended(os.getpid())


async def test_without_an_environment_to_read_it_says_so_and_is_finished() -> None:
    text = f"the environment of process {os.getpid()} is not ours to read: its caches are not watched"
    async with probing(CacheProbe(os.getpid(), environment={})) as probe:
        assert await probe.sample(0.0) == [ProbeNote(code="caches_unknown", text=text)]
        with pytest.raises(StopAsyncIteration):
            await probe.sample(5.0)


async def test_closing_leaves_no_task_or_thread(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    probe = CacheProbe(os.getpid(), environment=at(tmp_path))
    await probe.sample(0.0)
    await probe.aclose()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    for thread in set(threading.enumerate()) - threads:
        thread.join(2)
    assert set(threading.enumerate()) <= threads


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="interval_s must be above 0"):
        CacheProbe(os.getpid(), interval_s=0)
    with pytest.raises(ValueError, match="pid 0 does not exist"):
        CacheProbe(0)


def test_the_environment_of_a_process_that_is_gone_is_empty() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert server_environment(child.pid) == {}
    assert server_environment(-1) == {}
    assert server_environment(2**70) == {}


# --- which folders ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "arguments", "expected"),
    [
        ({}, (), ["/h/.cache/huggingface/hub", "/h/.cache/huggingface/xet"]),
        ({"XDG_CACHE_HOME": "/x"}, (), ["/x/huggingface/hub", "/x/huggingface/xet"]),
        ({"HF_HOME": "/hf"}, (), ["/hf/hub", "/hf/xet"]),
        ({"HF_HOME": "~/hf"}, (), ["/h/hf/hub", "/h/hf/xet"]),
        ({"HF_HUB_CACHE": "/hub", "HF_XET_CACHE": "/xet"}, (), ["/hub", "/xet"]),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/hf"}, (), ["/old", "/hf/xet"]),
        ({"HF_HOME": "/hf"}, ("vllm", "--download-dir", "/d"), ["/hf/hub", "/hf/xet", "/d"]),
        ({"HF_HOME": "/hf"}, ("vllm", "--download_dir=/d", "--x"), ["/hf/hub", "/hf/xet", "/d"]),
        ({"HF_HOME": "/hf"}, ("vllm", "--download-dir"), ["/hf/hub", "/hf/xet"]),
    ],
)
def test_hub_folders(environment: dict[str, str], arguments: tuple[str, ...], expected: list[str]) -> None:
    assert hub_folders(environment, home="/h", arguments=arguments) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"USER": "u"},
            [
                "/h/.cache/vllm",
                "/tmp/torchinductor_u",
                "/h/.triton/cache",
                "/h/.cache/flashinfer",
                "/h/.deep_gemm",
            ],
        ),
        (
            {
                "VLLM_CACHE_ROOT": "/v",
                "TORCHINDUCTOR_CACHE_DIR": "/i",
                "TRITON_CACHE_DIR": "~/t",
                "FLASHINFER_WORKSPACE_BASE": "/f",
                "DG_JIT_CACHE_DIR": "/dg",
            },
            ["/v", "/i", "/h/t", "/f/.cache/flashinfer", "/dg"],
        ),
        (
            {"XDG_CACHE_HOME": "/x", "TMPDIR": "/scratch", "USER": "u"},
            [
                "/x/vllm",
                "/scratch/torchinductor_u",
                "/h/.triton/cache",
                "/h/.cache/flashinfer",
                "/h/.deep_gemm",
            ],
        ),
    ],
)
def test_compile_folders(environment: dict[str, str], expected: list[str]) -> None:
    assert compile_folders(environment, home="/h") == expected


# --- growth -------------------------------------------------------------------------------


def test_files_from_before_are_no_growth_however_late_they_are_found(tmp_path: Path) -> None:
    for index in range(60):
        write(tmp_path / f"a/b/c/{index:02}/file", 100)
    age(tmp_path)
    growth = Growth([str(tmp_path)], limit=10)
    assert [growth.look() for _ in range(40)] == [0] * 40


def test_new_files_in_a_deep_old_folder_are_seen(tmp_path: Path) -> None:
    for index in range(60):
        write(tmp_path / f"a/b/c/{index:02}/file", 100)
    age(tmp_path)
    growth = Growth([str(tmp_path)], limit=100)
    for _ in range(4):
        assert growth.look() == 0
    write(tmp_path / "a/b/c/31/new", 700)
    assert [growth.look() for _ in range(3)][-1] == 700


def test_a_look_costs_the_same_in_a_tree_of_any_size(tmp_path: Path) -> None:
    for outer in range(20):
        for inner in range(50):
            (tmp_path / f"{outer}/{inner}/leaf").mkdir(parents=True)
    visits = 0

    class Counting(Growth):
        def _visit(self, folder, left):  # type: ignore[no-untyped-def]  # a private seam
            nonlocal visits
            cost, there = super()._visit(folder, left)
            visits += cost
            return cost, there

    growth = Counting([str(tmp_path)], limit=200)
    most = 0
    for _ in range(30):
        visits = 0
        growth.look()
        most = max(most, visits)
    assert most <= 200 + 51  # the last folder that is listed may go beyond


def test_growth_in_the_place_that_is_at_work_is_seen_at_once_in_a_huge_tree(tmp_path: Path) -> None:
    for outer in range(30):
        for inner in range(30):
            write(tmp_path / f"old/{outer}/{inner}/deep/file", 10)
    age(tmp_path)
    growth = Growth([str(tmp_path)], limit=200)
    for _ in range(10):
        growth.look()
    write(tmp_path / "new/1/2/3/file", 4_000)
    assert growth.look() == 4_000
    write(tmp_path / "new/1/2/3/other", 3_000)
    assert growth.look() == 7_000


def test_deleted_files_do_not_hide_later_growth(tmp_path: Path) -> None:
    growth = Growth([str(tmp_path)])
    growth.look()
    first = write(tmp_path / "a", 5_000)
    assert growth.look() == 5_000
    first.unlink()
    assert growth.look() == 5_000
    write(tmp_path / "b", 300)
    assert growth.look() == 5_300


def test_a_file_that_reserved_its_size_counts_what_was_written(tmp_path: Path) -> None:
    growth = Growth([str(tmp_path)])
    growth.look()
    with (tmp_path / "sparse").open("wb") as file:
        file.write(b"x" * 4096)
        file.truncate(1 << 30)
        file.flush()
        os.fsync(file.fileno())
    assert growth.look() < 1 << 20


def test_links_are_not_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "loop").symlink_to(real)
    growth = Growth([str(real)])
    growth.look()
    write(tmp_path / "elsewhere/file", 500)
    (real / "link").symlink_to(tmp_path / "elsewhere/file")
    (real / "folder").symlink_to(tmp_path / "elsewhere")
    assert growth.look() == 0


def test_an_unreadable_folder_is_skipped(tmp_path: Path) -> None:
    file = write(tmp_path / "file", 10)
    growth = Growth([str(file), str(tmp_path / "good")])
    write(tmp_path / "good/new", 20)
    assert growth.look() == 20


def test_a_second_look_at_a_quiet_cache_is_cheap(tmp_path: Path) -> None:
    for index in range(1000):
        write(tmp_path / f"{index % 100}/{index}", 1)
    age(tmp_path)
    growth = Growth([str(tmp_path)])
    growth.look()
    growth.look()
    costs_s: list[float] = []
    for _ in range(10):
        began = time.process_time()
        growth.look()
        costs_s.append(time.process_time() - began)
    assert min(costs_s) < 0.005
