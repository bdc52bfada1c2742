"""Layers with weights or windows in ONNX: convolution, linear, norms, pooling."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import LayerError
from penstock.exporting.onnx.call import Call, Unsupported, pair
from penstock.exporting.onnx.graph import GraphWriter, Value
from penstock.gating import scale_and_shift
from penstock.surgery.operators import layers as table

_PAD_MODES = {"reflect": "reflect", "replicate": "edge"}


def convolve(
    w: GraphWriter, conv: nn.Conv2d, source: str, weight: str, bias: str | None, groups: int | None = None
) -> str:
    """Conv with the geometry of `conv` and weights from wherever."""
    pads = explicit_padding(conv.padding, conv.kernel_size, conv.dilation, conv.stride)
    if conv.padding_mode != "zeros" and any(pads):
        source, pads = _pad_ahead(w, source, pads, conv.padding_mode), [0, 0, 0, 0]
    return w.op(
        "Conv",
        source,
        weight,
        *(() if bias is None else (bias,)),
        strides=list(conv.stride),
        pads=pads,
        dilations=list(conv.dilation),
        group=conv.groups if groups is None else groups,
    )


def explicit_padding(padding: object, kernel: object, dilation: object, stride: object) -> list[int]:
    """torch's padding as ONNX's [top, left, bottom, right]."""
    if padding == "valid":
        return [0, 0, 0, 0]
    if padding == "same":
        if pair(stride) != (1, 1):
            raise Unsupported("padding='same' with a stride")
        spare = [step * (size - 1) for size, step in zip(pair(kernel), pair(dilation), strict=True)]
        before = [extra // 2 for extra in spare]
        return [*before, *(extra - first for extra, first in zip(spare, before, strict=True))]
    return [*pair(padding)] * 2


def _pad_ahead(w: GraphWriter, source: str, pads: list[int], mode: str) -> str:
    if mode not in _PAD_MODES:
        raise Unsupported(f"padding_mode={mode!r}")
    top, left, bottom, right = pads
    return w.op("Pad", source, w.ints(0, 0, top, left, 0, 0, bottom, right), mode=_PAD_MODES[mode])


def norm_scale_and_shift(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """A batch norm in eval mode as scale·x + shift, in double precision."""
    try:
        return scale_and_shift(norm)
    except LayerError as error:
        raise Unsupported(str(error)) from error


def refuse_disguise(module: nn.Module, kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    """A subclass may compute something else (standardised weights, say): compare it with its base."""
    if type(module).forward is kind.forward:
        return
    probe = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        own, plain = module(probe), kind.forward(module, probe)
    if own.shape != plain.shape or not torch.allclose(own, plain, rtol=1e-5, atol=1e-6):
        raise Unsupported(f"{type(module).__name__} does not compute what a plain {kind.__name__} does")


def fold(conv: nn.Conv2d, norm: nn.Module | None) -> tuple[Tensor, Tensor | None]:
    """The weight and bias of a convolution with the batch norm after it folded in."""
    refuse_disguise(conv, nn.Conv2d, (1, conv.in_channels, 32, 32))
    weight, bias = conv.weight.detach(), None if conv.bias is None else conv.bias.detach()
    if norm is None:
        return weight, bias
    scale, shift = norm_scale_and_shift(norm)
    if bias is not None:
        shift = shift + bias.double() * scale
    return (weight.double() * scale[:, None, None, None]).to(torch.float32), shift.to(torch.float32)


def conv2d(call: Call) -> Value:
    """F.conv2d, with weights from anywhere in the graph."""
    w = call.writer
    weight = call.operand("weight")
    bias = call.tensor("bias")
    stride, dilation = call.setting("stride"), call.setting("dilation")
    return call.result(
        w.op(
            "Conv",
            call.dense().name,
            call.dense(weight).name,
            *(() if bias is None else (bias,)),
            strides=list(pair(stride)),
            dilations=list(pair(dilation)),
            pads=explicit_padding(call.setting("padding"), weight.shape[2:], dilation, stride),
            group=call.setting("groups"),
        )
    )


def linear(call: Call) -> Value:
    """Linear over the last axis; reads the whole weight, because cutting it costs more than it saves."""
    w, x = call.writer, call.dense()
    bias: str | None
    if isinstance(call.module, nn.Linear):
        refuse_disguise(call.module, nn.Linear, (1, call.module.in_features))
        weight = w.constant(call.module.weight.detach().t().contiguous(), "weight")
        bias = None if call.module.bias is None else w.constant(call.module.bias, "bias")
    else:
        weight = w.op("Transpose", call.dense(call.operand("weight")).name, perm=[1, 0])
        bias = call.tensor("bias")
    if len(x.shape) == 2 and bias is not None:
        return call.result(w.op("Gemm", x.name, weight, bias))
    product = w.op("MatMul", x.name, weight)
    return call.result(product if bias is None else w.op("Add", product, bias))


def batch_norm(call: Call) -> Value:
    """A batch norm that follows no convolution: one product and one sum."""
    w, x = call.writer, call.dense()
    assert call.module is not None
    along = (-1, *(1,) * (len(x.shape) - 2))
    scale, shift = (t.to(torch.float32).reshape(along) for t in norm_scale_and_shift(call.module))
    return call.result(
        w.op("Add", w.op("Mul", x.name, w.constant(scale, "scale")), w.constant(shift, "shift"))
    )


def layer_norm(call: Call) -> Value:
    w, x = call.writer, call.dense()
    shape = call.setting("normalized_shape")
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    scale: str | None
    shift: str | None
    if call.module is not None:
        weight, bias = call.setting("weight"), call.setting("bias")
        scale = None if weight is None else w.constant(weight, "scale")
        shift = None if bias is None else w.constant(bias, "shift")
    else:
        scale, shift = call.tensor("weight"), call.tensor("bias")
    scale = scale or w.constant(torch.ones(shape), "scale")
    inputs = (x.name, scale) if shift is None else (x.name, scale, shift)
    epsilon = float(call.setting("eps"))
    return call.result(w.op("LayerNormalization", *inputs, axis=-len(shape), epsilon=epsilon))


def group_norm(call: Call) -> Value:
    """Each group brought to mean 0 and variance 1, then scale and shift by channel."""
    w, x = call.writer, call.dense()
    if call.module is None:
        raise Unsupported("functional group_norm")
    norm: Any = call.module
    groups = w.op("Reshape", x.name, w.ints(0, norm.num_groups, -1))
    one, zero = torch.ones(norm.num_groups), torch.zeros(norm.num_groups)
    flat = w.op("InstanceNormalization", groups, w.constant(one), w.constant(zero), epsilon=norm.eps)
    name = w.op("Reshape", flat, w.ints(0, *x.shape[1:]))
    if norm.affine:
        along = (-1, *(1,) * (len(x.shape) - 2))
        name = w.op("Mul", name, w.constant(norm.weight.detach().reshape(along), "scale"))
        name = w.op("Add", name, w.constant(norm.bias.detach().reshape(along), "shift"))
    return call.result(name)


def max_pool(call: Call) -> Value:
    x = call.stored()
    kernel = pair(call.setting("kernel_size"))
    name = call.writer.op(
        "MaxPool",
        x.name,
        kernel_shape=list(kernel),
        strides=list(pair(call.setting("stride") or kernel)),
        pads=[*pair(call.setting("padding"))] * 2,
        dilations=list(pair(call.setting("dilation"))),
        ceil_mode=int(call.setting("ceil_mode")),
    )
    return call.like_input(name, x.nonnegative)


def avg_pool(call: Call) -> Value:
    x = call.stored()
    kernel = pair(call.setting("kernel_size"))
    padding = pair(call.setting("padding"))
    if call.setting("divisor_override") is not None:
        raise Unsupported("divisor_override")
    ceil = bool(call.setting("ceil_mode"))
    stride = pair(call.setting("stride") or kernel)
    if ceil and any(
        (size + 2 * pad - window) % step
        for size, pad, window, step in zip(x.shape[2:], padding, kernel, stride, strict=True)
    ):
        # Runtimes disagree on what such a last window divides by.
        raise Unsupported("ceil_mode=True with a last window that reaches beyond the map")
    name = call.writer.op(
        "AveragePool",
        x.name,
        kernel_shape=list(kernel),
        strides=list(stride),
        pads=[*padding] * 2,
        count_include_pad=int(call.setting("count_include_pad")),
    )
    return call.like_input(name, x.nonnegative)


def adaptive_pool(call: Call) -> Value:
    """Windows that may differ in size and overlap; an average of them is a product with a constant matrix."""
    x, w = call.stored(), call.writer
    average = call.operator is table.ADAPTIVE_AVERAGE_POOL
    size, wanted = x.shape[2:], call.shape[2:]
    if prod(wanted) == 1:
        name = w.reduce("ReduceMean" if average else "ReduceMax", x.name, (2, 3), keepdims=True)
    elif size == wanted:
        name = x.name
    elif all(have % want == 0 for have, want in zip(size, wanted, strict=True)):
        window = [have // want for have, want in zip(size, wanted, strict=True)]
        name = w.op("AveragePool" if average else "MaxPool", x.name, kernel_shape=window, strides=window)
    else:
        if not average:
            raise Unsupported(
                f"adaptive max pooling from {tuple(size)} to {tuple(wanted)}: windows that differ"
            )
        rows, columns = (_averages(have, want) for have, want in zip(size, wanted, strict=True))
        name = w.op("MatMul", w.constant(rows), w.op("MatMul", x.name, w.constant(columns.t().contiguous())))
    return call.like_input(name, x.nonnegative)


def _averages(have: int, want: int) -> Tensor:
    """(want, have): each row averages the positions of one of torch's adaptive windows."""
    matrix = torch.zeros(want, have)
    for place in range(want):
        first, last = place * have // want, -(-(place + 1) * have // want)
        matrix[place, first:last] = 1 / (last - first)
    return matrix
