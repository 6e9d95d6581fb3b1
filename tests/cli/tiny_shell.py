"""A shell with job control for one command: it has the terminal, gives it away, and takes it back.

It says ``[stopped]`` when the command is stopped, lets it go on when a line comes, and ends with
``[exit N]`` or ``[signal N]``.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios


def main() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    mine = os.getpgrp()
    settings = termios.tcgetattr(0)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execvp(sys.argv[1], sys.argv[1:])
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        os.tcsetpgrp(0, mine)
        if not os.WIFSTOPPED(status):
            break
        same = termios.tcgetattr(0) == settings
        print(
            f"[stopped by {os.WSTOPSIG(status)}, terminal {'as before' if same else 'changed'}]", flush=True
        )
        input()
        os.tcsetpgrp(0, pid)
        os.killpg(pid, signal.SIGCONT)
    same = termios.tcgetattr(0) == settings
    code = os.waitstatus_to_exitcode(status)
    print(f"[exit {code}, terminal {'as before' if same else 'changed'}]", flush=True)


main()
