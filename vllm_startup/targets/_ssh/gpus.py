"""GPU memory on another machine, by ``nvidia-smi`` there."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from vllm_startup._blocking import BlockingRunner
from vllm_startup._readings import GpuMemory, GpuSample, ProbeNote, Reading
from vllm_startup._text import clean
from vllm_startup.probes._gpu import tree_bytes
from vllm_startup.probes._gpu_devices import (
    ORDER,
    VISIBLE,
    Device,
    GpuName,
    Selection,
    Target,
    check_gpus,
    choose,
)
from vllm_startup.targets._ssh.connection import Connection
from vllm_startup.targets._ssh.shell import Shell

# Of the server's environment nothing but the two harmless words that choose its GPUs leaves its machine.
_SCRIPT: Final = (
    (
        r"""
    while read -r n p; do
        nvidia-smi --query-gpu=index,uuid,name,memory.used,memory.total --format=csv,noheader,nounits 2>&1;
        echo "=$?";
        nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv,noheader,nounits;
        echo "=";
        [ -z "$p" ] || tr "\000" "\n" <"/proc/$p/environ" | while IFS= read -r l; do
            case $l in VISIBLE=*|ORDER=*) echo "$l";; esac;
        done;
        printf "\n#%s\n" "$n";
    done 2>/dev/null
