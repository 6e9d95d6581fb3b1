"""The server's environment, its user, and the files that arguments name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from installs import facts
from users import NOBODY, as_nobody

from vllm_startup._preflight import check_environment
from vllm_startup._preflight.result import NotCheckedError
from vllm_startup.causes import FileMissing, InvalidArguments, ServiceEnvironmentClash


def links(*wrapper: str, **environ: str) -> list[object]:
    return list(check_environment.service_links(facts([*wrapper, "vllm", "serve", "m"], environ)))


def test_the_address_of_a_kubernetes_service_is_no_port() -> None:
    [found] = links(VLLM_PORT="tcp://10.43.1.39:8000")
    assert isinstance(found, ServiceEnvironmentClash)
    assert found.variable == "VLLM_PORT"
    assert found.hint == "rename the service, or set enableServiceLinks: false in the pod"
    assert [item.text for item in found.evidence] == ["VLLM_PORT=tcp://10.43.1.39:8000"]


def test_what_is_no_number_at_all_is_told_as_such() -> None:
    [found] = links(VLLM_PORT="eighty")
    assert isinstance(found, InvalidArguments)
    assert found.argument == "VLLM_PORT"


@pytest.mark.parametrize("value", ["8001", " 8001 ", "+8001", "0"])
def test_what_python_reads_as_a_number_is_one(value: str) -> None:
    assert links(VLLM_PORT=value) == []


def test_a_variable_that_the_command_takes_away_is_not_the_servers() -> None:
    assert links("env", "-u", "VLLM_PORT", VLLM_PORT="tcp://10.43.1.39:8000") == []
    assert len(links("env", "VLLM_PORT=tcp://10.43.1.39:8000")) == 1


# --- the user -----------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="user ids of Linux")
@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [("user_not_found", NOBODY, "likely")]),
        ({"HOME": "/tmp"}, [("user_not_found", NOBODY, "likely")]),
        ({"USER": "vllm"}, []),
        ({"LOGNAME": "vllm"}, []),
        ({"TORCHINDUCTOR_CACHE_DIR": "/tmp/x"}, []),
    ],
)
def test_a_user_without_an_entry_needs_a_name_from_the_environment(
    environ: dict[str, str], expected: list[tuple[str, int, str]]
) -> None:
    asked = facts(["vllm", "serve", "m"], environ)
    found = as_nobody(lambda: list(check_environment.user(asked)))
    assert [(cause.kind, cause.fields["uid"], cause.confidence) for cause in found] == expected


def test_a_user_with_an_entry_needs_none() -> None:
    assert list(check_environment.user(facts(["vllm", "serve", "m"]))) == []


def test_a_user_that_the_command_becomes_is_not_looked_up() -> None:
    with pytest.raises(NotCheckedError, match="sudo starts it as another user"):
        list(check_environment.user(facts(["sudo", "-u", "x", "vllm", "serve", "m"])))


# --- files --------------------------------------------------------------------------------------


def test_files_that_may_not_be_looked_at_are_not_called_missing(open_path: Path) -> None:
    (open_path / "keys").mkdir(mode=0o700)
    asked = facts(["vllm", "serve", "m", "--ssl-keyfile", str(open_path / "keys" / "key.pem")])
    [found] = as_nobody(lambda: list(check_environment.files(asked)))
    assert (found.kind, found.fields["errno"]) == ("path_not_readable", 13)


def test_files_that_arguments_name_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "key.pem").touch()
    words = [
        "vllm",
        "serve",
        "m",
        "--config",
        "vllm.yaml",
        "--ssl-keyfile",
        "key.pem",
        "--ssl-certfile=/gone.pem",
    ]
    found = list(check_environment.files(facts(words, cwd=tmp_path)))
    assert all(isinstance(cause, FileMissing) for cause in found)
    assert [(cause.fields["path"], cause.evidence[0].text) for cause in found] == [
        ("vllm.yaml", "--config vllm.yaml"),
        ("/gone.pem", "--ssl-certfile /gone.pem"),
    ]
