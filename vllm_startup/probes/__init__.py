"""Probes: the kinds of evidence that a watch can gather. Bring your own with `Probe`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_startup._lazy import exports
from vllm_startup._readings import (
    AddressFound,
    Answer,
    CacheSize,
    Connection,
    GpuMemory,
    GpuSample,
    LogCaughtUp,
    LogEnded,
    LogLines,
    LogOpened,
    MemoryEvents,
    NotRestarted,
    OwnLogBegins,
    ProbeNote,
    ProcessExited,
    ProcessFound,
    ProcessSample,
    ProcessTree,
    Reading,
)
from vllm_startup.probes._protocol import Probe

if TYPE_CHECKING:
    from vllm_startup.probes._cache import CacheProbe
    from vllm_startup.probes._cgroup import CgroupProbe
    from vllm_startup.probes._gpu import GpuProbe
    from vllm_startup.probes._health import HealthProbe
    from vllm_startup.probes._log import LogFileProbe
    from vllm_startup.probes._process import ProcessProbe
    from vllm_startup.probes._stream import StreamProbe
    from vllm_startup.probes._tree import TreeProbe

__all__ = [
    "AddressFound",
    "Answer",
    "CacheProbe",
    "CacheSize",
    "CgroupProbe",
    "Connection",
    "GpuMemory",
    "GpuProbe",
    "GpuSample",
    "HealthProbe",
    "LogCaughtUp",
    "LogEnded",
    "LogFileProbe",
    "LogLines",
    "LogOpened",
    "MemoryEvents",
    "NotRestarted",
    "OwnLogBegins",
    "Probe",
    "ProbeNote",
    "ProcessExited",
    "ProcessFound",
    "ProcessProbe",
    "ProcessSample",
    "ProcessTree",
    "Reading",
    "StreamProbe",
    "TreeProbe",
]

_HOMES = {
    "CacheProbe": "_cache",
    "CgroupProbe": "_cgroup",
    "GpuProbe": "_gpu",
    "HealthProbe": "_health",
    "LogFileProbe": "_log",
    "ProcessProbe": "_process",
    "StreamProbe": "_stream",
    "TreeProbe": "_tree",
}

__getattr__ = exports(__name__, _HOMES)
