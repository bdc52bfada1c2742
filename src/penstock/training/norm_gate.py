"""The gated layer's norm, gate and ReLU for training on a CPU, in two passes over memory each way.

    f = (z - μ) · r + β,  o = relu(π · f) = relu(a · z + b)      a = π r,  b = π (β - μ r)
    s = Σ_hw |o|                                                  what the next gate summarises, for nothing

With h the gradient that comes back through o and s (nothing where o was clamped):

    ∂L/∂π = r (Σ_hw h z - μ Σ_hw h) + β Σ_hw h      ∂L/∂β = Σ_n π Σ_hw h
    ∂L/∂z = a h - r · mean(π h) - r x̂ · mean(π h x̂)   the means over the batch; with frozen norms only a h
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from penstock.gating import LevelNorm2d
from penstock.training.native import channels_last, trainer

Norm = nn.BatchNorm2d | LevelNorm2d


class _NormGate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, shift: Tensor, gains: Tensor, norm: Norm, clamps: bool, level: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        z = z.contiguous(memory_format=torch.channels_last)
        groups = groups_of(level, len(z))
        mean, spread = torch.empty_like(gains), torch.empty_like(gains)
        for row, part in groups:
            running = running_of(norm, row)
            found = _batch_statistics(z[part], norm, *running) if norm.training else frozen(norm, *running)
            mean[part], spread[part] = found
        shifts = shift if level is None else shift[level]
        scale = gains * spread
        offset = gains * (shifts - mean * spread)
        out = torch.empty_like(z, memory_format=torch.channels_last)
        sums = torch.empty_like(gains)
        trainer().norm_apply(
            channels_last(z), rows_of(scale), rows_of(offset), clamps, channels_last(out), rows_of(sums)
        )
        ctx.save_for_backward(z, shift, gains, mean, spread, scale, offset)
        ctx.clamps, ctx.training, ctx.level, ctx.groups = clamps, norm.training, level, groups
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
        centred = spread * (product - mean * total)  # Σ h x̂, image by image
        shifts = shift if ctx.level is None else shift[ctx.level]
        to_gains = centred + shifts * total
        to_shift = torch.zeros_like(shift)
        to_z = torch.empty_like(z, memory_format=torch.channels_last)
        for row, part in ctx.groups:
            own = (gains[part] * total[part]).sum(dim=0)
            to_shift[row] += own
            slope, constant = torch.zeros_like(own), torch.zeros_like(own)
            if ctx.training:
                count = z[part].numel() // z.shape[1]
                through = (gains[part] * centred[part]).sum(dim=0)
                # μ and r are the same for the whole group.
                slope, constant = through_statistics(own, through, mean[part][0], spread[part][0], count)
            trainer().norm_gradient(
                channels_last(z[part]),
                channels_last(gradient[part]),
                rows_of(scale[part]),
                rows_of(offset[part]),
                rows_of(of_sums[part]),
                ctx.clamps,
                rows_of(slope),
                rows_of(constant),
                channels_last(to_z[part]),
            )
        return to_z, to_shift, to_gains, None, None, None


def through_statistics(
    own: Tensor, through: Tensor, mean: Tensor, spread: Tensor, count: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Slope and constant in z of what the batch's statistics add to ∂L/∂z; all (c,).

    own: Σ π h; through: Σ π h x̂; count: the values that μ and r were taken over.
    """
    slope = -spread.square() * through / count
    return slope, -spread * own / count - slope * mean


def groups_of(level: Tensor | None, images: int) -> list[tuple[int | EllipsisType, slice]]:
    """Each level with its images, which lie side by side; `...` stands for a norm without levels."""
    if level is None:
        return [(..., slice(0, images))]
    if level.dim() == 0:
        return [(int(level), slice(0, images))]
    rows, sizes = torch.unique_consecutive(level, return_counts=True)
    ends = sizes.cumsum(0).tolist()
    return [
        (row, slice(end - size, end))
        for row, size, end in zip(rows.tolist(), sizes.tolist(), ends, strict=True)
    ]


def running_of(norm: Norm, row: int | EllipsisType) -> tuple[Tensor, Tensor]:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean[row], norm.running_var[row]


def _batch_statistics(z: Tensor, norm: Norm, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """μ and r of the batch, (c,) each; the running `mean` and `variance` take their part of them."""
    n, c, h, w = z.shape
    count = n * h * w
    if count == 1:
        raise ValueError("a norm needs more than one value a channel to train on")
    sums, squares = z.new_empty(n, c), z.new_empty(n, c)
    pivot = z[0, :, 0, 0].clone()  # near the values, so that squares do not cancel
    trainer().norm_moments(channels_last(z), rows_of(pivot), rows_of(sums), rows_of(squares))
    centre = sums.sum(dim=0, dtype=torch.float64) / count
    spread = (squares.sum(dim=0, dtype=torch.float64) / count - centre.square()).clamp_min_(0)
    found = (pivot + centre).float()
    assert norm.momentum is not None
    mean.lerp_(found, norm.momentum)
    variance.lerp_((spread * (count / (count - 1))).float(), norm.momentum)
    return found, (spread + norm.eps).rsqrt().float()


def frozen(norm: Norm, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    return mean, (variance + norm.eps).rsqrt()


def rows_of(x: Tensor) -> Any:
    return x.detach().numpy()


def native_norm_gate(
    z: Tensor, shift: Tensor, gains: Tensor, norm: Norm, clamps: bool, level: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gated map and Σ |x| over each of its maps. z: (n, c, h, w); shift: (c,); gains: (n, c).

    With levels, norm and shift have a row for each; the images of a level lie side by side and are normalised
    among themselves.
    """
    return _NormGate.apply(z, shift, gains, norm, clamps, level)
