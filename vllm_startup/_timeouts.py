"""How long a wait may take: in all, in each phase, and without any progress."""

from __future__ import annotations

import attrs

from vllm_startup._phases import Phase

MOST_S = 1e12  # 30,000 years; beyond, times lose their seconds


def _limit(_timeouts: object, attribute: attrs.Attribute[float | None], value: float | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{attribute.name} must be a number of seconds or None for no limit, not {value!r}")
    if not 0 < value < MOST_S:
        raise ValueError(
            f"{attribute.name} must be a positive, finite number of seconds, not {value!r};"
            " use None for no limit"
        )


def _seconds(default: float | None = None) -> float | None:
    return attrs.field(default=default, kw_only=True, validator=_limit)


@attrs.frozen
class Timeouts:
    """Limits of a wait, in seconds; None is no limit.

    Attributes:
        total: From the call until ready, across attempts.
        stall: Without any progress: no marker, counter, memory, byte or CPU time moved. It is
            armed only while a probe works that sees silent work, so that a quiet download or
            compile never counts as a stall.
        cpu_only: How long CPU time alone, with no other sign of progress, may hold off a stall.
        launching: Within `Phase.LAUNCHING`; likewise the others within the phase of their name.
    """

    total: float | None = attrs.field(default=None, validator=_limit)
    stall: float | None = _seconds(600)
    cpu_only: float | None = _seconds(3600)
    launching: float | None = _seconds()
    configuring: float | None = _seconds()
    initializing: float | None = _seconds()
    loading_weights: float | None = _seconds()
    compiling: float | None = _seconds()
    allocating_kv_cache: float | None = _seconds()
    warming_up: float | None = _seconds()
    starting_server: float | None = _seconds()

    def of(self, phase: Phase) -> float | None:
        """The limit of a phase; None for no limit. `Phase.READY` has none."""
        limit: float | None = getattr(self, phase.value, None)
        return limit
