"""Which evidence moves a bring-up, when, and where the move is dated to."""

from __future__ import annotations

import pytest
from scene import (
    ARCHITECTURE,
    BANNER,
    CAPTURED,
    COMPILE,
    DIST,
    ENGINE_READY,
    GIB,
    INIT,
    KV,
    LOAD,
    LOADED,
    MIB,
    ROUTES,
    Seen,
    answered,
    api,
    core,
    engine,
    found,
    listening,
    log,
    opened,
    proc,
    rank,
    refused,
    server,
    tree,
    watch,
    worker,
)

from vllm_startup import probes
from vllm_startup._events import PhaseEntered


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        pytest.param(api(BANNER), "configuring", id="version banner"),
        pytest.param(api(ARCHITECTURE), "configuring", id="resolved architecture"),
        pytest.param(engine(INIT), "initializing", id="engine init"),
        pytest.param(worker(DIST), "initializing", id="world size and rank"),
        pytest.param(worker(LOAD), "loading_weights", id="load begins"),
        pytest.param(worker(LOADED), "loading_weights", id="load took"),
        pytest.param(
            "Loading safetensors checkpoint shards:  61% Completed | 41/67 [00:10<00:05,  4.10it/s]",
            "loading_weights",
            id="shard bar",
        ),
        pytest.param(worker(COMPILE), "compiling", id="dynamo"),
        pytest.param(engine(KV), "allocating_kv_cache", id="KV size"),
        pytest.param(api(ROUTES), "starting_server", id="routes"),
        pytest.param("INFO:     Application startup complete.", "starting_server", id="uvicorn"),
    ],
)
def test_strong_evidence_moves_at_once(line: str, phase: str) -> None:
    run = watch([(0, found()), (7, log(line))])
    assert run.report.phase == phase
    assert run.phases[phase] == 7.0
    assert run.report.phases[-1].because[0].probe == "log"


def test_a_whole_start_passes_all_phases_in_their_order() -> None:
    lines = [
        api(BANNER),
        engine(INIT),
        engine(LOAD),
        engine(COMPILE),
        engine(KV),
        engine(CAPTURED),
        api(ROUTES),
    ]
    rows: list[Seen] = [(0, found()), *((float(i), log(line)) for i, line in enumerate(lines, 1))]
    run = watch([*rows, (9, answered())])
    assert run.phases == {
        "launching": 0.0,
        "configuring": 1.0,
        "initializing": 2.0,
        "loading_weights": 3.0,
        "compiling": 4.0,
        "allocating_kv_cache": 5.0,
        "warming_up": 6.0,
        "starting_server": 7.0,
        "ready": 9.0,
    }
    assert run.report.outcome == "ready"
    assert run.report.ready_s == 9.0


def test_launching_is_told_although_the_log_speaks_first() -> None:
    """Which probe answers first is a matter of luck."""
    run = watch([(0, opened()), (0.01, log(api(ARCHITECTURE))), (0.02, found(age_s=0.5))])
    assert list(run.phases) == ["launching", "configuring"]
    assert run.phases["launching"] == 0.0
    assert run.phases["configuring"] == pytest.approx(0.49)


def test_each_phase_ends_where_the_next_begins() -> None:
    run = watch([(0, found()), (1, log(api(BANNER))), (4, log(engine(LOAD)))])
    assert [(span.started_s, span.ended_s) for span in run.report.phases] == [(0, 1), (1, 4), (4, None)]


def test_an_earlier_phase_moves_nothing() -> None:
    run = watch([(0, found()), (1, log(engine(KV))), (2, log(engine(LOAD))), (3, log(engine(INIT)))])
    assert run.report.phase == "allocating_kv_cache"
    assert "loading_weights" not in run.phases


def test_every_move_says_because() -> None:
    run = watch([(0, found()), (1, log(api(BANNER))), (3, log(engine(INIT)))])
    moved = [event for event in run.events if isinstance(event, PhaseEntered)]
    assert [(event.phase, event.because.probe, event.because.at_s) for event in moved] == [
        ("launching", "process", 0.0),
        ("configuring", "log", 1.0),
        ("initializing", "log", 3.0),
    ]
    assert moved[2].because.text == INIT


def test_a_second_kind_of_evidence_is_kept_with_the_phase() -> None:
    rows: list[Seen] = [(0, found()), (1, tree(server(), core())), (8, log(engine(INIT)))]
    assert [ground.probe for ground in watch(rows).report.phases[-1].because] == ["tree", "log"]


def test_warnings_and_errors_are_no_markers() -> None:
    run = watch([(0, found()), (1, log(engine(LOAD, "WARNING"), engine(KV, "ERROR")))])
    assert run.report.phase in {"launching", "configuring"}


