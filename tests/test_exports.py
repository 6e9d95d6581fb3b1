"""What is public, and that it is complete."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vllm_startup
from vllm_startup import causes, probes, testing

ROOT = Path(__file__).parents[1]
PUBLIC = [vllm_startup, causes, probes, testing]
NAMES = [(module, name) for module in PUBLIC for name in module.__all__]
IDS = [f"{module.__name__}.{name}" for module, name in NAMES]


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_the_list_of_exports_is_sorted_and_has_no_doubles(module: Any) -> None:
    names = module.__all__
    assert len(names) == len(set(names))
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(("module", "name"), NAMES, ids=IDS)
def test_every_export_is_there(module: Any, name: str) -> None:
    assert getattr(module, name) is not None
    assert name in dir(module)


@pytest.mark.parametrize(("module", "name"), NAMES, ids=IDS)
def test_every_export_is_documented(module: Any, name: str) -> None:
    value = getattr(module, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__doc__, name


@pytest.mark.parametrize(("module", "name"), NAMES, ids=IDS)
def test_public_methods_of_every_export_are_documented(module: Any, name: str) -> None:
    value = getattr(module, name)
    if not inspect.isclass(value):
        return
    own = {n: m for n, m in vars(value).items() if not n.startswith("_") and inspect.isfunction(m)}
    assert [n for n, m in own.items() if not m.__doc__] == []


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_an_unknown_name_is_an_attribute_error(module: Any) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


def test_the_version_is_told() -> None:
    assert isinstance(vllm_startup.__version__, str)


def test_the_package_is_typed() -> None:
    assert (ROOT / "vllm_startup" / "py.typed").is_file()


def test_signatures_have_two_positional_parameters_at_most() -> None:
    """Flags and limits are given by name."""
    for module, name in NAMES:
        value = getattr(module, name)
        if not callable(value) or (inspect.isclass(value) and issubclass(value, Exception)):
            continue
        try:
            parameters = inspect.signature(value).parameters.values()
        except ValueError:
            continue
        places = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert len(places) <= 3, f"{module.__name__}.{name}"


@pytest.mark.parametrize("package", ["httpx", "pynvml", "psutil", "tenacity", "pytest"])
def test_importing_the_package_does_not_import(package: str) -> None:
    code = f"import sys, vllm_startup; vllm_startup.wait_until_ready; sys.exit({package!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0


def test_every_module_can_be_imported_alone() -> None:
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / "vllm_startup").rglob("*.py"))
        if path.stem != "__main__"
    ]
    for name in names:
        importlib.import_module(name)
