"""Why a server cannot listen as it was told to: its host, its unix socket, its TLS files."""

from __future__ import annotations

from vllm_startup.causes._arguments import FileMissing, InvalidArguments, file_missing
from vllm_startup.causes._base import Cause
from vllm_startup.causes._rules import CauseRule, Found


def _no_such_host(found: Found) -> Cause:
    return InvalidArguments(
        message=f"the name in --host stands for no address of this machine: {found.said}",
        hint="name an address of this machine, or 0.0.0.0 for all",
        argument="--host",
        retryable=None,
    )


def _no_folder(_: Found) -> Cause:
    return FileMissing(
        message="the folder of the unix socket (--uds) does not exist",
        hint="make the folder before the server starts",
        retryable=False,
    )


def _no_key(found: Found) -> Cause:
    if (path := found.word("path")) is not None:
        return file_missing(path)
    return FileMissing(
        message="the TLS key or certificate that --ssl-keyfile and --ssl-certfile name does not exist",
        hint="check both paths, as the server's process sees them",
        retryable=False,
    )


def _bad_key(found: Found) -> Cause:
    return InvalidArguments(
        message=f"the TLS key and certificate cannot be used: {found.said}",
        hint="check that --ssl-keyfile and --ssl-certfile are in PEM form, and belong together",
        argument="--ssl-certfile",
        confidence="likely",
        retryable=False,
    )


RULES: tuple[CauseRule, ...] = (
    CauseRule(
        literal="[Errno -",
        exceptions=("gaierror",),
        frame="create_server_socket",
        build=_no_such_host,
        versions="0.8 to 0.33, glibc",
    ),
    CauseRule(
        literal="No such file or directory",
        exceptions=("FileNotFoundError",),
        frame="create_server_unix_socket",
        build=_no_folder,
        versions="0.10 to 0.33",
    ),
    CauseRule(
        literal="No such file or directory",
        exceptions=("FileNotFoundError",),
        frame="create_ssl_context",
        pattern=r"No such file or directory(?:: b?'(?P<path>[^']{1,400})')?",
        build=_no_key,
        versions="uvicorn 0.1x to 0.3x",
    ),
    CauseRule(
        literal="SSLError: ",
        exceptions=("SSLError",),
        frame="create_ssl_context",
        build=_bad_key,
        versions="uvicorn 0.1x to 0.3x, OpenSSL 1.1 to 3",
    ),
)
