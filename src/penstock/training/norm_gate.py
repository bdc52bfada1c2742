"""The gated layer's norm, gate and ReLU for training on a CPU, in two passes over memory each way.

    f = (z - μ) · r + β,  o = relu(π · f) = relu(a · z + b)      a = π r,  b = π (β - μ r)
    s = Σ_hw |o|                                                  what the next gate summarises, for nothing

With h the gradient that comes back through o and s (nothing where o was clamped):

    ∂L/∂π = r (Σ_hw h z - μ Σ_hw h) + β Σ_hw h      ∂L/∂β = Σ_n π Σ_hw h
    ∂L/∂z = a h - r · mean(π h) - r x̂ · mean(π h x̂)   the means over the batch; with frozen norms only a h
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from penstock.training.native import channels_last, trainer


class _NormGate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, shift: Tensor, gains: Tensor, norm: nn.BatchNorm2d, clamps: bool
    ) -> tuple[Tensor, Tensor]:
        z = z.contiguous(memory_format=torch.channels_last)
        mean, spread = _batch_statistics(z, norm) if norm.training else _running_statistics(norm)
        scale = gains * spread
        offset = gains * (shift - mean * spread)
        out = torch.empty_like(z, memory_format=torch.channels_last)
        sums = torch.empty_like(gains)
        trainer().norm_apply(
            channels_last(z), _rows(scale), _rows(offset), clamps, channels_last(out), _rows(sums)
        )
        ctx.save_for_backward(z, shift, gains, mean, spread, scale, offset)
        ctx.clamps, ctx.training = clamps, norm.training
        return out, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, of_sums: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        z, shift, gains, mean, spread, scale, offset = ctx.saved_tensors
        count = z.shape[0] * z.shape[2] * z.shape[3]
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        given = (channels_last(z), channels_last(gradient), _rows(scale), _rows(offset))
        extra = _rows(of_sums.contiguous())
        total, product = torch.empty_like(gains), torch.empty_like(gains)
        trainer().norm_sums(*given, extra, ctx.clamps, _rows(total), _rows(product))
        centred = spread * (product - mean * total)  # Σ h x̂, image by image
        to_gains = centred + shift * total
        to_shift = (gains * total).sum(dim=0)
        slope, level = torch.zeros_like(mean), torch.zeros_like(mean)
        if ctx.training:
            slope = -spread.square() * (gains * centred).sum(dim=0) / count
            level = -spread * to_shift / count - slope * mean
        to_z = torch.empty_like(z, memory_format=torch.channels_last)
        trainer().norm_gradient(*given, extra, ctx.clamps, _rows(slope), _rows(level), channels_last(to_z))
        return to_z, to_shift, to_gains, None, None


def _batch_statistics(z: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """μ and r of the batch, (c,) each; the norm's running statistics take their part of them."""
    n, c, h, w = z.shape
    count = n * h * w
    if count == 1:
        raise ValueError("a norm needs more than one value a channel to train on")
    sums, squares = z.new_empty(n, c), z.new_empty(n, c)
    pivot = z[0, :, 0, 0].clone()  # near the values, so that squares do not cancel
    trainer().norm_moments(channels_last(z), _rows(pivot), _rows(sums), _rows(squares))
    centre = sums.sum(dim=0, dtype=torch.float64) / count
    variance = (squares.sum(dim=0, dtype=torch.float64) / count - centre.square()).clamp_min_(0)
    mean = (pivot + centre).float()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.momentum is not None
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_((variance * (count / (count - 1))).float(), norm.momentum)
    return mean, (variance + norm.eps).rsqrt().float()


def _running_statistics(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean.clone(), (norm.running_var + norm.eps).rsqrt()


def _rows(x: Tensor) -> Any:
    return x.detach().numpy()


def native_norm_gate(
    z: Tensor, shift: Tensor, gains: Tensor, norm: nn.BatchNorm2d, clamps: bool
) -> tuple[Tensor, Tensor]:
    """The gated map and Σ |x| over each of its maps. z: (n, c, h, w); shift: (c,); gains: (n, c)."""
    return _NormGate.apply(z, shift, gains, norm, clamps)
