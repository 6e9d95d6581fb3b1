"""One exception as it stands in a log, and how its lines are told from others."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import attrs

if TYPE_CHECKING:
    from vllm_startup._roles import Role

HEADER: Final = "Traceback (most recent call last)"
FRAME: Final = 'File "'
LITERALS: Final = (
    HEADER,
    FRAME,
    "Error: ",
    "Exception: ",
    "KeyboardInterrupt: ",
    "Value error, ",
    "OutOfResources: ",
    "BackendCompilerFailed: ",
)
"""A line without any of these begins no exception (some rule's literal aside)."""

# A message of more is cut: the longest that name something decisive (a list of architectures)
# name it in their first 400 characters.
MAX_TEXT: Final = 4_000
MAX_FUNCTIONS: Final = 200

_PYDANTIC: Final = "Value error, "

Link: TypeAlias = Literal["first", "cause", "context", "quoted"]


@attrs.frozen(kw_only=True)
class RaisedError:
    """One exception of a chain.

    Attributes:
        type: Its class as it was printed, e.g. ``pydantic_core._pydantic_core.ValidationError``.
        text: What it says, all lines, at most `MAX_TEXT` characters.
        link: How it follows the one before it: ``cause`` (raised from it), ``context`` (raised
            while it was handled), ``quoted`` (that one's text holds this one).
        line: Where it stands in the log: the line that names its class.
        first_line: Where its traceback begins.
        last_line: Where its message ends.
        location: File and function of the innermost frame that was printed.
        functions: The functions of its traceback, the outermost first, at most `MAX_FUNCTIONS`.
        frames: How many frames were printed; 0 for an exception's line alone.
        main: Whether the outermost frame is a program's main module, so that it ended it.
        broken_off: Whether the log ends before it, and only the source shows what was about to be raised.
    """

    type: str
    text: str
    link: Link = "first"
    line: int = 0
    first_line: int = 0
    last_line: int = 0
    location: tuple[str, str] | None = None
    functions: tuple[str, ...] = ()
    frames: int = 0
    main: bool = False
    broken_off: bool = False

    @property
    def name(self) -> str:
        """The class's name without its module."""
        return self.type.partition("(")[0].rpartition(".")[2]

    def may_be(self, classes: Collection[str]) -> bool:
        """Whether its class is one of these, by its bare name; the log may end before it names any."""
        return self.name in classes or (self.broken_off and not self.type)

    @property
    def place(self) -> str:
        """The innermost frame that was printed, as ``file:function``; empty without one."""
        return "" if self.location is None else ":".join(self.location)

    @property
    def full(self) -> str:
        """Type and text, as Python prints them."""
        return ": ".join(filter(None, (self.type, self.text)))


@attrs.frozen(kw_only=True)
class RaisedChain:
    """An exception with those that led to it, in the order in which they were printed.

    Attributes:
        headline: The line before it by the same writer: what a logger's record says first.
        level: The record's level; None for what the interpreter printed.
        source: Where it was logged, as in `Line.source`; None for what the interpreter printed.
        beheaded: Whether its first lines are not there: an excerpt begins in the middle of it.
    """

    links: tuple[RaisedError, ...]
    process: str | None = None
    role: Role | None = None
    pid: int | None = None
    level: str | None = None
    headline: str | None = None
    source: str | None = None
    beheaded: bool = False

    @property
    def first_line(self) -> int:
        """Where it begins in the log."""
        return self.links[0].first_line


@cache
def _exception_line() -> re.Pattern[str]:
    return re.compile(
        r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:\([A-Za-z_][\w.]*\))?)(?::(?: (.*)|$)|$)", re.DOTALL
    )


@cache
def _frame_line() -> re.Pattern[str]:
    return re.compile(r'File "([^"]+)", line \d+(?:, in (.+))?')


@cache
def _notebook_frame() -> re.Pattern[str]:
    return re.compile(r"File ([^\s:]+):\d+, in ([^\s(]+)")


@cache
def _old_notebook_frame() -> re.Pattern[str]:
    """IPython's until 7, which Colab has."""
    return re.compile(r"([~/]\S{1,400}\.pyx?|<ipython-input-[\w-]{1,80}>) in ([\w<>.]{1,200})")


