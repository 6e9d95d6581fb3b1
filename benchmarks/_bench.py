"""What the benchmarks share: arguments, the form of a result, the stand-in server, the naive poll."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import random
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parent
FAKE = HERE / "_fake.py"
PACKAGES = ("vllm-startup", "attrs", "transitions", "httpx", "psutil", "tenacity")

Json = dict[str, Any]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with what every benchmark takes."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, default=1, help="of everything drawn at random")
    made.add_argument("--quick", action="store_true", help="a few seconds, to see that it works: no figures")
    return made


def emit(question: str, options: argparse.Namespace, budget: Json, results: Json, within: bool) -> None:
    """Print the one object that a benchmark prints."""
    result = {
        "question": question,
        "arguments": {name: _plain(value) for name, value in vars(options).items()},
        "budget": budget,
        "results": results,
        "within_budget": within,
        "machine": machine(),
    }
    print(json.dumps(result, indent=2))


def machine() -> Json:
    """Where, when and with what; a load near the number of CPUs says that others were at work."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "system": platform.system(),
        "kernel": platform.release(),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES if _installed(name)},
    }


def latencies(seconds: Sequence[float]) -> Json:
    """The figures of some delays, in milliseconds."""
    ms = sorted(1000 * value for value in seconds)
    return {
        "n": len(ms),
        "median_ms": round(statistics.median(ms), 2),
        "p95_ms": round(percentile(ms, 95), 2),
        "p99_ms": round(percentile(ms, 99), 2),
        "max_ms": round(ms[-1], 2),
    }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: one of the values, never one between two."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


# --- the stand-in server ------------------------------------------------------------------


class Fake:
    """A process of ``_fake.py``. Its whole tree is gone on the way out.

    Args:
        log: Where its output goes: a file, or None for a pipe that the caller reads (``stdout``).
        arguments: For ``_fake.py``.
    """

    def __init__(self, *arguments: str, log: Path | None) -> None:
        self._marks, writing = os.pipe()
        self._buffer = b""
        command = [sys.executable, "-S", "-E", str(FAKE), *arguments, "--marks", str(writing)]
        with contextlib.ExitStack() as stack:
            output = subprocess.PIPE if log is None else stack.enter_context(log.open("wb"))
            self.process = subprocess.Popen(
                command, stdout=output, pass_fds=[writing], start_new_session=True
            )
        os.close(writing)
        self.pid = self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self._marks)

    def marks(self) -> Iterator[tuple[str, str]]:
        """What it has told, as (name, value), waiting for more until it ends."""
        while True:
            line, newline, rest = self._buffer.partition(b"\n")
            if newline:
                self._buffer = rest
                name, _, value = line.decode().partition(" ")
                yield name, value
                continue
            data = os.read(self._marks, 65_536)
            if not data:
                return
            self._buffer += data

    def at(self, wanted: str) -> float:
        """When something happened."""
        return next(float(value) for name, value in self.marks() if name == wanted)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nothing has bound; among the ephemeral ones, as 8000 may be somebody's."""
    with socket.socket() as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


# --- the naive alternative ----------------------------------------------------------------


def poll_health(url: str, *, every_s: float, give_up_s: float = 60.0) -> float | None:
    """Ask ``/health`` until it answers 200: what everybody writes. None after ``give_up_s``."""
    began = time.monotonic()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() - began < give_up_s:
        try:
            with opener.open(f"{url}/health", timeout=5) as answered:
                if answered.status == 200:
                    return time.monotonic()
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(every_s)
    return None


# --- processor time -----------------------------------------------------------------------


def cpu_of(command: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    """Seconds of user and system time that a command takes from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def draws(seed: int, low: float, high: float) -> Iterator[float]:
    """Waiting times, the same ones for the same seed."""
    draw = random.Random(seed)
    while True:
        yield draw.uniform(low, high)
