"""Launches of a real vLLM, each in a program of its own, and what they leave behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs
from caller import Errand, Way
from real_server import free_port
from real_starts import environment_of
from traces import Traces
from trees import Tree, eventually

CALLER = Path(__file__).parents[1] / "caller.py"
LIMIT_S = 300.0  # a start takes 20 to 60 s, four times that on a busy machine
WITHIN_S = 0.2  # the middle of every phase: the shortest lasts half a second
LOOK_S = 0.3  # at the shared memory that there is
GONE_S = 12.0  # from a caller's sudden death: SIGTERM, 8 s, SIGKILL
EAGER = ("--enforce-eager",)

STAYS = """
import sys, threading, time
words = " ".join(sys.orig_argv)
if any(part in words for part in {parts!r}) and "vllm_startup" not in words:
    threading.Thread(target=time.sleep, args=(3600,), daemon=False).start()
"""
"""As ``sitecustomize.py``: a thread that keeps a process from exiting, as a hung driver or library does."""

STAYING: Mapping[str, list[str]] = {"server": [" serve "], "all": [" serve ", "multiprocessing.spawn"]}


class Launching:
    """A place in which real servers are launched on one port; nothing of it survives."""

    def __init__(self, real: Path, place: Path) -> None:
        self._real = real
        self.place = place
        self.log = place / "vllm.log"
        self.temporary = Path(tempfile.mkdtemp(prefix="vllm-"))  # a short name, for vLLM's sockets
        self.port = free_port()
        self.traces = Traces(tree=Tree(), place=place, temporary=self.temporary, port=self.port)
        self._started: list[subprocess.Popen[str]] = []
        self._over = threading.Event()
        self._observer = threading.Thread(target=self._observe, name="observer")

    def __enter__(self) -> Self:
        self._observer.start()
        return self

    def _observe(self) -> None:
        while not self._over.wait(LOOK_S):
            self.traces.note()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._observer.join()
        for pid in self.traces.processes():
            subprocess.run(["kill", "-9", str(pid)], check=False, stderr=subprocess.DEVNULL)
        for process in self._started:
            process.communicate()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def command(self, model: str = "tiny", arguments: Iterable[str] = EAGER) -> list[str]:
        server = (f"{self._real}/venv/bin/vllm", "serve", f"{self._real}/models/{model}")
        return [*server, "--port", str(self.port), *arguments]

    def environment(self, *, stays: str | None = None) -> dict[str, str]:
        """The servers' own. ``stays``: which processes do not exit when they fail."""
        found = environment_of(self._real, self.temporary) | self.traces.tree.mark
        for cache in ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR"):  # cold, and not in $TMPDIR
            found[cache] = str(self.place / cache.lower())
        if stays is not None:
            (self.place / "sitecustomize.py").write_text(STAYS.format(parts=STAYING[stays]))
            found["PYTHONPATH"] = os.pathsep.join([str(self.place), os.environ.get("PYTHONPATH", "")])
        return found

    def caller(self, way: Way, *, phase: str = "ready", stays: str | None = None, **command: Any) -> Caller:
        """A program that launches the server and leaves it in that way, in that phase."""
        errand = Errand(
            command=self.command(**command),
            environment=self.environment(stays=stays),
            place=str(self.place),
            log=str(self.log),
            way=way,
            phase=phase,
            within_s=WITHIN_S,
        )
        return Caller(self.start([sys.executable, str(CALLER), json.dumps(attrs.asdict(errand))]))

    def run(self, *options: str, stays: str | None = None, **command: Any) -> subprocess.Popen[str]:
        """``vllm-startup run`` in front of the server."""
        words = [sys.executable, "-m", "vllm_startup", "run", *options, "--", *self.command(**command)]
        return self.start(words, **self.environment(stays=stays))

    def start(self, words: list[str], **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            words,
            env={**os.environ, **self.traces.tree.mark, **environment},
            cwd=self.place,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def is_clean(self, within: float = 0.0) -> bool:
        """Whether no trace is left."""
        return eventually(lambda: not self.traces.all(), within=within)


@attrs.frozen
class Caller:
    """A program that runs an errand."""

    process: subprocess.Popen[str]

    def end(self) -> dict[str, Any]:
        """Wait for its end, for which it may wait itself; what it told since, the phases together."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        told: dict[str, Any] = {"phases": [], "status": self.process.returncode, "errors": err}
        for line in out.splitlines():
            words = json.loads(line)
            if "phase" in words:
                told["phases"].append(words["phase"])
            else:
                told |= words
        return told

    def wait_for(self, **words: Any) -> None:
        """Read what it tells until it tells that."""
        assert self.process.stdout is not None
        until = time.monotonic() + LIMIT_S
        while json.loads(self.process.stdout.readline()) != words:
            assert time.monotonic() < until
