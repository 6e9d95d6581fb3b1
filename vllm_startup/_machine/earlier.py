"""An earlier start of the same model, and where this one differs from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from vllm_startup._events import SCHEMA
from vllm_startup._machine.attempt import Attempt
from vllm_startup._machine.memory import MIB
from vllm_startup._phases import Phase

_SLOWER = 1.5  # starts of one model on one machine differ by less, caches warm
_SLOWER_BY_S = 10.0
_FOOTPRINT_SHARE = 0.05
_EVEN_SHARE = 0.05


@attrs.frozen(kw_only=True)
class Earlier:
    """What an earlier report said.

    Attributes:
        footprint: Bytes in use on each GPU at its end, by UUID.
        phases: How long each phase took, in seconds.
        spread: How far the least filled GPU was below the most filled one, as a share of it.
    """

    footprint: dict[str, int] = attrs.field(factory=dict)
    phases: dict[str, float] = attrs.field(factory=dict)
    spread: float = 0.0

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Earlier:
        """Read a report's JSON values.

        Raises:
            ValueError: They are no report, or not of a start that became ready.
        """
        try:
            schema, outcome = report.get("schema", SCHEMA), report.get("outcome", "ready")
            footprint = {str(gpu["uuid"]): int(gpu["used_bytes"]) for gpu in report["gpus"]}
            phases = {
                str(span["phase"]): _duration_s(span["started_s"], span["ended_s"])
                for span in report["phases"]
                if span["ended_s"] is not None and span["phase"] != Phase.READY
            }
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                "baseline must be a report: a StartupReport, its to_dict(), or a file of its JSON"
            ) from error
        if schema != SCHEMA:
            raise ValueError(f"baseline has schema {schema!r}, and this version reads {SCHEMA}")
        if outcome != "ready":
            raise ValueError(f"baseline must be the report of a start that became ready; it is {outcome!r}")
        return cls(footprint=footprint, phases=phases, spread=_spread(footprint.values()))


def differences(attempt: Attempt, earlier: Earlier) -> Iterator[tuple[str, str]]:
    """What is different now, as (code, text)."""
    for span in attempt.course.spans:
        before = earlier.phases.get(span.phase.value)
        if before is None or span.ended_at is None:
            continue
        took = span.ended_at - span.started_at
        if took > before * _SLOWER and took - before > _SLOWER_BY_S:
            yield "phase_slower", f"{span.phase} took {took:.0f} s, {before:.0f} s in the earlier start"
    devices = attempt.signs.gpus.devices
    for uuid, device in devices.items():
        before_bytes = earlier.footprint.get(uuid)
        if before_bytes and abs(device.used - before_bytes) > before_bytes * _FOOTPRINT_SHARE:
            used = f"{device.used // MIB:,} MiB now, {before_bytes // MIB:,} MiB in the earlier start"
            yield "footprint_differs", f"GPU {device.index} holds {used}"
    spread = _spread(device.used for device in devices.values())
    if spread > earlier.spread + _EVEN_SHARE:
        yield (
            "uneven_gpus",
            f"GPUs differ by {spread:.0%} of the fullest one, {earlier.spread:.0%} in the earlier start",
        )


def _duration_s(started_s: float, ended_s: float) -> float:
    took = ended_s - started_s
    if not math.isfinite(took):
        raise ValueError(f"{took} s")
    return took


def _spread(used: Any) -> float:
    values = list(used)
    return (max(values) - min(values)) / max(values) if values and max(values) > 0 else 0.0
