"""3×3 convolutions on small maps for training on a CPU: one matrix product for each tap of the filter.

    y[i, j] = Σ over taps (r, c) of x[s·i + r - p, s·j + c - p] · w[r, c]ᵀ        stride s, padding p

Winograd transforms every filter at each step, which costs more than it saves where a map has few pixels; and
on a 3×3 map with padding 1 only 49 of the 81 products of a pixel and a tap touch the image at all. Here each
tap multiplies the pixels that it meets and no others, and both gradients are the same products turned round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_SIDE = 3


class Tap(NamedTuple):
    """A tap's place in the filter, and the rows and columns of output and input that it connects."""

    row: int
    column: int
    of_output: tuple[slice, slice]
    of_input: tuple[slice, slice]


def taps(height: int, width: int, stride: int, padding: int) -> Iterator[Tap]:
    """Every tap that meets the image. height, width: of the input."""
    for row in range(_SIDE):
        down = _meets(height, row, stride, padding)
        for column in range(_SIDE):
            across = _meets(width, column, stride, padding)
            if down is not None and across is not None:
                yield Tap(row, column, (down[0], across[0]), (down[1], across[1]))


def _meets(side: int, tap: int, stride: int, padding: int) -> tuple[slice, slice] | None:
    """Along one axis: the outputs whose input under `tap` lies inside, and those inputs."""
    first = max(0, -(-(padding - tap) // stride))
    last = min(out_side(side, stride, padding) - 1, (side - 1 + padding - tap) // stride)
    if last < first:
        return None
    begin = first * stride + tap - padding
    return slice(first, last + 1), slice(begin, begin + (last - first) * stride + 1, stride)


def out_side(side: int, stride: int, padding: int) -> int:
    """The output's side along an axis."""
    return (side + 2 * padding - _SIDE) // stride + 1


def products(height: int, width: int, stride: int, padding: int) -> int:
    """How many pairs of an output pixel and a tap touch the image: its cost for a pair of channels."""
    count = 0
    for tap in taps(height, width, stride, padding):
        down, across = tap.of_output
        count += (down.stop - down.start) * (across.stop - across.start)
    return count


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int, padding: int) -> Tensor:
        x, weight = (whole.contiguous(memory_format=torch.channels_last) for whole in (x, weight))
        ctx.save_for_backward(x, weight)
        ctx.stride, ctx.padding = stride, padding
        height, width = (out_side(side, stride, padding) for side in x.shape[2:])
        pixels, filters = _pixels(x), _pixels(weight)
        y = x.new_zeros(len(x), height, width, len(weight))
        for tap in taps(x.shape[2], x.shape[3], stride, padding):
            met = _met(pixels, tap.of_input)
            part = met.reshape(-1, met.shape[3]) @ filters[:, tap.row, tap.column].t()
            _met(y, tap.of_output).add_(part.view(*met.shape[:3], -1))
        return y.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        pixels, filters = _pixels(x), _pixels(weight)
        given = _pixels(gradient.contiguous(memory_format=torch.channels_last))
        to_x = torch.zeros_like(pixels) if ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(filters)
        for tap in taps(x.shape[2], x.shape[3], ctx.stride, ctx.padding):
            down = _met(given, tap.of_output)
            rows = down.reshape(-1, down.shape[3])
            met = _met(pixels, tap.of_input)
            to_weight[:, tap.row, tap.column] = rows.t() @ met.reshape(-1, met.shape[3])
            if to_x is not None:
                part = rows @ filters[:, tap.row, tap.column]
                _met(to_x, tap.of_input).add_(part.view(met.shape))
        back = None if to_x is None else to_x.permute(0, 3, 1, 2)
        return back, to_weight.permute(0, 3, 1, 2), None, None


def _pixels(x: Tensor) -> Tensor:
    """(n, c, h, w), channels last in memory → (n, h, w, c)."""
    return x.permute(0, 2, 3, 1)


def _met(x: Tensor, where: tuple[slice, slice]) -> Tensor:
    return x[:, where[0], where[1]]


def conv3x3_by_taps(x: Tensor, weight: Tensor, stride: int = 1, padding: int = 1) -> Tensor:
    """The convolution itself. x: (n, in, h, w); weight: (out, in, 3, 3)."""
    return _Convolution.apply(x, weight, stride, padding)
