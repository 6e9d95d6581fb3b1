"""The server's own environment, which may differ from ours."""

from __future__ import annotations


def server_environment(pid: int) -> dict[str, str]:
    """Return the environment that the process started with.

    It is what the process was given, not what it has set since. It holds secrets: nothing of it
    may reach a message or a recording but the values of known harmless names.

    Args:
        pid: The server's process.

    Returns:
        The environment; empty when it is not ours to read or the process is gone.
    """
    import psutil

    try:
        return psutil.Process(pid).environ()
    except (psutil.Error, OSError, ValueError, OverflowError):
        return {}


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or has only its parent to wait for."""
    import psutil

    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, OSError, ValueError, OverflowError):
        return False
