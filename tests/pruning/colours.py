"""What tests of pruning train on: small images whose class is their colour, and a short recipe."""

from __future__ import annotations

import torch

from penstock.datasets import ImageArrays
from penstock.training import Recipe

RECIPE = Recipe(epochs=2, batch_size=16, learning_rate=0.02, threads=1)


def coloured(count: int = 48) -> ImageArrays:
    """Red, green and blue in turn."""
    labels = torch.arange(count) % 3
    draw = torch.Generator().manual_seed(count)
    images = torch.randint(0, 80, (count, 3, 12, 12), dtype=torch.uint8, generator=draw)
    images[torch.arange(count), labels] += 150
    return ImageArrays(images, labels, ("red", "green", "blue"))
