"""From a raw line of output to what it says: process, level, time, message."""

from __future__ import annotations

import attrs

from vllm_startup._log import jsonlogs, logfmt, records
from vllm_startup._log.prefixes import Prefixes, Stripped
from vllm_startup._roles import Role, role_of

# JSON of this size is data that somebody prints; parsing it could take milliseconds.
_LONGEST_JSON = 128 * 1024
# A record in a record in a record: docker's JSON, the journal's, loguru around vLLM's.
_DEEPEST = 3
_DATE = "[0123456789-T:.,Z+ ]"
_MOST_PIPES = 64
# Of a window's lines up to its edge, and of a file that was cut short while it was written.
_PADDING = ("  ", "\0")


# With slots, a frozen class takes three times as long to make, and one is made for every line.
@attrs.frozen(kw_only=True, slots=False)
class Line:
    """One line of a server's output, taken apart.

    Attributes:
        text: The whole line, colours and foreign prefixes removed.
        message: What is left without vLLM's own prefix; the whole text for lines of others.
        process: The name in the prefix, e.g. ``EngineCore_DP0``; None without prefix.
        role: The part that the process plays; None where the name does not say.
        pid: The process id in the prefix.
        level: ``DEBUG`` to ``CRITICAL``; None where the line names none.
        source: File and line of the logging call, e.g. ``core.py:133``, or the logger's name in
            JSON logs; None for lines of others.
        stamp_s: The line's own time, in seconds since the Unix epoch if its year is known, else
            since the start of its year, read as UTC; None without one. Good for differences only.
        number: The line's number in the log, from 1. Two records in one line share it.
        bar: Whether it is a progress bar's redraw.
        outer_pid: The process id in the prefix of a journal; None without one.
    """

    text: str
    message: str
    process: str | None = None
    role: Role | None = None
    pid: int | None = None
    level: str | None = None
    source: str | None = None
    stamp_s: float | None = None
    number: int = 0
    bar: bool = False
    outer_pid: int | None = None


