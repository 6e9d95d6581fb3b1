"""A systemd of the tests' own, with its journald, in namespaces: what it starts is real, and nobody else's.

It runs where root may make namespaces and control groups, with Debian's ``systemd`` package. Inside,
``/run``, ``/tmp`` and ``/var/log`` are new and empty, so that nothing of the machine's own is touched: a
systemd that boots clears ``/tmp``. The folders that a test needs are seen at the same places.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
_SYSTEMD = Path("/lib/systemd/systemd")
_BOOT_LIMIT_S = 30.0
_MASKED = (
    *("systemd-tmpfiles-setup.service", "systemd-tmpfiles-clean.timer", "systemd-tmpfiles-setup-dev.service"),
    *("systemd-udevd.service", "systemd-logind.service", "systemd-timesyncd.service"),
    *("systemd-networkd.service", "systemd-resolved.service", "systemd-update-utmp.service"),
)

# Whoever kills the tests ends it, too: each process here dies with its parent.
_NAMESPACES = ("--mount", "--pid", "--fork", "--uts", "--ipc", "--cgroup", "--mount-proc")

_TARGET = """
[Unit]
Description=The tests' sandbox
Requires=systemd-journald.service
After=systemd-journald.service
AllowIsolate=yes
"""

_BOOT = """
set -e
units=$1; shift
mount --make-rprivate /
for group in {groups}; do mount --bind "$group" "${{group%/*}}"; done
mount -t tmpfs tmpfs /mnt
mkdir /mnt/host
mount --rbind / /mnt/host
for new in /run /tmp /var/log; do mount -t tmpfs -o mode=755 tmpfs $new; done
chmod 1777 /tmp
for kept in "$@"; do
  mkdir -p "$kept"
  mount --bind "/mnt/host$kept" "$kept"
done
umount -l /mnt/host
mkdir -p /run/lock /run/user/0 /var/log/journal /run/systemd/system
mount --bind "$units" /run/systemd/system
export container=sandbox
exec {systemd} --system --unit=sandbox.target --log-target=journal --show-status=0
"""


def why_not() -> str | None:
    """Why there can be no sandbox here; None where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "root on Linux is needed"
    if not _SYSTEMD.exists():
        return "the package systemd is not installed"
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "--cgroup", "true"], check=False).returncode:
        return "namespaces cannot be made here"
    if not _groups("probe", make=True):
        return "control groups cannot be made here"
    _drop_groups("probe")
    return None


