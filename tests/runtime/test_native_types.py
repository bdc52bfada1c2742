"""`_native.pyi` says what the compiled module has: every name, and how many arguments each takes."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import penstock_runtime
from penstock_runtime.native import native

STUB = Path(penstock_runtime.__file__).with_name("_native.pyi")


def parameters(signature: str) -> tuple[int, int]:
    """(how many arguments, how many with a default) of a line such as ``def f(a: int, b: int = 2)``."""
    tree = ast.parse(f"{signature}: ...")
    found = tree.body[0]
    assert isinstance(found, ast.FunctionDef)
    return len(found.args.args) + len(found.args.posonlyargs), len(found.args.defaults)


def of_module(value: Any) -> tuple[int, int]:
    """The same of a function that nanobind made; its signature names types that ast need not know."""
    signature = value.__nb_signature__[0][0]
    plain = re.sub(r"ndarray\[[^\]]*\]", "ndarray", signature)
    plain = re.sub(r"= \\\d+", "= None", plain)  # nanobind keeps the values of defaults apart
    return parameters(plain.split(" -> ")[0])


def of_stub(body: list[ast.stmt]) -> dict[str, tuple[int, int] | None]:
    """{name: its parameters, or None for a value}."""
    found: dict[str, tuple[int, int] | None] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            is_value = any(ast.unparse(one) == "property" for one in node.decorator_list)
            counts = (len(node.args.args) + len(node.args.posonlyargs), len(node.args.defaults))
            found[node.name] = None if is_value else counts
        elif isinstance(node, ast.AnnAssign):
            found[ast.unparse(node.target)] = None
    return found


def public(scope: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(scope).items() if not name.startswith("_")}


@pytest.mark.parametrize("scope", ["", "Engine", "Trainer"])
def test_the_types_of_the_native_module_are_written_down(scope: str) -> None:
    module = native()
    tree = ast.parse(STUB.read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    written = of_stub(classes[scope].body if scope else tree.body)
    written.pop("__init__", None)
    there = public(getattr(module, scope) if scope else module)
    if not scope:
        assert {name for name, value in there.items() if isinstance(value, type)} == set(classes)
        there = {name: value for name, value in there.items() if not isinstance(value, type)}
    assert there.keys() == written.keys()
    for name, value in there.items():
        calls = of_module(value) if hasattr(value, "__nb_signature__") and callable(value) else None
        assert calls == written[name], name
