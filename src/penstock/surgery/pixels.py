"""Convolutions that need not compute every pixel: what the rooms behind surgery may know of such a layer.

fixed    V(p) = conv(x)(p) for the pixels of a mask; V(q) = V(nearest p) for all others
decided  V(p) = m(p) · conv(x)(p), m = relu(cheap(x)); where m = 0 nothing is computed
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class FixedPixels:
    """mask: bool (height, width), what is computed; nearest: (height · width,), whose value a pixel has."""

    mask: Tensor
    nearest: Tensor


@dataclass(frozen=True)
class DecidingMap:
    """m = relu(a convolution of `weight`, (1, in channel, k, k), and `bias`, (1,), moved as `conv` is)."""

    conv: nn.Conv2d
    weight: Tensor
    bias: Tensor


class PixelConv(nn.Module):
    """A convolution that does not compute everything. conv: what it computes."""

    conv: nn.Conv2d

    def skipped(self) -> FixedPixels | DecidingMap | None:
        """Which pixels it computes in eval mode; None if that cannot be said pixel by pixel."""
        return None
