"""The README is true: its code runs, its diagram and its output are the code's own."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_startup._phases import diagram

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")


def block(name: str) -> str:
    """The Python code under ``<!-- test: name -->``."""
    found = re.search(rf"<!-- test: {name} -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None, f"the README has no block {name!r}"
    return found.group(1)


def names_of(name: str) -> dict[str, Any]:
    module: dict[str, Any] = {"__name__": f"readme_{name}"}
    exec(compile(block(name), str(README), "exec"), module)
    return module


def test_every_python_block_is_run_by_a_test() -> None:
    assert len(re.findall(r"```python", TEXT)) == len(re.findall(r"<!-- test: \w+ -->\n```python", TEXT)) == 6


def test_the_diagram_is_drawn_from_the_table() -> None:
    assert f"<!-- generated: diagram -->\n```mermaid\n{diagram()}\n```\n<!-- end -->" in TEXT


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A process that writes vllm.log and answers /health on port 8000 of the README after a moment."""
    program = (
        "import http.server, sys\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.send_header('Content-Length', '0'); self.end_headers()\n"
        "    def log_message(self, *a): pass\n"
        "s = http.server.HTTPServer(('127.0.0.1', 0), H)\n"
        "print(s.server_port, flush=True)\n"
        "s.serve_forever()\n"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vllm.log").write_text(
        "INFO 11-30 14:20:40 [api_server.py:1] vLLM API server version 0.10.0\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    yield process.pid, port
    process.kill()
    await process.wait()


async def test_the_call_waits_for_a_server(
    server: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    pid, port = server
    code = names_of("call")
    source = block("call").replace(":8000", f":{port}")
    exec(compile(source, str(README), "exec"), code)
    ready_s = await code["wait_for_vllm"](pid)
    assert ready_s is not None
    assert "ready" in capsys.readouterr().out


async def test_the_rule_of_your_own_names_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_startup import StartupError

    monkeypatch.chdir(tmp_path)
    line = "ERROR 11-30 14:20:40 [acme.py:7] acme-plugin: licence expired for Initech"
    with pytest.raises(StartupError) as caught:
        await names_of("rule")["start"]([sys.executable, "-c", f"print({line!r}); raise SystemExit(1)"])
    cause = caught.value.cause
    assert (cause.kind, cause.fields) == ("licence_expired", {"customer": "Initech"})


async def test_the_probe_of_your_own_works() -> None:
    await names_of("probe")["test_an_upload_counts_as_loading"]()


async def test_a_launched_server_is_ready_and_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_startup.testing import simulated_server

    monkeypatch.chdir(tmp_path)
    ready_s = await names_of("launch")["start_and_ask"](simulated_server("ready", speed=5))
    assert ready_s is not None
    assert "Application startup complete" in (tmp_path / "vllm.log").read_text()


def test_a_fault_is_told_before_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert names_of("preflight")["may_start"]([str(tmp_path / "vllm"), "serve", "m"]) is False
    assert capsys.readouterr().out.startswith("certain: the program ")


def test_every_check_is_in_the_table() -> None:
    from vllm_startup._preflight.checks import CHECKS

    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", TEXT.partition("## Before a start")[2], re.MULTILINE)
    assert rows[: len(CHECKS)] == [check.name for check in CHECKS]
