"""Channel summaries: a feature map in, one number a channel out.

The paper's eq. for ss: ``ss(x) = 1/(H·W) · [s(x¹), s(x²), …]`` with s one of the ℓ1, ℓ2 and ℓ∞ norms or the
variance. The factor 1/(H·W) stands in front of every one of them, the maximum and the variance included.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _l1(x: Tensor) -> Tensor:
    return x.abs().sum(dim=(2, 3))


def _l2(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=(2, 3))


def _linf(x: Tensor) -> Tensor:
    return x.abs().amax(dim=(2, 3))


def _variance(x: Tensor) -> Tensor:
    return x.var(dim=(2, 3), correction=0)


SUMMARIES: dict[str, Callable[[Tensor], Tensor]] = {
    "l1": _l1,
    "l2": _l2,
    "linf": _linf,
    "variance": _variance,
}


def summarise(x: Tensor, summary: str = "l1") -> Tensor:
    """x: (batch, channel, height, width) → (batch, channel).

    >>> summarise(torch.tensor([[[[1.0, -3.0]]]]), "l1")
    tensor([[2.]])
    """
    if summary not in SUMMARIES:
        raise ValueError(f"unknown summary {summary!r}; expected one of {', '.join(SUMMARIES)}")
    return SUMMARIES[summary](x) / (x.shape[2] * x.shape[3])