_CLASSES: Final = ("Error", "Exception")  # bindings' classes may begin small: nixl's nixlBackendError
# The standard library's classes that begin small; C extensions have "error" of their own.
_SMALL: Final = frozenset(
    {"socket.gaierror", "socket.herror", "socket.timeout", "struct.error", "zlib.error", "re.error"}
    | {"select.error", "shutil.error", "binascii.error", "dbm.error", "curses.error"}
)
_SUFFIXES: Final = (
    "Error", "Exception", "Warning", "Interrupt", "Exit", "Iteration", "ExceptionGroup", "Failed",
    "Timeout", "TimeoutExpired", "NotFound", "OutOfResources",
)  # fmt: skip


def parse_exception(text: str, *, loose: bool) -> tuple[str, str] | None:
    """Split ``pkg.SomeError: what it says``; None for other lines.

    Args:
        text: The line, without margin.
        loose: Accept any dotted class; otherwise only names that end as exceptions do.
    """
    head = text[:200]
    if not head or not (head[0].isalpha() or head[0] == "_"):
        return None
    found = _exception_line().match(text)
    if found is None:
        return None
    name = found[1].partition("(")[0]
    last = name.rpartition(".")[2]
    if name in _SMALL or (loose and "." in name and last.endswith("error") and not name.startswith("self.")):
        return found[1], found[2] or ""
    if not last[:1].isupper() and not ("." in name and (last[:1] == "_" or last.endswith(_CLASSES))):
        return None
    if not (last.endswith(_SUFFIXES) or (loose and "." in name)):
        return None
    return found[1], found[2] or ""


def carried(error: RaisedError) -> RaisedError | None:
    """The exception that another one's text begins with, as compilers' wrappers print it.

    ``InductorError: PermissionError: [Errno 13] ...``, ``BackendCompilerFailed: ... raised:`` and
    the exception on the next line.
    """
    text = error.text
    head, raised, rest = text.partition(" raised:\n")
    if raised and "\n" not in head:
        text = rest
    found = parse_exception(text, loose=False)
    if found is None or not found[1]:
        return None
    return attrs.evolve(error, type=found[0], text=found[1])


def strip_margin(text: str) -> str:
    """Remove the margin of an exception group (``  | ``, ``  +-+---``)."""
    if text.startswith("[rank"):  # torch's, behind Ray's prefix
        text = text.partition("]: ")[2] or text
    bare = text.lstrip(" ")
    if bare.startswith("| "):
        return bare[2:]
    if bare == "|" or (bare.startswith("+") and bare.strip("+- 0123456789") == ""):
        return ""
    if bare.startswith("+ Exception Group Traceback"):
        return HEADER + ":"
    return text


def frame_of(text: str) -> tuple[str, str] | None:
    if FRAME in text:
        found = _frame_line().match(text.lstrip(" \t>"))
        if found is not None:
            return found[1], (found[2] or "").strip()
    if text.startswith("File ") and ", in " in text:
        found = _notebook_frame().match(text)
        if found is not None:
            return found[1], found[2]
    if text.startswith(("/", "~/", "<ipython-input-")) and " in " in text[:420]:
        found = _old_notebook_frame().match(text)
        if found is not None:
            return found[1], found[2]
    return None


def bare_exception(text: str) -> tuple[str, str] | None:
    """An exception's line without its traceback, as people quote it."""
    pydantic = text.strip()
    if pydantic.startswith(_PYDANTIC):
        return "ValueError", pydantic[len(_PYDANTIC) :]
    raised = parse_exception(text, loose=False)
    return raised if raised is not None and raised[1] else None


@cache
def _raise_statement() -> re.Pattern[str]:
    return re.compile(r"^\s*raise ([A-Za-z_][\w.]{0,80})\(")


@cache
def _string_literals() -> re.Pattern[str]:
    """Those of a source, the last of which may be cut off."""
    return re.compile(r"""[rRbBfFuU]{0,2}(?:"([^"\\\n]{1,1000})"?|'([^'\\\n]{1,1000})'?)""")


def raised_by(source: str) -> tuple[str, str] | None:
    """The class and the words of the exception that a ``raise`` statement makes; None for another one.

    What it fills in only when it runs is not there.
    """
    found = _raise_statement().match(source)
    if found is None:
        return None
    words = "".join(one or other for one, other in _string_literals().findall(source, found.end()))
    return (found[1], words.strip()) if words.strip() else None


def is_main_program(file: str, function: str) -> bool:
    """Whether a frame is a server's outermost: an exception that leaves it ends the program."""
    if function == "_run_module_as_main":  # python -m vllm.entrypoints...
        return True
    return function == "<module>" and (file.endswith("/bin/vllm") or "/vllm/entrypoints/" in file)
