"""Downloads and compiled artefacts: files that grow while nothing is printed."""

from __future__ import annotations

import os
import time
from collections import deque
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from vllm_startup._blocking import BlockingRunner
from vllm_startup._readings import CacheSize, ProbeNote, Reading
from vllm_startup.probes._environ import has_ended, server_environment
from vllm_startup.probes._system import existing, this_system

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Kind = Literal["hub", "compile"]

_INTERVAL_S: Final = 5.0
_LIMIT_S: Final = 10.0
# A look at an entry costs 2 to 3 us: 2,000 every 5 s are 0.1 % of a core.
_ENTRIES_PER_SAMPLE: Final = 2000
# Folders that are at work and those near the top get this much of it, the other ones take turns.
_FIRST_SHARE: Final = 0.75
_SHALLOW: Final = 2
# A file that was written to this recently may be written to again, which its folder does not show.
_RECENT_NS: Final = 30 * 10**9
# Clocks of file servers differ, and file systems round.
_SLACK_NS: Final = 2 * 10**9
# In a hub cache: links to the blobs, and files without content.
_NOT_WALKED: Final = frozenset({"snapshots", "refs", ".locks", ".no_exist"})


class _Folder:
    """What is known of one directory."""

    __slots__ = ("depth", "live", "modified_ns", "new_bytes", "path")

    def __init__(self, path: str, depth: int) -> None:
        self.path = path
        self.depth = depth
        self.modified_ns = -1
        self.new_bytes = 0
        self.live = False


