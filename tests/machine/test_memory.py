"""GPU memory: a baseline, a rise, stillness, a jump, a fall."""

from __future__ import annotations

import pytest
from scene import (
    COMPILE,
    GIB,
    INIT,
    LOAD,
    MIB,
    Seen,
    api,
    core,
    engine,
    found,
    gpu,
    log,
    proc,
    rank,
    server,
    tree,
    watch,
)

from vllm_startup._machine.earlier import Earlier

WEIGHTS = 73_731


def working(at: float, *, cores: float = 1.0, read: int | None = None) -> Seen:
    """Two workers that compute."""
    cpu_s = at * cores
    return at, tree(
        server(),
        core(),
        rank(cpu_s, pid=30, name="VLLM::Worker_TP0", read=read),
        rank(cpu_s, pid=31, name="VLLM::Worker_TP1", read=read),
    )


def start() -> list[Seen]:
    return [(0, found()), (0, gpu(500, 500)), (1, tree(server())), working(2)]


def plateau(begin: int, end: int, *used: int, cores: float = 1.0) -> list[Seen]:
    rows: list[Seen] = []
    for second in range(begin, end):
        rows += [(second, gpu(*used)), working(second + 0.5, cores=cores)]
    return rows


def test_a_rise_of_gpu_memory_is_weak_evidence_for_loading() -> None:
    rows = [*start(), (20, gpu(700, 700)), (25, gpu(4000, 900)), (26, gpu(8000, 5000))]
    run = watch(rows, until_s=30)
    assert run.phases["loading_weights"] == 25.0
    assert run.report.phases[-1].because[0].probe == "gpu"


def test_a_device_context_is_no_rise() -> None:
    run = watch([*start(), (20, gpu(2400, 2400))], until_s=60)
    assert run.report.phase == "initializing"


def test_a_rise_waits_for_all_ranks_before_it_is_a_plateau() -> None:
    rows = [*start(), (20, gpu(WEIGHTS, 500)), *plateau(21, 150, WEIGHTS, 500)]
    assert watch(rows).report.phase == "loading_weights"


def test_a_plateau_while_the_workers_compute_is_compiling_and_is_dated_back() -> None:
    rows = [
        *start(),
        (20, gpu(40_000, 40_000)),
        (40, gpu(WEIGHTS, WEIGHTS)),
        *plateau(41, 110, WEIGHTS, WEIGHTS),
    ]
    run = watch(rows)
    assert run.phases["compiling"] == 40.0
    told = next(e for e in run.told("phase_entered") if e.phase == "compiling")
    assert told.at == 40.0
    assert "73,731 of 97,887 MiB, evenly" in told.because.text


def test_a_plateau_without_cpu_time_is_no_compiling() -> None:
    rows = [*start(), (20, gpu(WEIGHTS, WEIGHTS)), *plateau(21, 150, WEIGHTS, WEIGHTS, cores=0.0)]
    assert watch(rows).report.phase == "loading_weights"


def test_a_plateau_while_weights_are_read_is_no_compiling() -> None:
    rows: list[Seen] = [*start(), (20, gpu(WEIGHTS, WEIGHTS))]
    for second in range(21, 150):
        rows += [(second, gpu(WEIGHTS, WEIGHTS)), working(second + 0.5, read=second * 100 * MIB)]
    assert watch(rows).report.phase == "loading_weights"


def test_a_plateau_under_a_talking_log_is_no_compiling() -> None:
    rows: list[Seen] = [*start(), (19, log(engine(LOAD))), (20, gpu(WEIGHTS, WEIGHTS))]
    for second in range(21, 150):
        rows += [
            (second, gpu(WEIGHTS, WEIGHTS)),
            (second + 0.2, log(api(f"note {second}"))),
            working(second + 0.5),
        ]
    assert watch(rows).report.phase == "loading_weights"


def test_ripples_below_the_noise_do_not_break_a_plateau() -> None:
    rows: list[Seen] = [*start(), (20, gpu(WEIGHTS, WEIGHTS))]
    for second in range(21, 110):
        rows += [(second, gpu(WEIGHTS + second % 2 * 30, WEIGHTS)), working(second + 0.5)]
    assert watch(rows).phases["compiling"] == 20.0


