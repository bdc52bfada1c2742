"""One walk over a traced network: what each node's result is here, and how steps are written down.

`lower` sends every node to the function in `LOWERINGS` that its operator's row has: layers with weights in
`layers`, everything else in `operators`. They all read and write through a `Walk`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from penstock.engine.steps import Affine, Floats, Network, Step
from penstock.errors import CompileError
from penstock.surgery.operators import Operator, Use, place_of, shape_of, use_of


@dataclass(frozen=True)
class Held:
    """What a node's result is here: a value, seen as a map, as a map with channels last, or flattened."""

    value: int
    form: str = "map"  # or "nhwc", "flat"


class Walk:
    """The network so far, and what every node passed holds: a value, or a constant tensor."""

    def __init__(self, traced: fx.GraphModule) -> None:
        self.traced = traced
        self.network = Network()
        self.held: dict[fx.Node, Held | Tensor] = {}

    def missing(self, node: fx.Node, what: str, more: str = "") -> CompileError:
        return CompileError(
            f"{place_of(node)}: the engine has no {what} (shape {shape_of(node)}){more}; "
            "run this network with PyTorch, or replace that step"
        )

    def get(self, node: fx.Node, source: Any) -> Held:
        held = self.held.get(source)
        if not isinstance(held, Held):
            raise self.missing(node, f"{use_of(node).title} of a constant in this place")
        return held

    def source(self, node: fx.Node) -> Held:
        return self.get(node, node.args[0] if node.args else next(iter(node.kwargs.values())))

    def map(self, node: fx.Node) -> Held:
        held = self.source(node)
        if held.form != "map":
            raise self.missing(node, f"{use_of(node).title} on a {held.form} tensor")
        return held

    def write(
        self, node: fx.Node, step: type[Step], inputs: list[int], size: tuple[int, int, int], **fields: Any
    ) -> int:
        value = self.network.new_value(*size, node.name)
        self.network.steps.append(step(layer_name(node), inputs, value, **fields))
        return value

    def size(self, held: Held) -> tuple[int, int, int]:
        value = self.network.values[held.value]
        return value.channels, value.height, value.width

    def affine(
        self,
        node: fx.Node,
        held: Held,
        scale: Floats | None = None,
        shift: Floats | None = None,
        **fields: Any,
    ) -> Held:
        size = self.size(held)
        per_channel = scale if scale is not None else shift
        if per_channel is not None and (
            held.form == "nhwc" or (held.form == "flat" and size[1] * size[2] > 1)
        ):
            raise self.missing(node, "a per-channel scale on a flattened or channels-last map")
        value = self.write(node, Affine, [held.value], size, scale=scale, shift=shift, **fields)
        return Held(value, held.form)


def layer_name(node: fx.Node) -> str:
    """The user's name of a module, or the node's own."""
    return str(node.target) if node.op == "call_module" else node.name


Lowering = Callable[[Walk, fx.Node, Use], Held]
"""Writes the steps of one use of an operator, and returns what its result is."""

LOWERINGS: dict[Operator, Lowering] = {}
"""How the engine runs each operator that it has, by the operator's row in the table."""


def lowers(*rows: Operator) -> Callable[[Lowering], Lowering]:
    """Enter a function into `LOWERINGS` as the one for these rows."""

    def enter(lowering: Lowering) -> Lowering:
        LOWERINGS.update(dict.fromkeys(rows, lowering))
        return lowering

    return enter
