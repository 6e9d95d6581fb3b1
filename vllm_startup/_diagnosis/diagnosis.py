"""From one attempt's text to why it failed: the first cause across all its processes.

What counts
-----------
Root exceptions (tracebacks put together per process, see `vllm_startup._log.tracebacks`) and
single lines that a rule knows. Warnings, advice, source echoes and config dumps never count.

A cause is *fixed* by a root exception together with a terminal wrapper ("EngineCore failed to
start.", argparse's ``error:``, an uncaught exception of the main program) or with the end of the
process: vLLM logs errors that it retries or survives.

Which one
---------
The earliest, but an exception that a rule knows before one that none knows, one that ended its
process before one that was only logged, and anything before a consequence (a peer lost, an
inspection failed). Exceptions that only say that another process failed are never the cause;
where there is nothing else, what they tell of that process's end is.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from vllm_startup._diagnosis import aftermath
from vllm_startup._diagnosis.aftermath import is_ending
from vllm_startup._diagnosis.begun import Begun, begins
from vllm_startup._diagnosis.candidates import (
    KNOWN_LINE,
    KNOWN_SPOKEN,
    KNOWN_WEAK,
    UNKNOWN_UNCAUGHT,
    Candidate,
    better,
    ends_process,
    ends_program,
    left_uncaught,
)
from vllm_startup._diagnosis.evidence import with_evidence
from vllm_startup._diagnosis.jury import UNCLASSIFIED, Jury
from vllm_startup._diagnosis.tone import HARMLESS_LEVELS, is_farewell, is_harmless
from vllm_startup._log.exceptions import HEADER, RaisedChain
from vllm_startup._log.exceptions import LITERALS as EXCEPTION_LITERALS
from vllm_startup._log.tracebacks import Tracebacks
from vllm_startup._log.triggers import Triggers
from vllm_startup.causes._rules import CauseRule
from vllm_startup.causes._ruleset import RuleSet, built_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet

    from vllm_startup._log.lines import Line
    from vllm_startup.causes import Cause

# Below this, a better one may still be on its way while the log goes on.
_SURE: Final = UNKNOWN_UNCAUGHT

# What is decisive stands at a line's beginning; patterns see no more of an endless one.
_MAX_LINE: Final = 8_000

# Who asked for it says more than that somebody did.
_ASKED: Final = frozenset({"shutdown_requested"})

_QUOTE: Final = "> "  # of a log pasted as a quotation


class Clue(NamedTuple):
    """What makes a line worth reading.

    Attributes:
        literal: What it holds.
        rule: The rule that goes by lines like it; None where the literal only begins something.
    """

    literal: str
    rule: CauseRule | None = None


class Diagnosis:
    """Why one attempt failed, told from its text alone.

    Pure and cheap: lines in, a cause out. Memory does not grow with the log.
    """

    def __init__(self, rules: Iterable[CauseRule] | None = None) -> None:
        """Start with nothing read.

        Args:
            rules: What to look for; None: every rule of the package.
        """
        rules = None if rules is None else tuple(rules)
        self._jury = Jury(built_in() if rules is None else RuleSet(rules))
        self._telling = _telling() if rules is None else Triggers(_by_literal(self.clues(rules)))
        self._tracebacks = Tracebacks()
        self._best: Candidate | None = None
        self._explanations: dict[str, Cause] = {}
        self._ends = aftermath.Ends()
        self._fatal = False
        self._ready = False
        self._uncaught: int | None = None  # the line of the last one that nobody logged
        self._mild = 0  # the last line in which vLLM's logger said something harmless
        self._last = 0  # the last line
        # What the unfinished streams hold, until a line changes it.
        self._pending: tuple[Candidate | None, bool] | None = None
        self._begun: Begun | None = None
        self._excerpt = 0

    # -- text in

    @staticmethod
    def clues(rules: Iterable[CauseRule] | None = None) -> tuple[Clue, ...]:
        """While not `busy`, only lines that hold the literal of one of these need to be fed.

        Args:
            rules: As for the diagnosis itself.
        """
        known = built_in() if rules is None else RuleSet(rules)
        others = (*known.literals, *EXCEPTION_LITERALS, *aftermath.LITERALS)
        return (*(Clue(rule.literal, rule) for rule in known.of_lines), *map(Clue, dict.fromkeys(others)))

    @property
    def busy(self) -> bool:
        """Whether a traceback or a message has begun and not ended: every line must be fed."""
        return self._tracebacks.open or self._begun is not None

    def feed(self, line: Line, among: Iterable[Clue] | None = None) -> bool:
        """Read a line.

        Args:
            line: The line, parsed.
            among: The only ones of the `clues` that it may hold, in their order, where that is known.

        Returns:
            Whether it may have changed anything: a line that holds no literal has not.
        """
        if among is None:
            clues = self._telling.find(line.message)
        else:
            clues = [clue for clue in among if clue.literal in line.message]
        if not clues and not self.busy:
            self.skip(line)
            return False
        if len(line.message) > _MAX_LINE or line.message.startswith(_QUOTE):
            line = attrs.evolve(line, message=line.message.removeprefix(_QUOTE)[:_MAX_LINE])
        if self._goes_on(line):
            return True
        used = self._tracebacks.feed(line)
        if used == "message":
            self._pending = None
        self._take()
        self._ends.saw(line)
        if used == "no":
            self.skip(line)
            self._read_line(line, [clue.rule for clue in clues if clue.rule is not None])
        elif used == "frame" and HEADER in line.message:
            self._read_headline(line, clues)
        elif used == "message" and is_ending(line):
            self._fatal = True
            self._ends.read(line.message, process=line.process, line=line.number)
        return True

    def skip(self, line: Line) -> None:
        """Take note of a line that holds none of the `clues`, while not `busy`."""
        if line.source is not None and line.level in HARMLESS_LEVELS and not is_farewell(line):
            self._mild = line.number
        if line.message and not line.message.startswith(aftermath.FENCE):
            self._last = line.number

    def finish(self) -> None:
        """No more text will come: close what is open."""
        self._tracebacks.finish()
        self._take()

    def _take(self) -> None:
        for chain in self._tracebacks.take():
            self._pending = None
            self._note_chain(chain)

    # -- causes out

    @property
    def fatal(self) -> bool:
        """Whether the text says that the start cannot succeed any more."""
        return self._fatal or self._unfinished()[1]

    @property
    def ends_in_failure(self) -> bool:
        """Whether the text's last words are an exception of the start's that nobody logged."""
        return self._uncaught is not None and self._uncaught > self._mild

    def last_words(self, *, spoken: bool) -> Cause | None:
        """What the text's last words say of a failure, though nothing says that they end a start.

        Args:
            spoken: Whether what a rule knows of an exception counts in a line that names none, too; as the
                very last words it always does.

        Returns:
            None where there is no such word, and where vLLM's logger went on in another tone.
        """
        best = self._candidate()
        if best is None or best.line < self._mild:
            return None
        spoken = spoken or (best.score == KNOWN_SPOKEN and best.line >= self._last)
        return best.cause if spoken or best.score == KNOWN_LINE else None

    @property
    def cause(self) -> Cause | None:
        """The best candidate so far, whether or not the attempt has failed; None without any."""
        best = self._candidate()
        return None if best is None else best.cause

    @property
    def aftermath(self) -> Cause | None:
        """What is known of the end when only the aftermath is there; None without one."""
        return aftermath.asked_to_end(self._ends) if self._ready else aftermath.cause_of(self._ends)

    @property
    def stopped(self) -> Cause | None:
        """That the server stopped in good order after it had come up, where it says so."""
        return aftermath.stopped(self._ends)

    @property
    def gone(self) -> Cause | None:
        """Why the server's processes are gone, where that they are is what the text's last words tell."""
        gone = None if self._ready else aftermath.gone(self._ends, since=self._mild)
        best = self._candidate()
        return best.cause if gone is not None and best is not None and best.score >= _SURE else gone

    @property
    def killed(self) -> AbstractSet[int]:
        """The processes that the server has killed itself, as it says."""
        return self._ends.killed

    def verdict(self, *, ended: bool, quiet: bool = False) -> Cause | None:
        """The cause, once it is fixed.

        Args:
            ended: Whether the main process has ended, or the text is all there will be.
            quiet: Whether nothing was written for a moment, so that the last message is whole.

        Returns:
            The root cause; when it has ended, else what the aftermath tells; None for a text
            without a failure, and while it goes on and is not known to have failed.
        """
        if not ended and not self.fatal:
            return None
        best = self._candidate()
        if not ended:
            sure = best is not None and best.score >= _SURE and (best.settled or quiet)
            return best.cause if best is not None and sure else None
        if best is not None and best.score > KNOWN_SPOKEN:
            return best.cause
        if best is not None and self._failed and (best.score == KNOWN_SPOKEN or not self._told_by_code):
            return best.cause  # it was only logged, but nothing says more
        return self.aftermath

    @property
    def _told_by_code(self) -> bool:
        return not self._ready and aftermath.told_by_code(self._ends) is not None

    @property
    def _failed(self) -> bool:
        return self.fatal or self._ends.wrapper is not None

    def _candidate(self) -> Candidate | None:
        """The best of what is finished and what is still being read."""
        unfinished, _ = self._unfinished()
        return self._explained(better(self._best, unfinished))

    def _unfinished(self) -> tuple[Candidate | None, bool]:
        """The best of what is still being read, and whether it ends the program."""
        if self._pending is None:
            best: Candidate | None = None
            chains = self._tracebacks.peek()
            for chain in chains:
                found = self._jury.judge(chain)
                if found is not None and found.open:
                    found = attrs.evolve(found, settled=False)  # the next line may hold what a rule knows
                best = better(best, found)
            if best is not None:
                best = attrs.evolve(best, excerpt=self._excerpt)
            self._pending = (best, any(ends_program(chain) for chain in chains))
        return self._pending

    def _explained(self, found: Candidate | None) -> Candidate | None:
        """What an earlier line says of why it happened, where one does."""
        if found is None or found.cause.kind not in self._explanations:
            return found
        reason = self._explanations[found.cause.kind]
        if reason.evidence == found.cause.evidence:
            return found  # it is its own reason
        says_as_much = reason.kind == found.cause.kind and reason.kind not in _ASKED
        if says_as_much and found.cause.confidence == "certain":
            return found
        cause = attrs.evolve(reason, evidence=(*reason.evidence, *found.cause.evidence))
        return attrs.evolve(found, cause=cause, score=max(found.score, KNOWN_WEAK))

    # -- lines

    def _read_line(self, line: Line, rules: Iterable[CauseRule]) -> None:
        text = line.message
        if text.startswith(aftermath.FENCE):
            self._fatal = self._fatal or self.ends_in_failure
            self._excerpt += 1
        if is_ending(line):
            self._fatal = True
            self._ends.read(text, process=line.process, line=line.number)
        if not self._ready and any(map(text.__contains__, aftermath.READY)):
            self._ready = True
        self._ends.heard(line)
        harmless = is_harmless(line)
        if line.level == "DEBUG":
            return
        if not harmless and (spoken := self._jury.hear(line)) is not None:
            self._offer(spoken)
        for rule in rules:
            if harmless and not rule.explains:
                continue
            cause = rule.match(text, line=line)
            if cause is None:
                continue
            for kind in rule.explains:
                self._explanations.setdefault(kind, with_evidence(cause, text, line.process, line.number))
            if harmless or not rule.offered:
                continue
            self._fatal = self._fatal or rule.ends
            found = Candidate(
                score=KNOWN_WEAK if rule.rank == "weak" else KNOWN_LINE,
                line=line.number,
                cause=with_evidence(cause, text, line.process, line.number),
                settled=not begins(text),
                excerpt=self._excerpt,
            )
            self._begun = None if found.settled else Begun(found)
            self._offer(found)
            return

    def _goes_on(self, line: Line) -> bool:
        """Whether a line belongs to a refusal that was begun; the refusal has it then."""
        if self._begun is None:
            return False
        before, self._begun = self._begun.candidate, self._begun.then(line)
        if self._begun is None:
            return False
        if self._best is before:
            self._best = self._begun.candidate
        return True

    def _read_headline(self, line: Line, clues: Iterable[Clue]) -> None:
        """What stands before a traceback in its own line: an excerpt may end before its exception."""
        before = line.message.partition(HEADER)[0]
        if not before.strip() or line.level in HARMLESS_LEVELS:
            return
        if line.level is not None and not self._ready:
            self._fatal = self._fatal or any(map(before.__contains__, aftermath.FATAL_HEADLINES))
        line = attrs.evolve(line, message=before)
        self._read_line(line, [clue.rule for clue in clues if clue.rule is not None])

    # -- exceptions

    def _note_chain(self, chain: RaisedChain) -> None:
        if ends_program(chain) or (ends_process(chain) and not self._ready):
            self._fatal = True
        for error in chain.links:
            if aftermath.is_wrapper(error) and chain.level not in HARMLESS_LEVELS:
                self._ends.read(error.full, process=chain.process, line=error.line)
        found = self._jury.judge(chain)
        if found is not None:
            self._offer(found)
            self._fatal = self._fatal or found.ends
            if left_uncaught(chain, known=found.cause.kind != UNCLASSIFIED):
                self._uncaught = found.line

    def _offer(self, found: Candidate) -> None:
        if found.excerpt != self._excerpt:
            found = attrs.evolve(found, excerpt=self._excerpt)
        self._best = better(self._best, found)


def _by_literal(clues: Iterable[Clue]) -> Iterator[tuple[str, Clue]]:
    return ((clue.literal, clue) for clue in clues)


@cache
def _telling() -> Triggers[Clue]:
    """What the package's own rules need to see."""
    return Triggers(_by_literal(Diagnosis.clues()))
