"""Every step that has no weights of its own: pooling, arithmetic, concatenation, reshaping.

Each function takes the walk and a node and returns what the node's result is; `OPERATORS` is by the
operator's bare name, `MODULES` by the module's class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, fx, nn

from penstock.engine.steps import AdaptivePool, Add, ChannelNorm, Concat, Floats, Pool, Scale
from penstock.engine.walk import Held, Walk
from penstock.engine.weights import to_floats
from penstock.surgery.ops import argument, operator_name
from penstock.surgery.trace import shape_of


def _pool(walk: Walk, node: fx.Node, kind: str, **fields: Any) -> Held:
    held = walk.map(node)
    shape = shape_of(node)
    assert shape is not None
    return Held(walk.write(node, Pool, [held.value], _map_size(shape), kind=kind, **fields))


def _adaptive(walk: Walk, node: fx.Node, kind: str) -> Held:
    held = walk.map(node)
    shape = shape_of(node)
    if shape is None or len(shape) != 4:
        raise walk.missing(node, "this pooling")
    if shape[2:] == walk.size(held)[1:]:
        return held
    return Held(walk.write(node, AdaptivePool, [held.value], _map_size(shape), kind=kind))


def _add(walk: Walk, node: fx.Node) -> Held:
    if argument(node, 2, "alpha", 1) != 1:
        raise walk.missing(node, "a sum with alpha")
    first, second = _operands(walk, node)
    if isinstance(second, Held):
        if walk.size(first) != walk.size(second) or first.form != second.form:
            raise walk.missing(node, f"sum of shapes {[shape_of(n) for n in node.all_input_nodes]}")
        return Held(walk.write(node, Add, [first.value, second.value], walk.size(first)), first.form)
    return walk.affine(node, first, shift=_per_channel(walk, node, first, second))


def _multiply(walk: Walk, node: fx.Node) -> Held:
    first, second = _operands(walk, node)
    if not isinstance(second, Held):
        return walk.affine(node, first, scale=_per_channel(walk, node, first, second))
    if walk.size(first)[1:] == (1, 1) and walk.size(second)[1:] != (1, 1):
        first, second = second, first
    a, b = walk.size(first), walk.size(second)
    if b != (a[0], 1, 1) or first.form == "nhwc" or (second.form == "flat" and first.form == "map"):
        raise walk.missing(node, f"product of shapes {[shape_of(n) for n in node.all_input_nodes]}")
    return Held(walk.write(node, Scale, [first.value, second.value], a), first.form)


def _divide(walk: Walk, node: fx.Node) -> Held:
    divisor = node.args[1]
    if not isinstance(divisor, int | float) or divisor == 0:
        raise walk.missing(node, "division by a tensor")
    held = walk.source(node)
    return walk.affine(node, held, scale=_per_channel(walk, node, held, 1.0 / divisor))


def _operands(walk: Walk, node: fx.Node) -> tuple[Held, Held | Tensor | float]:
    left, right = (walk.held.get(a, a) if isinstance(a, fx.Node) else a for a in node.args[:2])
    if not isinstance(left, Held):
        left, right = right, left
    if not isinstance(left, Held) or not isinstance(right, Held | Tensor | int | float):
        raise walk.missing(node, f"{operator_name(node)} of these operands")
    return left, right


def _per_channel(walk: Walk, node: fx.Node, held: Held, given: Tensor | float) -> Floats:
    channels = walk.size(held)[0]
    if not isinstance(given, Tensor) or given.numel() == 1:
        return np.full(channels, float(given), np.float32)
    shape = tuple(given.shape)
    aligned = (*(1,) * (4 - len(shape)), *shape)
    if aligned != (1, channels, 1, 1) or held.form != "map":
        raise walk.missing(node, f"{operator_name(node)} with a constant of shape {shape}")
    return to_floats(given.reshape(-1), node.name)


def _concat(walk: Walk, node: fx.Node) -> Held:
    parts = argument(node, 0, "tensors")
    axis = argument(node, 1, "dim", 0)
    shape = shape_of(node)
    assert shape is not None
    if axis not in (1, 1 - len(shape)) or not isinstance(parts, list | tuple):
        raise walk.missing(node, f"torch.cat along axis {axis}")
    held = [walk.get(node, part) for part in parts]
    sizes = [walk.size(part) for part in held]
    if (
        len({part.form for part in held}) != 1
        or held[0].form == "nhwc"
        or len({size[1:] for size in sizes}) != 1
    ):
        raise walk.missing(node, f"torch.cat of shapes {[shape_of(p) for p in parts]}")
    size = (sum(size[0] for size in sizes), sizes[0][1], sizes[0][2])
    return Held(walk.write(node, Concat, [part.value for part in held], size), held[0].form)


def _reshape(walk: Walk, node: fx.Node) -> Held:
    held = walk.source(node)
    channels, height, width = walk.size(held)
    shape = shape_of(node)
    assert shape is not None
    if held.form == "nhwc":
        raise walk.missing(node, f"reshape to {shape} of a channels-last map")
    if len(shape) == 4 and shape[1:] == (channels, height, width):
        return Held(held.value, "map")
    if len(shape) == 2 and shape[1] == channels * height * width:
        return Held(held.value, "flat")
    raise walk.missing(node, f"reshape to {shape}")


def _permute(walk: Walk, node: fx.Node) -> Held:
    held = walk.source(node)
    given: Any = node.args[1:] if len(node.args) > 2 else argument(node, 1, "dims")
    axes = tuple(axis % 4 for axis in given) if isinstance(given, list | tuple) else None
    if held.form == "map" and axes == (0, 2, 3, 1):
        return Held(held.value, "nhwc")
    if held.form == "nhwc" and axes == (0, 3, 1, 2):
        return Held(held.value, "map")
    raise walk.missing(node, f"permute {axes}")


def _reduce(walk: Walk, node: fx.Node, kind: str) -> Held:
    held = walk.map(node)
    axes = argument(node, 1, "dim")
    axes = tuple(axis % 4 for axis in axes) if isinstance(axes, list | tuple) else axes
    if axes not in ((2, 3), (3, 2)):
        raise walk.missing(node, f"{operator_name(node)} over axes {axes}")
    keeps = argument(node, 2, "keepdim", False)
    channels, height, width = walk.size(held)
    value = held.value
    if height * width > 1:
        value = walk.write(node, AdaptivePool, [held.value], (channels, 1, 1), kind=kind)
    return Held(value, "map" if keeps else "flat")


def _norm_channels(
    walk: Walk, node: fx.Node, shape: tuple[int, ...], weight: Any, bias: Any, eps: float
) -> Held:
    held = walk.source(node)
    channels, height, width = walk.size(held)
    last_axis = held.form == "nhwc" or (held.form == "flat" and height * width == 1)
    if not last_axis or shape != (channels,):
        raise walk.missing(node, f"layer norm over {shape} of this shape")
    scale = np.ones(channels, np.float32) if weight is None else to_floats(weight, node.name)
    shift = np.zeros(channels, np.float32) if bias is None else to_floats(bias, node.name)
    value = walk.write(
        node,
        ChannelNorm,
        [held.value],
        (channels, height, width),
        scale=scale,
        shift=shift,
        eps=float(eps),
    )
    return Held(value, held.form)


def _map_size(shape: tuple[int, ...]) -> tuple[int, int, int]:
    return shape[1], shape[2], shape[3]


def _pair(value: Any) -> tuple[int, int]:
    pair = list(value) if isinstance(value, list | tuple) else [value]
    return int(pair[0]), int(pair[-1])


def _max_pool(walk: Walk, node: fx.Node) -> Held:
    kernel = _pair(argument(node, 1, "kernel_size"))
    stride = argument(node, 2, "stride")
    return _pool(
        walk,
        node,
        "max",
        kernel=kernel,
        stride=_pair(stride) if stride else kernel,
        padding=_pair(argument(node, 3, "padding", 0)),
        dilation=_pair(argument(node, 4, "dilation", 1)),
    )


def _average_pool(walk: Walk, node: fx.Node) -> Held:
    kernel = _pair(argument(node, 1, "kernel_size"))
    stride = argument(node, 2, "stride")
    return _pool(
        walk,
        node,
        "average",
        kernel=kernel,
        stride=_pair(stride) if stride else kernel,
        padding=_pair(argument(node, 3, "padding", 0)),
        count_padding=bool(argument(node, 5, "count_include_pad", True)),
        divisor=int(argument(node, 6, "divisor_override") or 0),
    )


def _function_layer_norm(walk: Walk, node: fx.Node) -> Held:
    def constant(value: Any) -> Any:
        return walk.held.get(value) if isinstance(value, fx.Node) else value

    shape = argument(node, 1, "normalized_shape")
    return _norm_channels(
        walk,
        node,
        tuple(shape),
        constant(argument(node, 2, "weight")),
        constant(argument(node, 3, "bias")),
        argument(node, 4, "eps", 1e-5),
    )


OPERATORS: dict[str, Callable[[Walk, fx.Node], Held]] = {
    "add": _add,
    "iadd": _add,
    "mul": _multiply,
    "imul": _multiply,
    "multiply": _multiply,
    "div": _divide,
    "truediv": _divide,
    "cat": _concat,
    "concat": _concat,
    "concatenate": _concat,
    "flatten": _reshape,
    "view": _reshape,
    "reshape": _reshape,
    "squeeze": _reshape,
    "unsqueeze": _reshape,
    "permute": _permute,
    "mean": lambda walk, node: _reduce(walk, node, "average"),
    "amax": lambda walk, node: _reduce(walk, node, "max"),
    "max_pool2d": _max_pool,
    "avg_pool2d": _average_pool,
    "adaptive_avg_pool2d": lambda walk, node: _adaptive(walk, node, "average"),
    "adaptive_max_pool2d": lambda walk, node: _adaptive(walk, node, "max"),
    "layer_norm": _function_layer_norm,
}

MODULES: dict[type[nn.Module], Callable[[Walk, fx.Node, Any], Held]] = {
    nn.MaxPool2d: lambda walk, node, m: _pool(
        walk,
        node,
        "max",
        kernel=_pair(m.kernel_size),
        stride=_pair(m.stride),
        padding=_pair(m.padding),
        dilation=_pair(m.dilation),
    ),
    nn.AvgPool2d: lambda walk, node, m: _pool(
        walk,
        node,
        "average",
        kernel=_pair(m.kernel_size),
        stride=_pair(m.stride),
        padding=_pair(m.padding),
        count_padding=bool(m.count_include_pad),
        divisor=int(m.divisor_override or 0),
    ),
    nn.AdaptiveAvgPool2d: lambda walk, node, m: _adaptive(walk, node, "average"),
    nn.AdaptiveMaxPool2d: lambda walk, node, m: _adaptive(walk, node, "max"),
    nn.Flatten: lambda walk, node, m: _reshape(walk, node),
    nn.LayerNorm: lambda walk, node, m: _norm_channels(
        walk, node, tuple(m.normalized_shape), m.weight, m.bias, m.eps
    ),
}
