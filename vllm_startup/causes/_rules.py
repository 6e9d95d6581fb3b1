"""How text becomes a cause: rules as data, each beside its cause, found by a literal first."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_startup._log.exceptions import RaisedError
    from vllm_startup._log.lines import Line
    from vllm_startup.causes._base import Cause

Rank: TypeAlias = Literal["strong", "generic", "weak", "vague"]
"""How much a rule's word counts against other rules'.

``strong``: the text says what is wrong. ``generic``: so does it, but another exception of the same
chain may say more (``No such file``). ``weak``: a consequence more often than a cause; any other
root exception is preferred. ``vague``: what kind of thing failed; any other rule's word says more.
"""

RANKS: Final[dict[Rank, int]] = {"strong": 4, "generic": 3, "weak": 2, "vague": 1}

_UNITS: Final = {
    "b": 1,
    "bytes": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


@attrs.frozen
class Found:
    """What a rule has matched.

    Attributes:
        text: The exception's class and text, or the line's message.
        match: The match of the rule's pattern; None for a rule without.
        error: The exception; None for a line.
        line: The line; None for an exception.
    """

    text: str
    match: re.Match[str] | None = None
    error: RaisedError | None = None
    line: Line | None = None

    @property
    def said(self) -> str:
        """What the exception says, without its class where it says something; or the line."""
        return self.text if self.error is None else self.error.text or self.error.full

    @property
    def plain(self) -> str:
        """What the exception says, without what pydantic puts around it: the class, its input, a link."""
        framed = compiled(_FRAMED).search(self.said)
        if framed is None:
            return self.said
        what = " ".join(framed["what"].split()).strip()
        return f"{framed['field']}: {what}" if framed["field"] else what or self.said

    def word(self, name: str) -> str | None:
        """A named group; None where the pattern has none of it, or it took no part or is empty."""
        said: str | None = self.match.groupdict().get(name) if self.match is not None else None
        return said.strip() or None if said else None

    def number(self, name: str) -> int | None:
        """A named group as a whole number; thousands may be separated by commas."""
        said = self.word(name)
        try:
            return None if said is None else int(float(said.replace(",", "")))
        except (ValueError, OverflowError):
            return None

    def decimal(self, name: str) -> float | None:
        """A named group as a number."""
        said = self.word(name)
        try:
            return None if said is None else float(said)
        except ValueError:
            return None

    def size(self, name: str, unit: str = "GiB") -> int | None:
        """A named group such as ``3.81 GiB`` in bytes; ``unit`` where it names none."""
        said = self.word(name)
        if said is None:
            return None
        number, _, named = said.partition(" ")
        try:
            return round(float(number.replace(",", "")) * _UNITS[(named.strip() or unit).lower()])
        except (ValueError, KeyError, OverflowError):
            return None

    def names(self, name: str) -> tuple[str, ...] | None:
        """A named group that lists quoted names, as in ``['A', 'B']``."""
        said = self.word(name)
        listed = tuple(
            part.strip(" '\"") for part in (said or "").strip("[]{}()").split(",") if part.strip(" '\"")
        )
        return listed or None


@attrs.frozen(kw_only=True)
class CauseRule:
    """A text, or a place in vLLM's source, that names a cause.

    Attributes:
        literal: Must stand in the text before anything else is tried; the frame's name for a
            rule that goes by the frame alone.
        build: Makes the cause, without evidence, or returns None where the rest does not fit.
        pattern: A regular expression that is searched then (dot matches all); None: the literal
            is enough. It must take linear time on any text.
        where: ``error``: an exception's class and text; ``line``: a line on its own, that is no
            part of a traceback; ``both``; ``place``: where an exception was raised, whatever it
            says: the innermost frame, as ``file:function``. For the many checks of one kind that
            vLLM makes in one place, in words that change from release to release; at most
            ``likely`` (see `place_rule`).
        exceptions: The classes' bare names that may say it; empty: any.
        rank: How much it counts against other rules.
        frame: A function in whose traceback it must stand; None: anywhere.
        explains: Kinds that are raised later because of it. Where one of them would be the
            cause, this is it, even if it was only said in passing, in a warning or at level INFO.
        offered: Whether it may be a cause by itself, or only explain one.
        ends: Whether a line that says it also says that the start is over: the shell's ``Killed``.
        versions: The vLLM releases, or the package's, whose sources or logs have the wording.
    """

    literal: str
    build: Callable[[Found], Cause | None]
    pattern: str | None = None
    where: Literal["error", "line", "both", "place"] = "error"
    exceptions: tuple[str, ...] = ()
    rank: Rank = "strong"
    frame: str | None = None
    explains: tuple[str, ...] = ()
    offered: bool = True
    ends: bool = False
    versions: str = ""

    def match(self, text: str, *, error: RaisedError | None = None, line: Line | None = None) -> Cause | None:
        """The cause that the text names; None where it is not this rule's."""
        searched = text if self.where != "place" else error.place if error is not None else ""
        if self.literal not in searched and self.literal != self.frame:
            return None
        if error is not None and self.exceptions and not error.may_be(self.exceptions):
            return None
        if self.frame is not None and (error is None or self.frame not in error.functions):
            return None
        found = None
        if self.pattern is not None and (found := compiled(self.pattern).search(searched)) is None:
            return None
        cause = self.build(Found(text, found, error, line))
        if cause is not None and self.where == "place":
            return attrs.evolve(cause, confidence="likely")
        return cause


def place_rule(
    literal: str,
    pattern: str | None = None,
    *,
    build: Callable[[Found], Cause | None],
    versions: str,
    exceptions: tuple[str, ...] = (),
) -> CauseRule:
    """A rule that goes by where an exception was raised: any that knows its words says more."""
    return CauseRule(
        literal=literal,
        pattern=pattern,
        where="place",
        exceptions=exceptions,
        rank="vague",
        build=build,
        versions=versions,
    )


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, compiled when it is first needed: at import it would cost 0.2 ms each."""
    return re.compile(pattern, re.DOTALL)


_FRAMED: Final = (
    r"^\d{1,4} validation errors? for \w{1,60}\s{1,4}(?:(?P<field>[\w.]{1,80})\n)?\s{0,4}"
    r"(?:Value error, |Assertion failed, )?(?P<what>.*?)(?:\[type=|$)"
)

# In the order in which they are asked; the order decides between rules of one rank.
FAMILIES: Final = (
    "_gpu_memory",
    "_driver",
    "_devices",
    "_device_counts",
    "_hardware",
    "_architectures",
    "_accelerators",
    "_arguments",
    "_listening",
    "_parallel",
    "_hub",
    "_model_access",
    "_model_support",
    "_attention",
    "_checkpoint",
    "_host",
    "_host_memory",
    "_paths",
    "_launchers",
    "_distributed",
    "_compile",
    "_crash",
    "_server",
    "_releases",
    "_interfaces",
    "_binaries",
    "_libraries",
    "_programs",
    "_components",
    "_install",
    "_downloads",
    "_adapters",
    "_quantization",
    "_checks",
    "_model_config",
)


def _rules() -> Iterator[CauseRule]:
    for family in FAMILIES:
        rules: tuple[CauseRule, ...] = import_module(f"vllm_startup.causes.{family}").RULES
        yield from rules


@cache
def built_in_rules() -> tuple[CauseRule, ...]:
    """Every rule of the package."""
    return tuple(_rules())
