"""Options that `wait` and `run` share, and the watch that they ask for."""

from __future__ import annotations

import argparse
import os
import sys
from os.path import exists, isfile  # which a name that is too long does not let raise
from pathlib import Path
from typing import IO, Any, Final

from vllm_startup._cli import _parser
from vllm_startup._cli._status import UsageError
from vllm_startup._readings import TIERS
from vllm_startup._startup import Startup
from vllm_startup._timeouts import Timeouts

STALL_S: Final = 600.0
"""The default of `Timeouts`. The options hold this very object where nothing was given by hand."""

_WRITTEN: Final = ("record", "events", "report")
_READ: Final = ("log", "baseline", "api_key_file", "ca")

PHASES: Final = f"""\
phases: {", ".join(_parser.LIMITED[:4])},
  {", ".join(_parser.LIMITED[4:])}
"""


def add_readiness(group: argparse._ArgumentGroup) -> None:
    """Add what ready means."""
    group.add_argument(
        "--until", choices=TIERS, default="health", metavar="TIER",
        help="engine: the engines are initialised; health: /health answers 200 (the default); model:"
        " /v1/models lists it; inference: one smallest request succeeds",
    )  # fmt: skip
    group.add_argument("--model", metavar="M", help="the model to be served, for --until model or inference")
    group.add_argument(
        "--stable-for",
        type=_parser.seconds,
        default=0.0,
        metavar="S",
        help="hold for S seconds without a miss",
    )
    group.add_argument("--api-key-file", metavar="F", help="a file that holds the key for /v1")
    verify = group.add_mutually_exclusive_group()
    verify.add_argument(
        "--verify", action=argparse.BooleanOptionalAction, default=None,
        help="check the server's certificate; by default not on this machine, else yes",
    )  # fmt: skip
    verify.add_argument("--ca", metavar="FILE", help="check it against these CA certificates")


def add_limits(group: argparse._ArgumentGroup) -> None:
    """Add how long it may take."""
    group.add_argument(
        "--timeout", type=_parser.named_limit, action="append", metavar="[PHASE=]S",
        help="the most seconds in all, or in one phase; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--stall", type=_parser.limit, default=STALL_S, metavar="S",
        help="the most seconds without any progress (600); 0 or none for no limit",
    )  # fmt: skip
    group.add_argument(
        "--exit-grace", type=_parser.seconds, default=10.0, metavar="S",
        help="how long a failed start's processes may take to be gone (10)",
    )  # fmt: skip


def add_files(group: argparse._ArgumentGroup) -> None:
    """Add what is written and read beside the watch."""
    group.add_argument(
        "--record", metavar="FILE", help="write all that is seen, secrets removed, for vllm-startup replay"
    )
    group.add_argument(
        "--baseline", metavar="REPORT", help="the report of an earlier start: what differs is a warning"
    )


def gpus_option(group: argparse._ArgumentGroup, *, default: str) -> None:
    """Add which GPUs are looked at."""
    group.add_argument(
        "--gpus",
        type=_parser.gpus,
        metavar="LIST",
        help=f"the GPUs that it may use, as nvidia-smi numbers or UUIDs (0,1); by default{default}",
    )


def timeouts(options: argparse.Namespace) -> Timeouts:
    """The limits."""
    return _parser.timeouts(options.timeout, options.stall)


def watch(options: argparse.Namespace, **further: Any) -> Startup:
    """Make the watch that the options ask for.

    Raises:
        UsageError: They make no sense.
    """
    from vllm_startup import watch

    check(options)
    asked: dict[str, Any] = {
        "gpus": options.gpus,
        "until": options.until,
        "stable_for": options.stable_for,
        "model": options.model,
        "api_key": _api_key(options.api_key_file),
        "verify": options.verify if options.ca is None else options.ca,
        "timeouts": timeouts(options),
        "exit_grace": options.exit_grace,
        "record": options.record,
        "baseline": options.baseline,
    }
    try:
        return watch(**{**asked, **further})
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        option = "--record" if error.filename == options.record else "--baseline"
        raise UsageError(f"{option} {error.filename!r}: {error.strerror or error}") from error


def refuse_nonsense(options: argparse.Namespace) -> None:
    """Make a watch that is not used, before anything is started."""
    watch(options, url=options.url or "http://127.0.0.1", log=None, record=None)


def check(options: argparse.Namespace) -> None:
    """Refuse what makes sense to the parts and none together."""
    if options.model is not None and options.until not in ("model", "inference"):
        raise UsageError("--model is looked at with --until model or --until inference; add one of them")
    _keep_apart(options)
    if options.ca is not None and not exists(options.ca):  # noqa: PTH110 - see the import
        raise UsageError(f"--ca {options.ca!r} does not exist; give a file or a folder of CA certificates")


def _keep_apart(options: argparse.Namespace) -> None:
    """Refuse to write into a file that is read, or twice into one."""
    named: dict[str, str] = {}
    for option in (*_WRITTEN, *_READ):
        path = getattr(options, option, None)
        if path in (None, "-"):
            continue
        where = os.path.realpath(path)
        if where in named and (isfile(path) or not exists(path)):  # noqa: PTH110, PTH113 - see the import
            other = named[where]
            raise UsageError(f"--{other} and --{option.replace('_', '-')} are one file, {path!r}; give two")
        if option in _WRITTEN:
            named[where] = option


def log_source(log: str | None) -> str | IO[bytes] | None:
    """A file, or standard input."""
    if log != "-":
        return log
    if sys.stdin is None:
        raise UsageError("--log is -, but standard input is closed")
    return sys.stdin.buffer


def write_privately(path: str | os.PathLike[str], text: str) -> None:
    """Write a file at once and whole, readable for this user alone."""
    import tempfile

    place = Path(path)
    fd, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")  # of mode 0600
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _api_key(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"--api-key-file {path!r} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise UsageError(f"--api-key-file {path!r} holds no text") from None
    if not (key and key.isascii() and key.isprintable()) or " " in key:
        raise UsageError(f"--api-key-file {path!r} must hold one key and nothing else")
    return key
