"""Batch norm of a network without gates for training on a CPU, in two passes over memory each way.

    y = γ (z - μ) r + β = a z + b                  a = γ r,  b = β - μ a;  r = 1/sqrt(σ² + ε)
    ∂L/∂β = Σ g      ∂L/∂γ = Σ g x̂                 x̂ = (z - μ) r; sums over images and pixels
    ∂L/∂z = a g - r · mean(γ g) - r x̂ · mean(γ g x̂)

These are the numbers of torch's own batch norm, whose way back takes several times as long on maps that are
channels last. It is norm_gate.py's arithmetic with one gain for all images.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.training.native import channels_last, rows_of, trainer
from penstock.training.norm_gate import batch_statistics, through_statistics


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        gain: Tensor,
        shift: Tensor,
        running: tuple[Tensor, Tensor],
        momentum: float,
        eps: float,
    ) -> Tensor:
        z = z.contiguous(memory_format=torch.channels_last)
        mean, spread = batch_statistics(z, None, momentum, eps, *running)
        scale = _for_each_image(gain * spread, z)
        offset = _for_each_image(shift - mean * gain * spread, z)
        out = torch.empty_like(z, memory_format=torch.channels_last)
        trainer().norm_apply(
            channels_last(z),
            rows_of(scale),
            rows_of(offset),
            False,
            channels_last(out),
            rows_of(torch.empty_like(scale)),
        )
        ctx.save_for_backward(z, gain, mean, spread, scale, offset)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        z, gain, mean, spread, scale, offset = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        nothing = torch.zeros_like(scale)  # no gradient comes back through sums of the result
        given = (channels_last(z), channels_last(gradient), rows_of(scale), rows_of(offset), rows_of(nothing))
        total, product = torch.empty_like(scale), torch.empty_like(scale)
        trainer().norm_sums(*given, False, rows_of(total), rows_of(product))
        to_shift = total.sum(dim=0)
        to_gain = spread * (product.sum(dim=0) - mean * to_shift)
        values = z.numel() // z.shape[1]
        slope, constant = through_statistics(gain * to_shift, gain * to_gain, mean, spread, values)
        to_z = torch.empty_like(z, memory_format=torch.channels_last)
        trainer().norm_gradient(
            *given,
            False,
            rows_of(_for_each_image(slope, z)),
            rows_of(_for_each_image(constant, z)),
            channels_last(to_z),
        )
        return to_z, to_gain, to_shift, None, None, None


def _for_each_image(channels: Tensor, z: Tensor) -> Tensor:
    """(c,) → (n, c), one row for every image of z."""
    return channels.expand(len(z), -1).contiguous()


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.batch_norm, natively where it fits: in training, of float32 maps on the CPU."""
    if (
        running_mean is None
        or running_var is None
        or weight is None
        or bias is None
        or not (training and _fits(input, weight, bias, running_mean, running_var))
    ):
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    out: Tensor = _BatchNorm.apply(input, weight, bias, (running_mean, running_var), momentum, eps)
    return out


def _fits(x: Tensor, *channels: Tensor) -> bool:
    return (
        type(x) is Tensor
        and x.dim() == 4
        and x.numel() > x.shape[1] > 0
        and all(one.dtype == torch.float32 and one.device.type == "cpu" for one in (x, *channels))
        and all(len(one) == x.shape[1] for one in channels)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )
