"""The forms in which people have a log: behind prefixes, pasted, wrapped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

Form = Callable[[list[str]], Iterable[str]]


def _clock(number: int) -> str:
    return f"14:{number // 60 % 60:02d}:{number % 60:02d}"


def _journal_json(lines: list[str]) -> Iterable[str]:
    for number, line in enumerate(lines):
        at = str(1_759_140_001_000_000 + number * 1_000_000)
        yield json.dumps(
            {"__REALTIME_TIMESTAMP": at, "_PID": "812", "SYSLOG_IDENTIFIER": "vllm", "MESSAGE": line}
        )


def _cut(width: int) -> Form:
    return lambda lines: [
        line[at : at + width] for line in lines for at in range(0, max(len(line), 1), width)
    ]


FORMS: dict[str, Form] = {
    "docker compose": lambda lines: [f"vllm-1  | {line}" for line in lines],
    "docker logs -t": lambda lines: [
        f"2026-11-30T{_clock(n)}.123456789Z {line}" for n, line in enumerate(lines)
    ],
    "kubectl --prefix": lambda lines: [f"[pod/vllm-0/vllm] {line}" for line in lines],
    "kubectl --timestamps": lambda lines: [
        f"[pod/vllm-0/vllm] 2026-11-30T{_clock(n)}.123456789Z {line}" for n, line in enumerate(lines)
    ],
    "kubelet": lambda lines: [f"2026-11-30T{_clock(n)}.123456789Z stderr F {x}" for n, x in enumerate(lines)],
    "journal": lambda lines: [f"Nov 30 {_clock(n)} gpu7 vllm[812]: {line}" for n, line in enumerate(lines)],
    "journal, ISO": lambda lines: [
        f"2026-11-30T{_clock(n)}+0000 gpu7 vllm[812]: {line}" for n, line in enumerate(lines)
    ],
    "journal, JSON": _journal_json,
    "Docker's JSON": lambda lines: [json.dumps({"log": f"{line}\n", "stream": "stderr"}) for line in lines],
    "Ray": lambda lines: [f"(ServeReplica:app:LLM pid=812, ip=10.0.0.3) {line}" for line in lines],
    "Slurm": lambda lines: [f"0: {line}" for line in lines],
    "loguru": lambda lines: [
        f"2026-11-30 {_clock(n)}.654 | INFO     | runner:pump:88 - {line}" for n, line in enumerate(lines)
    ],
    "logging": lambda lines: [
        f"2026-11-30 {_clock(n)},654 - runner - INFO - {line}" for n, line in enumerate(lines)
    ],
    "brackets": lambda lines: [f"[2026-11-30 {_clock(n)}] {line}" for n, line in enumerate(lines)],
    "CRLF": lambda lines: [f"{line}\r" for line in lines],
    "quoted": lambda lines: [f"> {line}" for line in lines],
    "indented": lambda lines: [f"    {line}" for line in lines],
    "numbered": lambda lines: [f"{n:6d}\t{line}" for n, line in enumerate(lines, 1)],
    "padded": lambda lines: [line.ljust(180) for line in lines],
    "cut at 80": _cut(80),
    "cut at 120": _cut(120),
    "fenced": lambda lines: ["```text", *lines, "```"],
    "blank lines between": lambda lines: [each for line in lines for each in (line, "")],
}