def test_the_first_line_in_vllms_form_is_weak_evidence_for_configuring() -> None:
    line = api("Found ulimit of 20000", "WARNING")
    early = watch([(0, found()), (5, opened()), (6, log(line))], until_s=7.9)
    late = watch([(0, found()), (5, opened()), (6, log(line))], until_s=8.1)
    assert early.phases == {"launching": 0.0}
    assert late.phases == {"launching": 0.0, "configuring": 6.0}


@pytest.mark.parametrize("process", [core(), rank(ppid=10)], ids=["engine", "worker"])
def test_a_titled_process_is_weak_evidence_for_initializing(process: probes.ProcessSample) -> None:
    rows: list[Seen] = [(0, found()), (0, tree(server())), (11, tree(server(), process))]
    assert watch(rows, until_s=12.9).phases == {"launching": 0.0}
    assert watch(rows, until_s=13.1).phases == {"launching": 0.0, "initializing": 11.0}


def test_weak_evidence_waits_while_the_log_speaks() -> None:
    rows: list[Seen] = [(0, found()), (1, log(api(BANNER))), (10, tree(server(), core()))]
    speaking: list[Seen] = [(10 + i, log(api(f"still configuring {i}"))) for i in range(8)]
    run = watch([*rows, *speaking], until_s=18.9)
    assert run.report.phase == "configuring"
    assert watch([*rows, *speaking], until_s=19.1).phases["initializing"] == 10.0


def test_a_log_that_told_of_its_engines_counts_as_silent_only_after_a_minute() -> None:
    rows: list[Seen] = [
        (0, found()),
        (1, log(engine(INIT))),
        (2, tree(server(), core(rss=0))),
        (10, tree(server(), core(rss=GIB))),
    ]
    assert watch(rows, until_s=60).report.phase == "initializing"
    assert watch(rows, until_s=62).phases["loading_weights"] == 10.0


def test_rising_host_memory_is_weak_evidence_for_loading() -> None:
    rows: list[Seen] = [
        (0, found()),
        (1, tree(server(), core(rss=300 * MIB))),
        (2, tree(server(), core(rss=320 * MIB))),
        (5, tree(server(), core(rss=900 * MIB))),
    ]
    assert watch(rows, until_s=8).phases == {"launching": 0.0, "initializing": 1.0, "loading_weights": 5.0}


def test_files_that_are_read_are_weak_evidence_for_loading() -> None:
    rows: list[Seen] = [
        (0, found()),
        (1, tree(server(), core(read=0))),
        (4, tree(server(), core(read=2 * GIB))),
    ]
    assert watch(rows, until_s=7).phases["loading_weights"] == 4.0


def test_a_growing_hub_cache_is_weak_evidence_for_loading_once_an_engine_exists() -> None:
    rows: list[Seen] = [
        (0, found()),
        (1, probes_cache(0)),
        (2, probes_cache(GIB)),
        (3, tree(server(), core())),
        (6, probes_cache(2 * GIB)),
    ]
    assert watch(rows[:3], until_s=30).phases == {"launching": 0.0}
    assert watch(rows, until_s=9).phases == {"launching": 0.0, "initializing": 3.0, "loading_weights": 6.0}


def probes_cache(total: int) -> probes.Reading:
    return probes.CacheSize(what="hub", total_bytes=total)


def test_a_listening_port_whose_owner_is_unknown_is_weak_evidence_for_the_server() -> None:
    rows: list[Seen] = [(0, found()), (0, refused()), (9, listening("unknown"))]
    assert watch(rows, until_s=10).phases == {"launching": 0.0}
    assert watch(rows, until_s=12).phases == {"launching": 0.0, "starting_server": 9.0}


def test_a_listening_port_of_the_tree_moves_at_once() -> None:
    run = watch([(0, found()), (9, listening("tree"))])
    assert run.phases == {"launching": 0.0, "starting_server": 9.0}


def test_a_port_that_listens_when_the_watch_begins_waits_for_what_the_log_holds() -> None:
    """The phases only go forward: a server that is up already would have had none before."""
    first: list[Seen] = [(0, found()), (0.08, opened()), (0.1, listening())]
    run = watch([*first, (0.11, log(BANNER, engine(INIT)))], until_s=1)
    assert list(run.phases) == ["launching", "configuring", "initializing"]
    late = watch([*first, (10.1, listening())], until_s=11)
    assert late.phases["starting_server"] == 10.1


def test_a_port_that_stops_listening_is_no_evidence_any_more() -> None:
    run = watch([(0, found()), (9, listening("unknown")), (10, refused())], until_s=60)
    assert run.phases == {"launching": 0.0}


