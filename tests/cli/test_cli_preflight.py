"""``vllm-startup preflight``: one calm screen, JSON and exit statuses; a driver that a test drives."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_tools import Result, free_port, run

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the driver's library is found by LD_LIBRARY_PATH"
)

MIB = 2**20
TOTAL = 97_887 * MIB

Gpus = Callable[..., dict[str, str]]


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment with the versions of the incident."""
    prefix = tmp_path / "venv"
    site = prefix / "lib" / "python3.12" / "site-packages"
    for name, version in (("vllm", "0.14.1"), ("flashinfer_python", "0.6.4"), ("flashinfer_cubin", "0.6.3")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (prefix / "bin").mkdir()
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.3\n")
    for name, text in (("python3", ""), ("vllm", f"#!{prefix}/bin/python3\n")):
        (prefix / "bin" / name).write_text(text)
        (prefix / "bin" / name).chmod(0o755)
    return prefix


@pytest.fixture
def good(venv: Path) -> Path:
    """The same after the fix."""
    site = venv / "lib" / "python3.12" / "site-packages"
    (site / "flashinfer_cubin-0.6.3.dist-info" / "METADATA").write_text(
        "Name: flashinfer_cubin\nVersion: 0.6.4\n"
    )
    return venv


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def gpus(tmp_path: Path, nvml_library: Path) -> Gpus:
    """The environment that shows these lines as the driver's GPUs."""

    def show(*lines: str) -> dict[str, str]:
        state = tmp_path / "machine"
        state.write_text("".join(f"{line}\n" for line in lines))
        return {"LD_LIBRARY_PATH": str(nvml_library), "NVML_STUB": str(state)}

    return show


def gpu(index: int, used_mib: int = 0) -> str:
    return f"gpu GPU-{index:08d}-aaaa {TOTAL} {used_mib * MIB} NVIDIA RTX PRO 6000"


async def preflight(*command: str | Path, options: tuple[str, ...] = (), **environ: str) -> Result:
    return await run("preflight", *options, "--", *map(str, command), **environ)


async def test_the_incident_is_caught_before_the_start(venv: Path, model: Path, gpus: Gpus) -> None:
    shown = gpus(*(gpu(i) for i in range(8)))
    words = [venv / "bin" / "vllm", "serve", model, "--tensor-parallel-size", "8", "--port", str(free_port())]
    result = await preflight(*words, **shown)
    site = venv / "lib" / "python3.12" / "site-packages"
    assert result.status == 1
    assert result.out.startswith(
        "the start would fail: dependency_version_mismatch\n\n"
        "  flashinfer-cubin 0.6.3 does not match flashinfer 0.6.4\n\n"
        "  | flashinfer-cubin 0.6.3 in"
    )
    assert "  hint: pip install flashinfer-cubin==0.6.4\n" in result.out
    assert str(site).replace("-", "")[-20:] in result.out.replace("\n  | ", "").replace("-", "")
    assert result.err == ""


async def test_after_the_fix_nothing_is_found(good: Path, model: Path, gpus: Gpus) -> None:
    shown = gpus(*(gpu(i) for i in range(8)))
    words = [good / "bin" / "vllm", "serve", model, "-tp", "8", "--port", str(free_port())]
    result = await preflight(*words, **shown)
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("nothing found that would stop the start (12 of 12 checks, 0.")
    assert result.out.count("\n") == 1


async def test_left_over_engines_that_hold_the_gpus_are_named(good: Path, model: Path, gpus: Gpus) -> None:
    held = [f"process GPU-{i:08d}-aaaa {os.getpid()} {73_000 * MIB}" for i in range(2)]
    shown = gpus(gpu(0, 73_731), gpu(1, 73_731), *held)
    words = [good / "bin" / "vllm", "serve", model, "-tp", "2", "--port", str(free_port())]
    result = await preflight(*words, options=("--json",), **shown)
    [cause] = json.loads(result.out)["causes"]
    assert (cause["kind"], cause["confidence"]) == ("gpu_memory_not_free", "certain")
    assert cause["fields"]["free_bytes"] == TOTAL - 73_731 * MIB - 512 * MIB  # what the driver keeps
    assert cause["message"].endswith("GiB of memory are free on GPU 0, and too little on 1 more")
    assert cause["evidence"][1]["text"].startswith(f"process {os.getpid()} (")
    assert cause["evidence"][1]["text"].endswith("holds 142.58 GiB")


async def test_fewer_gpus_than_are_asked_for(good: Path, model: Path, gpus: Gpus) -> None:
    shown = gpus(gpu(0), gpu(1))
    words = [good / "bin" / "vllm", "serve", model, "-tp", "4", "--port", str(free_port())]
    result = await preflight(*words, options=("--json",), CUDA_VISIBLE_DEVICES="0", **shown)
    [cause] = json.loads(result.out)["causes"]
    assert (cause["kind"], cause["fields"]) == ("not_enough_gpus", {"needed": 4, "available": 1})


async def test_a_driver_that_hangs_costs_no_more_than_the_time_that_was_given(
    venv: Path, model: Path, gpus: Gpus
) -> None:
    shown = gpus(gpu(0), "hang nvmlInitWithFlags")
    words = [venv / "bin" / "vllm", "serve", model, "--port", str(free_port())]
    result = await preflight(*words, options=("--json", "--timeout", "1"), **shown)
    report = json.loads(result.out)
    late = [check["name"] for check in report["checks"] if check["note"] == "it did not answer within 1 s"]
    assert late == ["gpus", "gpu_memory"]
    assert [cause["kind"] for cause in report["causes"]] == ["dependency_version_mismatch"]
    assert report["took_s"] < 2


async def test_a_driver_that_fails_is_told(good: Path, model: Path, gpus: Gpus) -> None:
    shown = gpus(gpu(0), "fail nvmlDeviceGetCount_v2 999")
    words = [good / "bin" / "vllm", "serve", model, "--port", str(free_port())]
    result = await preflight(*words, **shown)
    assert result.status == 0
    assert "  not checked:\n    gpus, gpu_memory: NVML failed:" in result.out


async def test_several_faults_are_one_screen(venv: Path, gpus: Gpus) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ["env", "VLLM_PORT=tcp://10.0.0.1:8000", venv / "bin" / "vllm", "serve", "/models/gone"]
        result = await preflight(*words, "--port", str(port), **gpus(gpu(0)))
    kinds = ["dependency_version_mismatch", "service_environment_clash", "port_in_use", "model_not_found"]
    assert result.status == 1
    assert " ".join(result.out.split("\n\n")[0].split()) == f"the start would fail: {', '.join(kinds)}"
    assert all(len(line) <= 80 for line in result.out.splitlines())


async def test_the_interpreter_may_be_named(venv: Path, tmp_path: Path) -> None:
    script = tmp_path / "start"
    script.write_text("#!/bin/sh\nexec /srv/hidden\n")
    script.chmod(0o755)
    result = await preflight(script, options=("--python", str(venv / "bin" / "python3")))
    assert result.status == 1
    assert "flashinfer-cubin 0.6.3 does not match" in result.out
    assert "the command shows no vLLM server" in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["preflight"], "put the command behind --, as in:\n  vllm-startup preflight -- vllm serve MODEL"),
        (["preflight", "--timeout", "0", "--", "vllm"], "timeout must be above 0 seconds"),
        (["preflight", "--python", "/gone", "--", "vllm"], "--python '/gone' does not exist"),
        (["preflight", "--nonsense", "--", "vllm"], "unrecognized arguments: --nonsense"),
    ],
)
async def test_wrong_usage_names_the_fix(arguments: list[str], message: str) -> None:
    result = await run(*arguments)
    assert (result.status, result.out) == (2, "")
    assert message in result.err


