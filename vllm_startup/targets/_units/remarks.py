"""What a unit's state tells that whoever waits should know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vllm_startup._readings import ProbeNote
from vllm_startup.targets._units.systemctl import UnitState

_LOST: Final = ("null", "tty", "socket")


def of_waiting(state: UnitState) -> Iterator[ProbeNote]:
    """That nobody has started it yet."""
    text = f"unit {state.name} is {state.active}: it is awaited; systemctl start {state.name} starts it"
    yield ProbeNote(code="unit_inactive", text=text, awaits=True)


def of_output(state: UnitState, *, log: bool) -> Iterator[ProbeNote]:
    """Output that is not in the log that is read, or that cannot be told from older output there.

    Args:
        state: The unit.
        log: Whether its journal is read as the server's log.
    """
    if log and (state.to_file or state.output in _LOST):
        text = f"{state.name} has StandardOutput={state.output}: its output is in no log that is read"
        yield ProbeNote(code="log_elsewhere", text=text)
    elif state.errors not in ("inherit", state.output):
        text = f"{state.name} has StandardError={state.errors}: what it writes there is not read"
        yield ProbeNote(code="log_elsewhere", text=text)
    if not log and state.overwrites:
        text = (
            f"{state.name} has StandardOutput=file: each start overwrites the file from its beginning, and"
            " what is left of the one before may be taken for its own; append: or truncate: does not"
        )
        yield ProbeNote(code="log_overwritten", text=text)


def of_state(state: UnitState, *, restarted_before: bool) -> Iterator[ProbeNote]:
    """What has become of it.

    Args:
        state: The unit.
        restarted_before: Whether each restart that it counts was before the watch.
    """
    if state.restarts and restarted_before:
        text = f"systemd had restarted {state.name} {times(state.restarts)} before this watch"
        yield ProbeNote(code="unit_restarted", text=text)
    if state.loaded == "not-found":
        text = f"unit {state.name} does not exist any more: its files were removed"
        yield ProbeNote(code="unit_gone", text=text)


def times(restarts: int) -> str:
    """A number of restarts, in words."""
    return "1 restart" if restarts == 1 else f"{restarts} restarts"
