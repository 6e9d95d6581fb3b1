from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_startup._arguments import ServerArguments, flat_yaml, parse_command, url_of_process
from vllm_startup._server_command import find_server, find_servers_in_script
from vllm_startup._url import parse_url


def parsed(line: str, **environ: str) -> ServerArguments:
    found = parse_command(line.split(), environ=environ, cwd="/srv")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("line", "url"),
    [
        ("vllm serve Qwen/Qwen3-8B", "http://127.0.0.1:8000"),
        ("vllm serve m --port 8150", "http://127.0.0.1:8150"),
        ("vllm serve m --port=8150", "http://127.0.0.1:8150"),
        ("vllm serve --port 8150 m", "http://127.0.0.1:8150"),
        ("vllm serve m --port 1 --port 2", "http://127.0.0.1:2"),
        ("vllm serve m --port eight", "http://127.0.0.1:8000"),
        ("vllm serve m --gpu-memory-utilization lots", "http://127.0.0.1:8000"),
        ("vllm serve m --host 0.0.0.0 --port 80", "http://127.0.0.1:80"),
        ("vllm serve m --host ::", "http://[::1]:8000"),
        ("vllm serve m --host fd00::7", "http://[fd00::7]:8000"),
        ("vllm serve m --host 10.0.0.5", "http://10.0.0.5:8000"),
        ("vllm serve m --host gpu7.example", "http://gpu7.example:8000"),
        ("vllm serve m --uds /run/vllm.sock", "unix:///run/vllm.sock"),
        ("vllm serve m --uds vllm.sock", "unix:///srv/vllm.sock"),
        ("vllm serve m --uds /run/v.sock --ssl-certfile c.pem", "https+unix:///run/v.sock"),
        ("vllm serve m --ssl-keyfile k.pem --ssl-certfile c.pem", "https://127.0.0.1:8000"),
        ("vllm serve m --ssl_keyfile k.pem --ssl_certfile c.pem", "https://127.0.0.1:8000"),
        ("vllm serve m --headless -dp 4", None),
        ("vllm serve m --grpc --port 50051", None),
        ("vllm serve m -dp 4 -dpm", "http://127.0.0.1:9256"),
        (
            "vllm serve m --data-parallel-multi-port-external-lb --data_parallel_supervisor_port 9300",
            "http://127.0.0.1:9300",
        ),
        ("vllm serve m --root-path /llm", "http://127.0.0.1:8000"),
        ("vllm serve m --port 99999", "http://127.0.0.1:8000"),
        ("vllm serve m --port 0", "http://127.0.0.1:8000"),
    ],
)
def test_the_url_is_where_the_command_says(line: str, url: str | None) -> None:
    arguments = parsed(line)

    assert arguments.url == url
    if url is not None:
        assert parse_url(url)


@pytest.mark.parametrize(
    "line",
    [
        "/opt/vllm/bin/python3 /opt/vllm/bin/vllm serve m --port 8150",
        "env CUDA_VISIBLE_DEVICES=0,1 VLLM_LOGGING_LEVEL=DEBUG vllm serve m --port 8150",
        "uv run --with vllm vllm serve m --port 8150",
        "uv run vllm serve m --port 8150",
        "python -m vllm.entrypoints.openai.api_server --model m --port 8150",
        "python3.12 -u -m vllm.entrypoints.openai.api_server --port=8150 --model=m",
        "python /opt/vllm/entrypoints/openai/api_server.py --model m --port 8150",
        "python -m vllm.entrypoints.cli.main serve m --port 8150",
        "python -m vllm serve m --port 8150",
        "prlimit --as=6000000000 vllm serve m --port 8150",
        "numactl --cpunodebind=0 --membind=0 vllm serve m --port 8150",
        "nice -n 5 ionice -c 3 vllm serve m --port 8150",
        "systemd-run --user --unit=vllm --property=Restart=no vllm serve m --port 8150",
        "nohup stdbuf -oL vllm serve m --port 8150",
        "timeout 3600 vllm serve --model m --port 8150",
        "torchrun --nproc-per-node 2 -m vllm.entrypoints.openai.api_server --model m --port 8150",
        "sudo -u vllm FOO=1 vllm serve m --port 8150",
    ],
)
def test_the_server_is_found_behind_its_wrappers(line: str) -> None:
    arguments = parsed(line)

    assert (arguments.port, arguments.model) == (8150, "m")


