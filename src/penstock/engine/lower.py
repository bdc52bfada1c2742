"""From a traced network to steps: every node of the graph becomes steps, or is refused by name.

Enters: the graph of `penstock.surgery.trace`, each node with its shape. Leaves: a `Network`. Batch norms become
per-channel affines here; `fuse` folds them into the convolutions before them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from penstock.engine.activations import function_of_module, function_of_operator
from penstock.engine.steps import (
    AdaptivePool,
    Add,
    Affine,
    ChannelNorm,
    Concat,
    Conv,
    Export,
    Floats,
    Import,
    Linear,
    Network,
    Pool,
    Scale,
    Step,
)
from penstock.engine.weights import affine_of_norm, dense_conv, gated_conv, to_floats
from penstock.errors import CompileError
from penstock.gating import GatedConv2d
from penstock.surgery.ops import argument, is_inplace, module_of, operator_name
from penstock.surgery.trace import opaque_modules, shape_of

_PASSING_MODULES = (nn.Identity, nn.Dropout, nn.Dropout2d)
_PASSING_CLASSES = frozenset({"DropPath", "StochasticDepth"})
_PASSING = frozenset("dropout dropout2d feature_dropout contiguous clone detach float".split())


@dataclass(frozen=True)
class Held:
    """What a node's result is here: a value, seen as a map, as a map with channels last, or flattened."""

    value: int
    form: str = "map"


def lower(traced: fx.GraphModule) -> Network:
    """The steps of a traced network, in its order."""
    return _Lowering(traced).run()


