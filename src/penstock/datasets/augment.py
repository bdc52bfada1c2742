"""Augmentation of whole batches: uint8 images in, uint8 images out; all chance comes from one generator."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.errors import DataError


@dataclass(frozen=True)
class Augment:
    """What is done to a training image; the defaults leave it alone.

    colour: strength of random brightness, saturation and hue. size: the side it is scaled to at the end.
    smallest_area: of a photograph, the least share of its area that a random cut keeps.

    >>> images, places = torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.arange(2)
    >>> Augment(crop_padding=4, flip=True, size=24)(images, places, 0, torch.Generator()).shape
    torch.Size([2, 3, 24, 24])
    """

    crop_padding: int = 0
    flip: bool = False
    cutout: int = 0
    colour: float = 0.0
    size: int | None = None
    seed: int = 0
    smallest_area: float = 0.08

    def __call__(self, images: Tensor, indices: Tensor, epoch: int, draw: torch.Generator) -> Tensor:
        """images: uint8 (n, c, h, w); indices: (n,), their places in the data set."""
        images = random_crop(images, self.crop_padding, draw)
        if self.flip:
            images = alternate_flip(images, indices, epoch, self.seed)
        images = change_colour(images, self.colour, draw)
        images = cut_out(images, self.cutout, draw)
        return images if self.size is None else resize(images, self.size)


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


# Luma, and two axes of colour across it; I and Q span the plane in which hue is an angle.
_TO_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
_TO_RGB = torch.linalg.inv(_TO_YIQ)


def change_colour(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Brightness and saturation changed by up to ±`strength`, hue turned by up to ±`strength`·180°.

    The three are linear in RGB, so they are one 3×3 matrix an image. images: (n, 3, h, w).
    """
    if strength == 0:
        return images
    n, c, h, w = images.shape
    if c != 3:
        raise DataError(f"colour augmentation is for RGB images; these have {c} channels, so set colour to 0")
    brightness, saturation, turn = torch.rand((3, n), generator=generator).mul_(2).sub_(1).mul_(strength)
    cos, sin = (turn * math.pi).cos() * (1 + saturation), (turn * math.pi).sin() * (1 + saturation)
    zero, one = torch.zeros(n), torch.ones(n)
    rows = (one, zero, zero, zero, cos, -sin, zero, sin, cos)
    mix = _TO_RGB @ torch.stack(rows, dim=1).view(n, 3, 3) @ _TO_YIQ * (1 + brightness).view(n, 1, 1)
    changed = torch.bmm(mix, images.flatten(2).float())
    return changed.round_().clamp_(0, 255).to(images.dtype).view(n, c, h, w)


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
