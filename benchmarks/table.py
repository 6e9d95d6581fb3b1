"""Run the benchmarks and write the README's table from what they print.

    python benchmarks/table.py [--quick] [--results FOLDER] [--readme README.md] [--only NAME]...

Each benchmark's JSON goes to ``FOLDER/NAME.json`` and is read from there when it is there already (remove a
file to measure anew). The table is printed, that of the peers below it; with ``--readme`` both also replace
what stands between the two marker lines in that file. ``--quick`` runs are for seeing that it works: their
figures mean nothing, and are never written into a README.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from _bench import HERE, Json

BEGIN, END = "<!-- benchmarks:begin -->", "<!-- benchmarks:end -->"

Row = tuple[str, str, str, str]


def ready(result: Json) -> Iterator[Row]:
    found, slow, fast = (result["results"][name] for name in ("ours", "poll_1s", "poll_0.1s"))
    naive = f"{_ms(slow)} every second, {_ms(fast)} every 0.1 s"
    yield "ready noticed after the server listens (median, p95)", "30 ms, 150 ms", _ms(found), naive


def death(result: Json) -> Iterator[Row]:
    words = {
        "exit_1": "exit 1 without a word",
        "exit_0": "exit 0 without a word",
        "kill": "killed",
        "aftermath": "engine failed, exit a second later",
        "alive": "engine failed, never ends",
    }
    for how, measured in result["results"].items():
        told, raised = (
            [measured[output][key]["median_ms"] for output in ("file", "pipe")]
            for key in ("cause_found", "raised")
        )
        ours = f"cause {max(told):.0f} ms, exception {max(0.0, *raised):.0f} ms"
        yield f"death told: {words[how]} (median)", "50 ms, 50 ms", ours, "never"


def cost(result: Json) -> Iterator[Row]:
    for start in result["results"]["starts"]:
        ours, naive = (
            f"{start[name]['pct_15_min']:.2f} %, {start[name]['rss_mib']:.0f} MiB"
            for name in ("ours", "poll_1s")
        )
        what = f"processes: {start['processes']}, GPUs: {start['gpus']}"
        yield f"cost over 15 minutes, {what} (of one core, memory)", "1 %, 60 MiB", ours, naive


def flood(result: Json) -> Iterator[Row]:
    for name, budget, text in (
        ("uninteresting", "300,000", "uninteresting lines a second"),
        ("start", "100,000", "lines of a start a second"),
    ):
        found = result["results"][name]
        yield text, budget, f"{found['machine_per_s']:,}", f"{found['naive_per_s']:,} (one regex)"
    worst = max(result["results"]["long_line_ms"].values())
    yield "worst line of 64 KiB", "50 ms", f"{worst:.1f} ms", ""


def size(result: Json) -> Iterator[Row]:
    for mib, found in result["results"]["sizes"].items():
        ours, naive = found["ours"], found["grep"]
        told = f"{ours['cpu_s']:.1f} s, {ours['rss_mib']:.0f} MiB"
        yield (
            f"`diagnose` of a log of {int(mib):,} MiB, {found['lines']:,} lines (processor time, memory)",
            "flat memory",
            told if ours["right"] else f"{told}, wrong cause",
            f"`grep ERROR` {naive['cpu_s']:.1f} s",
        )


def imports(result: Json) -> Iterator[Row]:
    found = result["results"]
    naive = f"`httpx` {found['httpx']['net_ms']:.0f} ms"
    reference = found["attrs_and_transitions"]["net_ms"]
    for name, statement in (
        ("vllm_startup", "import vllm_startup"),
        ("wait_until_ready", "from vllm_startup import wait_until_ready"),
    ):
        budget = f"{2 * reference:.0f} ms" if name == "vllm_startup" else ""
        yield f"`{statement}`", budget, f"{found[name]['net_ms']:.0f} ms", naive


def many(result: Json) -> Iterator[Row]:
    for count, measured in result["results"]["servers"].items():
        ours, naive = (
            f"{found['pct']:.1f} %, {found['rss_mib']:.0f} MiB, {found['p99_ms']:.0f} ms"
            for found in (measured["ours"], measured["poll_1s"])
        )
        yield f"remote servers: {count} (of one core, memory, p99 of ready)", "100 %, 1000 ms", ours, naive


def causes(result: Json) -> Iterator[Row]:
    texts = {"cases": "small logs", "recordings": "recorded starts"}
    for name, text in texts.items():
        judged = result["results"][name]
        ours, *naive = (
            f"{judged[way]['right_pct']:.0f} %"
            for way in ("ours", "first_error", "last_exception", "first_exception")
        )
        others = "first ERROR line {}, last exception line {}, first exception line {}".format(*naive)
        yield f"right cause, {judged['logs']} {text} of failures", "", ours, others


def phases(result: Json) -> Iterator[Row]:
    measured = result["results"]["tests/recordings"]
    views = measured["views"]
    worst = max(found["max_s"] for found in views["all"].values())
    what = f"phases dated in {measured['recordings']} recorded starts"
    yield f"{what} (worst)", "1 s", f"{worst:.1f} s", "`ready` alone"
    offs = ", ".join(
        f"`{phase}` {found['median_s']:.1f} s{_missed(found)}"
        for phase, found in views["without_log"].items()
        if found["median_s"] is not None and phase != "ready"
    )
    yield f"{what}, without the log (median)", "1.5 s", offs, "`ready` alone"


def _missed(found: Json) -> str:
    return f" (not told in {found['missed']} of {found['due']})" if found["missed"] else ""


ROWS: dict[str, Callable[[Json], Iterator[Row]]] = {
    "ready": ready,
    "death": death,
    "cost": cost,
    "flood": flood,
    "size": size,
    "imports": imports,
    "many": many,
    "causes": causes,
    "phases": phases,
}
PEERS = "peers"
"""Has a table of its own."""

LATER_MS = 50  # less is no news
DEATHS = {
    "exit_1": "exits with 1",
    "exit_0": "exits with 0",
    "kill": "is killed",
    "aftermath": "engine fails, exits 1.1 s later",
    "alive": "engine fails, lives on",
}


def peers(result: Json) -> str:
    """One row for each way to wait."""
    columns = ["way to wait", "listens (median, p95)", *DEATHS.values(), "names the cause"]
    rows = [columns, ["---"] * len(columns)]
    for way in result["results"]["peers"].values():
        deaths = [way["death"][how] for how in DEATHS]
        named = sum(death["named"] for death in deaths)
        rows.append([way["title"], _ms(way["ready"]), *map(_told, deaths), f"{named} of {len(deaths)}"])
    rows += [
        [f"`{name}`", "not measured", *[""] * (len(columns) - 2)] for name in result["results"]["missing"]
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _told(death: Json) -> str:
    """When the first word came; ours may end the wait later."""
    if death["told"] is None:
        return "never"
    told, raised = (death[key]["median_ms"] for key in ("told", "raised"))
    later = f", ends {_duration(raised)}" if raised - told > LATER_MS else ""
    return f"{_duration(told)}{later}"


def _duration(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def _ms(found: Json) -> str:
    return f"{found['median_ms']:.0f} ms, {found['p95_ms']:.0f} ms"


def results_of(name: str, folder: Path, flags: list[str]) -> Json:
    path = folder / f"{name}.json"
    if not path.exists():
        print(f"{name} ...", file=sys.stderr, flush=True)
        command = [sys.executable, str(HERE / f"{name}.py"), *flags]
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        path.write_bytes(ran.stdout)
    result: Json = json.loads(path.read_text())
    return result


def table(results: dict[str, Json]) -> str:
    rows = [row for name, result in results.items() if name in ROWS for row in ROWS[name](result)]
    lines = []
    if rows:
        lines += ["| | budget | vllm_startup | naive |", "| --- | --- | --- | --- |"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
    if PEERS in results:
        told = "How long after the stand-in server listens, or has failed, a wait says so (median):"
        lines += [*([""] if rows else []), told, "", peers(results[PEERS])]
    machines = {_machine(result["machine"]) for result in results.values()}
    return "\n".join([*lines, "", *(f"Measured on {machine}." for machine in sorted(machines))])


def _machine(machine: Json) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['date']}: {machine['cpus']} cores of {machine['cpu']}, {machine['system']}"
        f" {machine['kernel']}, Python {machine['python']}, {versions}"
    )


def written(readme: str, text: str) -> str:
    """The README with the table in its place."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the README has no lines {BEGIN!r} and {END!r} for the table to stand between")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path, help="where results are kept; else they are not")
    parser.add_argument("--readme", type=Path)
    parser.add_argument("--only", choices=[*ROWS, PEERS], action="append", help="may be repeated")
    options = parser.parse_args()
    if options.quick and options.readme:
        parser.error("--quick measures nothing that belongs into a README")
    flags = ["--quick"] if options.quick else []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.results or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        text = table({name: results_of(name, folder, flags) for name in options.only or [*ROWS, PEERS]})
    print(text)
    if options.readme:
        options.readme.write_text(written(options.readme.read_text(encoding="utf-8"), text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
