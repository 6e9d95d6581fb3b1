"""Python exceptions, put together again out of a log's interleaved lines.

vLLM's processes write into one log. Up to 0.30 each line of a traceback carries its process's
prefix; from 0.31 only records of vLLM's logger do, so tracebacks that the interpreter prints are
bare and, at worst, mixed line by line. Every writer therefore has a stream of its own, named by
process, pid and, for a logger's record, the place of the logging call: a record of one process
neither ends nor enters the traceback of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from vllm_startup._log.exceptions import (
    HEADER,
    RaisedChain,
    bare_exception,
    frame_of,
    parse_exception,
    strip_margin,
)
from vllm_startup._log.writer import Writer

if TYPE_CHECKING:
    from vllm_startup._log.lines import Line


_FRAME_INDENT: Final = 2

_CONTEXT: Final = "During handling of the above exception, another exception occurred:"
_CAUSE: Final = "The above exception was the direct cause of the following exception:"

# Foreign lines between the lines of one bare traceback before it is given up (a server goes on).
_MAX_FOREIGN: Final = 200
# Lines of a traceback in the middle of another one.
_MAX_ASIDE: Final = 100
# Lines of others after which a stream that says nothing is over.
_MAX_SILENCE: Final = 500
# Lines between an interpreter's "Exception ignored in" or "Process X:" and its traceback.
_NEAR: Final = 3
_MAX_STREAMS: Final = 64

Consumed: TypeAlias = Literal["no", "frame", "message"]
_Key: TypeAlias = "tuple[str | None, int | None, str | None]"


# What a finaliser or a thread says of an exception that ends nothing: its traceback may stand in
# the middle of another one.
_ASIDES: Final = ("Exception ignored", "Exception in thread")

# Lines that are nobody's message: what other libraries print after, or in between.
_FOREIGN_STARTS: Final = (
    "INFO:", "WARNING:", "ERROR:", "[W", "[rank", "[E", "[I", "[Gloo]", "Process ", *_ASIDES,
    "nanobind:", "usage:", "vllm: error: ", "vllm serve: error: ", "api_server.py: error: ",
    "NCCL ", "Fatal Python error", "!!!!!!!", "Loading safetensors", "*** ",
    "terminate called", "```", "vllm-startup: ", "slurmstepd: ",
)  # fmt: skip


def _is_foreign(line: Line, text: str) -> bool:
    if line.bar or text.startswith(_FOREIGN_STARTS):
        return True
    return "Warning: " in text[:400] and ".py:" in text[:300]


class Tracebacks:
    """Puts exceptions together, line by line.

    `feed` says what a line was used for; finished chains are fetched with `take`, unfinished
    ones looked at with `peek`.
    """

    def __init__(self) -> None:
        self._streams: dict[_Key, Writer] = {}
        self.open = False
        """Whether something has begun and not ended: every further line matters."""
        self._done: list[RaisedChain] = []
        self._headlines: dict[_Key, tuple[int, str]] = {}

    def feed(self, line: Line) -> Consumed:
        """Use a line.

        Returns:
            ``frame`` for a traceback's own line (header, frame, source echo), ``message`` for a
            line of what an exception says, ``no`` for anything else.
        """
        key = (line.process, line.pid, line.source)
        if self._streams:
            self._close_others(line, key)
        stream = self._streams.get(key)
        text = strip_margin(line.message)
        if stream is None:
            return self._start(key, line, text)
        stream.seen = line.number
        if stream.indent and not text[: stream.indent].strip():
            text = text[stream.indent :]
        used = self._go_on(key, stream, line, text)
        if used == "no":
            self._remember(key, line)
        return used

    def take(self) -> list[RaisedChain]:
        """Chains that are finished, each told once."""
        done, self._done = self._done, []
        return done

    def peek(self) -> list[RaisedChain]:
        """What unfinished streams hold so far."""
        return [chain for stream in self._streams.values() for chain in stream.chains()]

    def finish(self) -> None:
        """No more text will come: close what is open."""
        for key in list(self._streams):
            self._streams[key].break_off()
            self._close(key)

    def _close(self, key: _Key) -> None:
        self._done += self._streams.pop(key).chains()
        self.open = bool(self._streams)

    def _close_others(self, line: Line, key: _Key) -> None:
        """Close what has ended without a word.

        A process that logs something else has finished its last record; a stream that nobody
        has written to for long is over.
        """
        for other, stream in list(self._streams.items()):
            if other == key:
                continue
            logs_on = other[2] is not None and key[2] is not None and other[:2] == key[:2] and stream.message
            if logs_on or line.number - stream.seen > _MAX_SILENCE:
                self._close(other)

    def _remember(self, key: _Key, line: Line) -> None:
        if len(self._headlines) > _MAX_STREAMS:
            self._headlines.clear()
        if line.message.strip():
            self._headlines[key] = (line.number, line.message[:500])

    def _open(self, key: _Key, line: Line) -> Writer:
        if len(self._streams) >= _MAX_STREAMS:
            self._close(next(iter(self._streams)))
        at, headline = self._headlines.pop(key, (0, ""))
        near = at and line.number - at <= (_NEAR if line.source is None else _MAX_SILENCE)
        stream = self._streams[key] = Writer(line, headline if near else None)
        self.open = True
        return stream

    def _start(self, key: _Key, line: Line, text: str) -> Consumed:
        if HEADER in text:
            stream = self._open(key, line)
            before = text.partition(HEADER)[0]
            stream.indent = 0 if before.strip() else len(before)
            if before.strip():
                stream.headline = before[:500]
            stream.header(line)
            return "frame"
        frame = frame_of(text)
        if frame is not None:
            stream = self._open(key, line)
            stream.indent = max(len(text) - len(text.lstrip()) - _FRAME_INDENT, 0)
            stream.beheaded = True
            stream.frame(line, *frame)
            return "frame"
        raised = bare_exception(text)
        if raised is not None:
            stream = self._open(key, line)
            stream.beheaded = True
            stream.exception(line, *raised)
            return "message"
        self._remember(key, line)
        return "no"

    def _go_on(self, key: _Key, stream: Writer, line: Line, text: str) -> Consumed:
        bare = text.strip()
        if stream.aside is not None:
            return self._beside(stream, stream.aside, line, text)
        if bare.startswith(_ASIDES) and not stream.message:
            stream.aside = Writer(line, line.message[:500])
            return "no"
        if bare.startswith(HEADER) or HEADER in text:
            return self._header(key, stream, line)
        if bare in (_CONTEXT, _CAUSE):
            stream.connect("cause" if bare == _CAUSE else "context")
            return "frame"
        frame = frame_of(text)
        if frame is not None:
            stream.frame(line, *frame)
            return "frame"
        # With another traceback open beside it, what is indented may be that one's source.
        if stream.message and (not stream.pending or text[:4].strip()):
            return self._in_message(key, stream, line, text)
        return self._in_frames(key, stream, line, text)

    def _beside(self, stream: Writer, aside: Writer, line: Line, text: str) -> Consumed:
        """Read what stands in the middle of a stream's traceback, until its exception."""
        frame = frame_of(text)
        raised = parse_exception(text, loose=True)
        if HEADER in text:
            aside.header(line)
        elif frame is not None:
            aside.frame(line, *frame)
        elif raised is not None or line.number - aside.seen > _MAX_ASIDE:
            stream.aside = None
            if raised is None:
                return "no"
            aside.exception(line, *raised)
            self._done += aside.chains()
            return "message"
        return "frame"

    def _header(self, key: _Key, stream: Writer, line: Line) -> Consumed:
        if stream.message and not stream.pending and not stream.waiting and not _quotes(stream):
            headline = stream.headline
            self._close(key)
            stream = self._open(key, line)
            if key[2] is not None:  # one record, printed with a second copy inside
                stream.headline = stream.headline or headline
        elif stream.message and _quotes(stream):
            stream.connect("quoted")
        stream.header(line)
        return "frame"

    def _in_frames(self, key: _Key, stream: Writer, line: Line, text: str) -> Consumed:
        if text[:1] == " " and text[1:2].strip():
            text = text[1:]  # source is indented by four: a paste has shifted the line
        if not text.strip() or text[0] in " \t│╭╰-─" or text.startswith(("Cell ", "Input ", "File ")):
            stream.source_echo(text)
            return "frame"
        raised = parse_exception(text, loose=True)
        if raised is not None:
            stream.exception(line, *raised)
            return "message"
        stream.foreign += 1
        if stream.foreign > _MAX_FOREIGN:
            self._close(key)
        return "no"

    def _in_message(self, key: _Key, stream: Writer, line: Line, text: str) -> Consumed:
        if not text.strip():
            stream.blank += 1
            if stream.blank > 3:
                self._close(key)
            return "message"
        if stream.waiting:
            stream.foreign += 1
        raised = parse_exception(text, loose=False)
        if raised is not None and raised[1] and (stream.blank or not _quotes(stream)):
            self._close(key)
            self._open(key, line).exception(line, *raised)
            return "message"
        if _is_foreign(line, text) or stream.full:
            self._close(key)
            self._remember(key, line)
            return "no"
        stream.continuation(line, text)
        return "message"


def _quotes(stream: Writer) -> bool:
    """Whether the message that is being read holds another program's output."""
    said = stream.text[0] if stream.text else ""
    return (
        stream.type.startswith("ray.exceptions.")
        or "raised in subprocess" in said
        or said.endswith(("Traceback:", "stderr:"))
    )
