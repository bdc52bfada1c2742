"""The examples in docstrings run and print what they say; every public name has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import penstock
import penstock_runtime

ROOTS = (Path(penstock.__file__).parent, Path(penstock_runtime.__file__).parent)
MODULES = sorted(
    ".".join(path.relative_to(root.parent).with_suffix("").parts)
    for root in ROOTS
    for path in root.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_print_what_they_say(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name), verbose=False)
    assert results.attempted > 0
    assert results.failed == 0


def test_every_public_name_has_an_example() -> None:
    names = [name for name in penstock.__all__ if name != "__version__"]
    bare = [name for name in names if ">>>" not in (inspect.getdoc(getattr(penstock, name)) or "")]
    assert bare == []


@pytest.mark.parametrize("module", [penstock, penstock.datasets, penstock.zoo, penstock_runtime])
def test_every_public_function_has_an_example(module: ModuleType) -> None:
    functions = [name for name in module.__all__ if inspect.isfunction(getattr(module, name))]
    assert len(functions) > 2
    bare = [name for name in functions if ">>>" not in (inspect.getdoc(getattr(module, name)) or "")]
    assert bare == []
