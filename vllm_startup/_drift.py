"""Which of the texts that this package knows are no longer in a vLLM's sources.

A new release of vLLM may word a line anew, and then a marker or a cause is no longer told. All
texts of vLLM's own whose range of releases covers the one at hand are looked for among the
sources' string constants: whole literals, literals written in parts, the fixed parts of f-strings.
Docstrings and comments do not count. Of rules that go by the place where an exception was raised,
the files must be there.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

import attrs

from vllm_startup._log.markers import MARKERS
from vllm_startup._text import clean
from vllm_startup.causes._rules import built_in_rules

NEWEST: Final = (0, 33)
"""The newest release whose sources were read. What was still there is expected in later ones too."""

Version = tuple[int, ...]

_PYTHON_LIMIT_S: Final = 30
_MOST_WORDS: Final = 2  # of a text, the longest: files without them are not parsed
_WORD: Final = re.compile(r"[A-Za-z_]\w{2,}")
# What log calls and str.format put values in place of.
_HOLE: Final = re.compile(r"%(?:\(\w+\))?[-#0 +]{0,3}\d{0,3}(?:\.\d{1,3})?[srdifgexc]|\$?\{[^{}]{0,60}\}")
_GAP: Final = "\0"
_LONGEST_VALUE: Final = 12
_LEAST_FIXED: Final = 5
_FIXED: Final = 0.5
# "KeyboardInterrupt: terminated" is raised as KeyboardInterrupt("terminated").
_CLASS: Final = re.compile(r"^[A-Z]\w*(?:Error|Interrupt|Exception): ")
_SOURCES: Final = "[!.]*.py"
_FIND: Final = "import importlib.util as u; s = u.find_spec('vllm'); print(s.submodule_search_locations[0])"


class NotVllmError(Exception):
    """There is no vLLM at the place that was given."""


@attrs.frozen(kw_only=True)
class Text:
    """A text that vLLM writes.

    Attributes:
        name: The marker's name, or the module and kind of the cause's rule.
        literal: What is looked for.
        since: The first release that has it; None for ever.
        until: The last one; None if it is still there.
        place: Whether it is a part of a source file's path, or the name of a function.
    """

    name: str
    literal: str
    place: bool = False
    since: Version | None = None
    until: Version | None = None

    def covers(self, version: Version | None) -> bool:
        """Whether a release is expected to have it; an unknown one counts as the newest."""
        if version is None:
            return self.until is None
        after = self.since is None or version >= self.since
        return after and (self.until is None or version[: len(self.until)] <= self.until)


@attrs.frozen(kw_only=True)
class Drifted:
    """A text that is not where it was.

    Attributes:
        nearest: The string in the sources that has most of its words; None if none has many.
        place: That one's file and line.
    """

    text: Text
    nearest: str | None = None
    place: str | None = None


@attrs.frozen(kw_only=True)
class Check:
    """What a comparison found.

    Attributes:
        version: vLLM's version as it is written; None where the sources do not say.
        files: How many source files there are.
        checked: How many texts were looked for.
    """

    package: str
    version: str | None
    files: int
    checked: int
    drifted: tuple[Drifted, ...]


# --- what is looked for -----------------------------------------------------------------------


def texts() -> tuple[Text, ...]:
    """Every text of vLLM's own that a marker or a rule goes by."""
    known = {(text.literal, text.place): text for text in (*_of_rules(), *_of_markers())}
    return tuple(known.values())


def _of_markers() -> Iterator[Text]:
    for marker in MARKERS:
        if marker.versions is None or marker.speakers is not None or marker.name in _COMPILED:
            continue
        first, last = marker.versions
        since = None if first.startswith("<") else _parsed(first)
        yield Text(
            name=marker.name, literal=marker.literal, since=since, until=_end(_parsed(last.lstrip("<=")))
        )


# The Rust front end's: they stand in a binary.
_COMPILED: Final = frozenset({"rust_server_starts", "rust_ready", "rust_grpc_ready"})