class LineReader:
    """Takes one log's raw lines apart, in their order.

    It counts the lines and learns which foreign prefix they carry, so it belongs to one log.
    """

    def __init__(self) -> None:
        self._number = 0
        self._prefixes = Prefixes(records.is_record)
        # Headers of loggers through which another program passes the server's output on.
        self._pipes: set[str] = set()

    @property
    def number(self) -> int:
        """How many whole lines have been read or skipped."""
        return self._number

    def skip(self, lines: int = 1) -> None:
        """Count lines that need not be read."""
        self._number += lines

    def read(self, text: str, *, complete: bool = True) -> tuple[Line, ...]:
        """Parse one raw line, without its newline.

        Args:
            text: The line as it was written: colours, carriage returns and all.
            complete: False for the unfinished last line; it is not counted.

        Returns:
            Mostly one `Line`. Two where a record is glued to the tail of a bar, several where a
            JSON record's message has several lines.
        """
        number = self._number + 1
        if complete:
            self._number = number
        if "\x1b" in text:
            text = records.plain(text)
        if text.endswith(_PADDING):
            text = text.rstrip(" \0")
        return self._visible(text, number, None, 0)

    def _visible(self, text: str, number: int, outer: Stripped | None, depth: int) -> tuple[Line, ...]:
        if "\r" in text:
            text = text.rstrip("\r\n")
            if "\r" in text:
                return self._redrawn(text, number, outer, depth)
        return self._parse(text, number, outer, depth)

    def _redrawn(self, text: str, number: int, outer: Stripped | None, depth: int) -> tuple[Line, ...]:
        """A line that its writer overwrote: its prefix and what is visible in the end."""
        head, _, _ = text.partition("\r")
        _, _, tail = text.rstrip("\r \t").rpartition("\r")
        if outer is not None:
            outer = attrs.evolve(outer, text=head)
        elif not head:
            outer = _BARE
        else:
            outer = Stripped(text=head) if head.startswith("(") else self._prefixes.strip(head)
        head_is_record = outer.text and (records.vllm(outer.text) or records.uvicorn(outer.text))
        first = self._parse(outer.text, number, outer, depth) if head_is_record else ()
        # A bar ends in "it/s]": a bracket before a space is the header of a record glued to it.
        if "] " in tail:
            return (*first, *self._glued(tail, number, outer, depth))
        own = records.own_process(outer.text)
        text = f"{outer.text[: len(outer.text) - len(own.message)]}{tail}"
        return (*first, _line(text, records.Record(tail, own.process, own.pid), number, outer, bar=True))

    def _glued(self, tail: str, number: int, outer: Stripped, depth: int) -> tuple[Line, ...]:
        first, *others = self._parse(tail, number, outer, depth)
        if first.source is not None:
            return (first, *others)
        own = records.own_process(outer.text)
        if first.process is not None or own.process is None:
            return (attrs.evolve(first, bar=True), *others)
        text = f"{outer.text[: len(outer.text) - len(own.message)]}{first.text}"
        record = records.Record(first.message, own.process, own.pid)
        return (_line(text, record, number, outer, bar=True), *others)

    def _parse(self, text: str, number: int, outer: Stripped | None, depth: int) -> tuple[Line, ...]:
        record = records.vllm(text) or records.uvicorn(text)
        if record is not None:
            if outer is None and self._prefixes.learned:
                self._prefixes.forget()
            return (_line(text, record, number, outer or _BARE),)
        if outer is None:
            outer = self._prefixes.strip(text)
            if outer.text != text:
                return self._stripped(text, number, outer)
        return self._others(text, number, outer, depth)

    def _stripped(self, text: str, number: int, outer: Stripped) -> tuple[Line, ...]:
        record = records.vllm(outer.text) or records.uvicorn(outer.text)
        if record is not None:
            return (_line(outer.text, record, number, outer),)
        # "DATE - INFO - text" is a record of its own, unless the date is another program's.
        record = records.dated(text)
        if record is not None and not records.is_record(outer.text):
            return self._dated(record, text, number, outer, 0)
        return self._others(outer.text, number, outer, 0)

    def _others(self, text: str, number: int, outer: Stripped, depth: int) -> tuple[Line, ...]:
        """A line that does not begin with a record of vLLM's or uvicorn's."""
        if text.startswith("{") and len(text) <= _LONGEST_JSON:
            found = jsonlogs.parse(text)
            if found is not None:
                return self._json(found, number, outer, depth)
        if text.startswith(logfmt.BEGINS) and depth < _DEEPEST:
            inner = logfmt.parse(text)
            if inner is not None:
                return self._visible(inner.text, number, inner, depth + 1)
        record = records.dated(text)
        if record is not None:
            return self._dated(record, text, number, outer, depth)
        record = records.vllm_inside(text)
        if record is not None:
            return self._inside(record, text, number, outer)
        return (_plain_line(text, number, outer),)

    def _dated(
        self, record: records.Record, text: str, number: int, outer: Stripped, depth: int
    ) -> tuple[Line, ...]:
        if depth < _DEEPEST and (records.is_record(record.message) or self._pipes):
            header = text[: len(text) - len(record.message)].lstrip(_DATE)
            if header not in self._pipes:
                if not records.is_record(record.message) or len(self._pipes) >= _MOST_PIPES:
                    return (_line(text, record, number, outer),)
                self._pipes.add(header)
            stamp = record.stamp_s if outer.stamp_s is None else outer.stamp_s
            inner = Stripped(text=record.message, stamp_s=stamp, outer_pid=outer.outer_pid)
            return self._parse(record.message, number, inner, depth + 1)
        return (_line(text, record, number, outer),)

    def _inside(self, record: records.Record, text: str, number: int, outer: Stripped) -> tuple[Line, ...]:
        before = text[: record.start]
        if not records.is_own_prefix(before):
            glued = _line(text[record.start :], record, number, outer)
            return (_plain_line(before, number, outer), glued)
        if record.process is None:
            own = records.own_process(before)
            record = record._replace(process=own.process, pid=own.pid)
        return (_line(text, record, number, outer),)

    def _json(self, found: jsonlogs.JsonRecord, number: int, outer: Stripped, depth: int) -> tuple[Line, ...]:
        outer = Stripped(
            text=found.lines[0],
            stamp_s=found.stamp_s if outer.stamp_s is None else outer.stamp_s,
            process=found.process or outer.process,
            outer_pid=found.outer_pid or outer.outer_pid,
        )
        if depth < _DEEPEST and (found.level is None or records.is_record(outer.text)):
            # A wrapper without a level of its own (journal, docker): its message is the line.
            wrapped = [self._visible(text, number, outer, depth + 1) for text in found.lines]
            return tuple(line for lines in wrapped for line in lines)
        level, source, pid = found.level, found.source, found.pid
        return tuple(
            _line(text, records.Record(text, pid=pid, level=level, source=source), number, outer)
            for text in found.lines
        )


_BARE = Stripped(text="")


def _line(text: str, record: records.Record, number: int, outer: Stripped, *, bar: bool = False) -> Line:
    process = record.process or outer.process
    return Line(
        text=text,
        message=record.message,
        process=process,
        role=role_of(process) if process else None,
        pid=record.pid,
        level=record.level,
        source=record.source,
        stamp_s=record.stamp_s if outer.stamp_s is None else outer.stamp_s,
        number=number,
        bar=bar,
        outer_pid=outer.outer_pid,
    )


def _plain_line(text: str, number: int, outer: Stripped) -> Line:
    return _line(text, records.own_process(text), number, outer, bar=records.is_bar(text))
