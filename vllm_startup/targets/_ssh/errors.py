"""What OpenSSH's client says when it cannot connect, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from vllm_startup._text import clean

_CLIENT_FAILED: Final = 255
"""ssh's own status; any other is that of what ran there."""


@attrs.frozen
class _Failure:
    """One way in which a connection fails.

    Attributes:
        literal: What the client's words hold, in OpenSSH 7.6 to 10.
        fix: What to do, for a destination.
    """

    literal: str
    fix: Callable[[str], str]


def _by_hand(destination: str) -> str:
    return f"connect once by hand (ssh {destination}) and check its key"


_FAILURES: Final = (
    _Failure(
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        lambda host: (
            "its host key is not the one that is known: somebody may listen in, or it was installed anew; if"
            f" it was, ssh-keygen -R {host.rpartition('@')[2]} and {_by_hand(host)}"
        ),
    ),
    _Failure(
        "Host key verification failed", lambda host: f"its host key is not known here: {_by_hand(host)}"
    ),
    _Failure(
        "Permission denied (",
        lambda host: (
            f"it must let this user in without a password: ssh-copy-id {host}, and ssh-add for a key"
            " with a passphrase"
        ),
    ),
    _Failure(
        "Too many authentication failures",
        lambda _: "name its key with IdentityFile in your ssh configuration",
    ),
    _Failure(
        "Could not resolve hostname",
        lambda _: "check the name; a short one needs a Host entry in your ssh configuration",
    ),
    _Failure("Connection refused", lambda _: "no ssh server listens there; check host and port"),
    _Failure("timed out", lambda _: "check that it is up, and that this network reaches it"),
    _Failure("No route to host", lambda _: "check that it is up, and that this network reaches it"),
    _Failure("Network is unreachable", lambda _: "check that this network reaches it"),
    _Failure("Bad configuration option", lambda _: "correct your ssh configuration"),
    _Failure("Bad owner or permissions", lambda _: "make the file yours alone: chmod 600"),
)

# Frames and advice around the one line that says what is wrong.
_NOISE: Final = ("@@@", "debug", "Warning: Permanently added", "** ")


def explained(destination: str, status: int | None, err: str, out: str, limit_s: float) -> str:
    """Why there is no connection, with OpenSSH's own reason and the fix.

    Args:
        destination: What ssh was given.
        status: The client's exit status; None when it was still trying.
        err: Its words.
        out: What the other side wrote.
        limit_s: How long was waited.
    """
    if status is None:
        return f"{destination} gives no shell within {limit_s:g} s; check it by hand: ssh {destination} true"
    for failure in _FAILURES:
        if failure.literal in err:
            reason, fix = _reason(err, failure.literal), failure.fix(destination)
            return f"{destination} cannot be reached: {reason}; {fix}"
    if status == _CLIENT_FAILED:
        reason = _reason(err, "") or "ssh gives no reason"
        return f"{destination} cannot be reached: {reason}; check it by hand: ssh {destination} true"
    said = _reason(out, "") or _reason(err, "") or f"nothing, and ended with status {status}"
    return (
        f"{destination} runs no POSIX shell for this user, which is needed there (no forced command,"
        f" git-shell or Windows): it said {said!r}"
    )


def _reason(text: str, literal: str) -> str:
    """The last line that holds the literal, without frames."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if literal in line and not line.startswith(_NOISE)]
    return clean(told[-1].strip("@ "), 200) if told else clean(literal)