"""
    )
    .replace("VISIBLE", VISIBLE)
    .replace("ORDER", ORDER)
)
_NOT_FOUND: Final = 127
_NO_GPUS: Final = ("No devices were found", "No devices found")
_MIB: Final = 1 << 20

_INTERVAL_S, _SLOWEST_S = 1.0, 5.0
_SHARE: Final = 0.2  # of the time that nvidia-smi may run: without persistence mode it takes seconds
_ANSWER_S: Final = 10.0
_LIMIT_S: Final = 12.0


class NvidiaSmiError(RuntimeError):
    """``nvidia-smi`` failed. It may work again later."""


class FarGpuProbe:
    """Reads the memory in use on every GPU there that the server may use.

    Where there is no ``nvidia-smi``, or no GPU, the probe says so once and ends.

    Args:
        connection: How the machine is reached.
        gpus: ``nvidia-smi``'s indices or UUIDs; None: what the server's own environment leaves it.
        pid: Returns the server's main process.
        tree_pids: Returns the server's processes.

    Raises:
        TypeError: ``gpus`` is no list of int and str.
        ValueError: ``gpus`` holds what is no UUID.
    """

    name = "gpu"
    limit_s: float | None = _LIMIT_S

    def __init__(
        self,
        connection: Connection,
        *,
        gpus: Iterable[GpuName] | None = None,
        pid: Callable[[], int | None],
        tree_pids: Callable[[], Collection[int]],
    ) -> None:
        self._where = connection.destination
        self._names = None if gpus is None else check_gpus(gpus)
        self._pid = pid
        self._tree_pids = tree_pids
        self._shell = Shell(connection, _SCRIPT)
        self._runner = BlockingRunner("vllm_startup-far-gpus")
        self._interval_s = _INTERVAL_S
        self._selection: Selection | None = None
        self._targets: tuple[Target, ...] = ()
        self._said: set[ProbeNote] = set()
        self._finished = False

    @property
    def interval_s(self) -> float:
        """1 s, and up to 5 where ``nvidia-smi`` is slow."""
        return self._interval_s

    async def sample(self, now: float) -> Iterable[Reading]:
        """Ask once.

        Raises:
            ConnectionLostError: There is no connection, or nothing comes over it.
            TimeoutError: ``nvidia-smi`` hangs.
            NvidiaSmiError: It failed.
        """
        if self._finished:
            raise StopAsyncIteration
        return await self._runner.run(self._look)

    async def aclose(self) -> None:
        """End the shell there."""
        self._runner.close()
        self._shell.close()

    # --- in the thread ------------------------------------------------------------------------

    def _look(self) -> list[Reading]:
        began = time.monotonic()
        pid = self._pid() if self._names is None else None
        try:
            text = self._shell.ask("" if pid is None else str(pid), limit_s=_ANSWER_S).decode(
                "utf-8", "replace"
            )
        except TimeoutError:
            raise TimeoutError(f"nvidia-smi on {self._where} hangs") from None
        self._interval_s = min(max(_INTERVAL_S, (time.monotonic() - began) / _SHARE), _SLOWEST_S)
        told, _, rest = text.partition("\n=")
        status, _, rest = rest.partition("\n")
        apps, _, environ = rest.partition("=\n")
        if text.startswith("="):  # it said nothing at all
            told, status = "", text[1:].partition("\n")[0]
        code = int(status or 0)
        if code == _NOT_FOUND or any(words in told for words in _NO_GPUS):
            return self._nothing(code)
        if code:
            raise NvidiaSmiError(f"nvidia-smi failed on {self._where}: {clean(told, 200)}")
        return self._read(_rows(told, 5), _rows(apps, 3), dict(_assignments(environ)))

    def _nothing(self, code: int) -> list[Reading]:
        self._finished = True
        why = "there is no nvidia-smi" if code == _NOT_FOUND else "nvidia-smi finds no GPU"
        text = f"{why} on {self._where}, so GPU memory is not watched"
        return [ProbeNote(code="nvml_unavailable", text=text)]

    def _read(
        self, rows: Sequence[Sequence[str]], apps: Sequence[Sequence[str]], environ: Mapping[str, str]
    ) -> list[Reading]:
        notes = list(self._choose([Device(index=int(r[0]), uuid=r[1], model=r[2]) for r in rows], environ))
        tree = self._tree_pids()
        owners = _owners(apps)
        ours = any(not known.keys().isdisjoint(tree) for known in owners.values())
        samples: list[GpuSample] = []
        told = {row[1]: row for row in rows}
        for target in self._targets:
            row = told.get(target.uuid)
            used, total = (_mib(row[3]), _mib(row[4])) if row else (None, None)
            if used is None or not total:
                notes += self._once("gpu_memory_unsupported", _dropped(target, row))
                continue
            share = tree_bytes(owners.get(target.uuid, {}), tree if ours else ())
            samples.append(
                GpuSample(
                    index=target.index, uuid=target.uuid, used_bytes=used, total_bytes=total, tree_bytes=share
                )
            )
        return [*notes, *([GpuMemory(gpus=tuple(samples))] if samples else [])]

    def _choose(self, devices: Sequence[Device], environ: Mapping[str, str]) -> list[ProbeNote]:
        """Choose the GPUs, at first and whenever the server's environment says something new."""
        selection = Selection.of(environ) if environ else self._selection or Selection()
        if selection == self._selection:
            return []
        self._selection = selection
        choice = choose(devices, self._names, selection)
        self._targets = choice.targets
        return [note for each in choice.notes for note in self._once(each.code, each.text)]

    def _once(self, code: str, text: str) -> list[ProbeNote]:
        note = ProbeNote(code=code, text=text)
        if note in self._said:
            return []
        self._said.add(note)
        return [note]


def _dropped(target: Target, row: Sequence[str] | None) -> str:
    if row is None:
        return f"GPU {target.index} ({target.uuid}) has gone: nvidia-smi lists it no longer"
    return f"GPU {target.index} ({target.uuid}) does not tell its memory: {clean(row[3], 60)}"


def _rows(text: str, size: int) -> list[list[str]]:
    """The lines of a table that are whole; what else is printed is a message."""
    read = csv.reader(text.splitlines(), skipinitialspace=True)
    rows = [[cell.strip() for cell in row] for row in read]
    return [row for row in rows if len(row) == size and (size != 5 or row[0].isdigit())]


def _owners(apps: Iterable[Sequence[str]]) -> dict[str, dict[int, int | None]]:
    """What each process holds, by GPU; None where the driver does not say."""
    found: dict[str, dict[int, int | None]] = {}
    for uuid, pid, used in apps:
        if pid.isdigit():
            found.setdefault(uuid, {})[int(pid)] = _mib(used)
    return found


def _mib(text: str) -> int | None:
    """A size in bytes; None for ``[N/A]`` and the like."""
    return int(text) * _MIB if text.isdigit() else None


def _assignments(text: str) -> Iterable[tuple[str, str]]:
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            yield name, value
