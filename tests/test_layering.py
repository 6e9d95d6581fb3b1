"""Who may import whom: the core knows no I/O, and imports point one way."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "vllm_startup"

# The core: it gets time and text as arguments, and reads no clock, file or socket.
PURE = [
    "_log",
    "_diagnosis",
    "_machine",
    "causes",
    "_phases.py",
    "_members.py",
    "_readings.py",
    "_events.py",
    "_report.py",
    "_timeouts.py",
    "_rules.py",
    "_roles.py",
    "_text.py",
    "_json.py",
]
IMPURE = {
    "asyncio",
    "concurrent",
    "httpx",
    "logging",
    "os",
    "psutil",
    "pynvml",
    "queue",
    "random",
    "select",
    "signal",
    "socket",
    "subprocess",
    "tenacity",
    "threading",
    "time",
}
# `os.PathLike` is a type; a report may be read from a path that the caller names.
ALLOWED = {("_report.py", "os")}

# Each may import those before it, and its own.
LAYERS: list[set[str]] = [
    {"_members", "_phases", "_readings", "_roles", "_text", "_redact", "_lazy", "_versions"},
    {
        "_arguments",
        "_blocking",
        "_clock",
        "_server_command",
        "_sync",
        "_url",
    },
    {"_log"},
    {"causes", "_timeouts"},
    {"_json"},
    {"_events", "_rules"},
    {"_report"},
    {"_diagnosis"},
    {"_machine"},
    {
        "_diagnosing",
        "_drift",
        "_exceptions",
        "_hooks",
        "_recording",
        "probes",
    },
    {"_sampling", "_turn", "targets"},
    {"_startup"},
    {"_wait"},
    {"_hosts", "_launching"},
    {"_orphans"},
    {"_cleanup", "_preflight"},
    {"_demo"},
    {"testing"},
    {"_cli", "pytest_plugin"},
]


def files(name: str) -> list[Path]:
    path = PACKAGE / name
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def imports(path: Path) -> set[str]:
    """The modules that a file imports, but for what only type checkers see."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("name", PURE)
def test_the_core_imports_no_io(name: str) -> None:
    for path in files(name):
        top = {module.partition(".")[0] for module in imports(path)}
        wrong = {m for m in top & IMPURE if (path.name, m) not in ALLOWED}
        assert wrong == set(), f"{path.relative_to(PACKAGE)} imports {wrong}"


@pytest.mark.parametrize("name", PURE)
def test_the_core_opens_nothing_and_asks_no_clock(name: str) -> None:
    for path in files(name):
        if path.name == "_report.py":
            continue  # `baseline=` may be a path
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"open", "input", "print", "exec", "eval"}, path
                assert not called.endswith((".now", ".today", ".utcnow", ".read_text", ".open")), (
                    path,
                    called,
                )


def room(module: str) -> str | None:
    """The part of the package that a module belongs to."""
    parts = module.split(".")
    return parts[1] if parts[0] == "vllm_startup" and len(parts) > 1 else None


def test_every_part_has_its_layer() -> None:
    parts = {
        path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert parts - {"__init__", "__main__"} <= set().union(*LAYERS)


def test_imports_point_one_way() -> None:
    level = {part: index for index, layer in enumerate(LAYERS) for part in layer}
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        who = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if who in {"__init__", "__main__"}:
            continue
        for module in imports(path):
            whom = room(module)
            if whom in level and who in level and level[whom] > level[who]:
                wrong.append((str(path.relative_to(PACKAGE)), module))
    assert wrong == []


def test_probes_know_readings_only() -> None:
    allowed = {
        "_readings",
        "_roles",
        "_blocking",
        "_redact",
        "_url",
        "_text",
        "_log",
        "_lazy",
        "probes",
        "_arguments",
    }
    for path in files("probes"):
        used = {part for module in imports(path) if (part := room(module)) is not None}
        assert used <= allowed, f"{path.name} imports {used - allowed}"


def test_the_guardian_imports_next_to_nothing() -> None:
    """It lives as long as its server, and every megabyte and wake-up of it with that."""
    light = ("vllm_startup._launching.end_tree", "vllm_startup._launching.left_files")
    for name in ("guardian", "end_tree", "left_files"):
        ours = {module for module in imports(PACKAGE / "_launching" / f"{name}.py") if room(module)}
        assert {module for module in ours if not module.startswith(light)} == set(), name


def test_the_pump_alone_makes_tasks_for_a_watch() -> None:
    """Probes may need tasks of their own; the command line and a launch are callers like any other."""
    makers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(("create_task", "ensure_future", "TaskGroup"))
    }
    callers = ("probes/", "targets/", "_hosts/", "_cli/", "_launching/")
    assert {maker for maker in makers if not maker.startswith(callers)} == {"_startup.py"}


def test_nobody_prints_outside_the_command_line() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if {"_cli", "_demo"} & set(path.parts):
            continue
        calls = [n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Call)]
        assert all(ast.unparse(call.func) != "print" for call in calls), path


def test_only_our_logger_is_used() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger":
                assert ast.unparse(node.args[0]) == "'vllm_startup'", path


def test_third_parties_are_those_that_are_declared() -> None:
    declared = {
        "attrs",
        "h11",
        "httpx",
        "packaging",
        "psutil",
        "pynvml",
        "tenacity",
        "transitions",
        "pytest",
        "yaml",
        "vllm_startup",
    }
    for path in sorted(PACKAGE.rglob("*.py")):
        top = {module.partition(".")[0] for module in imports(path)} - {"anyio"}  # httpx brings it
        assert top - set(sys.stdlib_module_names) <= declared, path