@pytest.mark.parametrize(
    "script",
    [
        "vllm serve m --port 8150",
        "exec vllm serve m --port 8150 > vllm.log 2>&1",
        "cd /srv && VLLM_USE_V1=1 vllm serve m --port 8150 2>&1 | tee vllm.log",
        "sleep 5; vllm serve 'm' --port \"8150\" &",
        "source /opt/venv/bin/activate\nvllm serve m \\\n  --port 8150\n",
        "PORT=8150; vllm serve m --port $PORT",
        "export PORT=8150 && vllm serve m --port ${PORT}",
        "vllm serve m --port ${UNSET_PORT:-8150}",
        "vllm serve m --port $GIVEN",
        "bash -c 'vllm serve m --port 8150'",
        "echo vllm && vllm serve m --port 8150 --chat-template 'unclosed",
    ],
)
@pytest.mark.parametrize(
    "shell", [["bash", "-c"], ["/bin/sh", "-ec"], ["env", "A=b", "bash", "-l", "-o", "pipefail", "-c"]]
)
def test_the_server_is_found_in_a_shell_command(shell: list[str], script: str) -> None:
    arguments = parse_command([*shell, script], environ={"GIVEN": "8150"}, cwd="/srv")

    assert arguments is not None
    assert (arguments.port, arguments.model) == (8150, "m")


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["bash", "start.sh"],
        ["bash"],
        ["bash", "-c"],
        ["bash", "--norc"],
        ["bash", "-c", "sleep 100"],
        ["python", "app.py"],
        ["python", "-m"],
        ["vllm"],
        ["vllm", "bench", "serve"],
        ["vllm", "--version"],
        ["VLLM::EngineCore"],
        ["sh", "-c", 'sh -c "sh -c \'sh -c \\"sh -c vllm\\"\'"'],
        [""],
    ],
)
def test_other_commands_start_no_server(command: list[str]) -> None:
    assert parse_command(command) is None


def test_everything_that_is_read() -> None:
    line = (
        "vllm serve org/model --served-model-name a b --host h --port 8001 --ssl-ca-certs ca.pem"
        " --root-path /x -tp 8 -pp=2 --data-parallel-size 4 -dpl 2"
        " --gpu_memory_utilization 0.85 --enforce-eager"
    )

    assert parsed(line) == ServerArguments(
        model="org/model",
        served_model_names=("a", "b"),
        host="h",
        port=8001,
        ssl_ca_certs="ca.pem",
        root_path="/x",
        tensor_parallel_size=8,
        pipeline_parallel_size=2,
        data_parallel_size=4,
        data_parallel_size_local=2,
        gpu_memory_utilization=0.85,
    )


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("vllm serve", None),
        ("vllm serve --model m --port 1", "m"),
        ("vllm serve --model=m", "m"),
        ("vllm serve told --model other", "told"),
        ("vllm serve --port 8001 m", "m"),
        ("vllm serve --headless m", "m"),
        ("vllm serve --limit-mm-per-prompt.image 2 -tp 2 m", "m"),
        ("vllm serve --compilation-config.mode 3", None),
        ("vllm serve --seed -1 --port 1", None),
    ],
)
def test_the_model_is_the_first_word_or_an_option(line: str, model: str | None) -> None:
    assert parsed(line).model == model


@pytest.mark.parametrize(
    ("line", "environ", "needed"),
    [
        ("vllm serve m", {}, False),
        ("vllm serve m", {"VLLM_API_KEY": ""}, False),
        ("vllm serve m", {"VLLM_API_KEY": "s3cret"}, True),
        ("vllm serve m --api-key s3cret other", {}, True),
        ("vllm serve m --api-key=s3cret", {}, True),
        ("env VLLM_API_KEY=s3cret vllm serve m", {}, True),
    ],
)
def test_a_key_is_noticed_and_never_kept(line: str, environ: dict[str, str], needed: bool) -> None:
    arguments = parsed(line, **environ)

    assert arguments.needs_api_key is needed
    assert "s3cret" not in repr(arguments)


def test_vllm_port_is_not_the_http_port() -> None:
    assert parsed("vllm serve m", VLLM_PORT="9999").url == "http://127.0.0.1:8000"


CONFIG = """\
# a comment
model: org/from-config
host: "127.0.0.1"
port: 8444   # another
tensor-parallel-size: 4
served_model_name:
  - a
  - 'b'
enforce-eager: true
headless: false
compilation-config:
  port: 1
  mode: 3
"""


@pytest.mark.parametrize("with_pyyaml", [True, False])
def test_a_config_file_is_read_and_the_command_line_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_pyyaml: bool
) -> None:
    if not with_pyyaml:
        monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "server.yaml").write_text(CONFIG)

    alone = parse_command(["vllm", "serve", "--config", "server.yaml"], cwd=str(tmp_path))
    over = parse_command(
        ["vllm", "serve", "told", "--config", "server.yaml", "--port", "1"], cwd=str(tmp_path)
    )

    assert alone is not None
    assert (alone.model, alone.url) == ("org/from-config", "http://127.0.0.1:8444")
    assert (alone.served_model_names, alone.tensor_parallel_size, alone.headless) == (("a", "b"), 4, False)
    assert over is not None
    assert (over.model, over.port, over.tensor_parallel_size) == ("told", 1, 4)


def test_a_config_file_in_one_word_is_left_alone_as_vllm_does(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("port: 8444\n")

    found = parse_command(["vllm", "serve", "m", f"--config={tmp_path}/c.yaml"])

    assert found is not None
    assert found.url == "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    "content", [None, "", "- a\n- b\n", "port: [\n", "a: !!python/object:os.system x\n", "\0\xff"]
)
@pytest.mark.parametrize("with_pyyaml", [True, False])
def test_a_config_file_that_cannot_be_read_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, with_pyyaml: bool
) -> None:
    if not with_pyyaml:
        monkeypatch.setitem(sys.modules, "yaml", None)
    path = tmp_path / "c.yaml"
    if content is not None:
        path.write_text(content, encoding="latin-1")

    found = parse_command(["vllm", "serve", "m", "--config", str(path)])

    assert found is not None
    assert found.url == "http://127.0.0.1:8000"


