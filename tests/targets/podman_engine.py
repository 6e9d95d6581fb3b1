"""A container engine for tests: Podman's, with storage of its own, behind a socket of its own.

Its containers hold nothing but busybox. They see the machine's files under ``/host``, so that a program of
the machine's runs in them without an image of its own: ``chroot /host PROGRAM``. They share the machine's
network, and their control groups and limits are left away, which need more rights than a test machine gives.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
IMAGE = "localhost/bare"
_BUSYBOX = "/bin/busybox"
_TOOLS = ("sh", "sleep", "echo", "cat", "env", "chroot", "true", "false", "printf", "date")

# runc refuses what the machine has no right to: it gets a specification without those parts.
_RUNTIME = """\
#!{python}
import json, os, sys
arguments = sys.argv[1:]
if "exec" in arguments:
    path = arguments[arguments.index("--process") + 1]
    with open(path) as file:
        process = json.load(file)
    process.pop("rlimits", None)
    with open(path, "w") as file:
        json.dump(process, file)
elif "create" in arguments:
    path = os.path.join(arguments[arguments.index("--bundle") + 1], "config.json")
    with open(path) as file:
        specification = json.load(file)
    specification["process"].pop("rlimits", None)
    system = specification["linux"]
    for part in ("resources", "cgroupsPath"):
        system.pop(part, None)
    system["namespaces"] = [each for each in system["namespaces"] if each["type"] != "cgroup"]
    with open(path, "w") as file:
        json.dump(specification, file)
os.execv({runc!r}, ["runc", *arguments])
"""


def what_lacks() -> str | None:
    """Why there is no engine on this machine; None where there can be one."""
    if sys.platform != "linux":
        return "containers need Linux"
    if os.getuid() != 0:
        return "the tests' container engine needs root"
    lacking = [name for name in ("podman", "runc", "conmon") if shutil.which(name) is None]
    lacking += [] if Path(_BUSYBOX).exists() else ["busybox-static"]
    return f"not installed: {', '.join(lacking)} (tests/install)" if lacking else None


class Podman:
    """The engine. Its files lie in ``folder``, whose path must be short enough for a socket's."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "engine.sock"
        self._folder = folder
        self._runtime = folder / "runtime"
        self._service: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"unix://{self.socket}"

    def install(self) -> None:
        """Make the image."""
        runc = shutil.which("runc")
        self._runtime.write_text(_RUNTIME.format(python=sys.executable, runc=runc))
        self._runtime.chmod(0o755)
        root = self._folder / "image"
        for name in ("bin", "tmp", "host", "etc"):
            (root / name).mkdir(parents=True)
        shutil.copy(_BUSYBOX, root / "bin" / "busybox")
        for tool in _TOOLS:
            (root / "bin" / tool).symlink_to("busybox")
        archive = shutil.make_archive(str(self._folder / "image"), "tar", root)
        self.run("import", "--quiet", archive, IMAGE)

    def start(self) -> None:
        """Let it answer."""
        with (self._folder / "engine.log").open("ab") as log:
            self._service = subprocess.Popen(
                [*self._command, "system", "service", "--time=0", self.url],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + 20
        while not self.socket.exists():
            if self._service.poll() is not None or time.monotonic() > until:
                raise RuntimeError((self._folder / "engine.log").read_text())
            time.sleep(0.02)

    def stop(self) -> None:
        """Let it answer no more. Its containers go on."""
        assert self._service is not None
        self._service.send_signal(signal.SIGTERM)
        self._service.wait(20)
        self.socket.unlink(missing_ok=True)

    def close(self) -> None:
        """End all that it runs, and let go of its files."""
        self.run("rm", "--all", "--force", "--time=0")
        self.stop()

    def run(self, *arguments: str) -> str:
        """Run podman to its end."""
        done = subprocess.run([*self._command, *arguments], capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise RuntimeError(f"podman {' '.join(arguments)}: {done.stderr}")
        return done.stdout.strip()

    def up(self, name: str, *command: str, options: tuple[str, ...] = (), verb: str = "run") -> str:
        """Run a container. Returns its id."""
        detach = ("--detach",) if verb == "run" else ()
        given = ("--network=host", "--volume=/:/host:ro", "--name", name, *options)
        return self.run(verb, *detach, *given, IMAGE, *command)

    def serve(
        self,
        name: str,
        folder: Path,
        scenario: str = "ready",
        *,
        speed: float,
        port: int,
        options: tuple[str, ...] = (),
    ) -> str:
        """Run a container with a simulated server, whose temporary files go to a folder of the machine's."""
        server = [sys.executable, "-m", "vllm_startup._demo", "--scenario", scenario, "--speed", f"{speed:g}"]
        server += ["vllm", "serve", "Qwen/Qwen3-8B", "--port", str(port)]
        env = ("env", f"PYTHONPATH={REPOSITORY}", f"TMPDIR={folder}")
        mount = f"--volume={folder}:/host{folder}"
        return self.up(name, "chroot", "/host", *env, *server, options=(mount, *options))

    def inspect(self, name: str) -> dict[str, object]:
        """What it knows of a container."""
        found: dict[str, object] = json.loads(self.run("inspect", name))[0]
        return found

    @property
    def _command(self) -> list[str]:
        own = {"root": "storage", "runroot": "run", "tmpdir": "tmp"}
        return [
            "podman",
            *(f"--{option}={self._folder / name}" for option, name in own.items()),
            "--storage-driver=vfs",
            "--cgroup-manager=cgroupfs",
            "--events-backend=file",
            f"--runtime={self._runtime}",
        ]
