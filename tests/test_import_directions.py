"""Data flows one way through the house: the imports of every file are read, and a backward edge fails.

The table is the one of CONTRIBUTING.md; a room may also import what the rooms it imports may import, and
every room may import `penstock.errors`, `penstock.files` and `penstock.native`.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import penstock
import penstock_runtime
from penstock.cli.main import _COMMANDS

SOURCE = Path(penstock.__file__).parent
RUNTIME = Path(penstock_runtime.__file__).parent
CONTRIBUTING = Path(__file__).parent.parent / "CONTRIBUTING.md"
COMMON = {"errors", "files", "native"}

ROOMS: dict[str, set[str]] = {
    "gating": set(),
    "surgery": {"gating"},
    "zoo": set(),
    "datasets": set(),
    "accounting": {"gating", "surgery"},
    "training": {"gating", "surgery", "datasets"},
    "pruning": {"surgery", "accounting", "training"},
    "quantizing": {"surgery", "datasets"},
    "engine": {"gating", "surgery", "quantizing"},
    "search": {"accounting", "engine", "training"},
    "exporting": {"gating", "surgery", "engine"},
    "measuring": {"engine", "exporting"},
    "reporting": {"accounting", "measuring"},
    "serving": set(),  # stands on penstock_runtime alone
}
# Single files that may import one thing more, and why.
EXCEPTIONS = {
    ("exporting/checkpoints.py", "zoo"): "a checkpoint names the zoo's network that it fills",
    ("exporting/vgg_start.py", "zoo"): "published weights are put into the zoo's VGG-16",
    ("measuring/contest.py", "accounting"): "milliseconds are printed beside MACs",
    ("measuring/densities.py", "accounting"): "milliseconds are printed beside MACs",
}
# The same for a room that lies later, which is imported inside a function only.
BACKWARD = {
    ("zoo/pretrained.py", "exporting"): "the shipped checkpoints are read when one is asked for",
}

THIRD_PARTIES = {
    "gating": {"torch", "penstock_runtime"},
    "zoo": {"torch"},
    "datasets": {"torch", "numpy", "PIL", "penstock_runtime"},
    "surgery": {"torch"},
}


def allowed(room: str) -> set[str]:
    """The room's own row and, through it, the rows of the rooms it may import."""
    reached: set[str] = set()
    waiting = set(ROOMS[room])
    while waiting:
        one = waiting.pop()
        reached.add(one)
        waiting |= ROOMS[one] - reached
    return reached | COMMON | {room}


def imports(path: Path, root: Path = SOURCE) -> list[tuple[str, int]]:
    """Every imported module's full name and line; relative imports and those in functions included."""
    package = [root.name, *path.relative_to(root).parts[:-1]]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "penstock" else [module]
            found += [(name, node.lineno) for name in names]
    return found


def files(room: str) -> list[Path]:
    return sorted((SOURCE / room).rglob("*.py"))


def test_every_room_of_the_house_is_in_the_table() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert rooms == set(ROOMS) | {"cli"}
    assert {path.stem for path in SOURCE.glob("*.py")} == COMMON | {"__init__", "__main__"}


def test_the_table_for_contributors_is_this_one() -> None:
    text = CONTRIBUTING.read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE)
    written = {room: {one.strip() for one in row.split(",")} & set(ROOMS) for room, row in rows}
    assert written == ROOMS | {"cli": set()}
    flow = re.search(r"gating →[^`\n]+", text)
    assert flow is not None
    order = flow.group().split(" → ")
    assert set(order) == set(ROOMS) - {"zoo", "datasets"} | {"cli"}
    for room, before in ROOMS.items():
        assert all(order.index(one) < order.index(room) for one in before & set(order))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_lies_before_it(room: str) -> None:
    backward = []
    for path in files(room):
        for name, line in imports(path):
            parts = name.split(".")
            if parts[0] != "penstock" or len(parts) == 1 or parts[1].startswith("__"):
                continue
            where = str(path.relative_to(SOURCE))
            if parts[1] not in allowed(room) and (where, parts[1]) not in EXCEPTIONS | BACKWARD:
                backward.append(f"{where}:{line} imports {name}")
    assert not backward


@pytest.mark.parametrize("room", THIRD_PARTIES)
def test_the_inner_rooms_need_little_from_outside(room: str) -> None:
    strange = []
    for path in files(room):
        for name, line in imports(path):
            top = name.split(".")[0]
            if top != "penstock" and top not in sys.stdlib_module_names and top not in THIRD_PARTIES[room]:
                strange.append(f"{path.relative_to(SOURCE)}:{line} imports {name}")
    assert not strange


def test_the_runtime_stands_on_numpy_alone_and_pillow_only_where_it_reads_images() -> None:
    strange = []
    for path in sorted(RUNTIME.rglob("*.py")):
        for name, line in imports(path, RUNTIME):
            top = name.split(".")[0]
            if top not in sys.stdlib_module_names and top not in {"penstock_runtime", "numpy"}:
                strange.append(f"{path.name}:{line} imports {name}")
    assert not strange


def test_every_exception_is_still_needed() -> None:
    for where, room in EXCEPTIONS | BACKWARD:
        names = {name.split(".")[1] for name, _ in imports(SOURCE / where) if name.startswith("penstock.")}
        assert room in names - allowed(where.partition("/")[0]), where


def test_no_import_of_a_later_room_happens_at_import_time() -> None:
    for where, room in BACKWARD:
        tree = ast.parse((SOURCE / where).read_text())
        outside = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not [node for node in outside if f"penstock.{room}" in ast.unparse(node)]


def test_no_command_imports_another() -> None:
    commands = set(_COMMANDS)
    crossing = []
    for name in commands:
        for imported, line in imports(SOURCE / "cli" / f"{name}.py"):
            room, _, other = imported.rpartition(".")
            if room == "penstock.cli" and other in commands:
                crossing.append(f"cli/{name}.py:{line} imports {other}")
    assert not crossing


def test_only_the_command_line_prints() -> None:
    printing = []
    for room in ROOMS:
        for path in files(room):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                    printing.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not printing


def test_no_python_file_is_longer_than_300_lines() -> None:
    root = CONTRIBUTING.parent
    folders = ("src", "runtime", "tests", "tools", "benchmarks", "examples", "results", "docs")
    written = [path for folder in folders for path in (root / folder).rglob("*.py")]
    assert len(written) > 300
    lengths = {str(path.relative_to(root)): len(path.read_text().splitlines()) for path in written}
    assert not {name: lines for name, lines in lengths.items() if lines > 300}
