"""Faster 3×3 convolutions for training on a CPU: forward and both gradients by Winograd's F(4×4, 3×3).

Enters: any network; leaves: the same numbers to about 1e-5, in roughly half the time. Maps of a few pixels go
tap by tap (taps.py). Convolutions that do not fit (other kernels, strides, devices, types, or maps that are
mostly padding in tiles) take torch's own way.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.training.native import channels_last, trainer
from penstock.training.taps import conv3x3_by_taps, out_side, products

_CHANNELS = 16  # the width of the kernels' blocks
_TILE = 4
_WORTH = 1.9
"""Winograd is used where it saves at least this factor of multiplications; whole tiles save 4."""
# Below these, a product for each tap is faster; measured on Zen 3, batches of 64, 256 to 512 channels.
_FEW_PIXELS = 16  # output pixels of a strided layer
_FEW_PRODUCTS = 54  # pairs of an output pixel and a tap, for each tile of Winograd


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: int) -> Tensor:
        x, weight = (whole.contiguous(memory_format=torch.channels_last) for whole in (x, weight))
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        size = (len(x), len(weight), *(side + 2 * padding - 2 for side in x.shape[2:]))
        y = torch.empty(size, memory_format=torch.channels_last)
        trainer().forward(channels_last(x), channels_last(weight), padding, channels_last(y))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None]:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        wanted = ctx.needs_input_grad[0]
        to_x = torch.empty_like(x, memory_format=torch.channels_last) if wanted else x
        to_weight = torch.empty_like(weight, memory_format=torch.channels_last)
        trainer().backward(
            channels_last(x),
            channels_last(weight),
            ctx.padding,
            channels_last(gradient),
            channels_last(to_x),
            channels_last(to_weight),
            wanted,
        )
        return (to_x if wanted else None), to_weight, None


def fits(
    x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int
) -> tuple[bool, int]:
    """Whether the fast way is open to a convolution and pays, and its padding as a number."""
    pad = _same(padding)
    if not (_plain(x, weight, pad, dilation, groups) and _same(stride) == 1):
        return False, 0
    height, width = (out_side(side, 1, pad) for side in x.shape[2:])
    return 4 * height * width / (count_tiles(height, width) * _TILE**2) >= _WORTH, pad


def taps_fit(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> bool:
    """Whether a convolution's map is so small that one matrix product for each tap is the fastest way."""
    pad, step = _same(padding), _same(stride)
    if not (_plain(x, weight, pad, dilation, groups) and step in (1, 2)):
        return False
    height, width = (out_side(side, step, pad) for side in x.shape[2:])
    if step == 2:
        return height * width <= _FEW_PIXELS
    return products(x.shape[2], x.shape[3], 1, pad) <= _FEW_PRODUCTS * count_tiles(height, width)


def count_tiles(height: int, width: int) -> int:
    """How many tiles of outputs cover a map."""
    return -(-height // _TILE) * -(-width // _TILE)


def _plain(x: Tensor, weight: Tensor, padding: int, dilation: Any, groups: int) -> bool:
    """Whether it is an ordinary 3×3 convolution of ordinary tensors, with an output."""
    return (
        type(x) is Tensor
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.dim() == 4
        and len(x) > 0
        and tuple(weight.shape[2:]) == (3, 3)
        and _same(dilation) == 1
        and groups == 1
        and x.shape[1] == weight.shape[1]
        and min(weight.shape[:2]) >= _CHANNELS
        and padding in (0, 1, 2)
        and min(x.shape[2:]) + 2 * padding >= 3
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _same(value: Any) -> int:
    """The number that holds for both axes, or -1."""
    if isinstance(value, int):
        return value
    if isinstance(value, (tuple, list)) and len(set(value)) == 1 and isinstance(value[0], int):
        return int(value[0])
    return -1


def conv3x3(x: Tensor, weight: Tensor, padding: int = 1) -> Tensor:
    """The convolution itself. x: (n, in, h, w) float32 on the CPU; weight: (out, in, 3, 3)."""
    return _Convolution.apply(x, weight, padding)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    if taps_fit(input, weight, stride, padding, dilation, groups):
        y = conv3x3_by_taps(input, weight, _same(stride), _same(padding))
    else:
        fast, pad = fits(input, weight, stride, padding, dilation, groups)
        if not fast:
            return F.conv2d(input, weight, bias, stride, padding, dilation, groups)
        y = conv3x3(input, weight, pad)
    return y if bias is None else y + bias[:, None, None]
