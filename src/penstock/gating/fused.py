"""The gated layer's arithmetic for training: the same numbers as the plain form, with fewer passes over memory.

On a CPU a training step is bound by memory, so each feature map that is written or allocated once less counts.
Enters: feature maps and gains of one layer; leaves: the gated, rectified map, or the summary, with gradients:

    z = relu(π · f)          ∂L/∂f = π · [z > 0] · ∂L/∂z        ∂L/∂π = Σ_hw z · ∂L/∂z / π
    s = Σ_hw |x|             ∂L/∂x = sgn(x) · ∂L/∂s

∂L/∂π comes from the output z itself (z = π · relu(f), for π ≥ 0), so that f need not be kept and is overwritten.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _GateRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, gains: Tensor) -> Tensor:
        gated = features.mul_(gains[:, :, None, None]).relu_()
        ctx.mark_dirty(features)
        ctx.save_for_backward(gated, gains)
        return gated

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        gated, gains = ctx.saved_tensors
        buffer = gradient * gated
        # A gain of 0 is a suppressed channel, or a relu at its corner: no gradient passes either.
        to_gains = torch.where(gains > 0, buffer.sum(dim=(2, 3)) / gains, 0.0)
        torch.ops.aten.threshold_backward.grad_input(gradient, gated, 0, grad_input=buffer)
        return buffer.mul_(gains[:, :, None, None]), to_gains


class _AbsoluteSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.abs().sum(dim=(2, 3))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return x.sgn().mul_(gradient[:, :, None, None])


def gate_relu(features: Tensor, gains: Tensor) -> Tensor:
    """relu(π · f), overwriting `features`. features: (n, c, h, w); gains: (n, c), none negative."""
    return _GateRelu.apply(features, gains)


def absolute_sum(x: Tensor) -> Tensor:
    """Σ |x| over each map, its gradient in one allocation. x: (n, c, h, w) → (n, c)."""
    return _AbsoluteSum.apply(x)