async def test_secrets_are_not_shown(venv: Path, tmp_path: Path) -> None:
    words = [venv / "bin" / "vllm", "serve", "m", "--api-key", "sk-very-secret-indeed"]
    result = await preflight(
        *words, options=("--json",), VLLM_PORT="http://user:hunter2@host", HF_TOKEN="hf_aB1cdefgh"
    )
    assert result.status == 1
    for secret in ("very-secret", "hunter2", "aB1cdefgh"):
        assert secret not in result.out + result.err


async def test_it_answers_in_a_second(good: Path) -> None:
    result = await preflight(good / "bin" / "vllm", "serve", "m", options=("--json",))
    assert json.loads(result.out)["took_s"] < 1


async def test_a_reader_that_goes_away_is_no_error(venv: Path) -> None:
    import asyncio

    line = f"{sys.executable} -m vllm_startup preflight -- {venv}/bin/vllm serve m | head -1"
    process = await asyncio.create_subprocess_shell(line, stdout=-1, stderr=-1)
    out, err = await process.communicate()
    assert (out.count(b"\n"), err) == (1, b"")


# --- run --preflight ------------------------------------------------------------------------------


def starts(tmp_path: Path, text: str) -> tuple[Path, Path]:
    """A program named vllm that says that it was started, and the file in which it does."""
    program, told = tmp_path / "bin" / "vllm", tmp_path / "started"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {told}\n{text}\n")
    program.chmod(0o755)
    return program, told


async def test_run_starts_nothing_that_fails_for_certain(tmp_path: Path) -> None:
    program, told = starts(tmp_path, "exit 0")
    log = tmp_path / "termination-log"
    words = ["--preflight", "--termination-log", str(log), "--", str(program), "serve", "/models/gone"]
    result = await run("run", *words)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("vllm-startup: the start would fail: model_not_found\n")
    assert result.err.endswith("  It was not started; run without --preflight starts it all the same.\n")
    assert not told.exists()
    assert log.read_text() == (
        "model_not_found: there is no model /models/gone Hint: correct the path: a folder with"
        " config.json, in a container as it is mounted there\n"
    )


async def test_run_starts_what_may_fail_and_need_not(tmp_path: Path, model: Path) -> None:
    (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    program, told = starts(tmp_path, "exit 7")
    words = ["--preflight", "--", str(program), "serve", str(model), "--port", str(free_port())]
    result = await run("run", *words, VLLM_CACHE_ROOT=str(tmp_path))
    assert result.err.startswith("vllm-startup: the start may fail: weights_missing\n")
    assert told.exists()
    assert result.status == 7


async def test_run_says_nothing_of_a_start_without_faults(tmp_path: Path, model: Path) -> None:
    program, told = starts(tmp_path, "exit 7")
    words = ["--preflight", "--", str(program), "serve", str(model), "--port", str(free_port())]
    result = await run("run", *words, VLLM_CACHE_ROOT=str(tmp_path))
    assert "preflight" not in result.err
    assert "the start" not in result.err
    assert told.exists()


async def test_a_termination_log_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    program, _ = starts(tmp_path, "exit 0")
    words = ["--preflight", "--termination-log", str(tmp_path), "--", str(program), "serve", "/models/gone"]
    result = await run("run", *words)
    assert result.status == 1
    assert "cannot be written: Is a directory" in result.err
