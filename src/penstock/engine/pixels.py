"""Convolutions of listed pixels as steps: the list stands in the program, or a cheap map decides."""

from __future__ import annotations

from typing import cast

import numpy as np
from torch import fx

from penstock.engine.steps import Function, ListedConv
from penstock.engine.walk import Held, Walk, layer_name, lowers
from penstock.engine.weights import dense_conv, to_floats
from penstock.surgery.operators import Use, shape_of
from penstock.surgery.operators.layers import PIXEL_CONV
from penstock.surgery.pixels import DecidingMap, FixedPixels, PixelConv


@lowers(PIXEL_CONV)
def _listed(walk: Walk, node: fx.Node, use: Use) -> Held:
    module = cast(PixelConv, use.module)
    skipped, name = module.skipped(), layer_name(node)
    if skipped is None:
        raise walk.missing(node, f"{type(module).__name__}, which skips parts of a pixel's sum")
    if module.conv.groups != 1:
        raise walk.missing(node, "convolution in groups at listed pixels")
    held, shape = walk.map(node), shape_of(node)
    assert shape is not None
    inputs = [held.value]
    if isinstance(skipped, DecidingMap):
        inputs.append(_map(walk, node, name, held.value, skipped))
    walk.network.layers.append(name)
    value = walk.network.new_value(shape[1], shape[2], shape[3], node.name)
    plain = dense_conv(module.conv, name, held.value, value)
    step = ListedConv(
        name,
        inputs,
        value,
        weights=plain.weights,
        bias=plain.bias,
        stride=plain.stride,
        padding=plain.padding,
        dilation=plain.dilation,
        layer=name,
    )
    if isinstance(skipped, FixedPixels):
        if tuple(skipped.mask.shape) != shape[2:]:
            raise walk.missing(node, f"list of pixels of a map of {tuple(skipped.mask.shape)}")
        computed = np.flatnonzero(skipped.mask.cpu().numpy())
        places = np.searchsorted(computed, skipped.nearest.cpu().numpy())
        step.pixels, step.nearest = computed.tolist(), places.tolist()
    walk.network.steps.append(step)
    return Held(value)


def _map(walk: Walk, node: fx.Node, name: str, source: int, skipped: DecidingMap) -> int:
    """The step that computes m; it is counted as a layer of its own."""
    shape = shape_of(node)
    assert shape is not None
    own = f"{name}.cheap"
    value = walk.network.new_value(1, shape[2], shape[3], f"{node.name}_map")
    step = dense_conv(skipped.conv, own, source, value)
    step.weights, step.bias = to_floats(skipped.weight, own), to_floats(skipped.bias, own)
    step.function, step.layer = Function("relu"), own
    walk.network.layers.append(own)
    walk.network.steps.append(step)
    return value
