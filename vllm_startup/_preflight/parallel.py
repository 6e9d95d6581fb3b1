"""How many GPUs of this machine a server takes."""

from __future__ import annotations

import math
from typing import Final

from vllm_startup._preflight.launch import Asked
from vllm_startup._preflight.result import NotCheckedError

_MANY_NODES: Final = ("--nnodes", "--node-rank", "--master-addr", "--data-parallel-address")
_BACKENDS: Final = ("--distributed-executor-backend", "--data-parallel-backend")
_HERE: Final = frozenset({None, "mp", "uni"})
_EXTERNAL: Final = (
    *("--data-parallel-rank", "--data-parallel-external-lb", "--data-parallel-hybrid-lb"),
    *("--data-parallel-start-rank", "--data-parallel-multi-port-external-lb"),
)
_SIZES: Final = {
    "--tensor-parallel-size": "tensor parallel size",
    "--pipeline-parallel-size": "pipeline parallel size",
    "--prefill-context-parallel-size": "prefill context parallel size",
}


def gpus_needed(asked: Asked) -> tuple[int, str]:
    """The number of GPUs, and how it comes about in words.

    Raises:
        NotCheckedError: Other machines may take part, or a size is no number.
    """
    workers, copies = workers_of_an_engine(asked), _copies(asked)
    sizes = {what: _size(asked, option) for option, what in _SIZES.items()}
    sizes["data parallel size"] = copies
    words = " times ".join(f"{what} {size}" for what, size in sizes.items() if size > 1)
    return workers * copies, words or "one GPU"


def workers_of_an_engine(asked: Asked) -> int:
    """How many workers share one engine, each with a GPU of its own.

    Raises:
        NotCheckedError: As `gpus_needed`.
    """
    for option in _MANY_NODES:
        if asked.has(option):
            raise NotCheckedError(f"{option} spreads the server over machines")
    for option in _BACKENDS:
        if asked.word(option) not in _HERE:
            raise NotCheckedError(f"{option} {asked.word(option)} decides which GPUs are used")
    return math.prod(_size(asked, option) for option in _SIZES)


def _copies(asked: Asked) -> int:
    """The data parallel ranks on this machine."""
    local = asked.word("--data-parallel-size-local")
    if local is not None:
        return max(1, _size(asked, "--data-parallel-size-local"))
    if any(asked.has(option) for option in _EXTERNAL):
        return 1  # one at least
    return _size(asked, "--data-parallel-size")


def _size(asked: Asked, option: str) -> int:
    said = asked.word(option)
    if said is None:
        return 1
    if not (said.isascii() and said.isdigit() and len(said) < 7):
        raise NotCheckedError(f"{option} {said} is no number")
    return int(said)
