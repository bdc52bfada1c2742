"""Weights of layers as float32 arrays, with the norms inside gated convolutions folded in."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from penstock.engine.activations import function_of
from penstock.engine.steps import AFTER_CONV, Conv, Floats, Gates, Levels
from penstock.errors import CompileError, LayerError
from penstock.gating import GatedConv2d, fold_norm, level_edges, scale_and_shift
from penstock.surgery.operators import use_of_module


def to_floats(tensor: Tensor, name: str) -> Floats:
    """A parameter as a contiguous float32 array; NaN and infinity are refused."""
    with np.errstate(over="ignore"):  # what overflows is refused below
        array = np.ascontiguousarray(tensor.detach().cpu().double().numpy().astype(np.float32))
    if not np.isfinite(array).all():
        raise CompileError(f"layer {name!r}: its weights hold NaN or infinity; load a network that is whole")
    return array


def affine_of_norm(norm: nn.Module, name: str) -> tuple[Floats, Floats]:
    """A batch norm in eval mode as (scale, shift), each (channels,)."""
    try:
        scale, shift = scale_and_shift(norm)
    except LayerError as error:
        raise CompileError(f"layer {name!r}: {error}") from error
    return to_floats(scale, name), to_floats(shift, name)


def dense_conv(conv: nn.Conv2d, name: str, source: int, target: int) -> Conv:
    """An ordinary convolution; a norm after it is folded in later."""
    bias = None if conv.bias is None else to_floats(conv.bias, name)
    return _conv(conv, name, source, target, to_floats(conv.weight, name), bias)


def gated_conv(layer: GatedConv2d, name: str, source: int, target: int) -> Conv:
    """A gated convolution with its norm, shift, predictor and activation."""
    try:
        folded = fold_norm(layer)
    except LayerError as error:
        raise CompileError(f"layer {name!r}: {error}") from error
    biases = to_floats(folded.bias, name)
    step = _conv(layer.conv, name, source, target, to_floats(folded.weight, name), biases[-1])
    function = function_of(use_of_module(layer.activation))
    if function is None or function.name not in AFTER_CONV:
        raise CompileError(
            f"layer {name!r}: the engine has no {type(layer.activation).__name__} after a gate; "
            f"it has {', '.join(sorted(AFTER_CONV))}"
        )
    step.function = function
    step.gates = Gates(
        to_floats(layer.gate.weight, name),
        to_floats(layer.gate.bias, name),
        layer.gate.summary,
        layer.density,
    )
    if layer.threshold is not None:
        step.gates.threshold = to_floats(layer.threshold, name).item()
    if layer.levels:
        edges = level_edges(layer.levels, layer.conv.out_channels)
        step.gates.levels = Levels(biases, to_floats(folded.gain, name), edges)
    return step


def _conv(conv: nn.Conv2d, name: str, source: int, target: int, weights: Floats, bias: Floats | None) -> Conv:
    if conv.padding_mode != "zeros":
        raise CompileError(
            f"layer {name!r}: padding_mode={conv.padding_mode!r}; the engine pads with zeros only"
        )
    if isinstance(conv.padding, str):
        reach = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
        if conv.padding == "same" and any(r % 2 for r in reach):
            raise CompileError(
                f"layer {name!r}: padding='same' with kernel {conv.kernel_size} pads one side more; "
                "the engine pads both sides alike"
            )
        padding = (reach[0] // 2, reach[1] // 2) if conv.padding == "same" else (0, 0)
    else:
        padding = (int(conv.padding[0]), int(conv.padding[1]))
    return Conv(
        name,
        [source],
        target,
        weights=weights,
        bias=bias,
        stride=(int(conv.stride[0]), int(conv.stride[1])),
        padding=padding,
        dilation=(int(conv.dilation[0]), int(conv.dilation[1])),
        groups=int(conv.groups),
    )
