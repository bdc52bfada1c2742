"""Every step that has no weights of its own: pooling, arithmetic, concatenation, reshaping.

Each function takes the walk, a node and how the node uses its operator, and returns what the result is. It
serves the module and the function of that operator alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from penstock.engine.activations import function_of
from penstock.engine.steps import AdaptivePool, Add, ChannelNorm, Concat, Floats, Pool, Scale
from penstock.engine.walk import Held, Walk, lowers
from penstock.engine.weights import to_floats
from penstock.surgery.operators import Joined, Use, activations, arithmetic, layers, moving, shape_of, way_of


@lowers(*activations.ROWS)
def _activation(walk: Walk, node: fx.Node, use: Use) -> Held:
    function = function_of(use)
    if function is None:
        raise walk.missing(node, use.title)
    return walk.affine(node, walk.source(node), function=function)


def _pool(walk: Walk, node: fx.Node, use: Use, kind: str, **fields: Any) -> Held:
    held = walk.map(node)
    kernel, stride = _pair(use.setting("kernel_size")), use.setting("stride")
    fields |= {"kernel": kernel, "stride": _pair(stride) if stride else kernel}
    padding = _pair(use.setting("padding"))
    size = _map_size(shape_of(node))
    return Held(walk.write(node, Pool, [held.value], size, kind=kind, padding=padding, **fields))


@lowers(layers.MAX_POOL)
def _max_pool(walk: Walk, node: fx.Node, use: Use) -> Held:
    return _pool(walk, node, use, "max", dilation=_pair(use.setting("dilation")))


@lowers(layers.AVERAGE_POOL)
def _average_pool(walk: Walk, node: fx.Node, use: Use) -> Held:
    divisor, counts = use.setting("divisor_override"), use.setting("count_include_pad")
    return _pool(walk, node, use, "average", count_padding=bool(counts), divisor=int(divisor or 0))


@lowers(layers.ADAPTIVE_AVERAGE_POOL, layers.ADAPTIVE_MAX_POOL)
def _adaptive_pool(walk: Walk, node: fx.Node, use: Use) -> Held:
    held = walk.map(node)
    shape = shape_of(node)
    if shape is None or len(shape) != 4:
        raise walk.missing(node, "this pooling")
    if shape[2:] == walk.size(held)[1:]:
        return held
    kind = "max" if use.operator is layers.ADAPTIVE_MAX_POOL else "average"
    return Held(walk.write(node, AdaptivePool, [held.value], _map_size(shape), kind=kind))


@lowers(arithmetic.ADD)
def _add(walk: Walk, node: fx.Node, use: Use) -> Held:
    if use.setting("alpha") != 1:
        raise walk.missing(node, "sum with alpha")
    first, second = _operands(walk, node, use)
    if isinstance(second, Held):
        if walk.size(first) != walk.size(second) or first.form != second.form:
            raise walk.missing(node, f"sum of shapes {[shape_of(n) for n in node.all_input_nodes]}")
        return Held(walk.write(node, Add, [first.value, second.value], walk.size(first)), first.form)
    return walk.affine(node, first, shift=_per_channel(walk, node, use, first, second))


@lowers(arithmetic.MULTIPLY)
def _multiply(walk: Walk, node: fx.Node, use: Use) -> Held:
    first, second = _operands(walk, node, use)
    if not isinstance(second, Held):
        return walk.affine(node, first, scale=_per_channel(walk, node, use, first, second))
    if first.value == second.value:
        raise walk.missing(node, "product of a value with itself")
    if walk.size(first)[1:] == (1, 1) and walk.size(second)[1:] != (1, 1):
        first, second = second, first
    a, b = walk.size(first), walk.size(second)
    if b != (a[0], 1, 1) or first.form == "nhwc" or (second.form == "flat" and first.form == "map"):
        raise walk.missing(node, f"product of shapes {[shape_of(n) for n in node.all_input_nodes]}")
    return Held(walk.write(node, Scale, [first.value, second.value], a), first.form)


@lowers(arithmetic.DIVIDE)
def _divide(walk: Walk, node: fx.Node, use: Use) -> Held:
    divisor = use.setting("other")
    if not isinstance(divisor, int | float) or divisor == 0:
        raise walk.missing(node, "division by a tensor")
    held = walk.source(node)
    return walk.affine(node, held, scale=_per_channel(walk, node, use, held, 1.0 / divisor))


def _operands(walk: Walk, node: fx.Node, use: Use) -> tuple[Held, Held | Tensor | float]:
    given = (node.args[0] if node.args else node.kwargs["input"], use.setting("other"))
    left, right = (walk.held.get(a, a) if isinstance(a, fx.Node) else a for a in given)
    if not isinstance(left, Held):
        left, right = right, left
    if not isinstance(left, Held) or not isinstance(right, Held | Tensor | int | float):
        raise walk.missing(node, f"{use.title} of these operands")
    return left, right


def _per_channel(walk: Walk, node: fx.Node, use: Use, held: Held, given: Tensor | float) -> Floats:
    channels = walk.size(held)[0]
    if not isinstance(given, Tensor) or given.numel() == 1:
        return to_floats(torch.full((channels,), float(given), dtype=torch.float64), node.name)
    shape = tuple(given.shape)
    aligned = (*(1,) * (4 - len(shape)), *shape)
    if aligned != (1, channels, 1, 1) or held.form != "map":
        raise walk.missing(node, f"{use.title} with a constant of shape {shape}")
    return to_floats(given.reshape(-1), node.name)


@lowers(moving.CONCAT)
def _concat(walk: Walk, node: fx.Node, use: Use) -> Held:
    way = way_of(node)
    if not isinstance(way, Joined):
        raise walk.missing(node, f"torch.cat along axis {use.setting('dim')}")
    held = [walk.get(node, part) for part in way.parts]
    sizes = [walk.size(part) for part in held]
    if (
        len({part.form for part in held}) != 1
        or held[0].form == "nhwc"
        or len({size[1:] for size in sizes}) != 1
    ):
        raise walk.missing(node, f"torch.cat of shapes {[shape_of(part) for part in way.parts]}")
    size = (sum(size[0] for size in sizes), sizes[0][1], sizes[0][2])
    return Held(walk.write(node, Concat, [part.value for part in held], size), held[0].form)


@lowers(moving.FLATTEN, moving.VIEW, moving.RESHAPE, moving.SQUEEZE, moving.UNSQUEEZE)
def _reshape(walk: Walk, node: fx.Node, use: Use) -> Held:
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


@lowers(moving.PERMUTE)
def _permute(walk: Walk, node: fx.Node, use: Use) -> Held:
    held = walk.source(node)
    given: Any = node.args[1:] if len(node.args) > 2 else use.setting("dims")
    axes = tuple(axis % 4 for axis in given) if isinstance(given, list | tuple) else None
    if held.form == "map" and axes == (0, 2, 3, 1):
        return Held(held.value, "nhwc")
    if held.form == "nhwc" and axes == (0, 3, 1, 2):
        return Held(held.value, "map")
    raise walk.missing(node, f"permute {axes}")


@lowers(arithmetic.MEAN, arithmetic.LARGEST)
def _reduce(walk: Walk, node: fx.Node, use: Use) -> Held:
    held = walk.map(node)
    axes = use.setting("dim")
    axes = tuple(axis % 4 for axis in axes) if isinstance(axes, list | tuple) else axes
    if axes not in ((2, 3), (3, 2)):
        raise walk.missing(node, f"{use.title} over axes {axes}")
    channels, height, width = walk.size(held)
    value = held.value
    if height * width > 1:
        kind = "max" if use.operator is arithmetic.LARGEST else "average"
        value = walk.write(node, AdaptivePool, [held.value], (channels, 1, 1), kind=kind)
    return Held(value, "map" if use.setting("keepdim") else "flat")


@lowers(layers.LAYER_NORM)
def _layer_norm(walk: Walk, node: fx.Node, use: Use) -> Held:
    def constant(name: str, otherwise: Floats) -> Floats:
        given = use.setting(name)
        tensor = walk.held.get(given) if isinstance(given, fx.Node) else given
        return to_floats(tensor, node.name) if isinstance(tensor, Tensor) else otherwise

    held = walk.source(node)
    channels, height, width = walk.size(held)
    last_axis = held.form == "nhwc" or (held.form == "flat" and height * width == 1)
    shape = tuple(use.setting("normalized_shape"))
    if not last_axis or shape != (channels,):
        raise walk.missing(node, f"layer norm over {shape} of this shape")
    value = walk.write(
        node,
        ChannelNorm,
        [held.value],
        (channels, height, width),
        scale=constant("weight", np.ones(channels, np.float32)),
        shift=constant("bias", np.zeros(channels, np.float32)),
        eps=float(use.setting("eps")),
    )
    return Held(value, held.form)


def _map_size(shape: tuple[int, ...] | None) -> tuple[int, int, int]:
    assert shape is not None
    return shape[1], shape[2], shape[3]


def _pair(value: Any) -> tuple[int, int]:
    pair = list(value) if isinstance(value, list | tuple) else [value]
    return int(pair[0]), int(pair[-1])
