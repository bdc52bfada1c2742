"""Blended images: every image of a batch with another one, and the loss alike (Zhang et al., ICLR 2018).

    x = λ·x_i + (1 − λ)·x_j
    loss = λ·L(x, y_i) + (1 − λ)·L(x, y_j)         λ ~ Beta(mixup, mixup), one a step

Pixels are blended as bytes, before normalisation, so that a teacher sees the same images.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def draw_share(mixup: float, seed: int, epoch: int, step: int) -> float:
    """λ of a step, from 0.5 to 1: below one half the other image would count as the image itself."""
    if mixup == 0.0:
        return 1.0
    share = float(np.random.default_rng((seed, epoch, step)).beta(mixup, mixup))
    return max(share, 1.0 - share)


def partners(of_batch: Tensor) -> Tensor:
    """What each image is blended with: the one at its place from the batch's end."""
    return of_batch.flip(0)


def blend(pixels: Tensor, share: float) -> Tensor:
    """`share` of each image and the rest of its partner. pixels: (n, 3, h, w) uint8 → the same."""
    if share == 1.0:
        return pixels
    return torch.lerp(partners(pixels).float(), pixels.float(), share).round_().to(torch.uint8)