class Sandbox:
    """One systemd that runs.

    Args:
        folder: A folder of its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._units = folder / "units"
        self._units.mkdir(parents=True)
        self._name = f"vllm-startup-{os.getpid()}-{folder.name}"
        self._outer: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def boot(self) -> None:
        """Start it, and wait until it answers."""
        (self._units / "sandbox.target").write_text(_TARGET)
        for unit in _MASKED:
            (self._units / unit).symlink_to("/dev/null")
        _drop_left_groups()
        script = self.folder / "boot"
        groups = _groups(self._name, make=True)
        script.write_text(_BOOT.format(systemd=_SYSTEMD, groups=" ".join(groups)))
        kept = {str(self.folder), str(REPOSITORY), sys.prefix, sys.base_prefix, *_further_paths()}
        hidden = sorted(path for path in kept if path.startswith(("/run/", "/tmp/", "/var/log/")))
        join = [f'echo $$ >"{group}/cgroup.procs"' for group in groups]
        inner = ["setpriv", "--pdeathsig=KILL", "unshare", "--kill-child", *_NAMESPACES, "bash"]
        command = "; ".join([*join, 'exec "$@"'])
        with (self.folder / "boot.log").open("wb") as log:
            self._outer = subprocess.Popen(
                ["bash", "-c", command, "-", *inner, str(script), str(self._units), *hidden],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._await_systemd()

    def command(self, *argv: str) -> list[str]:
        """The command that runs another one inside."""
        return ["nsenter", "-t", str(self._pid), "-m", "-p", "-u", "-i", "-C", "--", *argv]

    def run(self, *argv: str, check: bool = True) -> str:
        """Run a command inside, and return what it prints."""
        done = subprocess.run(
            self.command(*argv), capture_output=True, text=True, timeout=60, check=False, cwd="/"
        )
        if check and done.returncode:
            raise RuntimeError(f"{argv} failed: {done.stderr}")
        return done.stdout

    def unit(self, name: str, service: str, *, unit: str = "") -> None:
        """Write a unit file, and let systemd read it."""
        self.write(name, f"[Unit]\n{textwrap.dedent(unit)}\n[Service]\n{textwrap.dedent(service)}")

    def write(self, name: str, text: str) -> None:
        """Write a unit file as it is, and let systemd read it."""
        (self._units / name).write_text(text)
        self.run("systemctl", "daemon-reload")

    def remove(self, name: str) -> None:
        """Remove a unit file."""
        (self._units / name).unlink()
        self.run("systemctl", "daemon-reload")

    def shut_down(self) -> None:
        """End it, and everything in it."""
        outer, self._outer = self._outer, None
        if outer is None:
            return
        if self._pid:
            try:
                os.kill(self._pid, 9)  # the first process of its namespace: the others go with it
            except ProcessLookupError:
                pass
        outer.kill()
        outer.wait()
        _drop_groups(self._name)

    def _await_systemd(self) -> None:
        assert self._outer is not None
        until = time.monotonic() + _BOOT_LIMIT_S
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        while time.monotonic() < until and self._outer.poll() is None:
            found = children.read_text().split() if children.exists() else []
            if found and Path(f"/proc/{found[0]}/root/run/systemd/private").exists():
                self._pid = int(found[0])
                if "running" in self.run("systemctl", "is-system-running", check=False):
                    return
            time.sleep(0.05)
        said = (self.folder / "boot.log").read_text()
        self.shut_down()
        raise RuntimeError(f"systemd did not come up: {said}")


def _further_paths() -> list[str]:
    named = os.environ.get("VLLM_STARTUP_REAL")
    real = Path(sys.executable).resolve()
    return [*([named] if named else []), str(real.parents[1])]


def _groups(name: str, *, make: bool = False) -> list[str]:
    """A control group of this name in every hierarchy that lets one be made."""
    found = []
    for mount in _hierarchies():
        group = mount / name
        try:
            if make:
                group.mkdir(exist_ok=True)
                for setting in ("cpuset.cpus", "cpuset.mems"):  # version 1: without them nobody may join
                    if (group / setting).exists() and not (group / setting).read_text().strip():
                        (group / setting).write_text((mount / setting).read_text())
        except OSError:
            continue
        if group.is_dir():
            found.append(str(group))
    return found


def _hierarchies() -> list[Path]:
    mounts = [line.split(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [Path(left.split()[4]) for left, right in mounts if right.split()[0] in ("cgroup", "cgroup2")]


def _drop_groups(name: str) -> None:
    """Remove the groups, the innermost first; those of ended processes may need a moment."""
    for group in _groups(name):
        for _ in range(50):
            inner = sorted((str(path) for path in Path(group).rglob("*") if path.is_dir()), reverse=True)
            if all(_removed(path) for path in (*inner, group)):
                break
            time.sleep(0.05)


def _drop_left_groups() -> None:
    """Remove the groups of tests that were killed."""
    for mount in _hierarchies():
        for group in mount.glob("vllm-startup-*-*"):
            pid = group.name.split("-")[2]
            if pid.isdigit() and not Path("/proc", pid).exists():
                inner = sorted((str(path) for path in group.rglob("*") if path.is_dir()), reverse=True)
                for path in (*inner, str(group)):
                    _removed(path)


def _removed(path: str) -> bool:
    try:
        Path(path).rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def have(program: str) -> bool:
    """Whether a program is installed."""
    return shutil.which(program) is not None


def python(*argv: str) -> Sequence[str]:
    """The command that runs the client, or a simulated server, with the tests' own Python."""
    return ["env", f"PYTHONPATH={REPOSITORY}", "PYTHONUNBUFFERED=1", sys.executable, *argv]