def test_flat_yaml_reads_the_top_level_only() -> None:
    text = "a: 1\nb: 'x: y'\nc: [p, \"q\"]\nd:\n- one\n- two\ne:\n  f: 2\nurl: http://h:1/x#y\ng: False\n"

    assert flat_yaml(text) == {
        "a": "1",
        "b": "x: y",
        "c": ["p", "q"],
        "d": ["one", "two"],
        "e": [],
        "url": "http://h:1/x#y",
        "g": False,
    }


SLEEPER = "import time; time.sleep(60)"


async def test_the_url_is_read_from_a_live_process_with_its_folder(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("port: 8555\n")
    words = [sys.executable, "-c", SLEEPER, "vllm", "serve", "m", "--config", "c.yaml"]
    process = await asyncio.create_subprocess_exec(*words, cwd=tmp_path)
    try:
        assert url_of_process(process.pid) == "http://127.0.0.1:8555"
    finally:
        process.kill()
        await process.wait()


async def test_the_url_is_read_from_a_descendant(tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text(f'"{sys.executable}" -c "{SLEEPER}" vllm serve m --port 8666 &\necho up\nwait\n')
    process = await asyncio.create_subprocess_exec(
        "sh", str(script), stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        for _ in range(100):  # the shell's child has yet to become Python
            if found := url_of_process(process.pid):
                break
            await asyncio.sleep(0.02)
        assert found == "http://127.0.0.1:8666"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def test_no_url_is_read_from_other_processes() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    assert url_of_process(ended.pid) is None
    assert url_of_process(2**40) is None


def test_psutil_is_not_imported_before_it_is_needed() -> None:
    code = (
        "import sys\nfrom vllm_startup._arguments import parse_command\n"
        "parse_command(['vllm', 'serve'])\nassert 'psutil' not in sys.modules"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("command", "left"),
    [
        (["env", "-i", "HF_HOME=/x", "vllm", "serve", "m"], {"HF_HOME": "/x"}),
        (["env", "-u", "VLLM_PORT", "vllm", "serve", "m"], {"HOME": "/root"}),
        (["env", "--unset=VLLM_PORT", "vllm", "serve", "m"], {"HOME": "/root"}),
        (["/usr/bin/env", "-uVLLM_PORT", "HOME=/y", "vllm", "serve", "m"], {"HOME": "/y"}),
        (["vllm", "serve", "m"], {"HOME": "/root", "VLLM_PORT": "tcp://10.0.0.1:8000"}),
    ],
)
def test_a_server_gets_the_environment_that_env_leaves_it(command: list[str], left: dict[str, str]) -> None:
    found = find_server(command, {"HOME": "/root", "VLLM_PORT": "tcp://10.0.0.1:8000"})
    assert found is not None
    assert found.environ == left


API_SERVER = "vllm.entrypoints.openai.api_server"


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["vllm", "serve", "m"], ("vllm",)),
        (["uv", "run", "vllm", "serve", "m"], ("uv", "run", "vllm")),
        (["python3", "-m", API_SERVER, "--port", "1"], ("python3", "-m", API_SERVER)),
        (["bash", "-c", "cd /srv && exec /opt/v/bin/vllm serve m"], ("bash", "exec", "/opt/v/bin/vllm")),
    ],
)  # fmt: skip
def test_the_words_that_name_the_server_are_told(command: list[str], program: tuple[str, ...]) -> None:
    found = find_server(command)
    assert found is not None
    assert found.program == program


def test_an_environment_that_a_script_activates_is_the_servers() -> None:
    found = find_server(["bash", "-c", "source /opt/v/bin/activate && vllm serve m"], {"PATH": "/usr/bin"})
    assert found is not None
    assert found.environ == {"PATH": "/opt/v/bin:/usr/bin", "VIRTUAL_ENV": "/opt/v"}


def test_comments_of_a_script_are_no_commands() -> None:
    script = "#!/bin/sh\n# the old one: vllm serve old\nvllm serve new --port 81 # ; vllm serve later\necho\n"
    [found] = find_servers_in_script(script, {})
    assert found.arguments == ("new", "--port", "81")


def test_an_empty_word_of_a_script_is_a_word() -> None:
    [found] = find_servers_in_script("vllm serve '' --port 81", {})
    assert found.arguments == ("", "--port", "81")


def test_env_alone_starts_nothing() -> None:
    assert find_server(["env"]) is None


def test_every_server_of_a_script_is_found() -> None:
    script = 'if [ -n "$BIG" ]; then\n  vllm serve big\nelse\n  exec vllm serve small --port 8001\nfi\n'
    assert [found.arguments[0] for found in find_servers_in_script(script, {})] == ["big", "small"]
