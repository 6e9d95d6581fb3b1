"""How strongly what was read points to a cause, and which of two is the better one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from vllm_startup._diagnosis import aftermath
from vllm_startup._diagnosis.tone import HARMLESS_LEVELS
from vllm_startup._roles import Role

if TYPE_CHECKING:
    from vllm_startup._log.exceptions import RaisedChain, RaisedError
    from vllm_startup.causes import Cause

# How strongly something points to a cause; only the order matters.
KNOWN_FATAL: Final = 90
KNOWN_LINE: Final = 85
KNOWN_BARE: Final = 80
UNKNOWN_FATAL: Final = 70
UNKNOWN_UNCAUGHT: Final = 60
KNOWN_LOGGED: Final = 50
KNOWN_QUOTED: Final = 45
KNOWN_WEAK: Final = 40
UNKNOWN_BARE: Final = 30
KNOWN_SPOKEN: Final = 20
UNKNOWN_LOGGED: Final = 10

# Control flow that is often the beginning of a chain and seldom its reason.
_INCIDENTAL: Final = frozenset(
    {
        "KeyError",
        "IndexError",
        "AttributeError",
        "StopIteration",
        "ImportError",
        "ModuleNotFoundError",
        "LookupError",
    }
)


# What vLLM's processes run first (0.4 to 0.33): they log what leaves it, and end.
_ENTRIES: Final = frozenset(
    {"run_engine_core", "worker_main", "run_mp_engine", "_run_worker_process", "run_rpc_server"}
)


# vLLM's modules that log a traceback only of what ends their process (0.4 to 0.33).
_ENTRY_MODULES: Final = (
    "core.py:",
    "engine.py:",  # until 0.10, V0
    "multiproc_executor.py:",
    "multiproc_worker_utils.py:",  # until 0.10, V0
    "worker_base.py:",
)
_INSPECTOR: Final = "registry.py:"  # logs no other traceback that matters (0.6 to 0.33)
_GRAVE: Final = ("ERROR", "CRITICAL")


@attrs.frozen(kw_only=True)
class Candidate:
    """Something that may be the cause."""

    score: int
    line: int
    cause: Cause
    settled: bool = True
    ends: bool = False  # the text that names it says that the start is over
    open: bool = False  # more of the text may say more
    excerpt: int = 0  # in which one of several that were pasted one after the other

    @property
    def order(self) -> tuple[int, int, int]:
        """The greater, the better: of equals, the first of the last excerpt."""
        return (self.score, self.excerpt, -self.line)


def better(one: Candidate | None, other: Candidate | None) -> Candidate | None:
    """The one that is more likely the cause."""
    if one is None or other is None:
        return one or other
    return other if other.order > one.order else one


def headed(chain: RaisedChain, headlines: tuple[str, ...]) -> bool:
    """Whether the line before it is one of these."""
    return chain.headline is not None and any(h in chain.headline for h in headlines)


def of_inspection(chain: RaisedChain) -> bool:
    """Whether it is what failed while vLLM inspected the model's class.

    A process of its own does that; what Python warns of in it stands between headline and traceback.
    """
    source = (chain.source or "").rpartition("/")[2]
    return headed(chain, aftermath.INSPECTION) or (chain.level in _GRAVE and source.startswith(_INSPECTOR))


def ends_process(chain: RaisedChain) -> bool:
    """Whether its process cannot have gone on: a server whose engine or worker ends does not start."""
    if chain.level in HARMLESS_LEVELS or headed(chain, aftermath.HARMLESS_HEADLINES):
        return False
    if headed(chain, aftermath.FATAL_HEADLINES):
        return True
    if chain.level is None:
        return False
    return _is_dying_word(chain) or not _ENTRIES.isdisjoint(chain.links[0].functions[:1])


def _is_dying_word(chain: RaisedChain) -> bool:
    """Whether it is what a process logged when it ended, without the line that says so.

    An excerpt begins further down, or V0 said no more than the exception itself.
    """
    if chain.level not in _GRAVE or chain.source is None:
        return False
    if not chain.source.rpartition("/")[2].startswith(_ENTRY_MODULES):
        return False
    if chain.headline is None:
        return chain.beheaded
    return chain.headline.strip() in chain.links[-1].full


def weigh_known(chain: RaisedChain) -> int:
    """How strongly an exception that a rule knows points to a cause."""
    if ends_process(chain) or of_inspection(chain):
        return KNOWN_FATAL
    if headed(chain, aftermath.HARMLESS_HEADLINES):
        return KNOWN_LOGGED
    if all(not e.frames for e in chain.links):
        return KNOWN_BARE
    return KNOWN_FATAL if chain.level is None else KNOWN_LOGGED


def weigh_unknown(chain: RaisedChain) -> int:
    """How strongly an exception that no rule knows points to itself."""
    if ends_process(chain):
        return UNKNOWN_FATAL
    if headed(chain, aftermath.HARMLESS_HEADLINES):
        return UNKNOWN_LOGGED
    if all(not e.frames for e in chain.links):
        return UNKNOWN_BARE
    return UNKNOWN_UNCAUGHT if chain.level is None else UNKNOWN_LOGGED


def ends_program(chain: RaisedChain) -> bool:
    """Whether it is what the interpreter prints when an exception leaves the main program."""
    last = chain.links[-1]
    of_main = chain.role in (None, Role.API_SERVER, Role.LAUNCHER)
    return last.main and last.link != "quoted" and chain.level is None and of_main and bool(last.type)


# What a start goes through, from its arguments to the server (vLLM 0.4 to 0.33).
_STEPS: Final = frozenset(
    {
        "run_server",
        "run_server_worker",
        "build_async_engine_client",
        "build_async_engine_client_from_engine_args",
        "from_engine_args",
        "from_vllm_config",
        "create_engine_config",
        "create_model_config",
        "init_device",
        "load_model",
        "determine_available_memory",
        "determine_num_available_blocks",
        "initialize_cache",
        "initialize_from_config",
        "compile_or_warm_up_model",
        *_ENTRIES,
    }
)


def left_uncaught(chain: RaisedChain, *, known: bool) -> bool:
    """Whether it is what the interpreter prints of an exception that nobody caught.

    Args:
        chain: What was printed.
        known: Whether a rule knows it; another must have left one of the start's own steps.
    """
    if chain.level is not None or headed(chain, aftermath.HARMLESS_HEADLINES):
        return False
    return known or any(not _STEPS.isdisjoint(error.functions) for error in chain.links)


def root_of(errors: list[RaisedError]) -> RaisedError:
    """Of a chain that no rule knows, the link that says most: the first, unless incidental."""
    for error, following in zip(errors, [*errors[1:], None], strict=True):
        if following is None or following.link == "quoted":
            continue
        if not (error.name in _INCIDENTAL and following.link == "context"):
            return error
    return errors[-1]
