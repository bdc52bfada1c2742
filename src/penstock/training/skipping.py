"""Gated 3×3 convolutions for training that computes each image's winners only, forwards and backwards.

Enters: the winners' planes of a map, the weights and the gains π; leaves: the winners' planes of the layer's
result and Σ |x| over each, all by native code (kernels/train/skip.h). For `Recipe(statistics="winners")`,
where a channel's norm is taken over the images in which it won (equations in winner_norm.py), this is exact:

    a loser is multiplied by zero, so nothing reads it and no gradient comes back through it;
    a loser among the inputs is zero, so it adds nothing to any sum, nor to the gradient of its weights;
    and its own gradient is asked for by nobody, since its layer multiplies that by zero again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from penstock.gating import LevelNorm2d
from penstock.surgery.network import has_hooks
from penstock.training.native import channels_last, rows_of, trainer
from penstock.training.norm_gate import (
    Norm,
    groups_of,
    normalise,
    through_norm,
)
from penstock.training.taps import out_side
from penstock.training.winner_norm import follow
from penstock.training.winograd import count_tiles

_UNIT = 16  # a packed map has room for a whole number of the widest vectors
# Nanoseconds that a pair of an input and an output channel takes in an image, forwards and backwards: a part
# for fetching its filter, and one for each tile of 4×4 outputs; by stride. Measured on Zen 4 (AVX2 only) with
# ResNet-18's layers at 64 and 128 pixels, batches of 64, one thread.
_PAIR = {1: (15.0, 7.0), 2: (35.0, 15.0)}
_PAIR_OF_ALL = {1: (1.5, 5.5), 2: (2.0, 12.0)}  # with every channel computed, filters shared by the batch


@dataclass(frozen=True, eq=False)
class PackedMap:
    """A map of which only the planes that are not zero exist.

    values: (n, h, w, room), in each image its winners side by side; won: who they are, uint8 (n, c); sums:
    Σ |x| over each plane, (n, c), if known; clamped: whether a ReLU would change nothing.
    """

    values: Tensor
    won: Tensor
    sums: Tensor | None
    clamped: bool

    @property
    def shape(self) -> torch.Size:
        """(n, c, h, w), as the whole map has it."""
        images, height, width, _ = self.values.shape
        return torch.Size((images, self.won.shape[1], height, width))

    @cached_property
    def whole(self) -> Tensor:
        """The map with its zeros, for whoever reads all channels."""
        return _Repack.apply(self.values, self.won, False)


class Place(NamedTuple):
    """Where a convolution stands, and who won before and after it (uint8, (n, c))."""

    won_in: Tensor
    won_out: Tensor
    stride: int
    padding: int


class _Skipping(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        shift: Tensor,
        gains: Tensor,
        norm: Norm,
        clamps: bool,
        level: Tensor | None,
        place: Place,
    ) -> tuple[Tensor, Tensor]:
        weight = weight.contiguous(memory_format=torch.channels_last)
        sides = (out_side(side, place.stride, place.padding) for side in x.shape[1:3])
        z = x.new_empty(len(x), *sides, _room(len(weight)))
        means, squares = torch.empty_like(gains), torch.empty_like(gains)
        trainer().skip_forward(*_inputs(x, weight, place), rows_of(z), rows_of(means), rows_of(squares))
        won = place.won_out.bool()
        groups = groups_of(norm, level, len(z))
        pixels = z.shape[1] * z.shape[2]

        def of_batch(part: slice, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
            return _statistics(means[part], squares[part], won[part], pixels, norm, mean, variance)

        mean, spread, scale, offset = normalise(norm, shift, gains, groups, of_batch)
        out, sums = torch.empty_like(z), torch.empty_like(gains)
        given = (rows_of(z), rows_of(place.won_out), rows_of(scale), rows_of(offset))
        trainer().skip_apply(*given, clamps, rows_of(out), rows_of(sums))
        ctx.save_for_backward(x, weight, z, shift, gains, mean, spread, scale, offset)
        ctx.clamps, ctx.groups, ctx.place = clamps, groups, place
        return out, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, of_sums: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, z, shift, gains, mean, spread, scale, offset = ctx.saved_tensors
        place, won = ctx.place, ctx.place.won_out
        gradient, of_sums = gradient.contiguous(), of_sums.contiguous()
        numbers = (rows_of(scale), rows_of(offset), rows_of(of_sums), ctx.clamps)
        total, product = torch.empty_like(gains), torch.empty_like(gains)
        maps = (rows_of(z), rows_of(gradient))
        trainer().skip_sums(*maps, rows_of(won), *numbers, rows_of(total), rows_of(product))
        pixels = z.shape[1] * z.shape[2]
        to_shift, to_gains, slope, constant = through_norm(
            ctx.groups, shift, gains, mean, spread, total, product, won, pixels
        )
        wanted = ctx.needs_input_grad[0]
        to_x = torch.empty_like(x) if wanted else x
        to_weight = torch.empty_like(weight, memory_format=torch.channels_last)
        trainer().skip_backward(
            *_inputs(x, weight, place),
            *maps,
            *numbers,
            rows_of(slope),
            rows_of(constant),
            rows_of(to_x),
            channels_last(to_weight),
            wanted,
        )
        return to_x if wanted else None, to_weight, to_shift, to_gains, None, None, None, None


def _inputs(x: Tensor, weight: Tensor, place: Place) -> tuple[Any, ...]:
    return (
        rows_of(x),
        rows_of(place.won_in),
        channels_last(weight),
        rows_of(place.won_out),
        place.stride,
        place.padding,
    )


def _statistics(
    means: Tensor, squares: Tensor, won: Tensor, pixels: int, norm: Norm, mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor]:
    """μ and r over the images in which each channel won, (c,); the running statistics follow those that did.

    means, squares: of each winner's plane its mean, and Σ (z - mean)² over it, (n, c).
    """
    images = won.sum(dim=0)
    values = (images * pixels).clamp_min(1).double()
    found = means.sum(dim=0, dtype=torch.float64) / images.clamp_min(1)  # losers have zeros
    around = ((means - found.float()) * won).square()  # of planes, about the mean of all
    spread = squares.sum(dim=0, dtype=torch.float64) + pixels * around.sum(dim=0, dtype=torch.float64)
    spread = spread / values
    assert norm.momentum is not None
    follow(mean, variance, found, spread, images > 0, values, norm.momentum)
    return found.float(), (spread + norm.eps).rsqrt().float()


class _Repack(torch.autograd.Function):
    """From a whole map to a packed one, or back: the gradient of either is the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, won: Tensor, packs: bool) -> Tensor:
        ctx.won, ctx.packs = won, packs
        return _packed(x, won) if packs else _unpacked(x, won)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if ctx.packs:
            return _unpacked(gradient.contiguous(), ctx.won), None, None
        return _packed(gradient.contiguous(memory_format=torch.channels_last), ctx.won), None, None


