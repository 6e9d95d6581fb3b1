"""The exceptions of one writer of a log, put together line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vllm_startup._log.exceptions import (
    MAX_FUNCTIONS,
    MAX_TEXT,
    Link,
    RaisedChain,
    RaisedError,
    is_main_program,
    raised_by,
)

if TYPE_CHECKING:
    from vllm_startup._log.lines import Line

# Lines of one message; a subprocess's output quoted in one may be longer, its own traceback is
# an exception of its own.
_MAX_MESSAGE_LINES: Final = 60
_MAX_LINKS: Final = 32
_SAYS_IT_FIRST: Final = "engine.py:"  # vLLM's V0, until 0.10: the exception's text, then its traceback
_MAX_ECHO_LINES: Final = 8  # of the source that a frame shows


class Writer:
    """One writer's tracebacks."""

    def __init__(self, line: Line, headline: str | None) -> None:
        self.process, self.role, self.pid, self.level = line.process, line.role, line.pid, line.level
        self.source = line.source
        self.headline = headline
        self.links: list[RaisedError] = []
        self.link: Link = "first"
        self.pending = 0  # tracebacks that have begun and whose exception is not printed yet
        self.message = False
        self.blank = 0
        self.foreign = 0
        self.indent = 0  # of an excerpt that was pasted indented
        self.seen = line.number
        self.beheaded = False
        self.broken_off = False
        self.aside: Writer | None = None  # another traceback, printed in the middle of this one
        self._begin()

    def _begin(self) -> None:
        self.first_line = 0
        self.location: tuple[str, str] | None = None
        self.functions: list[str] = []
        self.frames = 0
        self.main = False
        self.echo: list[str] = []
        self.type = ""
        self.text: list[str] = []
        self.size = 0
        self.line = 0
        self.last_line = 0

    # -- the parts of a traceback

    def header(self, line: Line) -> None:
        self._settle()
        self.echo = []
        self.pending += 1
        self.foreign = 0
        self.first_line = self.first_line or line.number

    def frame(self, line: Line, file: str, function: str) -> None:
        if self.message:
            link: Link = "first" if self.pending else "quoted"
            self._settle()
            self.link = link
        self.pending = max(self.pending, 1)
        self.foreign = 0
        self.first_line = self.first_line or line.number
        if not self.frames:
            self.main = is_main_program(file, function)
        self.frames += 1
        if len(self.functions) < MAX_FUNCTIONS:
            self.functions.append(function[:200])
        self.location = (file, function)
        self.echo = []

    def source_echo(self, text: str) -> None:
        """Take a line of the source that stands below a frame."""
        if len(self.echo) < _MAX_ECHO_LINES:
            self.echo.append(text)

    def break_off(self) -> None:
        """Take what the last frame was about to raise, or the record's headline, for what was raised.

        The text ends before it says so.
        """
        if self.message:
            return
        raised = raised_by("\n".join(self.echo)) if self.frames else None
        if raised is None and (self.source or "").rpartition("/")[2].startswith(_SAYS_IT_FIRST):
            raised = ("", self.headline) if self.headline else None
        if raised is not None:
            self.broken_off = True
            self.type, self.text, self.message = raised[0], [raised[1]], True
            self.line = self.last_line = self.seen

    def exception(self, line: Line, type_: str, text: str) -> None:
        self._settle()
        self.pending = max(self.pending - 1, 0)
        self.echo = []
        self.type, self.message, self.blank, self.foreign = type_, True, 0, 0
        self.first_line = self.first_line or line.number
        self.line = self.last_line = line.number
        self._say(text)

    def continuation(self, line: Line, text: str) -> None:
        for _ in range(self.blank):
            self._say("")
        self.blank = 0
        self.last_line = line.number
        self._say(text)

    def connect(self, link: Link) -> None:
        self._settle()
        self.link = link

    def _say(self, text: str) -> None:
        if self.size < MAX_TEXT and len(self.text) < _MAX_MESSAGE_LINES:
            self.text.append(text[: MAX_TEXT - self.size])
            self.size += len(self.text[-1]) + 1

    def _settle(self) -> None:
        """Close the exception whose message was being read."""
        if not self.message:
            return
        self.links.append(self._raised())
        if len(self.links) > _MAX_LINKS:
            del self.links[_MAX_LINKS // 2]
        self.message, self.link = False, "first"
        self._begin()

    def _raised(self) -> RaisedError:
        return RaisedError(
            type=self.type,
            text="\n".join(self.text).strip(),
            link=self.link,
            line=self.line,
            first_line=self.first_line,
            last_line=self.last_line,
            location=self.location,
            functions=tuple(self.functions),
            frames=self.frames,
            main=self.main,
            broken_off=self.broken_off,
        )

    # -- what it holds

    @property
    def waiting(self) -> bool:
        """Whether a connector was read, so that what comes next belongs to the chain."""
        return self.link in ("cause", "context")

    @property
    def full(self) -> bool:
        return len(self.text) >= _MAX_MESSAGE_LINES

    def chains(self) -> list[RaisedChain]:
        """What was read so far, the unfinished last message included, split into its chains."""
        links = [*self.links, self._raised()] if self.message else self.links
        groups: list[list[RaisedError]] = []
        for link in links:
            if link.link == "first" or not groups:
                groups.append([])
            groups[-1].append(link)
        return [
            RaisedChain(
                links=tuple(group),
                process=self.process,
                role=self.role,
                pid=self.pid,
                level=self.level,
                headline=self.headline,
                source=self.source,
                beheaded=self.beheaded and at == 0,
            )
            for at, group in enumerate(groups)
        ]
