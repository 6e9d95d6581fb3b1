"""The server's parent: a small process that ends the whole tree when it is told to, or when we are gone.

It is run by its path (``python -I -S guardian.py FD ASKED PARENT``) and imports next to nothing: 12 MB of
memory of which 6 are its own, 45 ms until the server's program begins, and not one wake-up while it lives.

Why a process of its own. ``PR_SET_PDEATHSIG`` would kill the server when we die, but the server alone
(engines go on and keep their GPUs), and already when the *thread* that started it ends. A parent that is
a subreaper gets back every descendant that loses its parent, also one that left the session: so the
tree is always what descends from it, with no history to keep, and "no child left" is the kernel's own
proof that nothing lives. It can do the ending when its parent was killed, and the other way round
whatever hinders its parent (a cancelled task, a blocked loop, a third Ctrl-C) does not hinder it.

It reads what to start from its standard input, separated by NUL: the seconds from SIGTERM to SIGKILL, the
working directory, the number of arguments, the arguments and the environment. The answer over FD, a
socket, is ``failed ERRNO PLACE`` or ``started PID START``; then come lines:

    to the guardian          from the guardian
    signal N                 exited STATUS       the server ended; wait(2)'s status
    store PATH               gone                the whole tree has ended
    release                  left PID NAME TAB…  these could not be ended
    end
"""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Final

if __name__ == "__main__":
    # Last, so that nothing of the packages there stands before the standard library.
    sys.path.append(__file__.rsplit("/", 3)[0])

from vllm_startup._launching.end_tree import (
    GIVE_UP_S,
    PAUSE_S,
    Process,
    end_tree,
    living,
    processes,
    read_process,
)
from vllm_startup._launching.left_files import LeftFiles, places_of, stores_in_file

_QUICK_LOOKS: Final = 200
"""At our own children in a row: 15 us each, faster than a process can fork again."""

_PR_SET_CHILD_SUBREAPER: Final = 36  # linux/prctl.h
_IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_LINUX: Final = sys.platform == "linux"


class _Guardian:
    """What runs between the server's first and its last process."""

    def __init__(self, control: int, asked: int, parent: int) -> None:
        self._control = control
        self._asked = asked
        self._inherited = {number: signal.getsignal(number) for number in (*_IGNORED, signal.SIGCHLD)}
        self._woken, wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        self._parent = _open_parent(parent)
        self._kill_after = 0.0
        self._server = 0
        self._exited = False
        self._released = False
        self._files = LeftFiles(0)
        self._log = _readable(1)

    def run(self) -> None:
        """Start the server, and stay until it may be left or the tree has ended."""
        _become_subreaper()
        arguments, environment, directory = self._request()
        try:
            self._server = _start(arguments, environment, directory, self._inherited)
        except _StartError as error:
            self._say(f"failed {error.number} {error.place}")
            return
        _silence(0, 1, 2)
        os.chdir("/")  # no directory is held
        process = read_process(self._server)
        self._say(f"started {self._server} {process.start if process else 0}")
        self._watch()

    def _request(self) -> tuple[list[bytes], dict[bytes, bytes], bytes]:
        data = b""
        while part := os.read(self._asked, 1 << 20):
            data += part
        os.close(self._asked)
        kill_after, directory, count, *rest = data.split(b"\0")
        self._kill_after = float(kill_after)
        arguments, entries = rest[: int(count)], rest[int(count) :]
        environment = dict(entry.split(b"=", 1) for entry in entries)
        self._files = LeftFiles(time.time(), places_of(environment))
        return arguments, environment, directory

    def _watch(self) -> None:
        poller = select.poll()
        for fd in (self._control, self._woken, *self._parent):
            poller.register(fd, select.POLLIN)
        text = b""
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self._woken in ready:
                self._reap_others()
            if self._control not in ready and not ready.intersection(self._parent):
                continue
            data = self._hear()
            text += data or b""
            *lines, text = text.split(b"\n")
            for line in lines:
                if self._obey(line):
                    return
            if data == b"" or ready.intersection(self._parent):
                if not self._released:
                    self._end(self._kill_after)
                return

    def _hear(self) -> bytes | None:
        """What was said; None when nothing was, empty when nobody is left to say anything."""
        if not select.select([self._control], [], [], 0)[0]:
            return None
        try:
            return os.read(self._control, 4096)
        except OSError:
            return b""

    def _obey(self, line: bytes) -> bool:
        """Do what was asked; return whether that was the last thing to do."""
        word, _, value = line.partition(b" ")
        if word == b"release":
            self._released = True
        elif word == b"store":
            self._files.note_store(value)
        elif word == b"signal":
            try:
                os.kill(self._server, int(value))  # ours and not reaped: its pid is nobody else's
            except OSError:
                pass
        elif word == b"end":
            self._end(self._kill_after)
            return True
        return False

    def _end(self, kill_after: float) -> None:
        me = os.getpid()

        def finished(_: list[Process]) -> bool:
            if self._reap():
                return False
            if self._log is not None:
                for path in stores_in_file(*self._log):
                    self._files.note_store(path)
            return True

        if not _LINUX:
            left = self._end_group(kill_after)
        else:
            left = end_tree(
                lambda: [
                    process for process in living(lambda process: process.pid == me) if process.pid != me
                ],
                kill_after=kill_after,
                finished=finished,
                files=self._files,
                rest=self._rest,
                kill_quickly=self._kill_children,
            )
        if left:
            self._say("left " + "\t".join(f"{process.pid} {_plain(process.name)}" for process in left))
        else:
            self._say("gone")

    def _end_group(self, kill_after: float) -> list[Process]:
        """Where there is no /proc and no subreaper: those of the server's own group."""
        until = time.monotonic() + kill_after
        number: int = signal.SIGTERM
        while True:
            self._reap()
            try:
                os.killpg(self._server, number)
            except OSError:
                return []
            if time.monotonic() > until:
                if number == signal.SIGKILL:
                    return [Process(self._server, 0, 0, 0, False, "process group")]
                number, until = signal.SIGKILL, time.monotonic() + GIVE_UP_S
            elif number == signal.SIGTERM:
                number = 0
            self._rest(PAUSE_S)

    def _rest(self, seconds: float) -> None:
        select.select([self._woken], [], [], seconds)

    def _reap_others(self) -> None:
        """Tell that the server has ended, and take the status of every child but the server.

        Its pid stays its own until the whole tree ends: whoever looks at it or sends it a signal
        later on meets no other process.
        """
        self._hush()
        if not self._exited:
            found = os.waitid(os.P_PID, self._server, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                self._tell_exit(found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status)
        me = os.getpid()
        for process in processes().values():
            if process.zombie and process.parent == me and process.pid != self._server:
                os.waitpid(process.pid, os.WNOHANG)

    def _reap(self) -> bool:
        """Take the status of whatever has ended; return whether any child is left."""
        self._hush()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._server:
                self._tell_exit(status)

    def _tell_exit(self, status: int) -> None:
        if not self._exited:
            self._exited = True
            self._say(f"exited {status}")

    def _hush(self) -> None:
        try:
            while os.read(self._woken, 4096):
                pass
        except BlockingIOError:
            pass

    def _kill_children(self) -> None:
        """Kill our own children again and again, faster than a process can fork and end."""
        for _ in range(_QUICK_LOOKS):
            if not self._reap():
                return
            try:
                with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:  # noqa: PTH123 - see above
                    pids = file.read().split()
            except OSError:
                return  # a kernel without CONFIG_PROC_CHILDREN
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)  # not reaped yet: its pid is nobody else's

    def _say(self, text: str) -> None:
        data = text.encode("ascii", "replace") + b"\n"
        try:
            while data:
                data = data[os.write(self._control, data) :]
        except OSError:
            pass  # nobody is left to hear it


