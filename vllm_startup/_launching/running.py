"""A command that is run in our place: it has our streams, our signals and our exit status.

It gets a session and a process group of its own, as with `launch`, and a guardian. So every signal that
is for us reaches the command once, through us: a Ctrl-C, a ``kill``, ``timeout`` and whatever else signals
our whole group. In our own group it could not be told which of them it has had already. And the tree
can be ended as a whole, by the guardian too when we are killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from vllm_startup._launching.end_tree import KILL_AFTER_S
from vllm_startup._launching.forwarding import Forwarder, Tap, Write, write_all
from vllm_startup._launching.guarded import Guarded, LeftProcess, ServerProcess

if TYPE_CHECKING:
    from vllm_startup._launching.terminal import Terminal

_FORWARDED: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_TO_GROUP: Final = (signal.SIGINT, signal.SIGQUIT)
"""What a terminal sends to its whole foreground group: a script and the server that it runs."""

_SAME_S: Final = 0.1
"""Signals of a kind that come within this time are one: ``timeout`` signals its child, and then its group."""

_CONTINUED_S: Final = 0.05
_HELD_S: Final = 2.0  # how long what could not be ended may hold the output


class Running:
    """A command in our place, as an async context manager. On the way out its whole tree is ended.

    Args:
        command: The program and its arguments.
        environ: Its environment.
        tty: Give it a terminal wherever we have one.
        write: How its output is written to ours.
        suspending: Called before we are stopped (Ctrl-Z).
        resumed: Called when we go on.
        asked_to_stop: Called when a signal that asks for the command's end has been passed on.
        kill_after: Seconds from SIGTERM to SIGKILL when the tree is ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        tty: bool = False,
        write: Write = write_all,
        suspending: Callable[[], None] = lambda: None,
        resumed: Callable[[], None] = lambda: None,
        asked_to_stop: Callable[[], None] = lambda: None,
        kill_after: float = KILL_AFTER_S,
    ) -> None:
        self.left: list[LeftProcess] = []
        self._command = tuple(command)
        self._environ = dict(environ)
        self._tty = tty
        self._write = write
        self._suspending = suspending
        self._resumed = resumed
        self._asked_to_stop = asked_to_stop
        self._kill_after = kill_after
        self._guarded = Guarded()
        self._tap = Tap(self._guarded.note_store)
        self._terminal: Terminal | None = None
        self._forwarders: list[Forwarder] = []
        self._forwarding = 0
        self._drained = asyncio.Event()
        self._hurried = asyncio.Event()
        self._early: list[int] = []
        self._forwarded_at: dict[int, float] = {}
        self._handled: list[int] = []
        self._stopped = False
        self._ended = False

    @property
    def process(self) -> ServerProcess:
        """The command's main process."""
        assert self._guarded.process is not None, "enter the block first"
        return self._guarded.process

    @property
    def started(self) -> bool:
        """Whether the command has been started."""
        return self._guarded.process is not None

    async def __aenter__(self) -> Self:
        """Start the command.

        Raises:
            OSError: It cannot be started.
        """
        self._heed_signals()
        try:
            await self._start()
        except BaseException:
            await self._leave()
            raise
        for number in self._early:
            self.process.send_signal(number)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what is left of the command's tree."""
        await self._leave()

    def log(self) -> AsyncIterator[bytes]:
        """A copy of the output, from the oldest byte that is kept."""
        return self._tap.follow()

    def close_log(self) -> None:
        """Copy nothing from now on, and keep nothing."""
        for forwarder in self._forwarders:
            forwarder.tap = None
        self._tap.close()

    async def end(self) -> list[LeftProcess]:
        """End the whole tree, and let its last output pass.

        Returns:
            What could not be ended.
        """
        if not self._ended:
            self._ended = True
            self.left = await self._guarded.end()
        await self._drain(_HELD_S if self.left else None)
        return self.left

    async def _drain(self, limit_s: float | None) -> None:
        """Wait until all output has been forwarded; a signal ends that: the reader may not read."""
        if not self._forwarding:
            return
        waits = [asyncio.ensure_future(event.wait()) for event in (self._drained, self._hurried)]
        try:
            await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _leave(self) -> None:
        try:
            await self.end()
        finally:
            self._ignore_signals()
            if self._terminal is not None:
                self._terminal.close()
            self._tap.close()
            self._guarded.remove_files()

    # --- streams --------------------------------------------------------------------------

    async def _start(self) -> None:
        theirs: list[int] = []
        try:
            stdin, output, errors = self._streams(theirs)
            await self._guarded.start(
                self._command,
                environ=self._environ,
                cwd=None,
                output=output,
                errors=errors,
                stdin=stdin,
                kill_after=self._kill_after,
            )
        finally:
            for fd in theirs:
                os.close(fd)
        if self._terminal is not None:
            self._terminal.attach()

    def _streams(self, theirs: list[int]) -> tuple[int, int, int]:
        """The command's standard streams; what is only for it is added to ``theirs``."""
        tty = [self._tty and os.isatty(fd) for fd in (0, 1, 2)]
        slave = self._open_terminal(tty, theirs) if any(tty) else -1
        stdin = slave if tty[0] else 0
        output = slave if tty[1] else self._pipe(1, theirs)
        if tty[2]:
            return stdin, output, slave
        # One pipe for both keeps the order between them where both go to one place.
        together = not tty[1] and os.path.sameopenfile(1, 2)
        return stdin, output, output if together else self._pipe(2, theirs)

    def _open_terminal(self, tty: list[bool], theirs: list[int]) -> int:
        from vllm_startup._launching.terminal import Terminal

        self._terminal = Terminal(tty.index(True), 0 if tty[0] else None)
        theirs.append(self._terminal.slave)
        self._copy(os.dup(self._terminal.master), next(fd for fd in (1, 2, 0) if tty[fd]))
        return self._terminal.slave

    def _pipe(self, target: int, theirs: list[int]) -> int:
        reading, writing = os.pipe()
        theirs.append(writing)
        self._copy(reading, target)
        return writing

    def _copy(self, source: int, target: int) -> None:
        loop = asyncio.get_running_loop()

        def ended() -> None:
            try:
                loop.call_soon_threadsafe(self._one_ended)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

        self._forwarders.append(Forwarder(source, target, write=self._write, tap=self._tap, ended=ended))
        self._forwarding += 1  # its end is told to the loop, which has not run since

    def _one_ended(self) -> None:
        self._forwarding -= 1
        if not self._forwarding:
            self._tap.end()
            self._drained.set()

    # --- signals --------------------------------------------------------------------------

    def _heed_signals(self) -> None:
        handlers: dict[int, Callable[[], None]] = {
            number: partial(self._forward, number) for number in _FORWARDED
        }
        handlers |= {signal.SIGTSTP: self._suspend, signal.SIGCONT: self._go_on}
        if self._tty:
            handlers[signal.SIGWINCH] = self._resize
        if os.getpid() == 1:
            handlers[signal.SIGCHLD] = _reap
        loop = asyncio.get_running_loop()
        for number, handler in handlers.items():
            if signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup; a shell's background job: the command ignores it too
            try:
                loop.add_signal_handler(number, handler)
            except (ValueError, RuntimeError):
                return  # not the main thread: whoever has it gets the signals
            self._handled.append(number)

    def _ignore_signals(self) -> None:
        for number in self._handled:
            asyncio.get_running_loop().remove_signal_handler(number)
        self._handled.clear()

    def _forward(self, number: int) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._forwarded_at.get(number, -_SAME_S) < _SAME_S:
            return
        self._forwarded_at[number] = now
        if number in _STOPPING:
            self._asked_to_stop()
        process = self._guarded.process
        if process is None:
            self._early.append(number)
        elif process.returncode is not None:
            self._hurried.set()
        elif number in _TO_GROUP and _of_terminal():
            self._signal_group(number)
        else:
            process.send_signal(number)

    def _signal_group(self, number: int) -> None:
        process = self._guarded.process
        if process is None or process.returncode is not None:
            return
        try:
            os.killpg(process.pid, number)
        except OSError:
            pass  # it has ended

    def _suspend(self) -> None:
        """Stop the command and then us, as the terminal would; go on when we are let go on."""
        self._suspending()
        if self._terminal is not None:
            self._terminal.detach()
        # Not SIGTSTP: the kernel drops it where no shell of the same session is the group's parent.
        self._signal_group(signal.SIGSTOP)
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGTSTP)
        self._stopped = True
        os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        # SIGCONT is what lets us go on; it does not come where the kernel did not stop us, as above.
        loop.call_later(_CONTINUED_S, lambda: self._go_on() if self._stopped else None)

    def _go_on(self) -> None:
        self._stopped = False
        self._signal_group(signal.SIGCONT)
        if self._terminal is not None:
            self._terminal.attach()
            self._resize()
        self._resumed()

    def _resize(self) -> None:
        if self._terminal is not None and self._terminal.resize():
            self._signal_group(signal.SIGWINCH)  # it is no controlling terminal, so the kernel does not


def exit_status(returncode: int) -> int:
    """A process's end as a shell tells it: 128 and more for a signal."""
    return 128 - returncode if returncode < 0 else returncode


def open_standard_streams() -> None:
    """Fill in those that were closed before we began, or the next file would be taken for one."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)


def _of_terminal() -> bool:
    """Whether we are in a terminal's foreground, so that its keys' signals come to us."""
    from vllm_startup._launching.terminal import in_foreground

    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return in_foreground(terminal)
    finally:
        os.close(terminal)


def _reap() -> None:
    """Take the status of children that lost their parent and became ours, as process 1 gets them."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
