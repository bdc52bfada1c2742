"""Augmentation of whole batches on tensors: uint8 images in, uint8 images out; all chance from one generator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def random_crop(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Reflect-pad by `padding` and cut each image back to size at its own place. images: (n, c, h, w)."""
    if padding == 0:
        return images
    n, c, h, w = images.shape
    padded = F.pad(images.float(), (padding,) * 4, mode="reflect").to(images.dtype)
    top = torch.randint(0, 2 * padding + 1, (n, 1, 1, 1), generator=generator)
    left = torch.randint(0, 2 * padding + 1, (n, 1, 1, 1), generator=generator)
    rows = (top + torch.arange(h).view(1, 1, h, 1)).expand(n, c, h, w + 2 * padding)
    columns = (left + torch.arange(w).view(1, 1, 1, w)).expand(n, c, h, w)
    return padded.gather(2, rows).gather(3, columns)


def alternate_flip(images: Tensor, indices: Tensor, epoch: int, seed: int) -> Tensor:
    """Mirror each image in every second epoch, in the odd or the even ones by a hash of its index.

    Against a coin toss an image is never seen the same way round in two epochs running, which is worth
    about an epoch in short runs. indices: (n,), the images' places in the data set.
    """
    parity = ((indices * 2654435761 + seed * 40503) >> 15) & 1
    mirrored = ((parity + epoch) & 1).bool().view(-1, 1, 1, 1)
    return torch.where(mirrored, images.flip(3), images)


def cut_out(images: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Grey out one square of `size` pixels an image, its centre anywhere in the image."""
    if size == 0:
        return images
    n, _, h, w = images.shape
    y = torch.randint(0, h, (n, 1, 1, 1), generator=generator)
    x = torch.randint(0, w, (n, 1, 1, 1), generator=generator)
    inside_y = (torch.arange(h).view(1, 1, h, 1) - y + size // 2).clamp(-1, size)
    inside_x = (torch.arange(w).view(1, 1, 1, w) - x + size // 2).clamp(-1, size)
    inside = (inside_y >= 0) & (inside_y < size) & (inside_x >= 0) & (inside_x < size)
    return images.masked_fill(inside, 128)


def resize(images: Tensor, size: int) -> Tensor:
    """Scale to size × size with antialiasing, staying uint8. images: (n, c, h, w)."""
    if images.shape[2] == size and images.shape[3] == size:
        return images
    scaled = F.interpolate(images.float(), (size, size), mode="bilinear", antialias=True, align_corners=False)
    return scaled.round_().clamp_(0, 255).to(torch.uint8)
