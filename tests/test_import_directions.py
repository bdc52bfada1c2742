"""Data flows one way through the house: the imports of every file are read, and a backward edge fails.

The table is DESIGN's; a room may also import what the rooms it imports may import, and every room may import
`penstock.errors` and `penstock.files`.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import penstock

SOURCE = Path(penstock.__file__).parent
COMMON = {"errors", "files"}

ROOMS: dict[str, set[str]] = {
    "gating": set(),
    "surgery": {"gating"},
    "zoo": set(),
    "datasets": set(),
    "training": {"gating", "surgery", "datasets"},
    "pruning": {"surgery", "training", "datasets"},
    "accounting": {"gating", "surgery"},
    "engine": {"gating", "surgery"},
    "exporting": {
        "gating",
        "surgery",
        "zoo",
        "datasets",
    },  # a checkpoint names a zoo network and a preprocess
    "reporting": {"accounting", "engine", "exporting", "datasets"},
}
# Single files that may import one thing more, inside a function, and why.
EXCEPTIONS = {
    ("zoo/pretrained.py", "exporting"): "the shipped checkpoints are read when one is asked for",
    ("training/native.py", "engine"): "there is one native module, and the engine's room holds it",
}

THIRD_PARTIES = {
    "gating": {"torch"},
    "zoo": {"torch"},
    "datasets": {"torch", "numpy", "PIL"},
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


def imports(path: Path) -> list[tuple[str, int]]:
    """Every imported module's full name and line; relative imports and those in functions included."""
    package = ["penstock", *path.relative_to(SOURCE).parts[:-1]]
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
    assert rooms - {"cli"} == set(ROOMS)
    assert {path.stem for path in SOURCE.glob("*.py")} == COMMON | {"__init__"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_lies_before_it(room: str) -> None:
    backward = []
    for path in files(room):
        for name, line in imports(path):
            parts = name.split(".")
            if parts[0] != "penstock" or len(parts) == 1 or parts[1].startswith("__"):
                continue
            where = str(path.relative_to(SOURCE))
            if parts[1] not in allowed(room) and (where, parts[1]) not in EXCEPTIONS:
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


def test_no_import_of_a_later_room_happens_at_import_time() -> None:
    for where, room in EXCEPTIONS:
        tree = ast.parse((SOURCE / where).read_text())
        outside = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not [node for node in outside if f"penstock.{room}" in ast.unparse(node)]


def test_only_the_command_line_prints() -> None:
    printing = []
    for room in ROOMS:
        for path in files(room):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                    printing.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not printing