def test_sure_signs_are_taken_at_once_when_a_later_phase_is_proven() -> None:
    run = watch([(0, found()), (1, log(api(BANNER))), (5, tree(server(), core())), (5.5, log(engine(LOAD)))])
    assert run.phases == {"launching": 0.0, "configuring": 1.0, "initializing": 5.0, "loading_weights": 5.5}


def test_evidence_against_a_weak_move_is_disputed_and_kept() -> None:
    rows: list[Seen] = [
        (0, found()),
        (1, tree(server(), core(rss=0))),
        (2, tree(server(), core(rss=GIB))),
        (20, log(engine(DIST))),
    ]
    run = watch(rows, until_s=21)
    assert run.report.phase == "loading_weights"
    assert [(d.phase, d.probe, d.text, d.at_s) for d in run.report.disputed] == [
        ("initializing", "log", DIST, 20.0)
    ]


def test_evidence_that_confirms_a_weak_move_disputes_nothing() -> None:
    rows: list[Seen] = [
        (0, found()),
        (1, tree(server(), core(rss=0))),
        (2, tree(server(), core(rss=GIB))),
        (20, log(engine(LOAD))),
        (21, log(engine(INIT))),
    ]
    assert watch(rows, until_s=22).report.disputed == ()


@pytest.mark.parametrize(
    "line",
    [
        engine(CAPTURED),
        engine("Capturing CUDA graphs (decode, FULL):  50%|█████     | 1/2 [00:00<00:00,  1.0it/s]"),
    ],
    ids=["finished", "bar"],
)
def test_capture_before_the_kv_size_is_compiling(line: str) -> None:
    rows: list[Seen] = [(0, found()), (0.5, log(api(BANNER)))]
    run = watch([*rows, (1, log(line)), (2, log(engine(KV))), (3, log(line))])
    assert run.phases == {
        "launching": 0.0,
        "configuring": 0.5,
        "compiling": 1.0,
        "allocating_kv_cache": 2.0,
        "warming_up": 3.0,
    }


def test_markers_that_repeat_do_not_move_back() -> None:
    lines = [COMPILE, KV, CAPTURED, COMPILE, KV, CAPTURED, ENGINE_READY]
    rows: list[Seen] = [(0, found()), (0.5, log(api(BANNER)))]
    run = watch([*rows, *((float(i), log(engine(line))) for i, line in enumerate(lines, 1))])
    assert list(run.phases) == ["launching", "configuring", "compiling", "allocating_kv_cache", "warming_up"]


def test_a_marker_inside_a_config_dump_moves_nothing() -> None:
    dump = f"non-default args: {{'chat_template': '{LOAD} {KV} {ROUTES}'}}"
    run = watch([(0, found()), (1, log(api(dump)))], until_s=1)
    assert run.phases == {"launching": 0.0, "configuring": 1.0}


def test_the_api_servers_own_lines_count_for_configuring_and_the_server_only() -> None:
    run = watch([(0, found()), (1, log(api(LOAD))), (2, log(api(KV))), (3, log(api(COMPILE)))], until_s=3)
    assert list(run.phases) == ["launching"]


def test_an_engines_lines_do_not_tell_of_the_server() -> None:
    run = watch([(0, found()), (1, log(engine(INIT))), (2, log(engine(ROUTES)))])
    assert run.report.phase == "initializing"


def test_no_log_and_no_gpu_still_tell_five_phases() -> None:
    rows: list[Seen] = [
        (0, found()),
        (0, tree(server())),
        (0, refused()),
        (10, tree(server(), core(rss=0))),
        (20, tree(server(), core(rss=GIB))),
        (60, listening()),
        (60.1, answered()),
    ]
    run = watch(rows)
    assert run.phases == {
        "launching": 0.0,
        "initializing": 10.0,
        "loading_weights": 20.0,
        "starting_server": 60.0,
        "ready": 60.1,
    }


def test_processes_without_a_title_are_no_engines() -> None:
    run = watch([(0, found()), (5, tree(server(), proc(11, "python3"), proc(12, "nvcc")))], until_s=30)
    assert run.phases == {"launching": 0.0}


def test_a_bar_that_is_still_being_drawn_is_progress() -> None:
    bar = "Loading safetensors checkpoint shards:  61% Completed | 41/67 [00:10<00:05,  4.10it/s]"
    run = watch([(0, found()), (1, log(engine(LOAD))), (2, log(partial=bar))])
    assert [(e.what, e.done, e.total) for e in run.told("progress")] == [("checkpoint shards", 41, 67)]
    assert run.report.last_progress is not None
    assert run.report.last_progress.at_s == 2.0
