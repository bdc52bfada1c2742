"""The gated layer's norm, gate and ReLU for training on a CPU, in two passes over memory each way.

    f = (z - μ) · r + β,  o = relu(π · f) = relu(a · z + b)      a = π r,  b = π (β - μ r)
    s = Σ_hw |o|                                                  the next gate's summary, at no further cost

With h the gradient that comes back through o and s (nothing where o was clamped):

    ∂L/∂π = r (Σ_hw h z - μ Σ_hw h) + β Σ_hw h      ∂L/∂β = Σ_n π Σ_hw h
    ∂L/∂z = a h - r · mean(π h) - r x̂ · mean(π h x̂)   the means over the batch; with frozen norms only a h

With statistics over winners (winner_norm.py) μ, r and these means are of the images in which a channel won,
and ∂L/∂z is 0 in the others.
"""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from penstock.gating import LevelNorm2d
from penstock.training.native import channels_last, rows_of, trainer
from penstock.training.winner_norm import follow

Norm = nn.BatchNorm2d | LevelNorm2d


class _NormGate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        shift: Tensor,
        gains: Tensor,
        norm: Norm,
        clamps: bool,
        level: Tensor | None,
        won: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        z = z.contiguous(memory_format=torch.channels_last)
        groups = groups_of(norm, level, len(z))

        def of_batch(part: slice, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
            of_whom = None if won is None else won[part]
            assert norm.momentum is not None
            return batch_statistics(z[part], of_whom, norm.momentum, norm.eps, mean, variance)

        mean, spread, scale, offset = normalise(norm, shift, gains, groups, of_batch)
        out = torch.empty_like(z, memory_format=torch.channels_last)
        sums = torch.empty_like(gains)
        trainer().norm_apply(
            channels_last(z), rows_of(scale), rows_of(offset), clamps, channels_last(out), rows_of(sums)
        )
        ctx.save_for_backward(z, shift, gains, mean, spread, scale, offset)
        ctx.clamps, ctx.groups, ctx.won = clamps, groups, won
        return out, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, of_sums: Tensor) -> tuple[Tensor | None, ...]:
        z, shift, gains, mean, spread, scale, offset = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        given = (channels_last(z), channels_last(gradient), rows_of(scale), rows_of(offset))
        of_sums = of_sums.contiguous()
        total, product = torch.empty_like(gains), torch.empty_like(gains)
        trainer().norm_sums(*given, rows_of(of_sums), ctx.clamps, rows_of(total), rows_of(product))
        pixels = z.shape[2] * z.shape[3]
        to_shift, to_gains, slope, constant = through_norm(
            ctx.groups, shift, gains, mean, spread, total, product, ctx.won, pixels
        )
        if ctx.won is not None:
            slope, constant = slope * ctx.won, constant * ctx.won
        to_z = torch.empty_like(z, memory_format=torch.channels_last)
        trainer().norm_gradient(
            *given, rows_of(of_sums), ctx.clamps, rows_of(slope), rows_of(constant), channels_last(to_z)
        )
        return to_z, to_shift, to_gains, None, None, None, None


class Groups(NamedTuple):
    """The images of a batch that are normalised together: each level's, which lie side by side.

    level: of each image, or of all; parts: (the level's row, its images), where `...` stands for a norm
    without levels; training: whether μ and r are the batch's own.
    """

    level: Tensor | None
    parts: list[tuple[int | EllipsisType, slice]]
    training: bool


def groups_of(norm: Norm, level: Tensor | None, images: int) -> Groups:
    """How a batch of so many images divides."""
    if level is None:
        return Groups(level, [(..., slice(0, images))], norm.training)
    if level.dim() == 0:
        return Groups(level, [(int(level), slice(0, images))], norm.training)
    rows, sizes = torch.unique_consecutive(level, return_counts=True)
    ends = sizes.cumsum(0).tolist()
    parts = [
        (row, slice(end - size, end))
        for row, size, end in zip(rows.tolist(), sizes.tolist(), ends, strict=True)
    ]
    return Groups(level, parts, norm.training)


