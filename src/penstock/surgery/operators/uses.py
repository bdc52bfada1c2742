"""One use of an operator in a traced network: its row, and its settings wherever they stand.

A setting is a module's attribute, or a function's argument by place or by name: ``nn.MaxPool2d(2)`` and
``F.max_pool2d(x, 2)`` answer ``use.setting("kernel_size")`` alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from penstock.errors import SurgeryError
from penstock.surgery.operators.row import Kind, Operator

_EVEN = frozenset({Kind.ACTIVATION, Kind.PASS, Kind.NORM, Kind.MOVE, Kind.REDUCE, Kind.SELECT})


@dataclass(frozen=True)
class Use:
    """An operator at one place: a node of a graph, a module, or both."""

    operator: Operator
    node: fx.Node | None = None
    module: nn.Module | None = None

    @property
    def kind(self) -> Kind:
        """What it does to channels here."""
        condition = self.operator.condition
        return self.operator.kind if condition is None or condition(self) else Kind.OTHER

    @property
    def even(self) -> bool:
        """Whether a channel that holds one constant over its whole map leaves as a constant."""
        given = self.operator.even
        if self.drops_at_random:
            return False
        if given is None:
            return self.kind in _EVEN or self.operator.kind is Kind.ACTIVATION
        return given(self) if callable(given) else given

    def setting(self, name: str) -> Any:
        """One of the row's settings; a step of the graph (fx.Node) where it is worked out at run time."""
        settings = self.operator.settings
        if self.module is not None:
            return getattr(self.module, name, settings[name])
        assert self.node is not None
        place = 1 + list(settings).index(name)
        if len(self.node.args) > place:
            return self.node.args[place]
        return self.node.kwargs.get(name, settings[name])

    @property
    def title(self) -> str:
        """What a user calls it: the module's class, or the function's name."""
        if self.module is not None:
            return type(self.module).__name__
        assert self.node is not None
        target = self.node.target
        # The full name, because a function of the user may be called like one of torch.
        full = f"{getattr(target, '__module__', '')}.{getattr(target, '__name__', target)}"
        return bare_name(self.node) or full

    @property
    def drops_at_random(self) -> bool:
        """Whether it drops values even in eval mode: ``F.dropout(x, training=True)``."""
        if self.module is not None or "training" not in self.operator.settings:
            return False
        given = self.setting("training")
        return isinstance(given, fx.Node) or bool(given)


def module_of(node: fx.Node) -> nn.Module | None:
    """The module a call_module node calls."""
    if node.op != "call_module":
        return None
    owner = node.graph.owning_module
    return None if owner is None else owner.get_submodule(str(node.target))


def bare_name(node: fx.Node) -> str | None:
    """The name of a torch function or method without the underscore of its form in place."""
    if node.op == "call_method":
        name = str(node.target)
    elif node.op == "call_function":
        # A user's own function may be called `relu` and be something else.
        home = getattr(node.target, "__module__", None)
        if node.target is not getattr and home is not None and home.split(".")[0] not in _HOMES:
            return None
        name = getattr(node.target, "__name__", "")
    else:
        return None
    return name if name.startswith("_") else name.rstrip("_")


_HOMES = ("torch", "_operator")


def shape_of(node: fx.Node) -> tuple[int, ...] | None:
    """The shape of the node's value, or None for what is not one tensor."""
    if "shape" not in node.meta:
        raise SurgeryError(
            f"node {node.name!r} carries no shape; run penstock.surgery.trace(network, example) first"
        )
    return node.meta["shape"]


def tensor_inputs(node: fx.Node) -> list[fx.Node]:
    """The tensors that a node reads."""
    return [source for source in node.all_input_nodes if shape_of(source) is not None]


def place_of(node: fx.Node) -> str:
    """Where a step stands, in the user's words."""
    if node.op == "call_module":
        return f"layer {node.target!r}"
    stack = node.meta.get("nn_module_stack") or {}
    return f"step {node.name!r}" + (f" in {list(stack)[-1]!r}" if stack else "")