def _of_rules() -> Iterator[Text]:
    for rule in built_in_rules():
        found = _RANGE.fullmatch(rule.versions)
        if found is None or rule.literal == rule.frame or not _WORD.search(rule.literal):
            continue  # another library's too, or the name of a function, or no words
        yield Text(
            name=rule.build.__module__.rpartition(".")[2].lstrip("_"),
            literal=rule.literal,
            since=_parsed(found[1]),
            until=_end(_parsed(found[2])),
            place=rule.where == "place",
        )


_RANGE: Final = re.compile(r"(0\.[\d.]+) to (0\.[\d.]+)(?: \(.*\)|, CPU)?")


def _parsed(version: str) -> Version | None:
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, numbers[0].split("."))) if numbers else None


def _end(last: Version | None) -> Version | None:
    return None if last is None or last[:2] >= NEWEST else last


# --- where vLLM is ----------------------------------------------------------------------------


def find(given: str | None) -> Path:
    """VLLM's package.

    Args:
        given: It, a directory that it is in, a virtual environment, or a Python that can import
            it; None: this Python.

    Raises:
        NotVllmError: There is none.
    """
    if given is None:
        return _of_python(sys.executable)
    path = Path(given)
    if path.is_file():
        return _of_python(given)
    for place in (path, path / "vllm", *path.glob("lib/python3*/site-packages/vllm")):
        if (place / "__init__.py").is_file() and (place / "engine").is_dir():
            return place
    raise NotVllmError(f"there is no vLLM in {given!r}")


