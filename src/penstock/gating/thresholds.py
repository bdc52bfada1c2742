"""Thresholds: a gate that keeps the channels above a number instead of exactly k, so that images differ in
cost.

    π(x) = wta_k(g(x) · [g(x) > τ]),  k = ⌈cap · C⌉      the mean number of winners over images is d·C

τ is one number for a layer and the cap bounds what the worst image may cost. The mean number of winners falls
as τ rises; of n images it is d·C where n·d·C of the saliencies that the cap lets through lie above τ, so that
τ is the next largest of those:

    τ = the (n·d·C + 1)-th largest of the k largest saliencies of each image
"""

from __future__ import annotations

import torch
from torch import Tensor


def fit_threshold(saliency: Tensor, mean: float, most: int) -> Tensor:
    """τ, a 0-dim tensor, with which the images have `mean` winners on average and `most` at most.

    saliency: g of many images, (image, channel). Where fewer saliencies are above zero than that, τ is 0.

    >>> fit_threshold(torch.tensor([[4.0, 3.0, 2.0], [1.0, 0.5, 0.0]]), mean=1.5, most=2)
    tensor(0.5000)
    """
    images, channels = saliency.shape
    kept = saliency.detach().topk(min(most, channels), dim=1, sorted=False).values.flatten()
    wanted = round(mean * images)
    if wanted >= len(kept):
        return torch.zeros((), dtype=saliency.dtype, device=saliency.device)
    return kept.kthvalue(len(kept) - wanted).values.clamp_min(0)
