"""From a traced network to steps: every node of the graph becomes steps, or is refused by name.

Enters: the graph of `penstock.surgery.trace`, each node with its shape. Leaves: a `Network`. Batch norms
become per-channel affines here; `fuse` folds them into the convolutions before them.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from penstock.engine.activations import function_of_module, function_of_operator
from penstock.engine.operators import MODULES, OPERATORS
from penstock.engine.steps import AdaptivePool, Conv, Export, Import, Linear, Network
from penstock.engine.walk import Held, Walk, layer_name
from penstock.engine.weights import affine_of_norm, dense_conv, gated_conv, to_floats
from penstock.errors import CompileError
from penstock.gating import GatedConv2d
from penstock.surgery.ops import is_inplace, module_of, operator_name
from penstock.surgery.trace import opaque_modules, shape_of

_PASSING_MODULES = (nn.Identity, nn.Dropout, nn.Dropout2d)
_PASSING_CLASSES = frozenset({"DropPath", "StochasticDepth"})
_PASSING = frozenset(["dropout", "dropout2d", "feature_dropout", "contiguous", "clone", "detach", "float"])


def lower(traced: fx.GraphModule) -> Network:
    """The steps of a traced network, in its order."""
    return _Lowering(traced).run()


class _Lowering(Walk):
    def run(self) -> Network:
        for node in self.traced.graph.nodes:
            if node.op == "output":
                self._output(node)
            elif shape_of(node) is not None:
                self._lower(node)
        return self.network

    def _lower(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            shape = shape_of(node)
            if shape is None or len(shape) != 4 or self.network.steps:
                raise CompileError(
                    f"input {node.name!r}: the engine takes one batch of images, got shape {shape}"
                )
            value = self.network.new_value(*shape[1:])
            self.network.steps.append(Import(node.name, [], value))
            self.held[node] = Held(value)
        elif node.op == "get_attr":
            self.held[node] = _attribute(self.traced, str(node.target)).detach()
        elif all(isinstance(self.held.get(source), Tensor) for source in node.all_input_nodes):
            self.held[node] = _evaluate(node, self.held)
        else:
            self.held[node] = self._run_on(node)
            if is_inplace(node):
                # Whoever reads the overwritten value from here on sees the new one.
                first = node.all_input_nodes[0]
                old, new = self.get(node, first), self.held[node]
                assert isinstance(new, Held)
                for other, held in list(self.held.items()):
                    if isinstance(held, Held) and held.value == old.value:
                        self.held[other] = Held(new.value, held.form)

    def _run_on(self, node: fx.Node) -> Held:
        module = module_of(node)
        if module is not None:
            return self._module(node, module)
        name = operator_name(node) or str(node.target)
        if node.target is operator.getitem:
            raise self.missing(node, "indexing")
        if name in _PASSING:
            return self.source(node)
        function = function_of_operator(name, node)
        if function is not None:
            held = self.source(node)
            return self.affine(node, held, function=function)
        method = OPERATORS.get(name)
        if method is None:
            raise self.missing(node, name)
        return method(self, node)

    def _module(self, node: fx.Node, module: nn.Module) -> Held:
        if isinstance(module, _PASSING_MODULES) or type(module).__name__ in _PASSING_CLASSES:
            return self.source(node)
        if isinstance(module, GatedConv2d | nn.Conv2d):
            return self._convolution(node, module)
        if isinstance(module, nn.Linear):
            return self._linear(node, module)
        if isinstance(module, _BatchNorm):
            scale, shift = affine_of_norm(module, str(node.target))
            return self.affine(node, self.source(node), scale, shift)
        function = function_of_module(module)
        if function is not None:
            return self.affine(node, self.source(node), function=function)
        if type(module).__name__ == "ConvMlp" and type(module).__module__.startswith("timm."):
            return self._conv_mlp(node, module)
        method = MODULES.get(type(module))
        if method is None:
            why = opaque_modules(self.traced).get(str(node.target))
            raise self.missing(
                node, type(module).__name__, f"; torch.fx could not look inside: {why}" if why else ""
            )
        return method(self, node, module)

    def _layer(self, node: fx.Node) -> str:
        self.network.layers.append(str(node.target))
        return str(node.target)

    def _convolution(self, node: fx.Node, module: GatedConv2d | nn.Conv2d) -> Held:
        held = self.map(node)
        shape = shape_of(node)
        assert shape is not None
        value = self.network.new_value(shape[1], shape[2], shape[3])
        if isinstance(module, GatedConv2d):
            step = gated_conv(module, layer_name(node), held.value, value)
        else:
            step = dense_conv(module, layer_name(node), held.value, value)
        step.layer = self._layer(node)
        self.network.steps.append(step)
        return Held(value)

    def _conv_mlp(self, node: fx.Node, module: Any) -> Held:
        """timm's VGG head, which torch.fx cannot look into: pooled up to its kernel, two convolutions."""
        held = self.map(node)
        channels, height, width = self.size(held)
        least = int(module.input_kernel_size)
        if min(height, width) < least:
            size = (channels, max(least, height), max(least, width))
            held = Held(self.write(node, AdaptivePool, [held.value], size, kind="average"))
        for name in ("1", "2"):
            conv, function = getattr(module, f"fc{name}"), function_of_module(getattr(module, f"act{name}"))
            _, height, width = self.size(held)
            value = self.network.new_value(
                conv.out_channels, height - conv.kernel_size[0] + 1, width - conv.kernel_size[1] + 1
            )
            step = dense_conv(conv, f"{node.target}.fc{name}", held.value, value)
            step.layer = step.name
            self.network.layers.append(step.name)
            self.network.steps.append(step)
            if function is None:
                raise self.missing(node, type(getattr(module, f"act{name}")).__name__)
            held = self.affine(node, Held(value), function=function)
        return held

    def _linear(self, node: fx.Node, module: nn.Linear) -> Held:
        held = self.source(node)
        _, height, width = self.size(held)
        weights = to_floats(module.weight, str(node.target))
        bias = (
            np.zeros(module.out_features, np.float32)
            if module.bias is None
            else to_floats(module.bias, str(node.target))
        )
        if held.form == "nhwc":
            kernel = weights[:, :, None, None]
            value = self.write(
                node,
                Conv,
                [held.value],
                (module.out_features, height, width),
                weights=kernel,
                bias=bias,
                stride=(1, 1),
                padding=(0, 0),
                dilation=(1, 1),
                groups=1,
                layer=self._layer(node),
            )
            return Held(value, "nhwc")
        if held.form != "flat":
            raise self.missing(node, "a linear layer over the last axis of a map")
        value = self.write(
            node,
            Linear,
            [held.value],
            (module.out_features, 1, 1),
            weights=weights,
            bias=bias,
            layer=self._layer(node),
        )
        return Held(value, "flat")

    def _output(self, node: fx.Node) -> None:
        result = node.args[0]
        if not isinstance(result, fx.Node):
            raise CompileError(
                f"the network returns {type(result).__name__}, and the engine returns one tensor; "
                "wrap the network in a module that picks the one you need"
            )
        held = self.get(node, result)
        shape = shape_of(result)
        assert shape is not None
        if held.form == "nhwc":
            raise CompileError(
                "the network returns a channels-last map; permute it back to (batch, channel, height, width)"
            )
        self.network.result_shape = shape[1:]
        self.network.steps.append(Export("output", [held.value], -1))


def _attribute(owner: nn.Module, path: str) -> Tensor:
    found: Any = owner
    for part in path.split("."):
        found = getattr(found, part)
    if not isinstance(found, Tensor):
        raise CompileError(f"{path!r} is not a tensor")
    return found


def _evaluate(node: fx.Node, held: dict[fx.Node, Any]) -> Tensor:
    """A node that depends on weights alone is computed once, now."""
    args = fx.node.map_arg(node.args, lambda n: held[n])
    kwargs = fx.node.map_arg(node.kwargs, lambda n: held[n])
    with torch.no_grad():
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        module = module_of(node)
        if module is not None:
            return module(*args, **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)
