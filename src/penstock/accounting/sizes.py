"""The fixed sizes of a network's layers: a traced network in, one `Size` a layer with weights out.

Also the MACs of everything else (matrix products, submodules that torch.fx could not look into), counted by
torch's own flop counter, so that a dense account equals ``FlopCounterMode / 2`` for any network.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils.flop_counter import FlopCounterMode

from penstock.surgery import WeightLayer, shape_of
from penstock.surgery.ops import module_of


@dataclass(frozen=True)
class Size:
    """MACs of a layer = taps · positions · (active inputs × active outputs, group by group)."""

    taps: int  # k² of a convolution, 1 of a linear layer
    positions: int  # where the kernel is applied: H·W of the output (of the input, if transposed)
    groups: int
    inputs: int
    outputs: int
    input_map: int  # values a channel has at the input
    output_map: int
    element: int  # bytes of one value

    @property
    def pairs(self) -> int:
        """Input-output channel pairs that are connected."""
        return self.inputs * self.outputs // self.groups

    @property
    def dense_macs(self) -> int:
        return self.taps * self.positions * self.pairs

    @property
    def dense_weight_bytes(self) -> int:
        return self.element * self.taps * self.pairs


def size_of(layer: WeightLayer) -> Size:
    """The sizes of one convolution or linear layer, for one image."""
    weights, element = layer.weights, layer.weights.weight.element_size()
    if isinstance(weights, _ConvNd):
        before, after = prod(layer.input_shape[2:]), prod(layer.output_shape[2:])
        return Size(
            taps=prod(weights.kernel_size),
            positions=before if isinstance(weights, _ConvTransposeNd) else after,
            groups=weights.groups,
            inputs=weights.in_channels,
            outputs=weights.out_channels,
            input_map=before,
            output_map=after,
            element=element,
        )
    rows = prod(layer.output_shape[1:-1])
    return Size(1, rows, 1, weights.in_features, weights.out_features, rows, rows, element)


def reads_pooled_channels(layer: WeightLayer) -> bool:
    """Whether a linear layer reads one value of every channel of a map: a 1×1 convolution by another name."""
    if not isinstance(layer.weights, nn.Linear):
        return False
    node = layer.node
    while True:
        sources = [source for source in node.all_input_nodes if shape_of(source) is not None]
        if not sources:
            return False
        node = sources[0]
        shape = shape_of(node)
        if shape is not None and len(shape) == 4:
            return shape[1] == layer.weights.in_features
        if isinstance(module_of(node), nn.Linear):
            return False


def other_macs(traced: fx.GraphModule, layers: list[WeightLayer], image: Tensor) -> dict[str, int]:
    """{step: MACs} of every step that is not one of `layers` and has any, for one image."""
    counted = {layer.node for layer in layers}
    suspects = {node for node in traced.graph.nodes if node not in counted and _may_multiply(node)}
    if not suspects:  # the usual case; torch's counter imports its compiler, which takes seconds
        return {}
    counter = _OtherMacs(traced, suspects)
    counter.run(image)
    return counter.macs


_PRODUCTS = re.compile(r"matmul|mm|mv|dot|einsum|attention|linear|conv|outer|inner|kron|cdist")
_PLAIN_MODULES = (_BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d, nn.LocalResponseNorm)


def _may_multiply(node: fx.Node) -> bool:
    """Whether a step could hold matrix products: those by name, and what torch itself did not write."""
    if node.op == "call_method":
        return bool(_PRODUCTS.search(str(node.target)))
    if node.op == "call_function":
        home = getattr(node.target, "__module__", None) or ""
        ours = home.partition(".")[0] in ("torch", "_operator", "operator", "builtins", "math", "")
        return not ours or bool(_PRODUCTS.search(getattr(node.target, "__name__", "")))
    module = module_of(node)
    if module is None or isinstance(module, _PLAIN_MODULES):
        return False
    foreign = not type(module).__module__.startswith("torch.nn.")
    return foreign or any(True for _ in module.parameters())


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
