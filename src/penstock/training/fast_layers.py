"""The native layers of training on a CPU, put in the place of torch's wherever they fit.

announce_relus(network)
with FastLayers():
    loss = criterion(network(images), labels)
loss.backward()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from penstock.gating import GatedConv2d
from penstock.gating.fused import faster_norm_gate, known_clamped
from penstock.training.norm_gate import native_norm_gate
from penstock.training.winograd import conv2d

_RELUS = (F.relu, torch.relu, torch.relu_, F.relu_)


class FastLayers(TorchFunctionMode):
    """A context in which convolutions, and the norms of gated layers, take the fast way wherever it fits."""

    def __enter__(self) -> FastLayers:
        self._before = faster_norm_gate.set(native_norm_gate)
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        faster_norm_gate.reset(self._before)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.conv2d:
            return conv2d(*args, **kwargs)
        if func in _RELUS and args and type(args[0]) is Tensor and known_clamped(args[0]):
            return args[0]
        return func(*args, **kwargs)


def announce_relus(network: nn.Module) -> None:
    """Tell each gated layer of a traced network whether its result goes into a ReLU and nowhere else."""
    for graph_module in network.modules():
        if not isinstance(graph_module, fx.GraphModule):
            continue
        follows: dict[GatedConv2d, bool] = {}
        for node in graph_module.graph.nodes:
            layer = _module(graph_module, node)
            if isinstance(layer, GatedConv2d):
                good = len(node.users) == 1 and _is_relu(graph_module, next(iter(node.users)))
                follows[layer] = follows.get(layer, True) and good
        for layer, good in follows.items():
            layer.relu_follows = good


def _module(graph_module: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return graph_module.get_submodule(str(node.target)) if node.op == "call_module" else None


def _is_relu(graph_module: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_function":
        return node.target in _RELUS
    module = _module(graph_module, node)
    return type(module) is nn.ReLU and not (module._forward_hooks or module._forward_pre_hooks)
