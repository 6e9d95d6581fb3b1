"""Arbitrary bring-ups: readings that fit together, and such as do not."""

from __future__ import annotations

from typing import Any

import scene
from hypothesis import strategies as st
from scene import aftermath, api, engine, failing, worker

from vllm_startup import _readings as r
from vllm_startup._machine.terms import Terms
from vllm_startup._readings import TIERS
from vllm_startup._timeouts import Timeouts

LINES = [
    api(scene.BANNER),
    api(scene.BANNER, pid=11),
    api(scene.ARCHITECTURE),
    api(scene.ROUTES),
    scene.SERVED,
    *(
        say(text, pid=pid, name=name)
        for text in (
            scene.INIT,
            scene.DIST,
            scene.LOAD,
            scene.LOADED,
            scene.COMPILE,
            scene.KV,
            scene.CAPTURED,
            scene.ENGINE_READY,
        )
        for say, pid, name in (
            (engine, 20, "EngineCore_DP0"),
            (engine, 21, "EngineCore_DP1"),
            (worker, 30, "Worker"),
            (worker, 31, "Worker"),
        )
    ),
    *failing(scene.OOM),
    *failing("ValueError: not known"),
    *aftermath(),
    "Loading safetensors checkpoint shards:  61% Completed | 41/67 [00:10<00:05,  4.10it/s]",
    api("Waiting for 1 local, 0 remote core engine proc(s) to start."),
    engine("retrying 1 of 2", "ERROR"),
    "Nov 30 12:00:00 host systemd[1]: Started vllm.service - vLLM.",
    "Nov 30 12:00:09 host systemd[1]: vllm.service: Main process exited, code=killed, status=9/KILL",
    "Killed",
    "\r\x1b[32mcolours\x1b[0m",
    "",
    "   ",
]

texts = st.one_of(st.sampled_from(LINES), st.text(max_size=60))
sizes = st.integers(0, 1 << 40)
pids = st.integers(10, 14) | st.sampled_from([20, 21, 30, 31])
names = st.sampled_from(
    [
        "vllm",
        "python3",
        "nvcc",
        "VLLM::EngineCore",
        "VLLM::EngineCore_DP1",
        "VLLM::Worker",
        "VLLM::Worker_TP1",
        "",
    ]
)
owners = st.sampled_from(["tree", "foreign", "unknown"])

samples = st.builds(
    r.ProcessSample,
    pid=pids,
    ppid=pids,
    started_at=st.sampled_from([0.0, 1.0]),
    name=names,
    cpu_s=st.floats(0, 1e5),
    children_cpu_s=st.floats(0, 1e5),
    rss_bytes=sizes,
    read_bytes=st.none() | sizes,
    status=st.sampled_from(["running", "sleeping", "stopped", "zombie", "dead"]),
)
gpus = st.builds(
    r.GpuSample,
    index=st.integers(0, 3),
    uuid=st.sampled_from(["a", "b", "c"]),
    used_bytes=sizes,
    total_bytes=st.integers(1, 1 << 40),
    tree_bytes=st.none() | sizes,
)

readings: st.SearchStrategy[r.Reading] = st.one_of(
    st.builds(r.LogOpened, source=st.just("log"), stream=st.booleans()),
    st.builds(
        r.LogLines,
        lines=st.lists(texts, max_size=6).map(tuple),
        partial=st.none() | texts,
        history=st.booleans(),
    ),
    st.builds(r.LogCaughtUp),
    st.builds(r.OwnLogBegins),
    st.builds(r.LogEnded),
    st.builds(
        r.ProcessFound,
        pid=pids,
        started_at=st.none() | st.floats(0, 2e9),
        age_s=st.none() | st.floats(0, 1e5),
    ),
    st.builds(r.ProcessTree, root=pids, processes=st.lists(samples, max_size=4).map(tuple)),
    st.builds(
        r.ProcessExited,
        pid=pids,
        name=names,
        code=st.none() | st.integers(0, 255),
        signal=st.none() | st.integers(1, 64),
        root=st.booleans(),
        ago_s=st.none() | st.floats(0, 1e4),
        requested=st.none() | st.integers(1, 64),
    ),
    st.builds(r.GpuMemory, gpus=st.lists(gpus, max_size=3).map(tuple)),
    st.builds(r.CacheSize, what=st.sampled_from(["hub", "compile"]), total_bytes=sizes),
    st.builds(r.NotRestarted, reason=st.just("start-limit-hit")),
    st.builds(r.MemoryEvents, oom_kills=st.integers(0, 3), limit_bytes=st.none() | sizes),
    st.builds(
        r.Connection,
        state=st.sampled_from(["refused", "listening", "timed_out", "unreachable"]),
        owner=owners,
        owner_pid=st.none() | pids,
    ),
    st.builds(
        r.Answer,
        tier=st.sampled_from(TIERS),
        ok=st.booleans(),
        status=st.none() | st.sampled_from([200, 404, 503]),
        owner=owners,
        owner_pid=st.none() | pids,
    ),
    st.builds(r.ProbeBroken, error=st.just("OSError()")),
    st.builds(r.ProbeRecovered),
    st.builds(r.ProbeNote, code=st.just("note"), text=texts, awaits=st.booleans()),
    st.builds(r.WatchPaused, paused_s=st.floats(0, 1e4)),
)

gaps = st.sampled_from([0.0, 0.001, 0.1, 0.25, 1.0, 2.0, 10.0, 60.0, 500.0])


PRELUDE: tuple[r.Reading, ...] = (
    r.LogOpened(source="log"),
    scene.found(),
    scene.tree(scene.server(), scene.core(), scene.rank()),
    scene.gpu(500, 500),
)
"""How most watches begin; what follows then finds something to speak against."""


@st.composite
def bring_ups(draw: st.DrawFn, most: int = 25) -> list[r.Observation]:
    """Observations in the order of time."""
    at = 0.0
    first = PRELUDE if draw(st.booleans()) else ()
    found = [r.Observation(at=0.0, probe=scene.probe_of(reading), reading=reading) for reading in first]
    for gap, reading in draw(st.lists(st.tuples(gaps, readings), max_size=most)):
        at += gap
        found.append(r.Observation(at=at, probe=scene.probe_of(reading), reading=reading))
    return found


limits = st.none() | st.sampled_from([0.5, 30.0, 600.0])

terms: st.SearchStrategy[Terms] = st.builds(
    Terms,
    until=st.sampled_from(TIERS),
    stable_for=st.sampled_from([0.0, 5.0]),
    timeouts=st.builds(Timeouts, limits, stall=limits, cpu_only=limits, loading_weights=limits),
    restarts=st.integers(0, 2),
    exit_grace=st.sampled_from([0.0, 10.0]),
    raise_early=st.booleans(),
)


def wild_terms() -> dict[str, Any]:
    """Keyword arguments of a property test over any bring-up on any terms."""
    return {"observations": bring_ups(), "terms": terms}
