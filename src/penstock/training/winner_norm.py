"""Norm statistics over winners: the paper's layer with one change, for `Recipe(statistics="winners")`.

The paper normalises each channel by all images of the batch, those included in which the channel lost and is
multiplied by zero. Here a channel's mean and variance are those of the images in which it won,

    W_c = {n : π_c(x_n) ≠ 0}      μ_c, σ²_c: mean and variance of z_c over W_c and all pixels

and its running statistics move only if it won at least once. A loser's features are multiplied by zero as
before, so a step need not compute them at all: skipping.py does not, on a CPU, for 3×3 convolutions on maps
that are large enough; norm_gate.py has the same numbers in native code for other convolutions on a CPU. This
is the form for everything else, in plain PyTorch; the gradients are autograd's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from penstock.gating import GatedConv2d, LevelNorm2d


def boost_over_winners(layer: GatedConv2d, z: Tensor, gains: Tensor, level: Tensor | None) -> Tensor:
    """activation(π · (norm(z) + β)) in training. z: (batch, channel, height, width); gains: (batch, channel).

    level: the row of the norm and of β that serves all images, (), or each of them, (batch,).
    """
    norm = layer.norm
    won = gains.detach() != 0
    if isinstance(norm, LevelNorm2d):
        assert level is not None
        normed = torch.empty_like(z)
        for row in torch.unique(level).tolist():
            rows = torch.ones_like(won[:, 0]) if level.dim() == 0 else level == row
            running = (norm.running_mean[row], norm.running_var[row])
            normed[rows] = norm_over_winners(z[rows], won[rows], *running, norm.momentum, norm.eps)
        shift = layer.shift[level]
    else:
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        momentum = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
        normed = norm_over_winners(z, won, norm.running_mean, norm.running_var, momentum, norm.eps)
        shift = layer.shift
    return layer.activation(gains[:, :, None, None] * (normed + shift[..., None, None]))


def norm_over_winners(
    z: Tensor, won: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> Tensor:
    """(z - μ) / sqrt(σ² + ε) with μ and σ² over the images in which each channel won.

    z: (batch, channel, height, width); won: bool (batch, channel). The running statistics, (channel,), take
    their part of those of channels that won, in place; the variance they take is the unbiased one.
    """
    counted = won[:, :, None, None].to(z.dtype)
    count = won.sum(dim=0) * (z.shape[2] * z.shape[3])
    values = count.clamp_min(1).to(z.dtype)
    mean = (z * counted).sum(dim=(0, 2, 3)) / values
    centred = z - mean[:, None, None]
    variance = (centred.square() * counted).sum(dim=(0, 2, 3)) / values
    follow(running_mean, running_var, mean, variance, count > 0, values, momentum)
    return centred * (variance + eps).rsqrt()[:, None, None]


@torch.no_grad()
def follow(
    running_mean: Tensor,
    running_var: Tensor,
    mean: Tensor,
    variance: Tensor,
    won: Tensor,
    values: Tensor,
    momentum: float,
) -> None:
    """Move the running statistics of the channels that won, in place; all (channel,).

    values: how many each channel's mean and variance were taken over.
    """
    unbiased = variance * (values / (values - 1).clamp_min(1))
    for running, found in ((running_mean, mean), (running_var, unbiased)):
        running.copy_(torch.where(won, running.lerp(found.to(running), momentum), running))


def takes_winners(layer: GatedConv2d) -> bool:
    """Whether a layer's norm follows the batch now, so that its statistics can be taken over winners."""
    norm = layer.norm
    tracked = isinstance(norm, LevelNorm2d) or (
        isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None
    )
    return layer.training and norm.training and tracked