def _unpacked(values: Tensor, won: Tensor) -> Tensor:
    size = (len(values), won.shape[1], *values.shape[1:3])
    whole = torch.empty(size, memory_format=torch.channels_last)
    trainer().skip_unpack(rows_of(values), rows_of(won), channels_last(whole))
    return whole


def _packed(whole: Tensor, won: Tensor) -> Tensor:
    values = whole.new_empty(len(whole), *whole.shape[2:], _room(won.shape[1]))
    trainer().skip_pack(channels_last(whole), rows_of(won), rows_of(values))
    return values


def _room(channels: int) -> int:
    return -(-channels // _UNIT) * _UNIT


def pack(x: Tensor, won: Tensor) -> PackedMap:
    """The planes of the channels that won. x: (n, c, h, w), zero wherever won, uint8 (n, c), is 0."""
    x = x.contiguous(memory_format=torch.channels_last)
    in_place = x.shape[1] % _UNIT == 0 and bool(won.all())
    values = x.permute(0, 2, 3, 1) if in_place else _Repack.apply(x, won, True)
    return PackedMap(values, won, None, clamped=False)


def skipping_conv(
    x: Tensor | PackedMap,
    conv: nn.Conv2d,
    shift: Tensor,
    gains: Tensor,
    norm: nn.BatchNorm2d | LevelNorm2d,
    clamps: bool,
    level: Tensor | None = None,
) -> PackedMap:
    """π · (norm(conv(x)) + β), clamped at zero if asked, of each image's winners: channels whose π is not 0.

    x: (n, in, h, w); shift: (out,); gains: π, (n, out). With levels, norm and shift have a row for each; the
    images of a level lie side by side and are normalised among themselves.
    """
    given = x if isinstance(x, PackedMap) else pack(x, torch.ones(x.shape[:2], dtype=torch.uint8))
    won_out = (gains.detach() != 0).view(torch.uint8)
    place = Place(given.won, won_out, int(conv.stride[0]), int(conv.padding[0]))
    out, sums = _Skipping.apply(given.values, conv.weight, shift, gains, norm, clamps, level, place)
    return PackedMap(out, won_out, sums, clamps)


def can_skip(conv: nn.Module, x: Tensor | PackedMap) -> bool:
    """Whether a gated layer's convolution is one that the kernels compute."""
    return (
        type(conv) is nn.Conv2d
        and conv.kernel_size == (3, 3)
        and conv.stride in ((1, 1), (2, 2))
        and conv.padding in ((0, 0), (1, 1), (2, 2))
        and conv.padding_mode == "zeros"
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.weight.dtype == torch.float32
        and min(x.shape[2:]) + 2 * int(conv.padding[0]) >= 3
        and len(x.shape) == 4
        and x.shape[0] > 0
        and x.shape[1] == conv.in_channels
        and not has_hooks(conv)
    )


def pays(conv: nn.Conv2d, x: Tensor | PackedMap, gains: Tensor) -> bool:
    """Whether skipping losers takes less time than computing every channel; on small maps it does not."""
    if conv.in_channels < _UNIT:
        return True  # every channel would be computed by torch, more slowly
    stride = conv.stride[0]
    height, width = (out_side(side, stride, int(conv.padding[0])) for side in x.shape[2:])
    tiles = count_tiles(height, width)
    share = float((gains.detach() != 0).float().mean())
    if isinstance(x, PackedMap):
        share *= float(x.won.float().mean())
    (filters, each), (all_filters, each_of_all) = _PAIR[stride], _PAIR_OF_ALL[stride]
    return share * (filters + each * tiles) < all_filters + each_of_all * tiles
