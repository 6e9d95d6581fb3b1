"""Unknown: it failed, and no rule knows why."""

from __future__ import annotations

import attrs

from vllm_startup.causes._base import Cause


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Unknown(Cause):
    """It failed, and no rule knows why."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ProcessExited(Unknown):
    """A process ended, and the log does not say why.

    Attributes:
        exit_code: Its exit status.
    """

    exit_code: int | None = None


@attrs.frozen(kw_only=True, eq=False, repr=False)
class UnclassifiedError(Unknown):
    """An error that no rule knows, told as it is.

    Attributes:
        exception: Its type.
        text: What it says.
        process: Who raised it.
    """

    exception: str | None = None
    text: str | None = None
    process: str | None = None
