"""What probes see: one frozen class a kind of reading.

A reading carries no time. The watch stamps each once, as an `Observation`, when it arrives;
the machine never sees anything else, which is why a recording of observations replays to the
same report.
"""

from __future__ import annotations

from typing import Literal

import attrs


def _finite(_reading: object, attribute: attrs.Attribute[float | None], value: float | None) -> None:
    if value is not None and not -_FAR_S < value < _FAR_S:
        raise ValueError(f"{attribute.name} must be a time in seconds, not {value!r}")


def _not_negative(reading: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not 0 <= value < _FAR_S:
        raise ValueError(f"{attribute.name} must be a number of seconds from 0, not {value!r}")


def _text(reading: object, attribute: attrs.Attribute[str], value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{attribute.name} must be a str, not {value!r}")


_FAR_S = 253_402_300_800.0  # the end of the year 9999, beyond which no date can be told


@attrs.frozen
class Reading:
    """Base of everything that a probe may report. Subclass it for readings of your own."""


# --- the log ------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class LogOpened(Reading):
    """A log is being followed from now on.

    Attributes:
        source: What is followed, for people: a path, or a stream's name.
        stream: True for a pipe, whose end is told by `LogEnded`; False for a file, which is
            complete when it has stopped growing.
        modified_at: When the file was last written to before the watch, in seconds since the Unix
            epoch; None for a stream, or an empty file.
        tail: The last lines that it held then, which were written at about that time.
        clock_ahead_s: How far the clock of the machine that wrote it is ahead of ours, in seconds;
            ``modified_at`` and the lines' own stamps are by that clock.
    """

    source: str
    stream: bool = False
    modified_at: float | None = attrs.field(default=None, validator=_finite)
    tail: tuple[str, ...] = ()
    clock_ahead_s: float = 0.0


@attrs.frozen(kw_only=True)
class LogLines(Reading):
    r"""Lines of the server's output, as they were written, without their newlines.

    One reading holds what arrived together: an object a line would cost more than reading it.

    Attributes:
        lines: Whole lines, the oldest first. They may hold colours and ``\r``.
        partial: The unfinished last line (a progress bar that redraws itself); it is told again
            when it has grown, and is among ``lines`` once it has ended. None without one.
        history: True for what was in the file before the watch began.
    """

    lines: tuple[str, ...] = ()
    partial: str | None = None
    history: bool = False


@attrs.frozen(kw_only=True)
class LogCaughtUp(Reading):
    """All that was in the file before the watch began has been read."""


@attrs.frozen(kw_only=True)
class OwnLogBegins(Reading):
    """What was there before the watched server was started has been read; what follows is its own."""


@attrs.frozen(kw_only=True)
class LogEnded(Reading):
    """The stream has ended: all its writers closed it."""


# --- processes ----------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ProcessFound(Reading):
    """The server's main process, to which the current attempt is bound from now on.

    Attributes:
        pid: Its process id.
        started_at: When it started, in seconds since the Unix epoch; with the pid it names the
            process even if the pid is used again. None where that is not ours to read.
        age_s: How long it had been running when it was found; None where unknown.
        command: Its arguments, secrets removed; empty where they are not ours to read.
    """

    pid: int
    started_at: float | None = attrs.field(default=None, validator=_finite)
    age_s: float | None = attrs.field(default=None, validator=_finite)
    command: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class ProcessSample:
    """One process of the tree at one moment.

    Attributes:
        name: Its title as vLLM sets it (``VLLM::EngineCore_DP0``), else its program's name.
        cpu_s: User and system seconds of its own since it started.
        children_cpu_s: The same of children that ended and were waited for.
        read_bytes: Bytes fetched from storage since it started; None where not ours to read.
        status: psutil's word: ``running``, ``sleeping``, ``stopped``, ``zombie``, ...
    """

    pid: int
    ppid: int
    started_at: float
    name: str = attrs.field(validator=_text)
    cpu_s: float
    children_cpu_s: float = 0.0
    rss_bytes: int = 0
    read_bytes: int | None = None
    status: str = "running"


@attrs.frozen(kw_only=True)
class ProcessTree(Reading):
    """The server's processes: its main process and everything that descends from it."""

    root: int
    processes: tuple[ProcessSample, ...]


@attrs.frozen(kw_only=True)
class ProcessExited(Reading):
    """A process of the tree has ended.

    Attributes:
        code: Its exit status; None when a signal ended it or nobody could tell.
        signal: The number of the signal that ended it; None otherwise.
        root: Whether it was the main process. Its end is the end of the attempt.
        ago_s: How long ago it ended, in seconds, where nobody was watching then; None where it has
            just ended.
        requested: The number of the signal by which it was asked to end, where what runs it tells of
            that; how it ended then is another matter. None otherwise.
    """

    pid: int
    name: str = attrs.field(validator=_text)
    code: int | None = None
    signal: int | None = None
    root: bool = False
    ago_s: float | None = attrs.field(default=None, validator=_finite)
    requested: int | None = None


@attrs.frozen(kw_only=True)
class NotRestarted(Reading):
    """What runs the server will not start it again by itself: no restart is to be waited for.

    Attributes:
        reason: Why not, for people.
    """

    reason: str = attrs.field(validator=_text)


# --- silent work --------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class GpuSample:
    """One GPU (or MIG slice) at one moment.

    Attributes:
        tree_bytes: What the server's own processes hold of ``used_bytes``; None where the
            driver does not tell (containers, MIG, vGPU).
    """

    index: int
    uuid: str
    used_bytes: int
    total_bytes: int
    tree_bytes: int | None = None


@attrs.frozen(kw_only=True)
class GpuMemory(Reading):
    """Memory in use on every GPU that the server may use."""

    gpus: tuple[GpuSample, ...]


@attrs.frozen(kw_only=True)
class CacheSize(Reading):
    """How many bytes lie in a folder that grows while nothing is printed.

    Attributes:
        what: ``hub`` for downloads in progress, ``compile`` for compiled artefacts.
        total_bytes: The size at this moment.
    """

    what: Literal["hub", "compile"]
    total_bytes: int


@attrs.frozen(kw_only=True)
class MemoryEvents(Reading):
    """What the kernel counts for the server's control group: memory, and kills for want of it.

    Attributes:
        oom_kills: Processes of the group that the kernel has killed for memory, since it was made.
        limit_bytes: The memory that the group may use; None without a limit of its own.
        used_bytes: What it uses.
    """

    oom_kills: int
    limit_bytes: int | None = None
    used_bytes: int | None = None


# --- the port -----------------------------------------------------------------------------

Owner = Literal["tree", "foreign", "unknown"]
"""Whose socket listens: the watched processes', somebody else's, or nobody can tell."""


@attrs.frozen(kw_only=True)
class Connection(Reading):
    """What a bare connect to the server's address met.

    Attributes:
        state: ``refused`` (nothing listens), ``listening``, ``timed_out``, ``unreachable``.
        owner_pid: The listening process where it could be seen.
        detail: The operating system's words, where there are any.
    """

    state: Literal["refused", "listening", "timed_out", "unreachable"]
    owner: Owner = "unknown"
    owner_pid: int | None = None
    detail: str | None = None


Tier = Literal["engine", "health", "model", "inference"]
"""How much "ready" has to mean, from the least to the most."""

TIERS: tuple[Tier, ...] = ("engine", "health", "model", "inference")


@attrs.frozen(kw_only=True)
class Answer(Reading):
    """What a request to the server was answered.

    Attributes:
        tier: The readiness tier that was asked for.
        ok: Whether the tier is met.
        status: The HTTP status; None when the answer was none or no HTTP.
        detail: What was wrong, for people; None when ``ok``.
    """

    tier: Tier
    ok: bool
    status: int | None = None
    owner: Owner = "unknown"
    owner_pid: int | None = None
    detail: str | None = None


@attrs.frozen(kw_only=True)
class AddressFound(Reading):
    """Where the server listens was not known before, and is asked there from now on.

    Attributes:
        url: Its address, as `wait_until_ready` takes it.
    """

    url: str = attrs.field(validator=_text)


# --- the watch itself ---------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ProbeBroken(Reading):
    """A probe raised, or took longer than its limit. The others go on."""

    error: str


@attrs.frozen(kw_only=True)
class ProbeRecovered(Reading):
    """A probe that was broken works again."""


@attrs.frozen(kw_only=True)
class ProbeNote(Reading):
    """Something that a probe has to say once, such as that it has nothing to see here.

    Attributes:
        code: A stable snake_case word for scripts, e.g. ``nvml_unavailable``.
        text: One line for people.
        awaits: Whether it says that what is watched does not run yet, and is waited for.
    """

    code: str = attrs.field(validator=_text)
    text: str = attrs.field(validator=_text)
    awaits: bool = False


@attrs.frozen(kw_only=True)
class WatchPaused(Reading):
    """The watcher itself did not run for a while (suspended machine, SIGSTOP, blocked loop).

    The time counts for no limit: nobody was there to see progress.
    """

    paused_s: float = attrs.field(validator=_not_negative)


@attrs.frozen
class Observation:
    """A reading, when it arrived and who brought it.

    Attributes:
        at: Seconds on the clock of the watch.
        probe: The probe's name.
    """

    at: float
    probe: str
    reading: Reading
