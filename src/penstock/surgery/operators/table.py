"""The table itself: every row, and which row a node, a module or a name is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import fx, nn

from penstock.surgery.operators import activations, arithmetic, layers, moving
from penstock.surgery.operators.row import Kind, Operator
from penstock.surgery.operators.uses import Use, bare_name, module_of

INPUT = Operator("input", Kind.INPUT, functions=False)
OUTPUT = Operator("output", Kind.OUTPUT, functions=False)
CONSTANT = Operator("constant", Kind.CONSTANT, functions=False)
UNKNOWN = Operator("unknown", Kind.OTHER, functions=False)

TABLE: tuple[Operator, ...] = (*activations.ROWS, *arithmetic.ROWS, *moving.ROWS, *layers.ROWS)

_GRAPH = {"placeholder": INPUT, "output": OUTPUT, "get_attr": CONSTANT}
_BY_NAME = {name: row for row in TABLE for name in row.names}
_BY_CLASS = {kind: row for row in TABLE for kind in row.modules}
_BY_FOREIGN_NAME = {name: row for row in TABLE for name in row.foreign}
# Names of torch that the table does not list but that may hold matrix products.
_PRODUCTS = re.compile(r"matmul|mm|mv|dot|einsum|attention|linear|conv|outer|inner|kron|cdist")


def use_of(node: fx.Node) -> Use:
    """What a node of a traced network does; UNKNOWN if the table does not say."""
    if node.op in _GRAPH:
        return Use(_GRAPH[node.op], node)
    module = module_of(node)
    if module is not None:
        return Use(_row_of(module), node, module)
    return Use(_BY_NAME.get(bare_name(node) or "", UNKNOWN), node)


def use_of_module(module: nn.Module) -> Use:
    """What a module does, wherever it stands."""
    return Use(_row_of(module), None, module)


def row_of_function(function: Callable[..., Any]) -> Operator:
    """The row of one of torch's functions itself."""
    name = getattr(function, "__name__", "")
    return _BY_NAME.get(name if name.startswith("_") else name.rstrip("_"), UNKNOWN)


def kind_of(node: fx.Node) -> Kind:
    """What a node does to zero channels."""
    return use_of(node).kind


def is_inplace(node: fx.Node) -> bool:
    """Whether running the node overwrites its first argument."""
    use = use_of(node)
    if use.module is not None:
        return bool(getattr(use.module, "inplace", False))
    if node.op not in ("call_method", "call_function"):
        return False
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    if name.endswith("_") or name in use.operator.inplace_names:
        return True
    return bool(use.setting("inplace") if "inplace" in use.operator.settings else node.kwargs.get("inplace"))


def may_multiply(node: fx.Node) -> bool:
    """Whether a step other than a layer with weights could hold matrix products."""
    use = use_of(node)
    if use.operator is not UNKNOWN:
        return use.operator.measured or use.kind is Kind.WEIGHT
    if use.module is not None:
        foreign = not type(use.module).__module__.startswith("torch.nn.")
        return foreign or any(True for _ in use.module.parameters())
    if node.op == "call_method":
        return bool(_PRODUCTS.search(str(node.target)))
    home = getattr(node.target, "__module__", None) or ""
    ours = home.partition(".")[0] in ("torch", "_operator", "operator", "builtins", "math", "")
    return not ours or bool(_PRODUCTS.search(getattr(node.target, "__name__", "")))


def _row_of(module: nn.Module) -> Operator:
    kind = type(module)
    for base in kind.__mro__:
        row = _BY_CLASS.get(base)
        # A subclass with a forward of its own may compute something else.
        if row is not None and (row.subclasses or kind.forward is getattr(base, "forward", None)):
            return row
    home = kind.__module__.partition(".")[0]
    return _BY_FOREIGN_NAME.get(f"{home}.{kind.__name__}") or _BY_FOREIGN_NAME.get(kind.__name__, UNKNOWN)