def test_the_jump_to_the_utilisation_is_weak_evidence_for_the_kv_cache() -> None:
    rows = [*start(), (20, gpu(40_000, 40_000)), *plateau(21, 120, 40_000, 40_000)]
    rows += [(121, gpu(88_500, 88_500)), *plateau(122, 126, 88_500, 88_500)]
    run = watch(rows)
    assert run.phases["compiling"] == 20.0
    assert run.phases["allocating_kv_cache"] == pytest.approx(120, abs=1)


def test_a_late_attach_tells_memory_of_the_tree_as_likely() -> None:
    rows: list[Seen] = [(0, found(age_s=300)), (0, gpu(WEIGHTS, WEIGHTS, tree_mib=WEIGHTS - 400))]
    rows += [working(0.5), *plateau(1, 80, WEIGHTS, WEIGHTS)]
    run = watch(rows)
    assert run.report.phase == "compiling"
    assert "likely" in run.report.phases[-1].because[0].text


def test_a_late_attach_without_ownership_claims_nothing() -> None:
    rows: list[Seen] = [(0, found(age_s=300)), (0, gpu(WEIGHTS, WEIGHTS)), working(0.5)]
    rows += plateau(1, 80, WEIGHTS, WEIGHTS)
    assert watch(rows).report.phase == "initializing"


def test_memory_near_an_earlier_footprint_is_said() -> None:
    rows = [*start(), (20, gpu(WEIGHTS, WEIGHTS)), *plateau(21, 90, WEIGHTS, WEIGHTS)]
    footprint = {f"GPU-{i}": int(70.8 * GIB) for i in range(2)}
    run = watch(rows, earlier=Earlier(footprint=footprint))
    assert "near its earlier footprint" in run.report.phases[-1].because[0].text


def test_memory_far_from_an_earlier_footprint_is_not_called_near() -> None:
    rows = [*start(), (20, gpu(40_000, 40_000)), *plateau(21, 90, 40_000, 40_000)]
    run = watch(rows, earlier=Earlier(footprint={f"GPU-{i}": int(70.8 * GIB) for i in range(2)}))
    assert "footprint" not in run.report.phases[-1].because[0].text


