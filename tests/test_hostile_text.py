"""Text of attackers: whatever a log, a server's answer or a process's title holds, nothing raw reaches a
terminal, and JSON stays JSON."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from scene import BANNER, api, failing

import vllm_startup
from vllm_startup._cli import main
from vllm_startup.testing import replay

SCHEMAS = Path(vllm_startup.__file__).parent / "schemas"

HOSTILE = {
    "escapes": "\x1b[2J\x1b]0;pwned\x07\x1b[31m",
    "C1 controls": "\x9b31m\x90x\x9c\x85",
    "reordering": "\u202egnp.exe\u202c\u2066x\u2069\u200f",
    "hidden": "a\u200bb\ufeffc\u2060d\U000e0041\u00ad",
    "line ends": "a\x0bc\x0cd\u2028e\u2029f",
    "backspaces": "safe\x08\x08\x08\x08evil\x7f",
    "markup": "<script>alert(1)</script>&amp;",
    "JSON": '"}],"outcome":"ready",{"\\',
    "a shell's": "`reboot`;$(reboot)|reboot&&reboot",
    "formats": "%s%n{0.__class__}{}",
    "null": "a\0b",
    "no UTF-8": "\udc80\udcff\udcfe",
}


def raw(text: str) -> set[str]:
    """Characters that a terminal or a reader must not get."""
    return {character for character in text if not character.isprintable() and character != "\n"}


def parsed(text: str) -> Any:
    """JSON as the standard has it: without NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def valid(text: str, schema: str) -> Any:
    value = parsed(text)
    jsonschema.Draft202012Validator(json.loads((SCHEMAS / schema).read_text("utf-8"))).validate(value)
    return value


def story(hostile: str) -> str:
    """A start that fails, with hostile text wherever text may stand."""
    lines = [
        api(BANNER),
        api(f"Resolved architecture: Llama{hostile}"),
        api(f"non-default args: {{'model': '{hostile}'}}"),
        f"({hostile} pid=7) INFO 11-30 14:20:40 [a.py:1] {hostile}",
        f"Loading safetensors checkpoint shards: {hostile}",
        *failing(f"ValueError: {hostile} of {hostile}", name=f"EngineCore{hostile}"),
    ]
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_log(hostile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(story(hostile).encode("utf-8", "surrogateescape"))
    assert main(["diagnose", str(log)]) == 1
    people = capsys.readouterr()
    assert raw(people.out + people.err) == set()
    assert main(["diagnose", "--json", str(log)]) == 1
    machine = capsys.readouterr()
    assert raw(machine.out + machine.err) == set()
    assert valid(machine.out, "report.schema.json")["cause"]["kind"] == "unclassified_error"


SERVER = textwrap.dedent("""
    import os, socket, sys, time
    hostile = sys.argv[2].encode("utf-8", "surrogateescape")
    with open("/proc/self/comm", "wb") as title:
        title.write(hostile[:15])
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", int(sys.argv[1])))
        listening.listen()
        asked = 0
        while asked < 2:
            client = listening.accept()[0]
            if client.recv(65536):  # not a bare connect
                asked += 1
                client.sendall(b"HTTP/1.1 500 " + hostile + b"\\r\\n\\r\\n" + hostile)
            client.close()
    os.write(1, sys.stdin.buffer.read())
    os.kill(os.getpid(), 9)
""")


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="a title is given in /proc")
def test_a_server_with_a_title_and_answers_of_its_own(tmp_path: Path, port: int) -> None:
    hostile = "\x9b31m\x1b[2J\u202e" + "".join(HOSTILE.values()).replace("\0", "")
    log, events, record = tmp_path / "vllm.log", tmp_path / "events", tmp_path / "record"
    mask = os.umask(0)
    try:
        with (
            log.open("wb") as output,
            subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", SERVER, str(port), hostile],
                stdin=subprocess.PIPE,
                stdout=output,
            ) as server,
        ):
            command = [sys.executable, "-m", "vllm_startup", "wait", f"http://127.0.0.1:{port}", "--json"]
            command += ["--pid", str(server.pid), "--log", str(log), "--timeout", "20"]
            watch = subprocess.Popen(
                [*command, "--events", str(events), "--record", str(record)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            try:
                server.communicate(story(hostile).encode("utf-8", "surrogateescape"), timeout=30)
                out, err = (said.decode() for said in watch.communicate(timeout=60))
            finally:
                for process in (server, watch):
                    process.kill()
    finally:
        os.umask(mask)
    assert watch.returncode == 1
    assert raw(out + err) == set()
    report = valid(out, "report.schema.json")
    assert report["cause"]["kind"] == "unclassified_error"
    told = [valid(line, "event.schema.json") for line in events.read_text("utf-8").splitlines()]
    assert told[-1]["event"] == "ended"
    assert replay(record).outcome == "failed"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (events, record)] == [0o600, 0o600]