def _of_python(python: str) -> Path:
    """Where a Python would import vLLM from. vLLM is not imported: that takes many seconds."""
    try:
        done = subprocess.run(
            [python, "-c", _FIND], capture_output=True, text=True, timeout=_PYTHON_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NotVllmError(f"{python!r} is no Python that can import vLLM") from error
    return Path(done.stdout.strip())


def version_of(package: Path) -> str | None:
    """The version that the package itself tells, else the one that it was installed as."""
    try:
        said = re.search(r"version = '([^']+)'", (package / "_version.py").read_text(encoding="utf-8"))
    except OSError:
        said = None
    if said is not None:
        return said[1]
    installed = sorted(package.parent.glob("vllm*-*.dist-info"))
    return installed[0].name.removesuffix(".dist-info").partition("-")[2] if installed else None


# --- the comparison ---------------------------------------------------------------------------


def check(package: Path, known: Iterable[Text] | None = None) -> Check:
    """Look for every text that the release at ``package`` is expected to have.

    Args:
        package: vLLM's package, as `find` gives it.
        known: The texts; None: every one of this package's.
    """
    version = version_of(package)
    expected = [text for text in (texts() if known is None else known) if text.covers(_parsed(version or ""))]
    sources = {path: path.read_text(encoding="utf-8", errors="replace") for path in _files(package)}
    indexed = _indexed(sources.values(), expected)
    places = [f"/vllm/{path.relative_to(package).as_posix()}" for path in sources]
    missing = [text for text in expected if not _is_there(text, indexed, places)]
    return Check(
        package=str(package),
        version=version,
        files=len(sources),
        checked=len(expected),
        drifted=tuple(_drifted(text, sources, package) for text in missing),
    )


def _files(package: Path) -> list[Path]:
    return sorted(path for path in package.rglob("*.py") if "third_party" not in path.parts)


def bare(literal: str) -> str:
    """A text without the class of the exception that says it."""
    return _CLASS.sub("", literal)


_Indexed = tuple[str, frozenset[str]]
"""A source and those of its words that are looked for."""


def _indexed(sources: Iterable[str], known: Iterable[Text]) -> list[_Indexed]:
    wanted = frozenset(word for text in known for word in _whole_words(text.literal))
    return [(source, wanted.intersection(_WORD.findall(source))) for source in sources]


def _whole_words(literal: str) -> list[str]:
    """The words of a text that no source goes on in: those at its ends may be parts of longer ones."""
    return _WORD.findall(f"___{literal}___")[1:-1]


def _is_there(text: Text, indexed: list[_Indexed], places: list[str]) -> bool:
    literal = text.literal
    if literal.isidentifier():  # a class's name, or a function's
        return any(literal in source for source, _ in indexed)
    if text.place:
        return any(literal in place for place in places)
    literal = bare(literal)
    words = set(_WORD.findall(literal))
    longest, whole = _longest(words), _longest(_whole_words(literal))
    holding = [
        source
        for source, held in indexed
        if held.issuperset(whole) and all(word in source for word in longest)
    ]
    # Parsing is what takes time: first where the literal stands in one piece, or most of its words.
    holding.sort(key=lambda source: (literal not in source, -sum(word in source for word in words)))
    return any(_holds(string, literal) for source in holding for _, string in _strings(source))


def _longest(words: Iterable[str]) -> list[str]:
    return sorted(set(words), key=len)[-_MOST_WORDS:]


def _holds(string: str, literal: str) -> bool:
    if literal in string:
        return True
    return any(_spans(before, after, literal) for before, after in pairwise(string.split(_GAP)))


def _spans(before: str, after: str, literal: str) -> bool:
    """Whether the literal has a value in it that stands between these two parts of a string."""
    start = next((n for n in range(len(literal), 0, -1) if before.endswith(literal[:n])), 0)
    end = next((n for n in range(start, len(literal)) if after.startswith(literal[n:])), len(literal))
    fixed = len(literal) - (end - start)
    return end - start <= _LONGEST_VALUE and fixed >= max(_LEAST_FIXED, _FIXED * len(literal))


@cache
def _strings(source: str) -> tuple[tuple[int, str], ...]:
    """The strings of a source file with their lines; values in them are gaps."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    return tuple(
        (node.lineno, _HOLE.sub(_GAP, text)) for node in _expressions(tree) if (text := _text_of(node))
    )


def _expressions(tree: ast.AST) -> Iterator[ast.expr]:
    """The expressions under a node, strings that stand alone (docstrings) aside.

    `ast.walk` takes three times as long.
    """
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.expr):
            yield node
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                waiting.append(value)
            elif isinstance(value, list):
                waiting += [child for child in value if isinstance(child, ast.AST)]


def _text_of(node: ast.expr) -> str | None:
    """A string as far as the source fixes it; None for what is no string."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text_of(part) or _GAP for part in parts)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            one, other = _text_of(left), _text_of(right)
            return None if one is None and other is None else f"{one or _GAP}{other or _GAP}"
    return None


# --- what stands there instead ------------------------------------------------------------------

_MOST_PARSED: Final = 60
_ALIKE: Final = 0.5  # of a text's words


def _drifted(text: Text, sources: dict[Path, str], package: Path) -> Drifted:
    if text.place:
        return Drifted(text=text)  # a string like it says nothing
    words = set(_WORD.findall(text.literal))
    best: tuple[float, str, str] | None = None
    for path in _likely(words, sources):
        for line, string in _strings(sources[path]):
            others = set(_WORD.findall(string))
            shared = len(words & others)
            score = shared / len(words | others) if words else 0.0
            if shared >= _ALIKE * len(words) and (best is None or score > best[0]):
                best = (score, string, f"{path.relative_to(package)}:{line}")
    if best is None:
        return Drifted(text=text)
    return Drifted(text=text, nearest=clean(best[1].replace(_GAP, "…"), 160), place=best[2])


def _likely(words: set[str], sources: dict[Path, str]) -> list[Path]:
    """The files that have most of the words."""
    counts = {path: sum(word in source for word in words) for path, source in sources.items()}
    likely = sorted((path for path in counts if counts[path]), key=lambda path: -counts[path])
    return likely[:_MOST_PARSED]