def test_the_report_holds_baseline_peak_and_use_of_each_gpu() -> None:
    run = watch([*start(), (20, gpu(9000, 8000)), (21, gpu(7000, 7000))])
    assert [
        (g.index, g.baseline_bytes // MIB, g.peak_bytes // MIB, g.used_bytes // MIB) for g in run.report.gpus
    ] == [
        (0, 500, 9000, 7000),
        (1, 500, 8000, 7000),
    ]


def test_memory_that_falls_to_its_baseline_means_death() -> None:
    rows: list[Seen] = [(0, found()), (0, gpu(500, 500)), (20, gpu(WEIGHTS, WEIGHTS)), (60, gpu(510, 505))]
    early = watch(rows, until_s=62.9)
    late = watch(rows, until_s=63.1)
    assert early.told("cause_found") == []
    (event,) = late.told("cause_found")
    assert (event.cause.kind, event.cause.confidence) == ("process_vanished", "likely")


def test_memory_that_falls_ends_the_wait_after_the_grace() -> None:
    rows: list[Seen] = [(0, found()), (0, gpu(500, 500)), (20, gpu(WEIGHTS, WEIGHTS)), (60, gpu(510, 505))]
    run = watch(rows, until_s=80)
    assert (run.report.outcome, run.told("ended")[0].at) == ("failed", 73.0)


def test_memory_that_falls_while_the_engines_live_is_no_death() -> None:
    """Sleep mode and reloading give memory back as well."""
    rows = [*start(), (20, gpu(WEIGHTS, WEIGHTS)), working(21), (60, gpu(510, 505)), working(61)]
    assert watch(rows, until_s=80).told("cause_found") == []


def test_memory_that_another_tenant_takes_and_gives_back_is_no_death() -> None:
    """While the server still imports it has no engine, and holds nothing that could be given back."""
    rows: list[Seen] = [(0, found()), (0, gpu(500, 500)), (0, tree(server()))]
    rows += [(second, tree(server(cpu_s=second))) for second in range(1, 8)]
    rows += [(8, gpu(500, 9000)), (9, tree(server(9))), (12, gpu(500, 500))]
    rows += [(second, tree(server(cpu_s=second))) for second in range(13, 20)]
    assert watch(rows, until_s=20).told("cause_found") == []


def test_a_short_lived_child_does_not_make_a_tenants_memory_ours() -> None:
    """The server inspects the model's class, and compiles, in processes of a few seconds."""
    rows: list[Seen] = [(0, found()), (0, gpu(500)), (0, tree(server())), (5, gpu(9000))]
    rows += [(second, tree(server(), proc(11, "python"))) for second in range(8, 12)]
    rows += [(12, tree(server())), (13, gpu(500)), (14, tree(server()))]
    assert watch(rows, until_s=30).told("cause_found") == []


@pytest.mark.parametrize("name", ["VLLM::EngineCore", "python3.12"])
def test_memory_that_falls_as_a_process_ends_means_its_death_under_a_living_server(name: str) -> None:
    """Before 0.10.1, and without setproctitle, an engine has no title of its own."""
    rows: list[Seen] = [(0, found()), (0, gpu(500)), (1, tree(server(), core(name=name)))]
    rows += [(20, gpu(WEIGHTS)), (59, tree(server(), core(name=name))), (60, tree(server())), (61, gpu(505))]
    (event,) = watch(rows, until_s=70).told("cause_found")
    assert (event.at, event.cause.kind) == (64.0, "process_vanished")


def test_memory_that_falls_on_some_devices_only_is_no_death() -> None:
    rows: list[Seen] = [
        (0, found()),
        (0, gpu(500, 500)),
        (20, gpu(WEIGHTS, WEIGHTS)),
        (60, gpu(510, WEIGHTS)),
    ]
    assert watch(rows, until_s=80).told("cause_found") == []


def test_memory_that_rises_again_within_the_settling_time_is_no_death() -> None:
    rows: list[Seen] = [
        (0, found()),
        (0, gpu(500)),
        (20, gpu(WEIGHTS)),
        (60, gpu(500)),
        (62, gpu(30_000)),
    ]
    assert watch(rows, until_s=90).told("cause_found") == []


def test_memory_that_was_never_above_its_baseline_cannot_fall() -> None:
    rows: list[Seen] = [(0, found()), (0, gpu(WEIGHTS)), (20, gpu(WEIGHTS)), (60, gpu(500))]
    assert watch(rows, until_s=90).told("cause_found") == []


def test_one_gpu_that_lags_is_the_suspect_of_a_stall() -> None:
    rows = [*start(), (20, gpu(WEIGHTS, 20_000)), working(21, cores=0), working(22, cores=0)]
    run = watch(rows, until_s=1000)
    assert run.report.outcome == "stalled"
    assert run.report.cause is not None
    assert run.report.cause.fields["suspect"] == "GPU 1 is behind the others"


def test_gpus_that_cannot_be_seen_change_nothing() -> None:
    assert watch([(0, found()), (1, gpu())], until_s=100).report.gpus == ()


def test_host_memory_is_not_asked_where_gpus_are_seen() -> None:
    rows: list[Seen] = [
        (0, found()),
        (0, gpu(500)),
        (1, tree(server(), core())),
        (9, tree(server(), core(rss=4 * GIB))),
    ]
    assert watch(rows, until_s=60).report.phase == "initializing"


def test_a_marker_beats_a_plateau_and_keeps_its_own_time() -> None:
    rows: list[Seen] = [
        *start(),
        (10, log(engine(INIT))),
        (20, gpu(WEIGHTS, WEIGHTS)),
        (24, log(engine(COMPILE))),
    ]
    run = watch(rows)
    assert run.phases["loading_weights"] == 20.0
    assert run.phases["compiling"] == 24.0
