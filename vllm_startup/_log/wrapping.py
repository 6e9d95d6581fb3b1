"""Lines that a terminal, a mail or a form has wrapped, put together again.

A log that was copied from a window or pasted into a report has its lines cut at a column, or at
the last word before it. Whether it was is told by its beginning: no line is longer than the
column, and many lines end where the next word would not have fitted.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

import attrs

from vllm_startup._log.margins import margin_of
from vllm_startup._log.prefixes import Prefixes
from vllm_startup._log.records import is_record, vllm
from vllm_startup._log.relining import with_line_ends

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CONTINUED: Final = "\0"
"""Stands where a line was that belongs to the one before, so that lines keep their numbers."""

# vLLM logs its whole configuration in one line: of a log that was not wrapped, 250 columns never hold all.
_WIDEST: Final = 250
_NARROWEST: Final = 40
_FEWEST: Final = 2  # lines that end at the column and go on in the next: of one that is chance
_SHARE: Final = 0.04  # of all lines
# Mails and forms wrap between words here; a terminal's columns are not guessed from words.
_WORD_WIDTHS: Final = range(66, 101)
_WORD_SHARE: Final = 0.15
_FEWEST_BY_WORDS: Final = 4
_PADDING: Final = "  "  # of a window's lines up to its edge
_LONGEST: Final = 64 * 1024


@attrs.frozen(kw_only=True)
class Wrap:
    """How a log was wrapped.

    Attributes:
        width: The column.
        words: Whether between words; else in the middle of them too.
    """

    width: int
    words: bool

    def continues(self, line: str, following: str) -> bool:
        """Whether the following line was the same line before."""
        if not self.words:
            return len(line) == self.width and not line.endswith(_PADDING)
        word = following.partition(" ")[0]
        return bool(word) and len(line.rstrip()) + 1 + len(word) > self.width and not _begins(following)

    @property
    def joint(self) -> str:
        """What the wrapping took away."""
        return " " if self.words else ""


def as_written(batches: Iterable[list[str]]) -> Iterator[list[str]]:
    """A log's lines as they were before somebody pasted it: without margin, unwrapped.

    Args:
        batches: The lines; the first batch tells of margin and wrapping.

    Returns:
        As many lines, `CONTINUED` for those that have become part of another.
    """
    remaining = with_line_ends(batches)
    first = next(remaining, None)
    if first is None:
        return iter(())
    margin = margin_of(first)
    if margin is not None:
        first = [margin(line) for line in first]
        remaining = ([margin(line) for line in batch] for batch in remaining)
    wrap = wrap_of(first)
    whole = chain([first], remaining)
    return whole if wrap is None else _unwrapped(whole, wrap)


def _unwrapped(batches: Iterable[list[str]], wrap: Wrap) -> Iterator[list[str]]:
    carried: list[str] = []
    for batch in batches:
        lines = [*carried, *batch]
        joined, carried = _join(lines, wrap)
        yield joined
    yield _one(carried, wrap) if carried else []


def wrap_of(lines: list[str]) -> Wrap | None:
    """How the lines were wrapped; None if they were not."""
    ends = (line.rstrip("\r") for line in lines)
    lengths = Counter(len(line.rstrip() if line.endswith(_PADDING) else line) for line in ends)
    width = max(lengths, default=0)
    filled = len(lines) - lengths[0]
    if not _NARROWEST <= width <= _WIDEST:
        return None
    columns, words = Wrap(width=width, words=False), Wrap(width=width, words=True)
    cut = _followers(lines, columns)
    if width in _WORD_WIDTHS:
        flowing = len(_followers(lines, words))
        # Of lines that end at a word, few are as long as the longest.
        if flowing >= max(_FEWEST_BY_WORDS, _WORD_SHARE * filled, 2 * len(cut)):
            return words
    headed = sum(map(_is_headed, cut))
    # Where each part has a prefix of its own, it was wrapped before it came here.
    if len(cut) - headed >= max(_FEWEST, _SHARE * filled / 2) and 2 * headed <= len(cut):
        return columns
    return None


def _followers(lines: list[str], wrap: Wrap) -> list[str]:
    """The lines that go on with the one before."""
    return [after for line, after in pairwise(lines) if line and wrap.continues(line.rstrip("\r"), after)]


def _begins(text: str) -> bool:
    """Whether a line begins something of its own."""
    return text[0] in " \t([{" or _is_headed(text)


def _is_headed(text: str) -> bool:
    """Whether a line has a header, vLLM's or another's."""
    if text.startswith('{"'):
        return True  # an object of JSON is a line of its own
    return is_record(text) or Prefixes(is_record).strip(text).text != text


def _goes_on(line: str, following: str, wrap: Wrap) -> bool:
    """Whether a line was cut; one that a record follows is as long as the column by chance."""
    return wrap.continues(line, following) and vllm(following) is None


def _join(lines: list[str], wrap: Wrap) -> tuple[list[str], list[str]]:
    """The lines joined, and the last one with its parts: it may go on in the next batch."""
    joined: list[str] = []
    start = 0
    for at in range(1, len(lines) + 1):
        so_far = lines[at - 1].rstrip("\r")
        if at < len(lines) and _goes_on(so_far, lines[at], wrap) and at - start < _LONGEST // wrap.width:
            continue
        if at == len(lines):
            return joined, lines[start:]
        joined += _one(lines[start:at], wrap)
        start = at
    return joined, []


def _one(parts: list[str], wrap: Wrap) -> list[str]:
    ends = "\r \t" if wrap.words else "\r"
    return [wrap.joint.join(part.rstrip(ends) for part in parts), *[CONTINUED] * (len(parts) - 1)]