class _StartError(Exception):
    def __init__(self, number: int, place: str) -> None:
        super().__init__(number, place)
        self.number = number
        self.place = place


def _start(
    arguments: list[bytes],
    environment: Mapping[bytes, bytes],
    directory: bytes,
    inherited: Mapping[signal.Signals, object],
) -> int:
    """Start the server in a session and a process group of its own."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        place = "session"
        try:
            os.setsid()
            _restore_signals(inherited)
            if directory:
                place = "cwd"
                os.chdir(directory)
            place = "command"
            os.execvpe(arguments[0], arguments, environment)
        except OSError as error:
            os.write(writing, f"{error.errno or errno.EINVAL} {place}".encode())
        finally:
            os._exit(127)
    os.close(writing)
    said = b""
    while part := os.read(reading, 256):
        said += part
    os.close(reading)
    if said:
        os.waitpid(pid, 0)
        number, _, where = said.decode().partition(" ")
        raise _StartError(int(number), where)
    return pid


def _restore_signals(inherited: Mapping[signal.Signals, object]) -> None:
    """Give the server the dispositions that we were given, and none of Python's own."""
    signal.set_wakeup_fd(-1)
    for number, handler in inherited.items():
        signal.signal(number, signal.SIG_IGN if handler is signal.SIG_IGN else signal.SIG_DFL)
    for name in ("SIGPIPE", "SIGXFZ", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)


def _silence(*numbers: int) -> None:
    """Put ``/dev/null`` in a stream's place: the end of the server's output is to be the end of the pipe."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in numbers:
        os.dup2(null, number)
    os.close(null)


def _readable(fd: int) -> tuple[int, int] | None:
    """A descriptor to read a log with, and its end by now; None for what is no file."""
    try:
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY), found.st_size
    except OSError:
        pass  # not ours to read, or no /proc
    return None


def _become_subreaper() -> None:
    if _LINUX:
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _open_parent(parent: int) -> list[int]:
    """What becomes readable when our parent ends: a fork of it may hold its end of the socket."""
    try:
        pidfd = os.pidfd_open(parent)
    except (OSError, AttributeError):
        return []
    if os.getppid() != parent:
        os._exit(0)  # it is gone already
    return [pidfd]


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def main(arguments: Iterable[str]) -> None:
    """Run the guardian."""
    control, asked, parent = map(int, arguments)
    os.set_inheritable(control, False)
    _Guardian(control, asked, parent).run()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
