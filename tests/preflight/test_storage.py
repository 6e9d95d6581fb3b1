"""Shared memory and caches, on small file systems of their own."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from installs import facts
from users import NOBODY, as_nobody

from vllm_startup._preflight import check_storage
from vllm_startup._preflight.result import NotCheckedError
from vllm_startup.causes import Cause, DiskFull, PathNotWritable, SharedMemoryTooSmall

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="file systems as Linux has them")

Mount = Callable[..., Path]


@pytest.fixture
def mount(open_path: Path) -> Iterator[Mount]:
    """Mounts a small file system; needs root, or skips."""
    mounted: list[Path] = []

    def make(options: str) -> Path:
        place = open_path / f"mount{len(mounted)}"
        place.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if subprocess.run(words, capture_output=True, check=False).returncode != 0:
            pytest.skip("file systems cannot be mounted here")
        mounted.append(place)
        return place

    yield make
    for place in mounted:
        subprocess.run(["umount", str(place)], check=True)


def texts(cause: Cause) -> list[str]:
    return [item.text for item in cause.evidence]


# --- shared memory ----------------------------------------------------------------------------------


def shm(place: Path | str, *words: str, **environ: str) -> list[Cause]:
    return list(check_storage.shared_memory(facts(["vllm", "serve", "m", *words], environ), place=str(place)))


def test_dockers_64_mib_are_too_little_for_several_gpus(mount: Mount) -> None:
    place = mount("size=64m")
    [found] = shm(place, "-tp", "4")
    assert isinstance(found, SharedMemoryTooSmall)
    assert found.confidence == "likely"
    assert texts(found) == ["64 of 64 MiB are free; the queue to 4 workers takes 160 MiB, and NCCL more"]
    assert "--shm-size" in (found.hint or "")
    assert shm(place) == []  # one GPU needs no queue
    assert shm(place, "-dp", "4") == []  # and engines of their own have none between them
    assert shm(place, "-tp", "4", VLLM_MQ_MAX_CHUNK_BYTES_MB="4") == []


def test_what_others_hold_of_it_is_not_free(mount: Mount) -> None:
    place = mount("size=200m")
    assert shm(place, "-tp", "2") == []
    with (place / "left").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 100 << 20)
    [found] = shm(place, "-tp", "2")
    assert texts(found)[0].startswith("100 of 200 MiB are free")


def test_a_container_without_shared_memory(open_path: Path) -> None:
    [found] = shm(open_path / "shm", "-tp", "2")
    assert isinstance(found, SharedMemoryTooSmall)
    assert texts(found) == [f"{open_path}/shm is not there"]


def test_shared_memory_that_may_not_be_written(mount: Mount) -> None:
    place = mount("size=1g,mode=755")
    [found] = as_nobody(lambda: shm(place, "-tp", "2"))
    assert isinstance(found, PathNotWritable)
    assert (found.path, found.errno) == (str(place), errno.EACCES)


# --- caches -----------------------------------------------------------------------------------------


def caches(*words: str, cwd: Path | str = "/", **environ: str) -> list[Cause]:
    return list(check_storage.caches(facts(["vllm", "serve", *words], environ, cwd=cwd)))


def test_caches_that_are_yet_to_be_made_are_no_fault(open_path: Path) -> None:
    assert caches("org/m", HOME=str(open_path)) == []


def test_a_home_that_may_not_be_written(open_path: Path) -> None:
    found = as_nobody(lambda: caches("/models/m", HOME=str(open_path)))
    [cause] = found
    assert isinstance(cause, PathNotWritable)
    assert (cause.path, cause.errno) == (f"{open_path}/.cache/vllm", errno.EACCES)
    assert cause.hint == "set VLLM_CACHE_ROOT to a directory that can be written and has room"
    assert cause.confidence == "likely"
    assert texts(cause) == [
        f"{open_path}/.cache/vllm would be made in {open_path}; user id {NOBODY} may not write there"
    ]


def test_a_model_that_is_yet_to_be_downloaded_needs_the_hubs_cache_too(open_path: Path) -> None:
    environ = {"HOME": str(open_path), "VLLM_CACHE_ROOT": "/tmp"}
    [cause] = as_nobody(lambda: caches("org/m", **environ))
    assert cause.fields["path"] == f"{open_path}/.cache/huggingface/hub"
    assert cause.hint == "set HF_HOME to a directory that can be written and has room"
    (open_path / ".cache/huggingface/hub/models--org--m/snapshots/0123").mkdir(parents=True)
    assert as_nobody(lambda: caches("org/m", **environ)) == []
    assert as_nobody(lambda: caches("/models/m", **environ)) == []


def test_a_download_dir_is_where_it_goes(open_path: Path) -> None:
    words = ["org/m", "--download-dir", str(open_path / "models")]
    [cause] = as_nobody(lambda: caches(*words, HOME="/tmp", VLLM_CACHE_ROOT="/tmp"))
    assert cause.fields["path"] == str(open_path / "models")


def test_a_file_system_that_is_read_only(mount: Mount) -> None:
    place = mount("size=1m,ro")
    [cause] = caches("/models/m", VLLM_CACHE_ROOT=str(place / "vllm"))
    assert isinstance(cause, PathNotWritable)
    assert cause.errno == errno.EROFS
    assert texts(cause)[0].endswith("its file system is read-only")


def test_a_file_system_that_is_full(mount: Mount) -> None:
    place = mount("size=10m")
    [cause] = caches("/models/m", VLLM_CACHE_ROOT=str(place / "vllm"))
    assert isinstance(cause, DiskFull)
    assert cause.path == str(place / "vllm")
    assert texts(cause) == [f"10 MiB are free in {place}"]
    assert cause.confidence == "likely"


def test_a_file_system_that_takes_no_more_files(mount: Mount) -> None:
    place = mount("size=1g,nr_inodes=1")
    [cause] = caches("/models/m", VLLM_CACHE_ROOT=str(place / "vllm"))
    assert isinstance(cause, DiskFull)
    assert texts(cause) == [f"no more files can be made in {place}"]


def test_a_file_in_the_place_of_a_cache(open_path: Path) -> None:
    (open_path / "cache").touch()
    [cause] = caches("/models/m", VLLM_CACHE_ROOT=str(open_path / "cache" / "vllm"))
    assert isinstance(cause, PathNotWritable)
    assert cause.errno == errno.ENOTDIR


def test_relative_caches_lie_in_the_servers_folder(open_path: Path) -> None:
    [cause] = as_nobody(lambda: caches("/models/m", cwd=open_path, VLLM_CACHE_ROOT="vllm"))
    assert cause.fields["path"] == f"{open_path}/vllm"


def test_a_container_of_a_user_without_a_home() -> None:
    """OpenShift gives a container a user that nothing knows, and no HOME: it is the root folder then."""
    [cause] = as_nobody(lambda: caches("/models/m"))
    assert cause.fields["path"] == "/.cache/vllm"


def test_another_users_caches_are_not_looked_for() -> None:
    with pytest.raises(NotCheckedError, match="sudo starts it as another user"):
        list(check_storage.caches(facts(["sudo", "vllm", "serve", "m"])))
