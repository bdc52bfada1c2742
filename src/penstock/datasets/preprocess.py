"""From uint8 images to the network's float input; travels with the network, so nobody guesses a mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.errors import InputError

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Preprocess:
    """(image / 255 - mean) / std, channel by channel."""

    mean: tuple[float, ...] = CIFAR10_MEAN
    std: tuple[float, ...] = CIFAR10_STD

    def __call__(self, images: Tensor) -> Tensor:
        """images: uint8 (n, c, h, w) → float32 (n, c, h, w)."""
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != len(self.mean):
            raise InputError(
                f"preprocess takes uint8 images (n, {len(self.mean)}, h, w), "
                f"got {images.dtype} {tuple(images.shape)}"
            )
        mean = torch.tensor(self.mean, device=images.device).view(-1, 1, 1) * 255
        std = torch.tensor(self.std, device=images.device).view(-1, 1, 1) * 255
        return (images.float() - mean) / std
