"""Who reads a gated layer's result, as far as a traced network tells."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx, nn

from penstock.gating import GatedConv2d
from penstock.surgery.network import has_hooks
from penstock.surgery.operators import use_of
from penstock.surgery.operators.activations import RELU


def layers_before_relu(network: nn.Module) -> set[nn.Module]:
    """The gated layers whose result goes into a ReLU and nowhere else."""
    return _layers_where(network, lambda node: len(node.users) == 1 and _is_bare_relu(next(iter(node.users))))


def layers_before_gated_ones(network: nn.Module) -> set[nn.Module]:
    """The gated layers whose result goes into gated layers and nowhere else, be it through a ReLU."""
    return _layers_where(network, _read_by_gated_layers)


def _layers_where(network: nn.Module, good: Callable[[fx.Node], bool]) -> set[nn.Module]:
    """Of a layer that is used more than once, every use must be good."""
    found: dict[nn.Module, bool] = {}
    for graph_module in network.modules():
        if not isinstance(graph_module, fx.GraphModule):
            continue
        for node in graph_module.graph.nodes:
            layer = use_of(node).module
            if isinstance(layer, GatedConv2d):
                found[layer] = found.get(layer, True) and good(node)
    return {layer for layer, all_good in found.items() if all_good}


def _read_by_gated_layers(node: fx.Node) -> bool:
    return bool(node.users) and all(
        isinstance(use_of(user).module, GatedConv2d) or (_is_bare_relu(user) and _read_by_gated_layers(user))
        for user in node.users
    )


def _is_bare_relu(node: fx.Node) -> bool:
    use = use_of(node)
    hooked = use.module is not None and has_hooks(use.module)
    return use.operator is RELU and node.op != "call_method" and not hooked
