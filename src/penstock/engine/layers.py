"""Layers with weights: convolutions, gated or not, linear layers and batch norms, as steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import fx, nn

from penstock.engine.activations import function_of
from penstock.engine.steps import AdaptivePool, Conv, Linear
from penstock.engine.walk import Held, Walk, layer_name, lowers
from penstock.engine.weights import affine_of_norm, dense_conv, gated_conv, to_floats
from penstock.gating import GatedConv2d
from penstock.surgery.operators import Use, shape_of, use_of_module
from penstock.surgery.operators.layers import BATCH_NORM, CONV, CONV_MLP, GATED_CONV, LINEAR


@lowers(CONV, GATED_CONV)
def _convolution(walk: Walk, node: fx.Node, use: Use) -> Held:
    module = use.module
    if module is None:
        raise walk.missing(node, use.title)
    held = walk.map(node)
    shape = shape_of(node)
    assert shape is not None
    value = walk.network.new_value(shape[1], shape[2], shape[3], node.name)
    if isinstance(module, GatedConv2d):
        step = gated_conv(module, layer_name(node), held.value, value)
    else:
        assert isinstance(module, nn.Conv2d)
        step = dense_conv(module, layer_name(node), held.value, value)
    step.layer = _counted(walk, node)
    walk.network.steps.append(step)
    return Held(value)


@lowers(BATCH_NORM)
def _batch_norm(walk: Walk, node: fx.Node, use: Use) -> Held:
    assert use.module is not None
    scale, shift = affine_of_norm(use.module, str(node.target))
    return walk.affine(node, walk.source(node), scale, shift)


@lowers(LINEAR)
def _linear(walk: Walk, node: fx.Node, use: Use) -> Held:
    module = use.module
    if not isinstance(module, nn.Linear):
        raise walk.missing(node, use.title)
    held = walk.source(node)
    _, height, width = walk.size(held)
    weights = to_floats(module.weight, str(node.target))
    bias = (
        np.zeros(module.out_features, np.float32)
        if module.bias is None
        else to_floats(module.bias, str(node.target))
    )
    if held.form == "nhwc":
        value = walk.write(
            node,
            Conv,
            [held.value],
            (module.out_features, height, width),
            weights=weights[:, :, None, None],
            bias=bias,
            stride=(1, 1),
            padding=(0, 0),
            dilation=(1, 1),
            groups=1,
            layer=_counted(walk, node),
        )
        return Held(value, "nhwc")
    if held.form != "flat":
        raise walk.missing(node, "a linear layer over the last axis of a map")
    value = walk.write(
        node,
        Linear,
        [held.value],
        (module.out_features, 1, 1),
        weights=weights,
        bias=bias,
        layer=_counted(walk, node),
    )
    return Held(value, "flat")


@lowers(CONV_MLP)
def _conv_mlp(walk: Walk, node: fx.Node, use: Use) -> Held:
    """timm's VGG head, which torch.fx cannot look into: pooled up to its kernel, two convolutions."""
    module: Any = use.module
    held = walk.map(node)
    channels, height, width = walk.size(held)
    least = int(module.input_kernel_size)
    if min(height, width) < least:
        size = (channels, max(least, height), max(least, width))
        held = Held(walk.write(node, AdaptivePool, [held.value], size, kind="average"))
    for name in ("1", "2"):
        conv, activation = getattr(module, f"fc{name}"), use_of_module(getattr(module, f"act{name}"))
        _, height, width = walk.size(held)
        value = walk.network.new_value(
            conv.out_channels, height - conv.kernel_size[0] + 1, width - conv.kernel_size[1] + 1
        )
        step = dense_conv(conv, f"{node.target}.fc{name}", held.value, value)
        step.layer = step.name
        walk.network.layers.append(step.name)
        walk.network.steps.append(step)
        function = function_of(activation)
        if function is None:
            raise walk.missing(node, activation.title)
        held = walk.affine(node, Held(value), function=function)
    return held


def _counted(walk: Walk, node: fx.Node) -> str:
    """The layer's name, which joins the list of those whose work is counted."""
    walk.network.layers.append(str(node.target))
    return str(node.target)
