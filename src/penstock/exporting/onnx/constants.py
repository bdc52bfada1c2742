"""Constants behind depthwise convolutions: channels that a value does not store but that are not zero.

A channel that a gate skipped leaves a depthwise convolution as one constant over its map. A value then has
a `fill`, (1, C, 1, 1), with that number for each channel it does not store; steps on single channels compute
the fill beside the planes, and a 1×1 convolution adds its part to the bias. Every other step gets the value
laid out whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import Tensor, nn

from penstock.exporting.onnx import pointwise as points
from penstock.exporting.onnx.call import Call
from penstock.exporting.onnx.gates import Gates
from penstock.exporting.onnx.graph import Value, dense_value
from penstock.exporting.onnx.layers import convolve
from penstock.surgery import Concat, Dense, Gate
from penstock.surgery.channels import Channels
from penstock.surgery.operators import Kind, arithmetic, layers
from penstock.surgery.operators.activations import ROWS as FUNCTIONS

_POOLS = (layers.MAX_POOL, layers.AVERAGE_POOL, layers.ADAPTIVE_AVERAGE_POOL, layers.ADAPTIVE_MAX_POOL)


def depthwise(call: Call, gates: Gates, conv: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> Value:
    """A depthwise convolution whose input leaves channels out; the result leaves out the same ones.

    Conv's number of groups is fixed. Where the number of stored channels is not, all are computed.
    """
    w, x = call.writer, call.x
    listed = call.lists.indices(x.stored)
    whole = np.zeros(conv.out_channels, np.float32) if bias is None else bias
    offset = w.constant(whole, "bias")
    fill = w.op("Reshape", offset, w.ints(1, -1, 1, 1))
    count = _static_count(x.stored, gates)
    kernel = w.constant(weight, "weight")
    if count is None:
        everything = convolve(w, conv, call.dense().name, kernel, offset)
        name = w.op("Gather", everything, listed, axis=1)
    else:
        kernel, own = (w.op("Gather", part, listed, axis=0) for part in (kernel, offset))
        name = convolve(w, conv, x.name, kernel, own, groups=count)
    return Value(name, call.shape, x.stored, fill=fill)


def _static_count(stored: Channels, gates: Gates) -> int | None:
    """How many channels a list has, if that does not depend on the image or the density input."""
    if isinstance(stored, Dense):
        return stored.count
    if isinstance(stored, Gate):
        return gates.fixed_counts.get(stored.layer)
    if isinstance(stored, Concat):
        counts = [_static_count(part, gates) for part in stored.parts]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None
    return None


def carries(call: Call) -> bool:
    """Whether a step on a value with constants can leave them out again."""
    x, row = call.x, call.operator
    if x.fill is None:
        return False
    if row in FUNCTIONS:
        return row in points.POINTWISE
    if row in points.ARITHMETIC:
        return row is arithmetic.MULTIPLY and _factor(call) is not None
    if row is arithmetic.SUM:
        return False  # its constants would have to be multiplied by the number of pixels
    return row in _POOLS or call.use.kind in (Kind.MOVE, Kind.REDUCE, Kind.SELECT)


def _factor(call: Call) -> Value | float | None:
    """What a product multiplies its first operand by, if that is one number a channel; else None."""
    first, second = call.first(), call.operand("other")
    if first is not call.x:
        return None
    if isinstance(second, Value):
        even = len(second.shape) == len(call.shape) == 4 and second.shape[2:] == (1, 1) != call.shape[2:]
        return second if even and second.shape[1] == call.shape[1] else None
    return second


def carry(call: Call, write: Callable[[Call], Value]) -> Value:
    """The step on the stored channels, and what it makes of the constants."""
    x, w = call.x, call.writer
    assert x.fill is not None
    channels = call.shape[1]
    size = (1, channels, *(1,) * (len(call.shape) - 2))
    fill = x.fill
    source = next(iter(call.values))
    if call.operator in FUNCTIONS:
        on_fill = replace(call, values={source: dense_value(fill, size)}, shape=size, target=Dense(channels))
        fill = write(on_fill).name
    elif call.operator is arithmetic.MULTIPLY:
        by = _factor(call)
        assert by is not None
        fill = w.op("Mul", fill, call.dense(by).name if isinstance(by, Value) else w.number(by))
    elif len(call.shape) != len(x.shape):
        fill = w.op("Reshape", fill, w.ints(*size))
    return replace(write(replace(call, target=x.stored)), fill=fill)
