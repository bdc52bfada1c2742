"""Networks and images whose every answer follows from their construction."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from penstock.datasets import ImageArrays
from penstock.gating import GatedConv2d


def halves(images: Tensor) -> Tensor:
    """Preprocessing without a mean: 0 stays 0, so a dark image has summary 0."""
    return images.float() / 255


class TwoLayers(nn.Module):
    """Two gated 1×1 convolutions; the first is the identity on its three colour channels, at density 1.

    The second has four outputs and density 1/2, and its saliencies are ss·φ + ρ with ss the mean brightness
    of red, green and blue. With the images of `coloured` a red image therefore computes {0, 3}, a green one
    {1, 3}, a blue one {0, 1}: channel 2 is never used.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = GatedConv2d(nn.Conv2d(3, 3, 1, bias=False), activation=nn.ReLU())
        self.second = GatedConv2d(nn.Conv2d(3, 4, 1, bias=False), activation=nn.ReLU(), density=0.5)
        self.preprocess = halves
        with torch.no_grad():
            self.first.conv.weight.copy_(torch.eye(3)[:, :, None, None])
            self.first.gate.weight.zero_()
            self.first.gate.bias.fill_(1.0)
            self.second.conv.weight.fill_(1.0)
            #                                           channel  0    1    2    3
            self.second.gate.weight.copy_(
                torch.tensor([[2.0, 0.0, 0.1, 1.0], [0.0, 2.0, 0.1, 1.0], [2.0, 2.0, 0.1, 0.0]])
            )
            self.second.gate.bias.fill_(0.05)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.second(self.first(x))
        return features.mean(dim=(2, 3))


SKIPPED = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0], [0, 0, 1, 1]])
"""(class, channel): what the second layer skips for a red, a green and a blue image."""


def coloured(each: int = 4, size: int = 6) -> ImageArrays:
    """`each` plain red, green and blue images, the i-th of a colour with brightness 255 - 10·i."""
    images = torch.zeros(3 * each, 3, size, size, dtype=torch.uint8)
    labels = torch.arange(3).repeat(each)
    for place, label in enumerate(labels.tolist()):
        images[place, label] = 255 - 10 * (place // 3)
    return ImageArrays(images, labels, ("red", "green", "blue"), "coloured")
