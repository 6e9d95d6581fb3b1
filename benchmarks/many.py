"""What do many remote servers cost in one process, and how late is ready noticed?

    python benchmarks/many.py [--servers 1 100 1000] [--quiet 20] [--spread 20] [--quick]

One stand-in process binds so many ports and listens on each at a moment of its own. A process of its own
waits for all of them with plain `asyncio.gather`: ours with `wait_until_ready(url)` (health only), or the
naive poll of ``/health`` every second through one shared `httpx.AsyncClient`. Nothing listens for the first
``--quiet`` seconds after it has settled; then, over ``--spread`` seconds, one server after the other does.

The servers are simulated on this machine, at its own address on the network where it has one, else on
loopback, and yet treated as remote: ``_watcher.py`` overrides the one function that would see that the
address is ours (`vllm_startup.probes._connect._is_local`). So they are looked at as often as remote ones
are; the round trip is missing from the delays.

``start_cpu_s`` is until all are watched, imports included; ``pct`` is of one core in the quiet part;
``cpu_s`` is everything, the requests included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
from _bench import HERE, Fake, Json, emit, latencies, parser

BUDGET = {"pct": 100, "p99_ms": 1000}
MIB = 1024 * 1024
ARMS: dict[str, list[str]] = {"ours": [], "poll_1s": ["--naive"]}


def own_address() -> str:
    """This machine's address on the network, else loopback. Connecting a datagram socket sends nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("192.0.2.254", 9))  # TEST-NET-1, RFC 5737: nobody's
            return str(sock.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def measure(options: argparse.Namespace, count: int, flags: list[str]) -> Json:
    host = own_address()
    spread = ("--spread", str(options.spread), "--seed", str(options.seed))
    with Fake("many", "--host", host, "--count", str(count), *spread, log=Path("/dev/null")) as fake:
        marks = fake.marks()
        ports = [int(port) for port in next(value for name, value in marks if name == "ports").split()]
        told, size = watch(["--host", host, "--quiet", str(options.quiet), *flags], ports, fake.pid)
        listened = {int(name): float(value) for name, value in (next(marks) for _ in ports)}
    return figures(told, listened, size)


def watch(arguments: list[str], ports: list[int], servers_pid: int) -> tuple[Json, int]:
    """Run the watching process; what it told, and its largest size. The servers listen when it says so."""
    command = [sys.executable, str(HERE / "_watcher.py"), "many", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watcher:
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        watcher.stdin.write(json.dumps(ports).encode() + b"\n")
        watcher.stdin.flush()
        sizes: list[int] = []
        threading.Thread(target=look, args=(watcher, sizes), daemon=True).start()
        if watcher.stdout.readline() != b"quiet\n":
            raise AssertionError("the watching process ended early")
        os.kill(servers_pid, signal.SIGUSR1)
        told: Json = json.loads(watcher.stdout.read())
    return told, max(sizes)


def look(watcher: subprocess.Popen[bytes], sizes: list[int]) -> None:
    """Note the watcher's size until it ends."""
    facts = psutil.Process(watcher.pid)
    while True:
        try:
            sizes.append(facts.memory_info().rss)
            watcher.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
        except psutil.Error:
            pass
        return


def figures(told: Json, listened: dict[int, float], size: int) -> Json:
    late = [told["noticed"][str(port)] - at for port, at in listened.items()]
    return {
        "start_cpu_s": round(told["start_cpu_s"], 2),
        "pct": round(100 * told["quiet_cpu_s"] / told["quiet_s"], 2),
        "cpu_s": round(told["cpu_s"], 2),
        "rss_mib": round(size / MIB, 1),
        **latencies(late),
    }


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--servers", type=int, nargs="+", default=[1, 100, 1000])
    arguments.add_argument("--quiet", type=float, default=20.0, metavar="S")
    arguments.add_argument("--spread", type=float, default=20.0, metavar="S")
    options = arguments.parse_args()
    if options.quick:
        options.servers, options.quiet, options.spread = [3], 0.5, 0.2
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 8192), hard), hard))
    results: Json = {"address": own_address(), "servers": {}}
    for count in options.servers:
        results["servers"][str(count)] = {
            name: measure(options, count, flags) for name, flags in ARMS.items()
        }
    ours = [measured["ours"] for measured in results["servers"].values()]
    within = all(found[key] <= limit for found in ours for key, limit in BUDGET.items())
    emit("what do many remote servers cost in one process", options, BUDGET, results, within)
    return 0


if __name__ == "__main__":
    sys.exit(main())