class Growth:
    """Adds up the bytes that are written below some directories, at a bounded cost a look.

    Only what is written after the first look counts, so that a large cache that is still being
    discovered does not seem to grow. A look visits directories, not files: one whose modification
    time is the known one costs one call. First come those that are being written to and those near
    the top, where new ones appear; the others take turns. So a tree of any size costs the same, and
    new files in a corner of a huge one may be seen late. Links are not followed.

    Args:
        roots: Directories, which need not exist yet.
        limit: How many entries a look may visit.
        since_ns: The wall-clock time from which writing counts; now when None.
    """

    def __init__(
        self, roots: Iterable[str], *, limit: int = _ENTRIES_PER_SAMPLE, since_ns: int | None = None
    ) -> None:
        self._limit = limit
        self._since_ns = (time.time_ns() if since_ns is None else since_ns) - _SLACK_NS
        self._roots = [_Folder(root, 0) for root in dict.fromkeys(roots)]
        self._known = {folder.path for folder in self._roots}
        self._first: deque[_Folder] = deque(self._roots)
        self._rest: deque[_Folder] = deque()
        self._total_bytes = 0
        self.found = False

    def look(self) -> int:
        """Return the bytes that were written so far; ``found`` says whether there is any directory."""
        left = self._turn(self._first, self._limit, keep=int(self._limit * (1 - _FIRST_SHARE)))
        self._turn(self._rest, left, keep=0)
        return self._total_bytes

    def _turn(self, waiting: deque[_Folder], left: int, *, keep: int) -> int:
        """Visit each once, from where the turn before ended, while more than ``keep`` is left."""
        visited: list[_Folder] = []
        while waiting and left > keep:
            folder = waiting.popleft()
            cost, there = self._visit(folder, left)
            left -= cost
            if there:
                visited.append(folder)
            else:
                self._known.discard(folder.path)
        for folder in visited:
            (self._first if folder.live or folder.depth <= _SHALLOW else self._rest).append(folder)
        return left

    def _visit(self, folder: _Folder, left: int) -> tuple[int, bool]:
        """Look at one directory and return the entries that it cost, and whether it is to be kept."""
        try:
            modified_ns = os.stat(folder.path).st_mtime_ns  # noqa: PTH116 - half of Path's cost
        except OSError:
            return 1, folder.depth == 0
        self.found = True
        if modified_ns == folder.modified_ns and not folder.live:
            return 1, True
        folder.modified_ns = modified_ns
        try:
            return 1 + self._list(folder, max(left, self._limit // 4)), True
        except OSError:
            return 1, True

    def _list(self, folder: _Folder, limit: int) -> int:
        now_ns = time.time_ns()
        newest_ns = folder.modified_ns
        new_bytes = entries = 0
        with os.scandir(folder.path) as listing:
            for entry in listing:
                entries += 1
                if entries > limit:
                    break
                if entry.is_dir(follow_symlinks=False):
                    self._add(entry.path, folder)
                elif not entry.is_symlink():
                    written_ns, size = _written(entry)
                    if written_ns >= self._since_ns:
                        new_bytes += size
                        newest_ns = max(newest_ns, written_ns)
        self._total_bytes += max(0, new_bytes - folder.new_bytes)
        folder.new_bytes = new_bytes
        folder.live = now_ns - newest_ns < _RECENT_NS
        return entries

    def _add(self, path: str, parent: _Folder) -> None:
        if path in self._known or os.path.basename(path) in _NOT_WALKED:  # noqa: PTH119 - on each entry
            return
        self._known.add(path)
        folder = _Folder(path, parent.depth + 1)
        at_work = parent.modified_ns >= self._since_ns
        (self._first if at_work or folder.depth <= _SHALLOW else self._rest).append(folder)


def _written(entry: os.DirEntry[str]) -> tuple[int, int]:
    """When a file was written last, and how much it really holds: downloads may reserve their size."""
    try:
        stat = entry.stat(follow_symlinks=False)
    except OSError:
        return 0, 0
    held_bytes = stat.st_blocks * 512  # stat(2): in units of 512, whatever the file system's block
    return stat.st_mtime_ns, min(stat.st_size, held_bytes) if held_bytes else stat.st_size


class CacheProbe:
    """Watches the server's download and compile caches for bytes that are written to them.

    Which folders they are follows from the server's own environment and arguments. A reading's
    ``total_bytes`` counts what was written since the first sample. Folders that don't exist are not
    told; they are found when they appear. Without any environment to read the probe says so and is
    finished.

    Args:
        pid: The server's main process.
        interval_s: Seconds from one look to the next.
        limit_s: Seconds that a look may take; a file server may hang.
        name: The probe's name in reports.
        environment: The server's environment; read from the process when None.

    Raises:
        ValueError: No such process exists, or ``interval_s`` is not above 0.
    """

    def __init__(
        self,
        pid: int,
        *,
        interval_s: float = _INTERVAL_S,
        limit_s: float | None = _LIMIT_S,
        name: str = "caches",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not interval_s > 0:
            raise ValueError(f"interval_s must be above 0 seconds, not {interval_s!r}")
        existing(pid, this_system())
        self.name = name
        self.interval_s = interval_s
        self.limit_s = limit_s
        self._pid = pid
        self._environment = environment
        self._runner = BlockingRunner(f"vllm_startup-{name}-{pid}")
        self._growths: dict[Kind, Growth] | None = None
        self._finished = False

    async def sample(self, now: float) -> Iterable[Reading]:
        """Look once."""
        if self._finished:
            raise StopAsyncIteration
        if self._growths is None:
            self._growths = await self._runner.run(self._start)
        if not self._growths:
            self._finished = True
            if await self._runner.run(partial(has_ended, self._pid)):
                return []
            text = f"the environment of process {self._pid} is not ours to read: its caches are not watched"
            return [ProbeNote(code="caches_unknown", text=text)]
        return await self._runner.run(partial(_look, self._growths))

    async def aclose(self) -> None:
        """Let the thread end. A look that hangs keeps nobody."""
        self._runner.close()

    def _start(self) -> dict[Kind, Growth]:
        environment = self._environment
        if environment is None:
            environment = server_environment(self._pid)
        if not environment:
            return {}
        arguments = this_system().arguments(self._pid)
        home = environment.get("HOME") or _home_of(self._pid)
        return {
            "hub": Growth(hub_folders(environment, home=home, arguments=arguments)),
            "compile": Growth(compile_folders(environment, home=home)),
        }


def _look(growths: Mapping[Kind, Growth]) -> list[Reading]:
    readings: list[Reading] = []
    for kind, growth in growths.items():
        total_bytes = growth.look()
        if growth.found:
            readings.append(CacheSize(what=kind, total_bytes=total_bytes))
    return readings


def hub_folders(environment: Mapping[str, str], *, home: str, arguments: Sequence[str] = ()) -> list[str]:
    """Return where a server with this environment puts what it downloads.

    The rules are huggingface_hub's (``constants.py``, 0.20 to 1.x), hf_xet's, and vLLM's
    ``--download-dir``.
    """
    cache = environment.get("XDG_CACHE_HOME") or f"{home}/.cache"
    hf_home = environment.get("HF_HOME") or f"{cache}/huggingface"
    hub = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE") or f"{hf_home}/hub"
    folders = [hub, environment.get("HF_XET_CACHE") or f"{hf_home}/xet", *_download_folders(arguments)]
    return [_expanded(folder, home) for folder in folders]


def compile_folders(environment: Mapping[str, str], *, home: str) -> list[str]:
    """Return where a server with this environment puts what it compiles.

    vLLM points Inductor and Triton into its own cache; the other places are where they, FlashInfer
    and DeepGEMM write when they are called outside of torch.compile, or told so.
    """
    cache = environment.get("XDG_CACHE_HOME") or f"{home}/.cache"
    vllm = environment.get("VLLM_CACHE_ROOT") or f"{cache}/vllm"
    user = environment.get("USER") or environment.get("LOGNAME") or Path(home).name
    temporary = environment.get("TMPDIR") or "/tmp"
    flashinfer = environment.get("FLASHINFER_WORKSPACE_BASE") or home
    folders = [
        vllm,
        environment.get("TORCHINDUCTOR_CACHE_DIR") or f"{temporary}/torchinductor_{user}",
        environment.get("TRITON_CACHE_DIR") or f"{home}/.triton/cache",
        f"{flashinfer}/.cache/flashinfer",
        environment.get("DG_JIT_CACHE_DIR") or f"{home}/.deep_gemm",
    ]
    return [_expanded(folder, home) for folder in folders]


def _download_folders(arguments: Sequence[str]) -> list[str]:
    folders: list[str] = []
    for argument, following in pairwise([*arguments, ""]):
        flag, equals, value = argument.partition("=")
        if flag.replace("_", "-") == "--download-dir":
            folders.append(value if equals else following)
    return [folder for folder in folders if folder]


def _expanded(folder: str, home: str) -> str:
    """With the server's home, not ours."""
    return home + folder[1:] if folder == "~" or folder.startswith("~/") else folder


def _home_of(pid: int) -> str:
    """The home of the user whose process it is, for services that are started without one."""
    import pwd

    try:
        return pwd.getpwuid(Path(f"/proc/{pid}").stat().st_uid).pw_dir
    except (OSError, KeyError):
        return "/"
