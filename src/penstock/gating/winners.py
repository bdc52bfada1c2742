"""k-winners-take-all: saliencies in, the k largest by magnitude out, the rest zero.

The paper's eq. for π: ``π(x) = wta_k(g(x))`` with ``k = ⌈d·C⌉``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from penstock.errors import DensityError

# d·C can land a hair above an integer in floating point (0.55 · 100 = 55.00000000000001); such a hair
# must not buy one more channel.
_ROUNDING = 1e-9


def check_density(density: object, where: str = "density") -> float:
    """Return `density` as a float in ]0, 1], or say what was wrong with it."""
    try:
        # Numpy and torch scalars are numbers; truth values and text are not, though float() takes them.
        value = math.nan if isinstance(density, bool | str | bytes) else float(density)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        value = math.nan
    if not 0.0 < value <= 1.0:
        raise DensityError(
            f"{where}: expected a number in ]0, 1], got {density!r}; "
            "1.0 computes every channel, 0.5 the most salient half"
        )
    return value


def winner_count(density: float, channels: int) -> int:
    """k = ⌈d·C⌉, at least 1 and at most C.

    >>> winner_count(0.5, 5)
    3
    """
    return min(channels, max(1, math.ceil(density * channels - _ROUNDING * channels)))


def winner_mask(saliency: Tensor, count: Tensor | int) -> Tensor:
    """saliency: (batch, channel); count: k, an integer or a 0-dim integer tensor → bool (batch, channel).

    Exactly k entries a row are True: the largest magnitudes, ties to the lower index. k may be a tensor, so a
    compiled network serves every density without being compiled again.
    """
    order = torch.sort(saliency.detach().abs(), dim=1, descending=True, stable=True).indices
    places = torch.arange(saliency.shape[1], device=saliency.device)
    ranks = torch.empty_like(order).scatter_(1, order, places.expand_as(order))
    return ranks < count


def winners_take_all(saliency: Tensor, count: Tensor | int) -> Tensor:
    """The k largest magnitudes of each row kept, the rest zero; gradients flow through the kept ones only.

    >>> winners_take_all(torch.tensor([[1.0, -3.0, 2.0]]), 2)
    tensor([[ 0., -3.,  2.]])
    """
    return torch.where(winner_mask(saliency, count), saliency, torch.zeros_like(saliency))
