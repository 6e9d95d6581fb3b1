"""Which Python runs the server, and where its packages lie, told from files alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from installs import Venv, add, facts, program
from users import as_nobody

from vllm_startup._preflight import check_packages
from vllm_startup._preflight.facts import Facts
from vllm_startup._preflight.result import NotCheckedError


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    venv = Venv.make(tmp_path / "venv")
    venv.add("vllm", "0.32.0")
    return venv


def version(found: Facts) -> str | None:
    package = found.installation().packages.get("vllm")
    return package.version if package is not None else None


MODULE = "vllm.entrypoints.openai.api_server"


@pytest.mark.parametrize(
    "command",
    [
        "{bin}/vllm serve m",
        "vllm serve m",
        "{bin}/python3 -m vllm.entrypoints.openai.api_server --model m",
        "python3 -u -m vllm serve m",
        "env HF_HOME=/x numactl --cpunodebind=0 vllm serve m",
        "nohup nice -n 5 {bin}/vllm serve m",
        "{bin}/python3 {site}/vllm/entrypoints/openai/api_server.py --model m",
    ],
)
def test_the_python_of_a_command_is_found(venv: Venv, command: str) -> None:
    words = command.format(bin=venv.prefix / "bin", site=venv.site).split()
    found = facts(words, {"PATH": f"{venv.prefix}/bin:/usr/bin:/bin"})
    assert found.installation().python == str(venv.python)
    assert found.installation().version == "3.12.3"
    assert version(found) == "0.32.0"


@pytest.mark.parametrize(
    "script",
    [
        "source {prefix}/bin/activate\nexec vllm serve m\n",
        ". {prefix}/bin/activate && vllm serve m",
        "export PATH={prefix}/bin:$PATH; vllm serve m",
    ],
)
def test_a_script_that_chooses_its_environment_is_understood(venv: Venv, script: str) -> None:
    text = script.format(prefix=venv.prefix)
    assert version(facts(["bash", "-c", text], {"PATH": "/usr/bin"})) == "0.32.0"
    file = program(venv.prefix.parent / "start.sh", f"#!/bin/bash\n{text}")
    assert version(facts([file], {"PATH": "/usr/bin"})) == "0.32.0"
    assert version(facts(["bash", "-x", file], {"PATH": "/usr/bin"})) == "0.32.0"


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "-lc", "vllm serve m"],
        ["/bin/bash", "-lc", "python3 -m vllm serve m"],
        ["bash", "--login", "-c", "vllm serve m"],
        ["bash", "-c", "source ~/.bashrc; vllm serve m"],
        ["bash", "-c", "conda activate serving && vllm serve m"],
        ["bash", "-c", "source venv/bin/activate; cd /srv; vllm serve m"],
        ["sh", "-c", 'eval "$(pyenv init -)"; vllm serve m'],
    ],
)
def test_a_path_that_a_shell_makes_itself_is_not_known(command: list[str]) -> None:
    found = facts(command, {"PATH": "/usr/bin"})
    with pytest.raises(NotCheckedError, match="what a shell reads before may choose another Python"):
        found.installation()
    assert list(check_packages.program(facts(["env", *command], {"PATH": "/usr/bin:/bin"}))) == []


def test_a_path_that_is_written_out_is_known_all_the_same(venv: Venv) -> None:
    assert version(facts(["bash", "-lc", f"{venv.vllm} serve m"])) == "0.32.0"


def test_a_relative_environment_is_the_folders(venv: Venv) -> None:
    words = ["bash", "-c", f"cd {venv.prefix.parent}; . venv/bin/activate; vllm serve m"]
    found = facts(words, {"PATH": "/usr/bin"})
    assert version(found) == "0.32.0"


@pytest.mark.parametrize(
    "first_lines",
    [
        "#!/usr/bin/env python3\n",
        "#!/usr/bin/env -S python3 -s\n",
        "#! {python} -s\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
        "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_every_first_line_that_installers_write_is_read(venv: Venv, first_lines: str) -> None:
    program(venv.vllm, first_lines.format(python=venv.python) + "import vllm\n")
    found = facts([venv.vllm, "serve", "m"], {"PATH": f"{venv.prefix}/bin"})
    assert found.installation().python == str(venv.python)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#!/bin/bash\nexec pyenv exec vllm\n", "does not show which Python runs it"),
        ("\x7fELF\x02\x01", "does not show which Python runs it"),
        ("", "does not show which Python runs it"),
        ("#!/gone/bin/python3\n", "needs /gone/bin/python3, which is not there"),
    ],
)
def test_what_does_not_show_its_python_is_not_guessed(venv: Venv, text: str, reason: str) -> None:
    program(venv.vllm, text)
    with pytest.raises(NotCheckedError, match=reason):
        facts([venv.vllm, "serve", "m"]).installation()


def test_a_python_that_the_caller_names_counts(venv: Venv) -> None:
    found = facts(["/srv/start"], python=venv.python)
    assert version(found) == "0.32.0"


@pytest.mark.parametrize("wrapper", ["poetry", "pipenv", "pixi", "uvx"])
def test_tools_that_choose_the_environment_by_rules_of_their_own(venv: Venv, wrapper: str) -> None:
    with pytest.raises(NotCheckedError, match=f"{wrapper} chooses the environment"):
        facts([wrapper, "run", "vllm", "serve", "m"], {"PATH": f"{venv.prefix}/bin"}).installation()


# --- uv and conda -----------------------------------------------------------------------------


def test_uv_run_takes_its_projects_environment(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    Venv.make(tmp_path / ".venv").add("vllm", "0.30.0")
    (tmp_path / "src").mkdir()
    found = facts(["uv", "run", "vllm", "serve", "m"], {"PATH": "/usr/bin"}, cwd=tmp_path / "src")
    assert version(found) == "0.30.0"
    assert found.installation().changes == "uv run"


def test_uv_run_without_a_sync_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    Venv.make(tmp_path / ".venv")
    found = facts(["uv", "run", "--no-sync", "--directory", tmp_path, "vllm", "serve", "m"])
    assert found.installation().changes is None


def test_uv_run_without_a_project_takes_the_active_environment(venv: Venv, tmp_path: Path) -> None:
    found = facts(["uv", "run", "vllm", "serve", "m"], {"VIRTUAL_ENV": str(venv.prefix)}, cwd=tmp_path)
    assert version(found) == "0.32.0"


@pytest.mark.parametrize("option", ["--with=torch", "--isolated", "--python"])
def test_uv_run_may_make_an_environment_of_its_own(option: str) -> None:
    with pytest.raises(NotCheckedError, match="uv run chooses"):
        facts(["uv", "run", option, "vllm", "serve", "m"]).installation()


def test_uv_run_may_have_yet_to_make_its_environment(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    with pytest.raises(NotCheckedError, match="has yet to make"):
        facts(["uv", "run", "vllm", "serve", "m"], cwd=tmp_path).installation()


def conda(prefix: Path) -> Path:
    """A conda environment: no pyvenv.cfg, the interpreter named by its version, python3 a link to it."""
    (prefix / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (prefix / "lib" / "python3.11" / "os.py").touch()
    program(prefix / "bin" / "python3.11", "")
    (prefix / "bin" / "python3").symlink_to("python3.11")
    (prefix / "conda-meta").mkdir()
    add(prefix / "lib" / "python3.11" / "site-packages", "vllm", "0.31.0")
    program(prefix / "bin" / "vllm", f"#!{prefix}/bin/python3.11\n")
    return prefix


@pytest.mark.parametrize("words", [["-p", "{prefix}"], ["--prefix={prefix}"], ["-n", "serving"]])
def test_conda_run_takes_the_environment_that_it_names(tmp_path: Path, words: list[str]) -> None:
    prefix = conda(tmp_path / "envs" / "serving")
    chosen = [word.format(prefix=prefix) for word in words]
    command = ["conda", "run", "--no-capture-output", *chosen, "vllm", "serve", "m"]
    assert version(facts(command, {"CONDA_EXE": f"{tmp_path}/bin/conda"})) == "0.31.0"


def test_a_conda_environment_that_is_not_found_is_not_guessed() -> None:
    with pytest.raises(NotCheckedError, match="conda environment"):
        facts(["conda", "run", "-n", "gone", "vllm", "serve", "m"], {"HOME": "/gone"}).installation()


# --- where packages lie -------------------------------------------------------------------------


def test_a_conda_environment_is_understood(tmp_path: Path) -> None:
    prefix = conda(tmp_path / "conda")
    found = facts([prefix / "bin" / "vllm", "serve", "m"])
    assert (found.installation().version, version(found)) == ("3.11", "0.31.0")


def test_virtualenv_and_uv_write_the_version_under_another_name(tmp_path: Path) -> None:
    venv = Venv.make(tmp_path / "venv", config="uv = 0.8.0\nversion_info = 3.12.11\n")
    assert facts([venv.vllm, "serve", "m"]).installation().version == "3.12.11"


def test_the_systems_packages_stand_behind_the_environments(tmp_path: Path) -> None:
    base = conda(tmp_path / "base")
    add(base / "lib" / "python3.11" / "site-packages", "torch", "2.9.0")
    config = f"home = {base}/bin\nversion = 3.11.7\ninclude-system-site-packages = true\n"
    venv = Venv.make(tmp_path / "venv", config=config)
    site = venv.prefix / "lib" / "python3.11" / "site-packages"
    add(site, "vllm", "0.32.0")
    found = facts([venv.vllm, "serve", "m"])
    packages = found.installation().packages
    assert version(found) == "0.32.0"
    torch = packages.get("torch")
    assert torch is not None
    assert torch.version == "2.9.0"


def test_pythonpath_comes_first_and_a_users_own_packages_before_the_systems(tmp_path: Path) -> None:
    prefix = conda(tmp_path / "conda")
    add(tmp_path / "home" / ".local" / "lib" / "python3.11" / "site-packages", "vllm", "0.30.0")
    add(tmp_path / "ahead", "vllm", "0.33.0")
    command = [prefix / "bin" / "vllm", "serve", "m"]
    home = {"HOME": str(tmp_path / "home")}
    assert version(facts(command, home)) == "0.30.0"
    assert version(facts(command, {**home, "PYTHONNOUSERSITE": "1"})) == "0.31.0"
    assert version(facts(command, {**home, "PYTHONPATH": "ahead"}, cwd=tmp_path)) == "0.33.0"


def test_an_editable_install_is_found_by_its_metadata(venv: Venv, tmp_path: Path) -> None:
    """Modern ones leave a dist-info; those of setup.py develop a line in a .pth file, and an egg-info."""
    checkout = tmp_path / "checkout"
    (checkout / "flashinfer_python.egg-info").mkdir(parents=True)
    (checkout / "flashinfer_python.egg-info" / "PKG-INFO").write_text(
        "Name: flashinfer-python\nVersion: 0.7\n"
    )
    (venv.site / "easy-install.pth").write_text(f"# a comment\nimport sys; sys.exit(1)\n{checkout}\n/gone\n")
    found = facts([venv.vllm, "serve", "m"]).installation().packages.get("flashinfer-python")
    assert found is not None
    assert (found.version, found.place) == ("0.7", str(checkout))


def test_an_interpreter_whose_place_tells_nothing_is_asked(tmp_path: Path) -> None:
    shim = program(tmp_path / "shims" / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    found = facts(["python3", "-m", "vllm", "serve", "m"], {"PATH": f"{shim.parent}:{os.defpath}"})
    installation = found.installation()
    assert installation.version == ".".join(map(str, sys.version_info[:3]))
    assert installation.packages.get("pytest") is not None


@pytest.mark.parametrize(
    "text", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho nonsense\n", "#!/bin/sh\nsleep 600\n"]
)
def test_an_interpreter_that_does_not_answer_is_left(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_startup._preflight.installation._ASK_LIMIT_S", 0.2)
    shim = program(tmp_path / "python3", text)
    with pytest.raises(NotCheckedError, match="cannot be told"):
        facts([shim, "-m", "vllm", "serve", "m"], {"PATH": os.defpath}).installation()


@pytest.mark.parametrize("environ", [{"PYTHONHOME": "/opt/python"}, {}])
def test_a_layout_that_is_not_understood_is_asked_for(tmp_path: Path, environ: dict[str, str]) -> None:
    """An environment that moved by PYTHONHOME, or whose pyvenv.cfg says nothing."""
    venv = Venv.make(tmp_path / "venv", config="" if not environ else "version = 3.12\n")
    program(venv.python, '#!/bin/sh\necho \'["3.13.1", ["", "/moved/site-packages"]]\'\n')
    found = facts([venv.vllm, "serve", "m"], environ, cwd=tmp_path).installation()
    assert (found.version, found.packages.folders) == ("3.13.1", (f"{tmp_path}/", "/moved/site-packages"))


@pytest.mark.skipif(not Path("/usr/lib/python3/dist-packages").is_dir(), reason="Debian's folders")
def test_debians_packages_lie_where_debian_puts_them(tmp_path: Path) -> None:
    names = sorted(path.name for path in Path("/usr/bin").glob("python3.*") if path.name[8:].isdigit())
    if not names:
        pytest.skip("Debian's Python is not installed")
    found = facts([f"/usr/bin/{names[0]}", "-m", "vllm", "serve", "m"]).installation()
    assert found.version == names[0].removeprefix("python")
    assert "/usr/lib/python3/dist-packages" in found.packages.folders


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("/x/vllm/entrypoints/openai/api_server.py --model m", "the command shows no Python"),
        ("/gone/python3 -m vllm serve m", "/gone/python3 was not found"),
        ("/gone/vllm serve m", "/gone/vllm was not found"),
    ],
)
def test_a_python_that_is_not_there_is_told(command: str, reason: str) -> None:
    with pytest.raises(NotCheckedError, match=reason):
        facts(command.split()).installation()


def test_a_program_that_may_be_run_and_not_read(open_path: Path) -> None:
    hidden = program(open_path / "vllm", "#!/usr/bin/python3\n")
    hidden.chmod(0o711)
    with pytest.raises(NotCheckedError, match="cannot be read: Permission denied"):
        as_nobody(lambda: facts([hidden, "serve", "m"]).installation().python)


# --- metadata -----------------------------------------------------------------------------------


def test_garbage_is_no_package(venv: Venv) -> None:
    """What an interrupted pip, a full disk or a stray file leave behind."""
    for name in ("~orch-2.9.0.dist-info", "torch-2.9.0.dist-info", "xgrammar-1.0.dist-info", ".dist-info"):
        (venv.site / name).mkdir()
    (venv.site / "xgrammar-1.0.dist-info" / "METADATA").write_bytes(b"\xff\xfe\x00\x01" * 100)
    (venv.site / "numpy-2.0.dist-info").write_text("a file")
    (venv.site / "numba-1.dist-info").mkdir()
    (venv.site / "numba-1.dist-info" / "METADATA").mkdir()
    packages = facts([venv.vllm, "serve", "m"]).installation().packages
    for name in ("torch", "xgrammar", "numpy", "numba"):
        assert packages.get(name) is None, name


def test_names_are_found_in_any_spelling(venv: Venv) -> None:
    venv.add("Prometheus.Client", "0.18")
    found = facts([venv.vllm, "serve", "m"]).installation().packages.get("prometheus_client")
    assert found is not None
    assert found.version == "0.18"


def test_a_folder_that_may_not_be_read_holds_nothing_known(open_path: Path) -> None:
    venv = Venv.make(open_path / "venv")
    venv.add("vllm", "0.32.0")
    venv.site.chmod(0o700)
    assert as_nobody(lambda: version(facts([venv.vllm, "serve", "m"]))) is None


# --- commands that show no server here --------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "docker run --gpus all image vllm serve /models/m",
        "sudo podman run image vllm serve m",
        "kubectl exec pod -- vllm serve m",
        "srun -n 1 vllm serve m",
        "docker run image bash -c 'vllm serve m'",
        "ssh gpubox vllm-serve",
    ],
)
def test_a_server_in_another_place_is_not_looked_for_here(command: str) -> None:
    import shlex

    with pytest.raises(NotCheckedError, match="in another place: run preflight there"):
        facts(shlex.split(command)).server()


def test_a_model_or_a_path_may_have_the_name_of_such_a_program() -> None:
    assert facts(["vllm", "serve", "docker"]).asked().arguments.model == "docker"


def test_a_script_that_starts_one_of_several_servers_is_not_guessed(tmp_path: Path) -> None:
    script = program(tmp_path / "start.sh", "#!/bin/sh\nif $BIG; then vllm serve a; else vllm serve b; fi\n")
    with pytest.raises(NotCheckedError, match="shows no vLLM server"):
        facts([script]).server()


@pytest.mark.parametrize("arguments", ['"$MODEL"', "$(cat model)", '"$@"', "`cat model`", "m --port $PORT"])
def test_arguments_that_a_shell_alone_knows_are_not_read(tmp_path: Path, arguments: str) -> None:
    script = program(tmp_path / "start.sh", f"#!/bin/sh\nexec vllm serve {arguments}\n")
    found = facts([script])
    assert found.server().guessed
    with pytest.raises(NotCheckedError, match="variables whose values are not known"):
        found.asked()


def test_variables_that_a_script_sets_are_known(tmp_path: Path) -> None:
    script = program(
        tmp_path / "start.sh", '#!/bin/sh\nMODEL=big\nexec vllm serve "$MODEL" --port "${PORT:-81}"\n'
    )
    asked = facts([script], {"PORT": "82"}).asked()
    assert (asked.arguments.model, asked.arguments.port) == ("big", 82)


@pytest.mark.parametrize(
    "command", [["python3", "train.py"], ["vllm", "bench", "serve"], ["/gone"], ["bash"]]
)
def test_a_command_without_a_server_is_none(command: list[str]) -> None:
    with pytest.raises(NotCheckedError, match="shows no vLLM server"):
        facts(command).server()
