"""k-winners-take-all: saliencies in, the k largest by magnitude out, the rest zero.

The paper's eq. for π: ``π(x) = wta_k(g(x))`` with ``k = ⌈d·C⌉``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from penstock_runtime.densities import check_density

__all__ = ["check_density", "winner_count", "winner_mask", "winners_take_all"]

# d·C can land a hair above an integer in floating point (0.55 · 100 = 55.00000000000001); such a hair
# must not buy one more channel.
_ROUNDING = 1e-9


def winner_count(density: float, channels: int) -> int:
    """k = ⌈d·C⌉, at least 1 and at most C.

    >>> winner_count(0.5, 5)
    3
    """
    return min(channels, max(1, math.ceil(density * channels - _ROUNDING * channels)))


def winner_mask(saliency: Tensor, count: Tensor | int, threshold: Tensor | None = None) -> Tensor:
    """saliency: (batch, channel); count: k, an integer or a 0-dim integer tensor → bool (batch, channel).

    Exactly k entries a row are True: the largest magnitudes, ties to the lower index; with a threshold, only
    those of them that lie above it. k may be a tensor, so a compiled network serves every density without
    being compiled again.
    """
    order = torch.sort(saliency.detach().abs(), dim=1, descending=True, stable=True).indices
    places = torch.arange(saliency.shape[1], device=saliency.device)
    ranks = torch.empty_like(order).scatter_(1, order, places.expand_as(order))
    won = ranks < count
    return won if threshold is None else won & (saliency.detach().abs() > threshold)


def winners_take_all(
    saliency: Tensor, count: Tensor | int, choice: Tensor | None = None, threshold: Tensor | None = None
) -> Tensor:
    """The k largest magnitudes of each row kept, the rest zero; gradients flow through the kept ones only.

    With `choice`, which stands as `saliency` does, its k largest magnitudes say which entries are kept. With
    a `threshold`, only those above it are.

    >>> winners_take_all(torch.tensor([[1.0, -3.0, 2.0]]), 2)
    tensor([[ 0., -3.,  2.]])
    """
    mask = winner_mask(saliency if choice is None else choice, count, threshold)
    return torch.where(mask, saliency, torch.zeros_like(saliency))
