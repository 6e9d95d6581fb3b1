"""Checks of the server's environment, its user and the files that its arguments name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from vllm_startup._preflight.facts import Facts
from vllm_startup._preflight.paths import exists, hidden
from vllm_startup._preflight.result import NotCheckedError
from vllm_startup._redact import redact
from vllm_startup._text import clean
from vllm_startup.causes._arguments import InvalidArguments, file_missing, service_environment_clash
from vllm_startup.causes._base import Cause, Evidence
from vllm_startup.causes._host import path_not_readable, user_not_found

_PORT: Final = "VLLM_PORT"
_USER: Final = ("LOGNAME", "USER", "LNAME", "USERNAME")
"""What `getpass.getuser` asks before the password file; torch names its cache by it."""
_FILES: Final = ("--config", "--ssl-keyfile", "--ssl-certfile", "--ssl-ca-certs")


def service_links(facts: Facts) -> Iterator[Cause]:
    """Whether ``VLLM_PORT`` is a number: Kubernetes sets it to an address for a service named vllm."""
    value = facts.server().environ.get(_PORT)
    if value is None or re.fullmatch(r"\s*[+-]?\d+(?:_\d+)*\s*", value):
        return
    seen = (Evidence(text=clean(f"{_PORT}={redact(value)}", 200)),)
    if "://" in value:
        yield attrs.evolve(service_environment_clash(_PORT), evidence=seen)
    else:
        yield InvalidArguments(
            message=f"{_PORT} is no number",
            hint=f"unset {_PORT}, or set it to the first port that vLLM may use for itself",
            argument=_PORT,
            evidence=seen,
            retryable=False,
        )


def user(facts: Facts) -> Iterator[Cause]:
    """Whether torch can name its cache where the user has no entry in the password file."""
    import pwd

    server = facts.server()
    if server.other_user is not None:
        raise NotCheckedError(f"{server.other_user} starts it as another user")
    environ = server.environ
    if environ.get("TORCHINDUCTOR_CACHE_DIR") or any(environ.get(name) for name in _USER):
        return
    uid = os.getuid()
    try:
        pwd.getpwuid(uid)
    except KeyError:
        seen = Evidence(text=f"neither /etc/passwd has user id {uid} nor is one of {', '.join(_USER)} set")
        yield attrs.evolve(user_not_found(uid), evidence=(seen,), confidence="likely")


def files(facts: Facts) -> Iterator[Cause]:
    """Whether the files that arguments name are there."""
    asked = facts.asked()
    for option in _FILES:
        name = asked.word(option)
        if name is None or exists(path := Path(facts.server().own_cwd, name)):
            continue
        code = hidden(path)
        cause = file_missing(name) if code is None else path_not_readable(name, code)
        yield attrs.evolve(cause, evidence=(Evidence(text=f"{option} {name}"),))
