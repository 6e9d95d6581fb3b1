"""What every cause has, whatever went wrong."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import attrs

Confidence = Literal["certain", "likely", "unknown"]


@attrs.frozen(kw_only=True)
class Evidence:
    """A line, or something else that was seen, that a cause rests on.

    Attributes:
        text: What was seen, shortened, secrets and control characters removed.
        process: The name of the process that it is about, as the log or the tree gives it.
        line: The line's number in the log, from 1; None for what is no line.
        attempt: The attempt that it belongs to, from 1; the newest is the last.
    """

    text: str
    process: str | None = None
    line: int | None = None
    attempt: int | None = None


def _one_of_confidences(_: object, attribute: attrs.Attribute[Confidence], value: str) -> None:
    if value not in get_args(Confidence):
        raise ValueError(
            f"{attribute.name} is {value!r}: it must be one of {', '.join(get_args(Confidence))}"
        )


def snake_case(name: str) -> str:
    """``GpuOutOfMemory`` as ``gpu_out_of_memory``."""
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Cause:
    """Why a start failed, or why the wait for it ended.

    Comparison, hash and repr are written once, here, over the fields of whatever kind it is:
    attrs would compile them for each of the kinds, which takes three times as long to import.
    Kinds are therefore ``@attrs.frozen(kw_only=True, eq=False, repr=False)``.

    Attributes:
        message: What happened, in one line.
        hint: What to do; None unless that is certain.
        evidence: The decisive lines, in their order.
        confidence: ``certain`` where a line says it, ``likely`` where evidence is indirect,
            ``unknown`` where only the aftermath was seen.
        retryable: Whether the same start may succeed when it is tried again; None where nobody
            can tell.
    """

    kind: ClassVar[str] = "cause"
    """The class's name in snake_case: what stands in reports and scripts."""
    family: ClassVar[str] = "Cause"
    """The name of the family's base class."""

    message: str
    hint: str | None = None
    evidence: tuple[Evidence, ...] = ()
    confidence: Confidence = attrs.field(default="certain", validator=_one_of_confidences)
    retryable: bool | None = None

    def __attrs_post_init__(self) -> None:
        """Refuse what cannot be told; rules of users make causes too."""
        if not isinstance(self.message, str):
            raise TypeError(f"message must be text, not {self.message!r}")
        if self.hint is not None and not isinstance(self.hint, str):
            raise TypeError(f"hint must be text or None, not {self.hint!r}")
        if not isinstance(self.evidence, tuple) or not all(isinstance(e, Evidence) for e in self.evidence):
            raise TypeError(f"evidence must be a tuple of Evidence, not {self.evidence!r}")

    def __init_subclass__(cls) -> None:
        """Name the kind, and the family: the class directly below `Cause`."""
        super().__init_subclass__()
        cls.kind = snake_case(cls.__name__)
        cls.family = next(base.__name__ for base in reversed(cls.__mro__) if base not in (object, Cause))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cause) or other.__class__ is not self.__class__:
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((self.kind, self._values()))

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self.fields.items() if value is not None)
        return f"{type(self).__name__}({', '.join(filter(None, (f'message={self.message!r}', told)))})"

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, a.name) for a in attrs.fields(type(self)))

    @property
    def fields(self) -> dict[str, Any]:
        """The kind's own fields with their values, None where the evidence does not give one."""
        return {a.name: getattr(self, a.name) for a in attrs.fields(type(self)) if a.name not in _COMMON}


_COMMON = frozenset(a.name for a in attrs.fields(Cause))