def normalise(
    norm: Norm,
    shift: Tensor,
    gains: Tensor,
    groups: Groups,
    of_batch: Callable[[slice, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """μ, r, a and b of every image and channel, (n, c) each.

    of_batch: a group's images, running mean and running variance → the batch's μ and r.
    """
    mean, spread = torch.empty_like(gains), torch.empty_like(gains)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    for row, part in groups.parts:
        running = norm.running_mean[row], norm.running_var[row]
        if groups.training:
            mean[part], spread[part] = of_batch(part, *running)
        else:
            mean[part], spread[part] = running[0], (running[1] + norm.eps).rsqrt()
    shifts = shift if groups.level is None else shift[groups.level]
    return mean, spread, gains * spread, gains * (shifts - mean * spread)


def through_norm(
    groups: Groups,
    shift: Tensor,
    gains: Tensor,
    mean: Tensor,
    spread: Tensor,
    total: Tensor,
    product: Tensor,
    won: Tensor | None,
    pixels: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """∂L/∂β, ∂L/∂π, and the slope and constant in z of what the batch's statistics add to ∂L/∂z.

    mean, spread: μ and r; total, product: Σ_hw h and Σ_hw h z; all (n, c). won: (n, c), the images that the
    statistics were taken over, None for all. pixels: of one map.
    """
    centred = spread * (product - mean * total)  # Σ h x̂, image by image
    to_gains = centred + (shift if groups.level is None else shift[groups.level]) * total
    to_shift = torch.zeros_like(shift)
    slope, constant = torch.zeros_like(gains), torch.zeros_like(gains)
    for row, part in groups.parts:
        own = (gains[part] * total[part]).sum(dim=0)
        to_shift[row] += own
        if groups.training:
            values = (len(gains[part]) if won is None else won[part].sum(dim=0).clamp_min(1)) * pixels
            through = (gains[part] * centred[part]).sum(dim=0)
            m, r = mean[part][0], spread[part][0]  # the same for the whole group
            slope[part], constant[part] = through_statistics(own, through, m, r, values)
    return to_shift, to_gains, slope, constant


def through_statistics(
    own: Tensor, through: Tensor, mean: Tensor, spread: Tensor, values: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Slope and constant in z of what the batch's statistics add to ∂L/∂z; all (c,).

    own: Σ π h; through: Σ π h x̂; values: how many μ and r were taken over.
    """
    slope = -spread.square() * through / values
    return slope, -spread * own / values - slope * mean


def batch_statistics(
    z: Tensor, won: Tensor | None, momentum: float, eps: float, mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor]:
    """μ and r of the batch, (c,) each; the running `mean` and `variance` take their part of them.

    won: bool (n, c), whose images count for a channel; None: all of them.
    """
    n, c, h, w = z.shape
    if won is None and n * h * w == 1:
        raise ValueError("a norm needs more than one value a channel to train on")
    sums, squares = z.new_empty(n, c), z.new_empty(n, c)
    pivot = z[0, :, 0, 0].clone()  # near the values, so that squares do not cancel
    trainer().norm_moments(channels_last(z), rows_of(pivot), rows_of(sums), rows_of(squares))
    if won is None:
        images = torch.full((c,), n)
    else:
        images, sums, squares = won.sum(dim=0), sums * won, squares * won
    values = (images * (h * w)).clamp_min(1).double()
    centre = sums.sum(dim=0, dtype=torch.float64) / values
    spread = (squares.sum(dim=0, dtype=torch.float64) / values - centre.square()).clamp_min_(0)
    found = (pivot + centre).float()
    follow(mean, variance, found, spread, images > 0, values, momentum)
    return found, (spread + eps).rsqrt().float()


def native_norm_gate(
    z: Tensor,
    shift: Tensor,
    gains: Tensor,
    norm: Norm,
    clamps: bool,
    level: Tensor | None = None,
    over_winners: bool = False,
) -> tuple[Tensor, Tensor]:
    """The gated map and Σ |x| over each of its maps. z: (n, c, h, w); shift: (c,); gains: (n, c).

    With levels, norm and shift have a row for each; the images of a level lie side by side and are normalised
    among themselves. over_winners: a channel's statistics are of the images in which its gain is not 0.
    """
    won = gains.detach() != 0 if over_winners else None
    return _NormGate.apply(z, shift, gains, norm, clamps, level, won)
