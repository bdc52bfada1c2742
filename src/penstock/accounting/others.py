"""What the table of operators does not say about a network's MACs: a traced network in, numbers out.

The MACs of everything but layers with weights (matrix products, submodules that torch.fx could not look into)
are counted by torch's own flop counter, so that a dense account equals ``FlopCounterMode / 2`` for any
network.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx
from torch.utils.flop_counter import FlopCounterMode

from penstock.surgery import WeightLayer, shape_of
from penstock.surgery.operators import may_multiply, tensor_inputs, use_of
from penstock.surgery.operators.layers import LINEAR


def reads_pooled_channels(layer: WeightLayer) -> bool:
    """Whether a linear layer reads one value of every channel of a map: a 1×1 convolution by another name."""
    if use_of(layer.node).operator is not LINEAR:
        return False
    node = layer.node
    while True:
        sources = tensor_inputs(node)
        if not sources:
            return False
        node = sources[0]
        shape = shape_of(node)
        if shape is not None and len(shape) == 4:
            return shape[1] == layer.product.inputs
        if use_of(node).operator is LINEAR:
            return False


def other_macs(traced: fx.GraphModule, layers: list[WeightLayer], image: Tensor) -> dict[str, int]:
    """{step: MACs} of every step that is not one of `layers` and has any, for one image."""
    counted = {layer.node for layer in layers}
    suspects = {node for node in traced.graph.nodes if node not in counted and may_multiply(node)}
    if not suspects:  # the usual case; torch's counter imports its compiler, which takes seconds
        return {}
    counter = _OtherMacs(traced, suspects)
    counter.run(image)
    return counter.macs


class _OtherMacs(fx.Interpreter):
    def __init__(self, traced: fx.GraphModule, suspects: set[fx.Node]) -> None:
        super().__init__(traced)
        self.extra_traceback = False
        self.suspects = suspects
        self.macs: dict[str, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        if n not in self.suspects:
            return super().run_node(n)
        with FlopCounterMode(display=False) as counter:
            value = super().run_node(n)
        if counter.get_total_flops():
            name = str(n.target) if n.op == "call_module" else n.name
            self.macs[name] = self.macs.get(name, 0) + counter.get_total_flops() // 2
        return value
