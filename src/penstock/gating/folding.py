"""A gated layer's norm folded into its weights, for those who run it: norm and β cost nothing then.

With norm(y) = (y − μ)/σ a gated convolution is activation(π · (conv(x, θ/σ) + β − μ/σ)). With levels, θ
takes the last one's σ; for another, l, π · (θx/σ_l + b_l) = π σ/σ_l · (θx/σ + b_l σ_l/σ): other gains and
biases.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from penstock.errors import LayerError
from penstock.gating.layer import GatedConv2d
from penstock.gating.levels import LevelNorm2d


@dataclass(frozen=True)
class Folded:
    """activation(π · gain[l] · (conv(x, weight) + bias[l])), in double precision.

    weight: as the convolution's; bias, gain: (level, out), one row without levels, whose gain is 1.
    """

    weight: Tensor
    bias: Tensor
    gain: Tensor


def scale_and_shift(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """A batch norm in eval mode as scale · x + shift, in double precision; (level, channel) with levels."""
    if not isinstance(norm, _BatchNorm | LevelNorm2d):
        raise LayerError(f"its norm is a {type(norm).__name__}, expected a batch norm")
    if norm.running_mean is None or norm.running_var is None:
        raise LayerError(
            f"its {type(norm).__name__} has no running statistics, so it follows the batch; "
            "track_running_stats=True is needed"
        )
    scale = (norm.running_var.detach().double() + norm.eps).rsqrt()
    weight, bias = (None, None) if isinstance(norm, LevelNorm2d) else (norm.weight, norm.bias)
    if weight is not None:
        scale = scale * weight.detach().double()
    shift = -norm.running_mean.detach().double() * scale
    return scale, shift if bias is None else shift + bias.detach().double()


def fold_norm(layer: GatedConv2d) -> Folded:
    """The layer in eval mode, without its norm."""
    weight, shift = layer.conv.weight.detach().double(), layer.shift.detach().double()
    shift = shift if layer.levels else shift[None]
    if isinstance(layer.norm, nn.Identity):
        return Folded(weight, shift, torch.ones_like(shift))
    inverse, offset = (values.expand_as(shift) for values in scale_and_shift(layer.norm))
    bias = shift + offset
    last = inverse[-1]
    return Folded(weight * last[:, None, None, None], bias * last / inverse, inverse / last)