class _Lowering:
    def __init__(self, traced: fx.GraphModule) -> None:
        self.traced = traced
        self.network = Network()
        self.held: dict[fx.Node, Held | Tensor] = {}

    def run(self) -> Network:
        for node in self.traced.graph.nodes:
            if node.op == "output":
                self._output(node)
            elif shape_of(node) is not None:
                self._lower(node)
        return self.network

    # What a node is made of.

    def _lower(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            shape = shape_of(node)
            if shape is None or len(shape) != 4 or self.network.steps:
                raise CompileError(f"input {node.name!r}: the engine takes one batch of images, got shape {shape}")
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
                for other, held in list(self.held.items()):
                    if held == self.held[first] and other is not node:
                        self.held[other] = self.held[node]

    def _run_on(self, node: fx.Node) -> Held:
        module = module_of(node)
        if module is not None:
            return self._module(node, module)
        name = operator_name(node) or str(node.target)
        if node.target is operator.getitem:
            raise self._missing(node, "indexing")
        if name in _PASSING:
            return self._source(node)
        function = function_of_operator(name, node)
        if function is not None:
            held = self._source(node)
            return self._affine(node, held, function=function)
        method = _OPERATORS.get(name)
        if method is None:
            raise self._missing(node, name)
        return method(self, node)

    def _module(self, node: fx.Node, module: nn.Module) -> Held:
        if isinstance(module, _PASSING_MODULES) or type(module).__name__ in _PASSING_CLASSES:
            return self._source(node)
        if isinstance(module, GatedConv2d):
            return self._convolution(node, module)
        if isinstance(module, nn.Conv2d):
            return self._convolution(node, module)
        if isinstance(module, nn.Linear):
            return self._linear(node, module)
        if isinstance(module, _BatchNorm):
            scale, shift = affine_of_norm(module, str(node.target))
            return self._affine(node, self._source(node), scale, shift)
        function = function_of_module(module)
        if function is not None:
            return self._affine(node, self._source(node), function=function)
        if type(module).__name__ == "ConvMlp" and type(module).__module__.startswith("timm."):
            return self._conv_mlp(node, module)
        method = _MODULES.get(type(module))
        if method is None:
            why = opaque_modules(self.traced).get(str(node.target))
            raise self._missing(node, type(module).__name__, f"; torch.fx could not look inside: {why}" if why else "")
        return method(self, node, module)

    def _missing(self, node: fx.Node, what: str, more: str = "") -> CompileError:
        place = f"layer {node.target!r}" if node.op == "call_module" else f"step {node.name!r}"
        stack = node.meta.get("nn_module_stack") or {}
        if node.op != "call_module" and stack:
            place += f" in {list(stack)[-1]!r}"
        return CompileError(
            f"{place}: the engine has no {what} (shape {shape_of(node)}){more}; "
            "run this network with PyTorch, or replace that step"
        )

    # What a node reads and writes.

    def _get(self, node: fx.Node, source: Any) -> Held:
        held = self.held.get(source)
        if not isinstance(held, Held):
            raise self._missing(node, f"{operator_name(node) or node.target} of a constant in this place")
        return held

    def _source(self, node: fx.Node) -> Held:
        return self._get(node, node.args[0] if node.args else next(iter(node.kwargs.values())))

    def _map(self, node: fx.Node) -> Held:
        held = self._source(node)
        if held.form != "map":
            raise self._missing(node, f"{operator_name(node) or type(module_of(node)).__name__} on a {held.form} tensor")
        return held

    def _write(self, node: fx.Node, step: type[Step], inputs: list[int], size: tuple[int, int, int], **fields: Any) -> int:
        value = self.network.new_value(*size)
        self.network.steps.append(step(_name(node), inputs, value, **fields))
        return value

    def _size(self, held: Held) -> tuple[int, int, int]:
        value = self.network.values[held.value]
        return value.channels, value.height, value.width

    def _affine(self, node: fx.Node, held: Held, scale: Floats | None = None, shift: Floats | None = None, **fields: Any) -> Held:
        size = self._size(held)
        per_channel = scale if scale is not None else shift
        if per_channel is not None and (held.form == "nhwc" or (held.form == "flat" and size[1] * size[2] > 1)):
            raise self._missing(node, "a per-channel scale on a flattened or channels-last map")
        value = self._write(node, Affine, [held.value], size, scale=scale, shift=shift, **fields)
        return Held(value, held.form)

    # Layers.

    def _layer(self, node: fx.Node) -> str:
        self.network.layers.append(str(node.target))
        return str(node.target)

    def _convolution(self, node: fx.Node, module: GatedConv2d | nn.Conv2d) -> Held:
        held = self._map(node)
        shape = shape_of(node)
        assert shape is not None
        make = gated_conv if isinstance(module, GatedConv2d) else dense_conv
        value = self.network.new_value(shape[1], shape[2], shape[3])
        step = make(module, _name(node), held.value, value)  # type: ignore[operator]
        step.layer = self._layer(node)
        self.network.steps.append(step)
        return Held(value)

    def _conv_mlp(self, node: fx.Node, module: Any) -> Held:
        """timm's VGG head, which torch.fx cannot look into: pooled up to its kernel, two convolutions."""
        held = self._map(node)
        channels, height, width = self._size(held)
        least = int(module.input_kernel_size)
        if min(height, width) < least:
            size = (channels, max(least, height), max(least, width))
            held = Held(self._write(node, AdaptivePool, [held.value], size, kind="average"))
        for name in ("1", "2"):
            conv, function = getattr(module, f"fc{name}"), function_of_module(getattr(module, f"act{name}"))
            _, height, width = self._size(held)
            size = (height - conv.kernel_size[0] + 1, width - conv.kernel_size[1] + 1)
            value = self.network.new_value(conv.out_channels, *size)
            # Accounting cannot look into this module either, so its convolutions are not counted layers.
            self.network.steps.append(dense_conv(conv, f"{node.target}.fc{name}", held.value, value))
            if function is None:
                raise self._missing(node, type(getattr(module, f"act{name}")).__name__)
            held = self._affine(node, Held(value), function=function)
        return held

    def _linear(self, node: fx.Node, module: nn.Linear) -> Held:
        held = self._source(node)
        channels, height, width = self._size(held)
        weights = to_floats(module.weight, str(node.target))
        bias = np.zeros(module.out_features, np.float32) if module.bias is None else to_floats(module.bias, str(node.target))
        if held.form == "nhwc":
            kernel = weights[:, :, None, None]
            value = self._write(
                node, Conv, [held.value], (module.out_features, height, width), weights=kernel, bias=bias,
                stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, layer=self._layer(node),
            )
            return Held(value, "nhwc")
        if held.form != "flat":
            raise self._missing(node, "a linear layer over the last axis of a map")
        value = self._write(
            node, Linear, [held.value], (module.out_features, 1, 1), weights=weights, bias=bias, layer=self._layer(node)
        )
        return Held(value, "flat")

    def _layer_norm(self, node: fx.Node, module: nn.LayerNorm) -> Held:
        return self._norm_channels(node, tuple(module.normalized_shape), module.weight, module.bias, module.eps)

    def _norm_channels(self, node: fx.Node, shape: tuple[int, ...], weight: Any, bias: Any, eps: float) -> Held:
        held = self._source(node)
        channels, height, width = self._size(held)
        last_axis = held.form == "nhwc" or (held.form == "flat" and height * width == 1)
        if not last_axis or shape != (channels,):
            raise self._missing(node, f"layer norm over {shape} of this shape")
        scale = np.ones(channels, np.float32) if weight is None else to_floats(weight, node.name)
        shift = np.zeros(channels, np.float32) if bias is None else to_floats(bias, node.name)
        value = self._write(node, ChannelNorm, [held.value], (channels, height, width), scale=scale, shift=shift, eps=float(eps))
        return Held(value, held.form)

    # Pooling.

    def _pool(self, node: fx.Node, kind: str, **fields: Any) -> Held:
        held = self._map(node)
        shape = shape_of(node)
        assert shape is not None
        return Held(self._write(node, Pool, [held.value], shape[1:4], kind=kind, **fields))  # type: ignore[arg-type]

    def _adaptive(self, node: fx.Node, kind: str) -> Held:
        held = self._map(node)
        shape = shape_of(node)
        if shape is None or len(shape) != 4:
            raise self._missing(node, "this pooling")
        if shape[2:] == self._size(held)[1:]:
            return held
        return Held(self._write(node, AdaptivePool, [held.value], shape[1:4], kind=kind))  # type: ignore[arg-type]

    # Arithmetic.

    def _add(self, node: fx.Node) -> Held:
        if argument(node, 2, "alpha", 1) != 1:
            raise self._missing(node, "a sum with alpha")
        first, second = self._operands(node)
        if isinstance(second, Held):
            if self._size(first) != self._size(second) or first.form != second.form:
                raise self._missing(node, f"sum of shapes {[shape_of(n) for n in node.all_input_nodes]}")
            return Held(self._write(node, Add, [first.value, second.value], self._size(first)), first.form)
        return self._affine(node, first, shift=self._per_channel(node, first, second))

    def _multiply(self, node: fx.Node) -> Held:
        first, second = self._operands(node)
        if not isinstance(second, Held):
            return self._affine(node, first, scale=self._per_channel(node, first, second))
        if self._size(first)[1:] == (1, 1) and self._size(second)[1:] != (1, 1):
            first, second = second, first
        a, b = self._size(first), self._size(second)
        if b != (a[0], 1, 1) or first.form == "nhwc" or (second.form == "flat" and first.form == "map"):
            raise self._missing(node, f"product of shapes {[shape_of(n) for n in node.all_input_nodes]}")
        return Held(self._write(node, Scale, [first.value, second.value], a), first.form)

    def _divide(self, node: fx.Node) -> Held:
        divisor = node.args[1]
        if not isinstance(divisor, int | float) or divisor == 0:
            raise self._missing(node, "division by a tensor")
        held = self._source(node)
        return self._affine(node, held, scale=self._per_channel(node, held, 1.0 / divisor))

    def _operands(self, node: fx.Node) -> tuple[Held, Held | Tensor | float]:
        left, right = (self.held.get(a, a) if isinstance(a, fx.Node) else a for a in node.args[:2])
        if not isinstance(left, Held):
            left, right = right, left
        if not isinstance(left, Held) or not isinstance(right, Held | Tensor | int | float):
            raise self._missing(node, f"{operator_name(node)} of these operands")
        return left, right

    def _per_channel(self, node: fx.Node, held: Held, given: Tensor | float) -> Floats:
        channels = self._size(held)[0]
        if not isinstance(given, Tensor) or given.numel() == 1:
            return np.full(channels, float(given), np.float32)
        shape = tuple(given.shape)
        aligned = (*(1,) * (4 - len(shape)), *shape)
        if aligned != (1, channels, 1, 1) or held.form != "map":
            raise self._missing(node, f"{operator_name(node)} with a constant of shape {shape}")
        return to_floats(given.reshape(-1), node.name)

    def _concat(self, node: fx.Node) -> Held:
        parts = argument(node, 0, "tensors")
        axis = argument(node, 1, "dim", 0)
        shape = shape_of(node)
        assert shape is not None
        if axis not in (1, 1 - len(shape)) or not isinstance(parts, list | tuple):
            raise self._missing(node, f"torch.cat along axis {axis}")
        held = [self._get(node, part) for part in parts]
        sizes = [self._size(part) for part in held]
        if len({part.form for part in held}) != 1 or held[0].form == "nhwc" or len({size[1:] for size in sizes}) != 1:
            raise self._missing(node, f"torch.cat of shapes {[shape_of(p) for p in parts]}")
        size = (sum(size[0] for size in sizes), *sizes[0][1:])
        return Held(self._write(node, Concat, [part.value for part in held], size), held[0].form)  # type: ignore[arg-type]

    # The same numbers under another shape.

    def _reshape(self, node: fx.Node) -> Held:
        held = self._source(node)
        channels, height, width = self._size(held)
        shape = shape_of(node)
        assert shape is not None
        if held.form == "nhwc":
            raise self._missing(node, f"reshape to {shape} of a channels-last map")
        if len(shape) == 4 and shape[1:] == (channels, height, width):
            return Held(held.value, "map")
        if len(shape) == 2 and shape[1] == channels * height * width:
            return Held(held.value, "flat")
        raise self._missing(node, f"reshape to {shape}")

    def _permute(self, node: fx.Node) -> Held:
        held = self._source(node)
        axes = node.args[1:] if len(node.args) > 2 else argument(node, 1, "dims")
        axes = tuple(axis % 4 for axis in axes) if isinstance(axes, list | tuple) else None
        if held.form == "map" and axes == (0, 2, 3, 1):
            return Held(held.value, "nhwc")
        if held.form == "nhwc" and axes == (0, 3, 1, 2):
            return Held(held.value, "map")
        raise self._missing(node, f"permute {axes}")

    def _mean(self, node: fx.Node) -> Held:
        return self._reduce(node, "average")

    def _maximum(self, node: fx.Node) -> Held:
        return self._reduce(node, "max")

    def _reduce(self, node: fx.Node, kind: str) -> Held:
        held = self._map(node)
        axes = argument(node, 1, "dim")
        axes = tuple(axis % 4 for axis in axes) if isinstance(axes, list | tuple) else axes
        if axes not in ((2, 3), (3, 2)):
            raise self._missing(node, f"{operator_name(node)} over axes {axes}")
        keeps = argument(node, 2, "keepdim", False)
        channels, height, width = self._size(held)
        value = held.value
        if height * width > 1:
            value = self._write(node, AdaptivePool, [held.value], (channels, 1, 1), kind=kind)
        return Held(value, "map" if keeps else "flat")

    def _output(self, node: fx.Node) -> None:
        result = node.args[0]
        if not isinstance(result, fx.Node):
            raise CompileError(
                f"the network returns {type(result).__name__}, and the engine returns one tensor; "
                "wrap the network in a module that picks the one you need"
            )
        held = self._get(node, result)
        shape = shape_of(result)
        assert shape is not None
        if held.form == "nhwc":
            raise CompileError("the network returns a channels-last map; permute it back to (batch, channel, height, width)")
        self.network.result_shape = shape[1:]
        self.network.steps.append(Export("output", [held.value], -1))


def _name(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


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
        return module(*args, **kwargs) if module is not None else node.target(*args, **kwargs)  # type: ignore[operator]


def _pair(value: Any) -> tuple[int, int]:
    return (int(value[0]), int(value[1])) if isinstance(value, list | tuple) and len(value) == 2 else (
        (int(value[0]), int(value[0])) if isinstance(value, list | tuple) else (int(value), int(value))
    )


def _max_pool(lowering: _Lowering, node: fx.Node) -> Held:
    kernel = _pair(argument(node, 1, "kernel_size"))
    stride = argument(node, 2, "stride")
    return lowering._pool(
        node, "max", kernel=kernel, stride=_pair(stride) if stride else kernel,
        padding=_pair(argument(node, 3, "padding", 0)), dilation=_pair(argument(node, 4, "dilation", 1)),
    )


def _average_pool(lowering: _Lowering, node: fx.Node) -> Held:
    kernel = _pair(argument(node, 1, "kernel_size"))
    stride = argument(node, 2, "stride")
    return lowering._pool(
        node, "average", kernel=kernel, stride=_pair(stride) if stride else kernel,
        padding=_pair(argument(node, 3, "padding", 0)), count_padding=bool(argument(node, 5, "count_include_pad", True)),
        divisor=int(argument(node, 6, "divisor_override") or 0),
    )


def _function_layer_norm(lowering: _Lowering, node: fx.Node) -> Held:
    def constant(value: Any) -> Any:
        return lowering.held.get(value) if isinstance(value, fx.Node) else value

    shape = argument(node, 1, "normalized_shape")
    return lowering._norm_channels(
        node, tuple(shape), constant(argument(node, 2, "weight")), constant(argument(node, 3, "bias")),
        argument(node, 4, "eps", 1e-5),
    )


_OPERATORS: dict[str, Callable[[_Lowering, fx.Node], Held]] = {
    "add": _Lowering._add,
    "iadd": _Lowering._add,
    "mul": _Lowering._multiply,
    "imul": _Lowering._multiply,
    "multiply": _Lowering._multiply,
    "div": _Lowering._divide,
    "truediv": _Lowering._divide,
    "cat": _Lowering._concat,
    "concat": _Lowering._concat,
    "concatenate": _Lowering._concat,
    "flatten": _Lowering._reshape,
    "view": _Lowering._reshape,
    "reshape": _Lowering._reshape,
    "squeeze": _Lowering._reshape,
    "unsqueeze": _Lowering._reshape,
    "permute": _Lowering._permute,
    "mean": _Lowering._mean,
    "amax": _Lowering._maximum,
    "max_pool2d": _max_pool,
    "avg_pool2d": _average_pool,
    "adaptive_avg_pool2d": lambda lowering, node: lowering._adaptive(node, "average"),
    "adaptive_max_pool2d": lambda lowering, node: lowering._adaptive(node, "max"),
    "layer_norm": _function_layer_norm,
}

_MODULES: dict[type[nn.Module], Callable[[_Lowering, fx.Node, Any], Held]] = {
    nn.MaxPool2d: lambda lowering, node, m: lowering._pool(
        node, "max", kernel=_pair(m.kernel_size), stride=_pair(m.stride), padding=_pair(m.padding), dilation=_pair(m.dilation)
    ),
    nn.AvgPool2d: lambda lowering, node, m: lowering._pool(
        node, "average", kernel=_pair(m.kernel_size), stride=_pair(m.stride), padding=_pair(m.padding),
        count_padding=bool(m.count_include_pad), divisor=int(m.divisor_override or 0),
    ),
    nn.AdaptiveAvgPool2d: lambda lowering, node, m: lowering._adaptive(node, "average"),
    nn.AdaptiveMaxPool2d: lambda lowering, node, m: lowering._adaptive(node, "max"),
    nn.Flatten: lambda lowering, node, m: lowering._reshape(node),
    nn.LayerNorm: lambda lowering, node, m: lowering._layer_norm(node, m),
}
