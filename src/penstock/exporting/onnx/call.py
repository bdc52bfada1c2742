"""One step of the traced network as the writers see it, the same for modules, functions and methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from penstock.exporting.onnx.graph import GraphWriter, Value, dense_value
from penstock.exporting.onnx.lists import ChannelLists
from penstock.surgery import Channels, Dense, shape_of
from penstock.surgery.operators import Operator, Use, use_of
from penstock.surgery.operators.moving import ATTRIBUTE, RANK, SIZE

_ARITHMETIC_HOMES = ("_operator", "builtins", "math")


class Unsupported(Exception):
    """A step that cannot be written; the message says what about it."""


@dataclass(frozen=True)
class Call:
    """A step with its inputs.

    shape: of the result in PyTorch. target: the channels that the result should hold. dynamic: the batch axis
    has no fixed length.
    """

    node: fx.Node
    use: Use
    values: Mapping[fx.Node, Value]  # the tensors among its arguments
    shape: tuple[int, ...]
    target: Channels
    writer: GraphWriter
    lists: ChannelLists
    dynamic: bool

    @property
    def operator(self) -> Operator:
        """The row of the table of operators."""
        return self.use.operator

    @property
    def module(self) -> nn.Module | None:
        return self.use.module

    @property
    def x(self) -> Value:
        """The first input."""
        if not self.values:
            raise Unsupported("it has no tensor input")
        return next(iter(self.values.values()))

    def dense(self, value: Value | None = None) -> Value:
        """An input (the first if not said) holding all its channels."""
        value = value or self.x
        return self.lists.relayout(value, Dense(value.stored.count))

    def stored(self) -> Value:
        """The first input holding the channels that the result is to hold."""
        return self.lists.relayout(self.x, self.target)

    def setting(self, name: str) -> Any:
        """A setting of the operator as a Python value."""
        return static(self.use.setting(name))

    def operand(self, name: str) -> Any:
        """A setting of a function: a Value if it is a tensor of the graph, else a Python value."""
        given = self.use.setting(name)
        return self.values[given] if isinstance(given, fx.Node) and given in self.values else static(given)

    def first(self) -> Any:
        """The first argument of a function: a Value if it is a tensor of the graph, else a Python value."""
        given = self.node.args[0] if self.node.args else self.node.kwargs["input"]
        return self.values[given] if isinstance(given, fx.Node) and given in self.values else static(given)

    def tensor(self, name: str) -> str | None:
        """The name of an optional tensor among the settings, holding all its channels."""
        given = self.operand(name)
        return self.dense(given).name if isinstance(given, Value) else None

    def result(self, name: str, nonnegative: bool = False) -> Value:
        """A result that holds all its channels."""
        return dense_value(name, self.shape, nonnegative)

    def like_input(self, name: str, nonnegative: bool = False) -> Value:
        """A result that holds the channels of `target`."""
        return Value(name, self.shape, self.target, nonnegative)


def static(argument_: Any) -> Any:
    """A Python value, with steps that only compute on sizes (``x.size(0) // 2``) carried out."""
    if isinstance(argument_, fx.Node):
        return _number(argument_)
    if isinstance(argument_, tuple | list):
        return type(argument_)(static(part) for part in argument_)
    if isinstance(argument_, slice):
        return slice(static(argument_.start), static(argument_.stop), static(argument_.step))
    return argument_


def _number(node: fx.Node) -> Any:
    source = node.args[0] if node.args else None
    if isinstance(source, fx.Node) and shape_of(source) is not None:
        shape = shape_of(source)
        assert shape is not None
        use = use_of(node)
        if use.operator is ATTRIBUTE and use.setting("name") in ("shape", "ndim"):
            return shape if use.setting("name") == "shape" else len(shape)
        if use.operator is SIZE:
            axis = static(use.setting("dim"))
            return shape if axis is None else shape[axis]
        if use.operator is RANK:
            return len(shape)
    elif callable(node.target) and getattr(node.target, "__module__", "") in _ARITHMETIC_HOMES:
        return node.target(*(static(part) for part in node.args))
    raise Unsupported(f"its setting {node.name!r} is worked out while the network runs")


def pair(value: Any) -> tuple[int, int]:
    """A size for height and width, given as one number or two."""
    if isinstance(value, int):
        return value, value
    if isinstance(value, tuple | list) and len(value) == 1:
        return int(value[0]), int(value[0])
    first, second = value
    return int(first), int(second)
